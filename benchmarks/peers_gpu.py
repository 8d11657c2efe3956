"""Compares the training steps of five models on one GPU with those of transformers, eager and compiled.

python benchmarks/peers_gpu.py
python benchmarks/peers_gpu.py --models gpt2_medium --rows 8

The models are T5 1.1 base and large, BERT large, GPT-2 medium and Llama 3.2 1B: bfloat16 computations with float32
parameters (in torch: autocast), AdamW, no dropout. Rows are full of random tokens. This library is measured with fused
attention and with XLA's; transformers with its default attention, which is scaled_dot_product_attention where a model
has it. BERT predicts 15 % of the tokens; transformers computes the logits of all of them.

Each measurement is a process of its own, so that it has the whole memory of the GPU. Compilation and warm-up are not
part of the time. A combination that fails, such as one without enough memory, has no time; its error is on the
standard error. Neither TensorFlow nor SeqIO is needed: pip install 't5x_like[cuda]' torch transformers.

`--sizes tiny` checks the paths on any machine, also without a GPU; its times mean nothing.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

WARMUP_STEPS, STEPS = 3, 20
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.01
OURS, OURS_XLA = "t5x_like", "t5x_like, XLA attention"
EAGER, COMPILED = "transformers", "transformers, compiled"
LIBRARIES = (OURS, OURS_XLA, EAGER, COMPILED)
SECONDS_OF_A_MEASUREMENT = 1800


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a model and of its batch.

    Attributes:
      family: `t5`, `bert`, `gpt` or `llama`.
      rows: Rows of a batch.
      inputs: Tokens of a row.
      targets: Tokens of T5's targets, or masked tokens of BERT.
      width: Size of a hidden state.
      mlp: Size within a feed-forward block.
      heads: Query heads of 64.
      kv_heads: Heads of keys and values.
      layers: Layers of a stack.
      vocabulary: Rows of the embeddings.
    """

    family: str
    rows: int
    inputs: int
    targets: int
    width: int
    mlp: int
    heads: int
    kv_heads: int
    layers: int
    vocabulary: int


HEAD_DIM = 64
# Published sizes. The rows of a batch are chosen for 80 GB of memory.
FULL = {
    "t5_base": Sizes("t5", 64, 512, 114, 768, 2048, 12, 12, 12, 32128),
    "t5_large": Sizes("t5", 24, 512, 114, 1024, 2816, 16, 16, 24, 32128),
    "bert_large": Sizes("bert", 32, 512, 77, 1024, 4096, 16, 16, 24, 30522),
    "gpt2_medium": Sizes("gpt", 16, 1024, 0, 1024, 4096, 16, 16, 24, 50257),
    "llama_1b": Sizes("llama", 4, 2048, 0, 2048, 8192, 32, 8, 16, 128256),
}
SIZES = {
    "full": FULL,
    "tiny": {
        name: dataclasses.replace(
            full, rows=2, inputs=96, targets=16, width=128, mlp=128, heads=2, kv_heads=1, layers=1, vocabulary=128
        )
        for name, full in FULL.items()
    },
}


@dataclasses.dataclass(frozen=True)
class Step:
    """A compiled training step.

    Attributes:
      seconds: Makes a step and returns its time.
      flops: Model FLOPs of a step; None if the library does not count them.
      device: Name of the device.
      peak_flops: Peak of the device in bfloat16; None if it is unknown.
    """

    seconds: Callable[[], float]
    flops: float | None = None
    device: str | None = None
    peak_flops: float | None = None


# ---- this library ----------------------------------------------------------------------------------------------------


def make_ours(sizes: Sizes, *, attention: str) -> Step:
    """Returns the step of this library on the first device.

    Args:
      sizes: Sizes.
      attention: See `Partitioner`.
    """
    import jax

    from t5x_like import optimizers
    from t5x_like.benchmarking import parts, synthetic, timing
    from t5x_like.metrics import throughput
    from t5x_like.partitioning import Partitioner
    from t5x_like.training.program import make_program

    config, objective = _our_model(sizes)
    device = jax.devices()[0]
    program = make_program(
        model=config,
        objective=objective,
        optimizer=optimizers.adamw(learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY),
        data=_Shapes(sizes),
        partitioner=Partitioner(devices=[device], attention=attention),
    )
    batch = synthetic.make_batch(objective.features, program.batch_shapes, sizes.vocabulary)
    running = parts.RunningStep(program, 0, program.partitioner.put_batch(batch, program.batch_axes))
    kind = device.device_kind
    return Step(lambda: timing.time_call(running), program.flops, kind, throughput.peak_flops(kind))


