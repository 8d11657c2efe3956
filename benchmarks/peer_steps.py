"""The training steps that `peers.py` and `peers_gpu.py` compare: of this library and of transformers, at equal sizes.

Each measurement is a process of its own, which has the memory of the machine to itself: `Script.measure` starts it, and
`Script.answer` runs in it. Random tokens fill all rows, there is no dropout, and the optimizer is AdamW. BERT of this
library predicts `targets` of its tokens, as do the encoders like it; transformers computes the logits of all of them.
XLNet predicts as many targets in both libraries, without a memory. DeBERTa has no mask decoder, as in transformers. An
LSTM language model, which transformers does not have, is made of torch's layers.
"""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from peer_models import Sizes, our_model, their_model

LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.01
OURS, OURS_XLA = "t5x_like", "t5x_like, XLA attention"
EAGER, COMPILED = "transformers", "transformers, compiled"
LORA_RANK, LORA_ALPHA = 8, 16
SECONDS_OF_A_MEASUREMENT = 1800


@dataclasses.dataclass(frozen=True)
class Step:
    """A compiled training step.

    Attributes:
      seconds: Makes a step and returns its time.
      multiply: `multiply(left, right)` prepares a product of two numpy arrays and returns a function that computes it.
      about: What the library knows about the step, in JSON types.
    """

    seconds: Callable[[], float]
    multiply: Callable[[Any, Any], Callable[[], Any]]
    about: Mapping[str, Any]


# ---- this library ----------------------------------------------------------------------------------------------------


def make_ours(sizes: Sizes, *, attention: str, lora: bool = False) -> Step:
    """Returns the step of this library on the first device.

    Args:
      sizes: Sizes.
      attention: See `Partitioner`.
      lora: Whether updates of rank 8 of the queries and values train alone.

    Returns:
      The step. `about` has the model FLOPs of a step, its matrix products as lists of batch, rows, inner size, columns
      and number, the name of the device, and its peak in bfloat16 if it is known.
    """
    import jax
    import jax.numpy as jnp

    from t5x_like.benchmarking import matrix_products, parts, synthetic, timing
    from t5x_like.metrics import throughput
    from t5x_like.training.program import make_program

    device = jax.devices()[0]
    recipe = our_recipe(sizes, device, attention=attention, lora=lora)
    program = make_program(recipe)
    batch = synthetic.make_batch(recipe.objective.features, program.batch_shapes, sizes.vocabulary)
    running = parts.RunningStep(program, 0, program.partitioner.put_batch(batch, program.batch_axes))
    counted = matrix_products.count_products(running.jaxpr)
    about = {
        "flops": program.flops,
        "products": [[each.batch, each.rows, each.inner, each.columns, count] for each, count in counted.items()],
        "device": device.device_kind,
        "peak_flops": throughput.peak_flops(device.device_kind),
    }

    def multiply(left, right):
        left, right, product = jnp.asarray(left), jnp.asarray(right), jax.jit(jnp.matmul)
        return lambda: jax.block_until_ready(product(left, right))

    return Step(lambda: timing.time_call(running), multiply, about)


def our_recipe(sizes: Sizes, device: Any, *, attention: str, lora: bool = False) -> Any:
    """Returns the recipe of the step of this library on a device; see `make_ours`."""
    from t5x_like import optimizers
    from t5x_like.adapters.lora import LoRA
    from t5x_like.partitioning import Partitioner
    from t5x_like.training.recipe import Periods, Recipe

    config, objective = our_model(sizes)
    groups = ()
    if lora:
        config = dataclasses.replace(config, adapters=(LoRA(rank=LORA_RANK, alpha=LORA_ALPHA),))
        groups = (optimizers.ParameterGroup("^(?!.*/adapter/)", freeze=True),)
    return Recipe(
        model=config,
        objective=objective,
        optimizer=optimizers.adamw(learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY, groups=groups),
        data=_Shapes(sizes),
        periods=Periods(total=1),
        partitioner=Partitioner(devices=[device], attention=attention),
    )


