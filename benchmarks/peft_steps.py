"""Compares steps of LoRA and of full fine-tuning with transformers and peft on this machine's CPU.

python benchmarks/peft_steps.py                 # BERT, GPT-2 and Llama of 6 layers of width 512
python benchmarks/peft_steps.py --rounds=1 --steps=2 --tiny

LoRA trains updates of rank 8 of the queries and values (peft's defaults for BERT and Llama; of GPT-2's `c_attn` for
GPT-2, which has the keys as well). Each measurement is a process of its own, and the libraries take turns.
"""

import argparse
import statistics

from peer_models import Sizes
from peer_steps import EAGER, OURS, Script, make_ours, make_theirs, table, versions

SIZES = {
    family: Sizes(family, 16, 128, 20 if family == "bert" else 0, 512, 2048, 8, 8, 6, 30522)
    for family in ("bert", "gpt", "llama")
}


def measure_here(library: str, sizes: Sizes, *, lora: bool, steps: int) -> dict[str, list[float]]:
    """Measures steps of a library in this process, after two that do not count."""
    if library == OURS:
        step = make_ours(sizes, attention="auto", lora=lora)
    else:
        step = make_theirs(sizes, compiled=False, bfloat16=False, lora=lora)
    seconds = [step.seconds() for _ in range(steps + 2)]
    return {"seconds": seconds[2:]}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--families", nargs="+", choices=sorted(SIZES), default=list(SIZES))
    arguments = parser.parse_args()
    script = Script(__file__, measure_here)
    if arguments.worker is not None:
        script.answer(arguments.worker)
        return
    lines = []
    for family in arguments.families:
        sizes = SIZES[family].tiny() if arguments.tiny else SIZES[family]
        kinds = [(library, lora) for lora in (False, True) for library in (OURS, EAGER)]
        seconds = {kind: [] for kind in kinds}
        for _ in range(arguments.rounds):
            for library, lora in kinds:
                if (found := script.measure(library, sizes, lora=lora, steps=arguments.steps)) is not None:
                    seconds[library, lora] += found["seconds"]
        median = {kind: statistics.median(each) for kind, each in seconds.items() if each}
        shown = [f"{1000 * median[kind]:.0f}" if kind in median else "failed" for kind in kinds]
        ratio = median[EAGER, True] / median[OURS, True] if len(median) == len(kinds) else float("nan")
        lines.append(f"| {family} | {' | '.join(shown)} | {ratio:.2f} |")
    columns = ["model", "full, t5x_like, ms", "full, transformers, ms", "LoRA, t5x_like, ms", "LoRA, peft, ms"]
    print(f"{versions()}\n")
    print(table([*columns, "steps per second beside peft"], lines))


if __name__ == "__main__":
    main()