@dataclasses.dataclass(frozen=True)
class _Shapes:
    """A data source that only has the shapes of its batches."""

    sizes: Sizes

    def batch_shapes(self, spec):
        targets = self.sizes.targets or self.sizes.inputs
        lengths = {"inputs": self.sizes.inputs, "targets": targets}
        return {name: (self.sizes.rows, *shape) for name, shape in spec.row_shapes(lengths).items()}


def _our_model(sizes: Sizes) -> tuple[Any, Any]:
    """Returns the configuration and the objective."""
    from t5x_like.models.bert import BertConfig
    from t5x_like.models.gpt import GPTConfig
    from t5x_like.models.llama import LlamaConfig
    from t5x_like.models.t5 import T5Config
    from t5x_like.objectives.causal_lm import CausalLM
    from t5x_like.objectives.masked_lm import MaskedLM
    from t5x_like.objectives.sequence_to_sequence import SequenceToSequence

    shared = {
        "vocab_size": sizes.vocabulary,
        "embed_dim": sizes.width,
        "mlp_dim": sizes.mlp,
        "num_heads": sizes.heads,
        "head_dim": HEAD_DIM,
        "dropout_rate": 0.0,
    }
    if sizes.family == "t5":
        return T5Config(**shared, encoder_layers=sizes.layers, decoder_layers=sizes.layers), SequenceToSequence()
    shared |= {"num_layers": sizes.layers, "max_length": sizes.inputs, "attention_dropout_rate": 0.0}
    if sizes.family == "llama":
        return LlamaConfig(**shared, num_kv_heads=sizes.kv_heads, tied_embeddings=True), CausalLM()
    return (GPTConfig(**shared), CausalLM()) if sizes.family == "gpt" else (BertConfig(**shared), MaskedLM())


# ---- transformers ----------------------------------------------------------------------------------------------------


def make_theirs(sizes: Sizes, *, compiled: bool) -> Step:
    """Returns the step of transformers on the first GPU, or on the CPU without one."""
    import torch

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    network, batch = _their_model(sizes)
    network = network.to(device).train()
    batch = {name: values.to(device) for name, values in batch.items()}
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    called = torch.compile(network) if compiled else network

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            loss = called(**batch).loss
        loss.backward()
        optimizer.step()

    def seconds():
        started = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    return Step(seconds)


