"""Compares the training step of three models on CPU with that of transformers, eager and compiled.

python benchmarks/peers.py
python benchmarks/peers.py --write docs/performance.md

The models have equal sizes, float32, no dropout, and AdamW: T5 1.1 small, a decoder like GPT-2, and an encoder like
BERT. Each library runs in a process of its own. They take their steps in turn, so that other work on the machine slows
down all of them. Compilation and warm-up are not part of the time. The floor is the time of the model's FLOPs at the
rate of the step's matrix products, each measured alone by both libraries; the faster one counts.

Random tokens fill all rows. BERT predicts 77 of 512 tokens; transformers computes the logits of all of them.
`--write` replaces the table of this machine in a page, or adds it. The full comparison takes about 10 minutes on 2
cores, `--sizes tiny` less than two.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

WARMUP_STEPS = 2
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.01
OURS, EAGER, COMPILED = "t5x_like", "transformers", "transformers, compiled"
LIBRARIES = (OURS, EAGER, COMPILED)
MODELS = {"t5": "T5 1.1 small", "gpt": "like GPT-2", "bert": "like BERT"}
# Seconds for the measurement of each size of product.
PRODUCT_SECONDS = 0.3
MARK = "<!-- peers: {} -->"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the three models.

    Attributes:
      rows: Rows of a batch.
      inputs: Tokens of a row.
      targets: Tokens of T5's targets.
      predictions: Masked tokens of BERT.
      width: Width of the layers.
      mlp: Width inside T5's gated feed-forward blocks; GPT's and BERT's are 4 times the width.
      heads: Attention heads of GPT and BERT.
      t5_heads: Attention heads of T5.
      layers: Layers of GPT and BERT.
      t5_layers: Layers of T5's encoder, and of its decoder.
    """

    rows: int = 8
    inputs: int = 512
    targets: int = 114
    predictions: int = 77
    width: int = 512
    mlp: int = 1024
    heads: int = 8
    t5_heads: int = 6
    layers: int = 6
    t5_layers: int = 8


SIZES = {
    "full": Sizes(),
    "tiny": Sizes(2, 32, 16, 5, 64, 128, 1, 1, 1, 1),
}
VOCABULARY = {"t5": 32128, "gpt": 50257, "bert": 30522}

# ---- this library ----------------------------------------------------------------------------------------------------


def make_ours(model: str, sizes: Sizes) -> dict[str, Callable[..., Any]]:
    """Returns what a worker of this library can do."""
    import jax
    import jax.numpy as jnp

    from t5x_like import optimizers
    from t5x_like.benchmarking import matrix_products, parts, synthetic, timing
    from t5x_like.training.program import make_program

    config, objective = _our_model(model, sizes)
    program = make_program(
        model=config,
        objective=objective,
        optimizer=optimizers.adamw(learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY),
        data=_Shapes(sizes),
    )
    batch = synthetic.make_batch(objective.features, program.batch_shapes, config.vocab_size)
    running = parts.RunningStep(program, 0, program.partitioner.put_batch(batch, program.batch_axes))

    def describe():
        counted = matrix_products.count_products(running.jaxpr)
        products = [[each.batch, each.rows, each.inner, each.columns, count] for each, count in counted.items()]
        return {"flops": program.flops, "products": products}

    def multiply(batch, rows, inner, columns):
        left, right = _operands(batch, rows, inner, columns)
        left, right, product = jnp.asarray(left), jnp.asarray(right), jax.jit(jnp.matmul)
        return lambda: jax.block_until_ready(product(left, right))

    return {"step": lambda: timing.time_call(running), "describe": describe, "rate": _rate_of(multiply)}


@dataclasses.dataclass(frozen=True)
class _Shapes:
    """A data source that only has the shapes of its batches."""

    sizes: Sizes

    def batch_shapes(self, spec):
        if "masked_positions" in spec.task_features:
            targets = self.sizes.predictions
        else:
            targets = self.sizes.targets if "inputs" in spec.task_features else self.sizes.inputs
        lengths = {"inputs": self.sizes.inputs, "targets": targets}
        return {name: (self.sizes.rows, *shape) for name, shape in spec.row_shapes(lengths).items()}