@dataclasses.dataclass(frozen=True)
class _Shapes:
    """A data source that only has the shapes of its batches."""

    sizes: Sizes

    def batch_shapes(self, spec):
        targets = self.sizes.targets or self.sizes.inputs
        lengths = {"inputs": self.sizes.inputs, "targets": targets}
        return {name: (self.sizes.rows, *shape) for name, shape in spec.row_shapes(lengths).items()}


# ---- transformers ----------------------------------------------------------------------------------------------------


def make_theirs(sizes: Sizes, *, compiled: bool, bfloat16: bool, lora: bool = False) -> Step:
    """Returns the step of transformers on the first GPU, or on the CPU without one.

    Args:
      sizes: Sizes.
      compiled: Whether `torch.compile` compiles the model.
      bfloat16: Whether computations are in bfloat16, by autocast, and those that stay in float32 use TF32.
      lora: Whether peft's updates of rank 8 of the queries and values train alone.

    Returns:
      The step.
    """
    import torch

    torch.manual_seed(0)
    # As XLA does. With the initial parameters of transformers, most probabilities of T5 are denormal numbers, with
    # which products on an Intel CPU take ten times as long. Threads inherit the setting, so it precedes them.
    torch.set_flush_denormal(True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high" if bfloat16 else "highest")
    network, batch = their_model(sizes)
    if lora:
        import peft

        network = peft.get_peft_model(network, peft.LoraConfig(r=LORA_RANK, lora_alpha=LORA_ALPHA))
    network = network.to(device).train()
    batch = {name: values.to(device) for name, values in batch.items()}
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    called = torch.compile(network) if compiled else network

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=bfloat16):
            loss = called(**batch).loss
        loss.backward()
        optimizer.step()

    def seconds():
        started = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    def multiply(left, right):
        left, right = torch.from_numpy(left), torch.from_numpy(right)
        return lambda: torch.matmul(left, right)

    return Step(seconds, multiply, {})


# ---- processes -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Script:
    """A benchmark that measures each library in a process of its own: the script itself, with `--worker`.

    Attributes:
      path: Path of the script.
      measure_here: `measure_here(library, sizes, **request)` measures in the current process and returns JSON types.
    """

    path: str
    measure_here: Callable[..., dict[str, Any]]

    def measure(
        self, library: str, sizes: Sizes, *, python: str = sys.executable, **request: Any
    ) -> dict[str, Any] | None:
        """Calls `measure_here` in a new process. Its logs and errors are on the standard error.

        Args:
          library: Name of the library.
          sizes: Sizes of the model.
          python: The Python that runs the process.
          **request: Further arguments of `measure_here`, in JSON types.

        Returns:
          The result, or None if the process fails, such as without a C++ compiler or without enough memory.
        """
        asked = {"library": library, "sizes": dataclasses.asdict(sizes), **request}
        try:
            done = subprocess.run(
                [python, self.path, "--worker", json.dumps(asked)], stdout=subprocess.PIPE, text=True,
                env=os.environ | {"USE_TF": "0"}, timeout=SECONDS_OF_A_MEASUREMENT,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            print(f"{library}: {error}", file=sys.stderr)
            return None
        if done.returncode:
            print(f"{library}: the process has failed with exit code {done.returncode}", file=sys.stderr)
            return None
        return json.loads(done.stdout.splitlines()[-1])

    def answer(self, worker: str) -> None:
        """Prints the result of a request in a process that `measure` has started.

        Args:
          worker: The value of `--worker`.
        """
        request = json.loads(worker)
        library, sizes = request.pop("library"), Sizes(**request.pop("sizes"))
        if library in (OURS, OURS_XLA):
            from t5x_like.runtime import malloc

            malloc.restart_with_tunables()  # as the commands of t5x_like do
        print(json.dumps(self.measure_here(library, sizes, **request)))


def versions() -> str:
    """Returns the versions of the libraries."""
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("jax", "torch", "transformers"))


def table(columns: list[str], lines: list[str]) -> str:
    """Returns a table in Markdown."""
    return "\n".join([f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), *lines])