def _their_model(sizes: Sizes) -> tuple[Any, dict[str, Any]]:
    """Returns the network, and a batch of random tokens."""
    import torch
    import transformers

    def tokens(length):
        return torch.randint(2, sizes.vocabulary, (sizes.rows, length))

    inputs = tokens(sizes.inputs)
    if sizes.family == "t5":
        t5 = transformers.T5Config(
            vocab_size=sizes.vocabulary, d_model=sizes.width, d_kv=HEAD_DIM, d_ff=sizes.mlp, num_layers=sizes.layers,
            num_heads=sizes.heads, decoder_start_token_id=0, feed_forward_proj="gated-gelu", dropout_rate=0.0,
            tie_word_embeddings=False, use_cache=False,
        )  # fmt: skip
        return transformers.T5ForConditionalGeneration(t5), {"input_ids": inputs, "labels": tokens(sizes.targets)}
    if sizes.family == "gpt":
        gpt = transformers.GPT2Config(
            vocab_size=sizes.vocabulary, n_embd=sizes.width, n_inner=sizes.mlp, n_layer=sizes.layers,
            n_head=sizes.heads, n_positions=sizes.inputs, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            use_cache=False,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(gpt), {"input_ids": inputs, "labels": inputs}
    shared = {
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.width,
        "intermediate_size": sizes.mlp,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "max_position_embeddings": sizes.inputs,
    }
    if sizes.family == "llama":
        llama = transformers.LlamaConfig(
            **shared, num_key_value_heads=sizes.kv_heads, head_dim=HEAD_DIM, tie_word_embeddings=True, use_cache=False,
            pad_token_id=0, bos_token_id=1, eos_token_id=1,
        )  # fmt: skip
        return transformers.LlamaForCausalLM(llama), {"input_ids": inputs, "labels": inputs}
    bert = transformers.BertConfig(
        **shared, hidden_act="gelu_new", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    masked = torch.arange(sizes.inputs) < sizes.targets
    return transformers.BertForMaskedLM(bert), {"input_ids": inputs, "labels": inputs.where(masked, -100)}


# ---- measurements ----------------------------------------------------------------------------------------------------

MAKERS: dict[str, Callable[[Sizes], Step]] = {
    OURS: lambda sizes: make_ours(sizes, attention="auto"),
    OURS_XLA: lambda sizes: make_ours(sizes, attention="xla"),
    EAGER: lambda sizes: make_theirs(sizes, compiled=False),
    COMPILED: lambda sizes: make_theirs(sizes, compiled=True),
}


def measure(library: str, sizes: Sizes, steps: int) -> dict[str, Any]:
    """Returns the median time of a step in seconds, and what the step says of itself."""
    step = MAKERS[library](sizes)
    seconds = [step.seconds() for _ in range(WARMUP_STEPS + steps)][WARMUP_STEPS:]
    about = {"flops": step.flops, "device": step.device, "peak_flops": step.peak_flops}
    return {"seconds": statistics.median(seconds)} | about


def measure_in_process(library: str, model: str, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Returns the result of `measure` in a process of its own, or None if it fails."""
    command = [sys.executable, __file__, "--worker", library, "--models", model, "--sizes", arguments.sizes]
    command += ["--steps", str(arguments.steps)] + (["--rows", str(arguments.rows)] if arguments.rows else [])
    # The logs of the backend choices of this library and all errors are on the standard error.
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"USE_TF": "0"},
            timeout=SECONDS_OF_A_MEASUREMENT,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        print(f"{library}, {model}: {error}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def table_row(model: str, sizes: Sizes, found: dict[str, dict[str, Any] | None]) -> str:
    """Returns a line of the table: milliseconds of each library, the ratio to the best peer, and the MFU."""
    seconds = {library: result["seconds"] for library, result in found.items() if result is not None}
    cells = [f"{1000 * seconds[library]:.1f}" if library in seconds else "–" for library in LIBRARIES]
    peers = [seconds[library] for library in (EAGER, COMPILED) if library in seconds]
    cells.append(f"{min(peers) / seconds[OURS]:.2f}" if peers and OURS in seconds else "–")
    ours = found.get(OURS)
    known = ours is not None and ours["peak_flops"]
    cells.append(f"{ours['flops'] / ours['seconds'] / ours['peak_flops']:.0%}" if known else "–")
    return f"| {' | '.join([model, str(sizes.rows), *cells])} |"


def main() -> None:
    """Prints the table, or a measurement as a worker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=FULL, default=list(FULL))
    parser.add_argument("--sizes", choices=SIZES, default="full")
    parser.add_argument("--rows", type=int, help="rows of a batch; by default those of each model")
    parser.add_argument("--steps", type=int, default=STEPS, help="measured steps")
    parser.add_argument("--worker", choices=LIBRARIES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    chosen = {name: SIZES[arguments.sizes][name] for name in arguments.models}
    if arguments.rows:
        chosen = {name: dataclasses.replace(sizes, rows=arguments.rows) for name, sizes in chosen.items()}
    if arguments.worker:
        (sizes,) = chosen.values()
        return print(json.dumps(measure(arguments.worker, sizes, arguments.steps)))
    lines, device = [], None
    for name, sizes in chosen.items():
        found = {library: measure_in_process(library, name, arguments) for library in LIBRARIES}
        device = device or (found[OURS] and found[OURS]["device"])
        lines.append(table_row(name, sizes, found))
        print(lines[-1], file=sys.stderr, flush=True)
    from importlib.metadata import version

    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "torch", "transformers"))
    columns = ["model", "rows", *(f"{library}, ms" for library in LIBRARIES), "best peer / t5x_like", "MFU"]
    print(f"{device}; {versions}. Medians of {arguments.steps} steps:\n")
    print("\n".join([f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), *lines]))


if __name__ == "__main__":
    main()