def _our_model(model: str, sizes: Sizes) -> tuple[Any, Any]:
    from t5x_like.models.bert import BertConfig
    from t5x_like.models.gpt import GPTConfig
    from t5x_like.models.t5 import T5Config
    from t5x_like.objectives.causal_lm import CausalLM
    from t5x_like.objectives.masked_lm import MaskedLM
    from t5x_like.objectives.sequence_to_sequence import SequenceToSequence

    if model == "t5":
        t5 = T5Config(
            embed_dim=sizes.width,
            mlp_dim=sizes.mlp,
            num_heads=sizes.t5_heads,
            encoder_layers=sizes.t5_layers,
            decoder_layers=sizes.t5_layers,
            dropout_rate=0.0,
        )
        return t5, SequenceToSequence()
    shared = {
        "embed_dim": sizes.width,
        "mlp_dim": 4 * sizes.width,
        "num_heads": sizes.heads,
        "num_layers": sizes.layers,
        "dropout_rate": 0.0,
        "attention_dropout_rate": 0.0,
    }
    return (GPTConfig(**shared), CausalLM()) if model == "gpt" else (BertConfig(**shared), MaskedLM())


# ---- transformers ----------------------------------------------------------------------------------------------------


def make_theirs(model: str, sizes: Sizes, *, compiled: bool) -> dict[str, Callable[..., Any]]:
    """Returns what a worker of transformers can do."""
    import torch

    torch.manual_seed(0)
    network, batch = _their_model(model, sizes)
    optimizer = torch.optim.AdamW(network.train().parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    called = torch.compile(network) if compiled else network

    def step():
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        called(**batch).loss.backward()
        optimizer.step()
        return time.perf_counter() - started

    def multiply(*size):
        left, right = map(torch.from_numpy, _operands(*size))
        return lambda: torch.matmul(left, right)

    return {"step": step, "rate": _rate_of(multiply)}


def _their_model(model: str, sizes: Sizes) -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    def tokens(length):
        return torch.randint(2, VOCABULARY[model], (sizes.rows, length))

    if model == "t5":
        t5 = transformers.T5Config(
            vocab_size=VOCABULARY[model], d_model=sizes.width, d_kv=64, d_ff=sizes.mlp, num_layers=sizes.t5_layers,
            num_heads=sizes.t5_heads, decoder_start_token_id=0, feed_forward_proj="gated-gelu", dropout_rate=0.0,
            tie_word_embeddings=False, use_cache=False,
        )  # fmt: skip
        batch = {"input_ids": tokens(sizes.inputs), "labels": tokens(sizes.targets)}
        return transformers.T5ForConditionalGeneration(t5), batch
    inputs = tokens(sizes.inputs)
    if model == "gpt":
        gpt = transformers.GPT2Config(
            n_embd=sizes.width, n_layer=sizes.layers, n_head=sizes.heads, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, use_cache=False,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(gpt), {"input_ids": inputs, "labels": inputs}
    bert = transformers.BertConfig(
        hidden_size=sizes.width, num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads,
        intermediate_size=4 * sizes.width, hidden_act="gelu_new", hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    masked = torch.arange(sizes.inputs) < sizes.predictions
    return transformers.BertForMaskedLM(bert), {"input_ids": inputs, "labels": inputs.where(masked, -100)}


# ---- matrix products -------------------------------------------------------------------------------------------------


def _operands(batch: int, rows: int, inner: int, columns: int) -> list[Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    shapes = (batch, rows, inner), (batch, inner, columns)
    return [rng.standard_normal(shape if batch > 1 else shape[1:], np.float32) for shape in shapes]


def _rate_of(make_product: Callable[..., Callable[[], Any]]) -> Callable[..., float]:
    """Returns a function that measures the shortest time of a product in seconds."""

    def shortest(*size: int) -> float:
        product = make_product(*size)
        product()
        seconds, end = [], time.perf_counter() + PRODUCT_SECONDS
        while not seconds or time.perf_counter() < end:
            started = time.perf_counter()
            product()
            seconds.append(time.perf_counter() - started)
        return min(seconds)

    return shortest


def floor_seconds(described: Mapping[str, Any], workers: Mapping[str, "Worker"]) -> float:
    """Returns the time of the model's FLOPs at the rate of the step's products, in the fastest worker of each.

    Products are measured from the largest share of the FLOPs to the smallest, until they have 98 % of them.
    """

    def flops(product):
        return 2.0 * product[0] * product[1] * product[2] * product[3] * product[4]

    products = sorted(described["products"], key=flops, reverse=True)
    total, covered, seconds = sum(map(flops, products)), 0.0, 0.0
    for *size, count in products:
        if covered < 0.98 * total:
            seconds += count * min(worker.ask("rate", *size) for worker in workers.values())
            covered += flops([*size, count])
    return described["flops"] * seconds / covered


# ---- workers ---------------------------------------------------------------------------------------------------------


class WorkerFailed(Exception):
    """A worker has ended."""


class Worker:
    """A process with the model of a library, which answers one request at a time."""

    def __init__(self, library: str, model: str, sizes: str):
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", library, model, "--sizes", sizes],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"USE_TF": "0"},
        )  # fmt: skip

    def ask(self, name: str, *arguments: Any) -> Any:
        """Returns the answer to a request.

        Raises:
          WorkerFailed: The process has ended. Its error is on the standard error.
        """
        self._process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"the worker has failed with exit code {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()


def work(library: str, model: str, sizes: Sizes) -> None:
    """Answers the requests on the standard input."""
    if library == OURS:
        from t5x_like.runtime import huge_pages

        huge_pages.restart_with_huge_pages()  # as the commands of t5x_like do
    handlers = make_ours(model, sizes) if library == OURS else make_theirs(model, sizes, compiled=library == COMPILED)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(handlers[name](*arguments)), flush=True)


def start_all(model: str, sizes: str) -> dict[str, Worker]:
    """Starts the workers, lets them take a step, and leaves out peers that cannot, such as without a C++ compiler."""
    workers = {library: Worker(library, model, sizes) for library in LIBRARIES}
    for library, worker in list(workers.items()):
        try:
            worker.ask("step")
        except WorkerFailed as error:
            if library == OURS:
                raise
            print(f"{library}: {error}", file=sys.stderr)
            del workers[library]
    return workers


def compare(model: str, sizes: str, steps: int) -> str:
    """Returns a line of the table."""
    workers = start_all(model, sizes)
    seconds: dict[str, list[float]] = {library: [] for library in workers}
    for number in range(WARMUP_STEPS - 1 + steps):
        for library, worker in workers.items():
            seconds[library].append(worker.ask("step"))
        print(f"{model}: step {number + 2} of {WARMUP_STEPS + steps}", file=sys.stderr)
    floor = floor_seconds(workers[OURS].ask("describe"), workers)
    for worker in workers.values():
        worker.close()
    medians = {library: statistics.median(found[WARMUP_STEPS - 1 :]) for library, found in seconds.items()}
    best = min((median for library, median in medians.items() if library != OURS), default=None)
    cells = [f"{medians[library]:.2f}" if library in medians else "–" for library in LIBRARIES]
    cells += [f"{best / medians[OURS]:.2f}" if best else "–", f"{floor:.2f}", f"{medians[OURS] / floor:.2f}"]
    return f"| {' | '.join([MODELS[model], *cells])} |"


# ---- the page --------------------------------------------------------------------------------------------------------


def table(lines: list[str], steps: int) -> str:
    """Returns the table with the machine and the versions."""
    from importlib.metadata import version

    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "torch", "transformers"))
    columns = ["model", *(f"{library}, s" for library in LIBRARIES), "best peer / t5x_like", "floor, s", "step / floor"]
    head = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    about = f"{machine()}; {versions}. Medians of {steps} steps in turn:"
    return "\n".join([about, "", *head, *lines])


