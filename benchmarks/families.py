"""Writes docs/families.md: the sizes of every family, their exact numbers of parameters, and the measured parity.

    T5X_LIKE_PARITY_REPORT=parity.jsonl pytest -m parity
    python benchmarks/families.py parity.jsonl

docs/families/FAMILY.md describes each family.
"""

import json
import logging
import pathlib
import sys

import gin
import jax

from t5x_like import parameters

INTRODUCTION = """# Families

`python benchmarks/families.py` writes this page; its docstring has the commands. A difference is the largest
one between a tensor and that of the reference implementation, for random weights of small random
configurations in float32, divided by the tensor's largest value (or by a thousandth of the largest value
among all tensors of its kind, if that is more); 2e-5 is allowed. Parameter counts include every tensor of the
model once. Poolers and heads belong to objectives: the headers of the gin files and the page of a family
state which published number includes them.
"""

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODELS = ROOT / "gin_configs" / "models"

# Page -> title, directories of gin files, objectives, parity tests.
FAMILIES = {
    "t5": (
        "T5 1.0, 1.1 and the study of architectures",
        ("t5_1_0", "t5_1_1", "t5_study"),
        "SequenceToSequence; CausalLM and PrefixLM for the decoder-only model",
        ("test_t5_parity.py", "test_t5_variants_parity.py"),
    ),
    "bert": (
        "BERT and RoBERTa",
        ("bert", "roberta"),
        "MaskedLM (BERT: Joint with NextSentence)",
        ("test_bert_parity.py",),
    ),
    "gpt": ("GPT, GPT-2 and GPT-3", ("gpt1", "gpt2", "gpt3"), "CausalLM", ("test_gpt_parity.py",)),
    "llama": (
        "Llama and Mistral",
        ("llama1", "llama2", "llama3", "llama3_1", "llama3_2", "mistral"),
        "CausalLM",
        ("test_llama_parity.py",),
    ),
    "bart": ("BART", ("bart",), "SequenceToSequence", ("test_bart_parity.py",)),
}


def sizes(directory: str) -> list[tuple[str, int]]:
    """Returns the name and the number of parameters of every model file in a directory, by size."""
    found = []
    for path in sorted((MODELS / directory).glob("*.gin")):
        gin.clear_config()
        gin.parse_config_file(str(path))
        try:
            config = gin.query_parameter("MODEL/gin.macro.value").scoped_configurable_fn()
        except ValueError:  # an included file that does not define a model
            continue
        if "parameters" in path.read_text().splitlines()[0]:
            found.append((path.stem, parameters.count(jax.eval_shape(config.make, jax.random.key(0)))))
    return sorted(found, key=lambda entry: entry[1])


def differences(report: pathlib.Path, tests: tuple[str, ...]) -> dict[str, tuple[float, int]]:
    """Returns the largest difference and the number of comparisons for each kind of tensor."""
    largest: dict[str, tuple[float, int]] = {}
    for line in report.read_text().splitlines():
        entry = json.loads(line)
        if entry["test"] in tests:
            before, times = largest.get(entry["kind"], (0.0, 0))
            largest[entry["kind"]] = (max(before, entry["difference"]), times + 1)
    return largest


def section(name: str, report: pathlib.Path) -> list[str]:
    """Returns the lines of a family."""
    title, directories, objectives, tests = FAMILIES[name]
    lines = [
        f"## {title}",
        "",
        f"[Architecture, masks, weights, deviations](families/{name}.md).",
        f"Objective: {objectives}.",
    ]
    lines += ["", "| gin file | parameters of the model |", "|---|---|"]
    for directory in directories:
        lines += [f"| `models/{directory}/{size}.gin` | {count:,} |" for size, count in sizes(directory)]
    lines += ["", "| compared with transformers 4.57.6 | largest difference | comparisons |", "|---|---|---|"]
    measured = differences(report, tests)
    lines += [f"| {kind} | {largest:.1e} | {times} |" for kind, (largest, times) in sorted(measured.items())]
    return [*lines, ""]


def main(report: str) -> None:
    """Writes docs/families.md from a parity report."""
    logging.disable(logging.ERROR)  # gin logs every search path in which an included file does not exist
    gin.add_config_file_search_path(str(ROOT / "gin_configs"))
    lines = [INTRODUCTION]
    for name in FAMILIES:
        lines += section(name, pathlib.Path(report))
    (ROOT / "docs" / "families.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
