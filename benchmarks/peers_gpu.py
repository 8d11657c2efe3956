"""Compares the training steps of five models on one GPU with transformers, eager and compiled.

python benchmarks/peers_gpu.py
python benchmarks/peers_gpu.py --models gpt2_medium --rows 8
python benchmarks/peers_gpu.py --plan h100      # without a GPU: this library's steps as `t5x_like plan` expects them

The models are T5 1.1 base and large, BERT large, GPT-2 medium and Llama 3.2 1B: bfloat16 computations with float32
parameters (in torch: autocast), AdamW, no dropout. Rows are full of random tokens. This library is measured with fused
attention and with XLA's; transformers with its default attention, which is scaled_dot_product_attention where a model
has it. BERT predicts 15 % of the tokens; transformers computes the logits of all of them.

Each measurement is a process of its own, so that it has the whole memory of the GPU. Compilation and warm-up are not
part of the time. A combination that fails, such as one without enough memory, has no time; its error is on the
standard error. Neither TensorFlow nor SeqIO is needed: pip install -e '.[cuda]' -c constraints.txt torch transformers.

With `--plan`, nothing is measured: the steps of this library are compiled for a GPU that need not be there, with the
extra `plan-gpu`, and the table has their expected time and its parts.

`--sizes tiny` checks the paths on any machine, also without a GPU; its times mean nothing.
"""

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Callable
from typing import Any

from peer_models import Sizes
from peer_steps import (
    COMPILED,
    EAGER,
    OURS,
    OURS_XLA,
    Script,
    Step,
    make_ours,
    make_theirs,
    our_recipe,
    table,
    versions,
)  # fmt: skip

WARMUP_STEPS, STEPS = 3, 20
LIBRARIES = (OURS, OURS_XLA, EAGER, COMPILED)
# Published sizes. The rows of a batch are chosen for 80 GB of memory.
MODELS = {
    "t5_base": Sizes("t5", 64, 512, 114, 768, 2048, 12, 12, 12, 32128),
    "t5_large": Sizes("t5", 24, 512, 114, 1024, 2816, 16, 16, 24, 32128),
    "bert_large": Sizes("bert", 32, 512, 77, 1024, 4096, 16, 16, 24, 30522),
    "gpt2_medium": Sizes("gpt", 16, 1024, 0, 1024, 4096, 16, 16, 24, 50257),
    "llama_1b": Sizes("llama", 4, 2048, 0, 2048, 8192, 32, 8, 16, 128256),
}
MAKERS: dict[str, Callable[[Sizes], Step]] = {
    OURS: lambda sizes: make_ours(sizes, attention="auto"),
    OURS_XLA: lambda sizes: make_ours(sizes, attention="xla"),
    EAGER: lambda sizes: make_theirs(sizes, compiled=False, bfloat16=True),
    COMPILED: lambda sizes: make_theirs(sizes, compiled=True, bfloat16=True),
}


def measure_here(library: str, sizes: Sizes, *, steps: int) -> dict[str, Any]:
    """Returns the median time of a step in seconds, and what the library knows about the step."""
    step = MAKERS[library](sizes)
    seconds = [step.seconds() for _ in range(WARMUP_STEPS + steps)][WARMUP_STEPS:]
    return {"seconds": statistics.median(seconds)} | step.about


SCRIPT = Script(__file__, measure_here)
PLANNED = ("peak, GiB", "HBM traffic, GB", "expected, ms", "MFU expected")


def plan_row(model: str, sizes: Sizes, gpu: str) -> str:
    """Compiles the step of this library for one GPU, and returns a line of the table.

    Raises:
      UserError: The GPU is unknown, or its compiler is not installed.
    """
    from t5x_like.plan import plan
    from t5x_like.planning import topologies
    from t5x_like.planning.breakdown import PARTS

    topology = f"{gpu}:1"
    found = plan(recipe=our_recipe(sizes, topologies.devices(topology)[0], attention="auto"), topology=topology)
    peak = f"{found.compiled.memory.peak / 2**30:.1f}"
    if not found.compiled.fits:
        cells = [f"{peak}, does not fit", *["–"] * (len(PLANNED) - 1 + len(PARTS))]
        return f"| {' | '.join([model, str(sizes.rows), *cells])} |"
    by_part = found.compiled.expected.by_part
    numbers = (
        *(peak, f"{found.compiled.work.hbm_bytes / 1e9:.0f}"),
        *(f"{1000 * found.expected_seconds:.1f}", f"{found.mfu_expected:.0%}"),
        *(f"{1000 * share.seconds:.1f}" for share in by_part.values()),
    )
    return f"| {' | '.join([model, str(sizes.rows), *numbers])} |"


def print_plans(models: dict[str, Sizes], gpu: str) -> None:
    """Prints the plans of all models as a table, or why the GPU cannot be planned for."""
    from t5x_like.errors import UserError
    from t5x_like.planning.breakdown import PARTS

    try:
        lines = [plan_row(name, sizes, gpu) for name, sizes in models.items()]
    except UserError as error:
        sys.exit(f"--plan={gpu}: {error}")
    print(table(["model", "rows", *PLANNED, *(f"{part}, ms" for part in PARTS)], lines))


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
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sizes", choices=("full", "tiny"), default="full")
    parser.add_argument("--rows", type=int, help="rows of a batch; by default each model's")
    parser.add_argument("--steps", type=int, default=STEPS, help="measured steps")
    parser.add_argument("--plan", metavar="GPU", help="plan the steps of this library for a GPU, such as h100")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return SCRIPT.answer(arguments.worker)
    lines, device = [], None
    chosen = {name: MODELS[name] if arguments.sizes == "full" else MODELS[name].tiny() for name in arguments.models}
    chosen = {name: dataclasses.replace(sizes, rows=arguments.rows or sizes.rows) for name, sizes in chosen.items()}
    if arguments.plan:
        return print_plans(chosen, arguments.plan)
    for name, sizes in chosen.items():
        found = {library: SCRIPT.measure(library, sizes, steps=arguments.steps) for library in LIBRARIES}
        device = device or (found[OURS] and found[OURS]["device"])
        lines.append(table_row(name, sizes, found))
        print(lines[-1], file=sys.stderr, flush=True)
    columns = ["model", "rows", *(f"{library}, ms" for library in LIBRARIES), "best peer / t5x_like", "MFU"]
    print(f"{device}; {versions()}. Medians of {arguments.steps} steps:\n")
    print(table(columns, lines))


if __name__ == "__main__":
    main()