def machine() -> str:
    """Returns the name of this machine's CPU and its number of cores."""
    from t5x_like.runtime import cpu

    return f"{cpu.model_name()}, {os.cpu_count()} cores"


def write(path: pathlib.Path, text: str) -> None:
    """Replaces the table of this machine in a page, or adds it after the other tables.

    Raises:
      ValueError: The page has no mark for tables.
    """
    page, end = path.read_text(), MARK.format("end")
    if end not in page:
        raise ValueError(f"{path}: {end} not found. Add this line where the tables belong.")
    for mark in (MARK.format("none"), MARK.format(machine())):
        page = re.sub(re.escape(mark) + r".*?(?=<!-- peers: )", "", page, flags=re.DOTALL)
    path.write_text(page.replace(end, f"{mark}\n{text}\n\n{end}"))


def main() -> None:
    """Prints the table, or answers requests as a worker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sizes", choices=SIZES, default="full")
    parser.add_argument("--steps", type=int, default=5, help="measured steps of each library")
    parser.add_argument("--write", type=pathlib.Path, metavar="PAGE", help="a Markdown page to put the table into")
    parser.add_argument("--worker", nargs=2, metavar=("LIBRARY", "MODEL"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(*arguments.worker, SIZES[arguments.sizes])
    text = table([compare(model, arguments.sizes, arguments.steps) for model in arguments.models], arguments.steps)
    print(text)
    if arguments.write:
        write(arguments.write, text)


if __name__ == "__main__":
    main()
