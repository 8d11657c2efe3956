"""Writes docs/families.md: every family with its sizes, their exact numbers of parameters, and the parity measured.

    T5X_LIKE_PARITY_REPORT=parity.jsonl pytest -m parity
    python benchmarks/families.py parity.jsonl

The prose of a family is in docs/families/FAMILY.md.
"""

import json
import logging
import pathlib
import sys

import gin
import jax

from t5x_like import parameters

INTRODUCTION = """# Families

Written by `python benchmarks/families.py`, whose head says how. A difference is that of a tensor to the reference
implementation's, on random weights of random reduced configurations in float32, divided by the tensor's largest value
(or by a thousandth of the largest among all tensors of its kind, where that is more); 2e-5 is allowed. Parameters
count every tensor of the network once. Poolers and heads belong to objectives: the headers of the gin files, and the
page of a family, say which published number includes them.
"""

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODELS = ROOT / "gin_configs" / "models"

# Prose file -> title, folders of gin files, objectives, and the tests whose differences belong to it.
FAMILIES = {
    "t5": (
        "T5 1.0, 1.1 and the study of architectures",
        ("t5_1_0", "t5_1_1", "t5_study"),
        "SequenceToSequence; CausalLM and PrefixLM for the decoder alone",
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


def sizes(folder: str) -> list[tuple[str, int]]:
    """Every model file of a folder with the number of parameters of its network."""
    found = []
    for path in sorted((MODELS / folder).glob("*.gin")):
        gin.clear_config()
        gin.parse_config_file(str(path))
        try:
            config = gin.query_parameter("MODEL/gin.macro.value").scoped_configurable_fn()
        except ValueError:  # a file that others include
            continue
        if "parameters" in path.read_text().splitlines()[0]:
            found.append((path.stem, parameters.count(jax.eval_shape(config.make, jax.random.key(0)))))
    return sorted(found, key=lambda entry: entry[1])


def differences(report: pathlib.Path, tests: tuple[str, ...]) -> dict[str, tuple[float, int]]:
    """The largest difference of each kind of tensor, and in how many comparisons."""
    largest: dict[str, tuple[float, int]] = {}
    for line in report.read_text().splitlines():
        entry = json.loads(line)
        if entry["test"] in tests:
            before, times = largest.get(entry["kind"], (0.0, 0))
            largest[entry["kind"]] = (max(before, entry["difference"]), times + 1)
    return largest


def section(name: str, report: pathlib.Path) -> list[str]:
    title, folders, objectives, tests = FAMILIES[name]
    lines = [
        f"## {title}",
        "",
        f"[What it is, masks, weights, deviations](families/{name}.md). Objective: {objectives}.",
    ]
    lines += ["", "| gin file | parameters of the network |", "|---|---|"]
    for folder in folders:
        lines += [f"| `models/{folder}/{size}.gin` | {count:,} |" for size, count in sizes(folder)]
    lines += ["", "| compared with transformers 4.57.6 | largest difference | comparisons |", "|---|---|---|"]
    measured = differences(report, tests)
    lines += [f"| {kind} | {largest:.1e} | {times} |" for kind, (largest, times) in sorted(measured.items())]
    return [*lines, ""]


def main(report: str) -> None:
    logging.disable(logging.ERROR)  # gin reports every folder in which an included file is not
    gin.add_config_file_search_path(str(ROOT / "gin_configs"))
    lines = [INTRODUCTION]
    for name in FAMILIES:
        lines += section(name, pathlib.Path(report))
    (ROOT / "docs" / "families.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
