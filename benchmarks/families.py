"""Writes docs/families.md: the sizes of every family, their exact numbers of parameters, and the measured parity.

    T5X_LIKE_PARITY_REPORT=parity.jsonl pytest -m parity
    python benchmarks/families.py parity.jsonl

docs/families/FAMILY.md describes each family.
"""

import argparse
import json
import logging
import pathlib
from typing import Any

import gin
import jax

from t5x_like import parameters

INTRODUCTION = """# Families

`python benchmarks/families.py` writes this page; its docstring has the commands. A difference is the largest
one between a tensor and the reference implementation's, for random weights of small random
configurations in float32, divided by the tensor's largest value (or by a thousandth of the largest value
among all tensors of its kind, if that is more); 2e-5 is allowed. Parameter counts include every tensor of the
model once. Poolers and heads belong to objectives: the headers of the gin files and the page of a family
state which published number includes them.
"""

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODELS = ROOT / "gin_configs" / "models"
# Page of the families of 2024 and later.
SHARED_PAGE = "rotary"


def pages() -> dict[str, str]:
    """Returns the name and the title of every family's page in docs/families/, by name."""
    found = sorted((ROOT / "docs" / "families").glob("*.md"))
    return {path.stem: path.read_text().splitlines()[0].removeprefix("# ") for path in found}


def page_of(directory: str, config: Any) -> str:
    """Returns the name of the page that describes the models of a directory: `t5` for `t5x_like.models.t5_variants`.

    A family without a page of its own is on the page of the family that its configuration extends, or on a shared page.
    """
    if directory in pages():
        return directory
    for kind in type(config).__mro__:
        parts = kind.__module__.rpartition(".")[2].split("_")
        if found := [name for name in pages() if name in parts]:
            return max(found, key=len)
    return SHARED_PAGE


def sizes() -> dict[str, list[tuple[str, int]]]:
    """Returns page -> (model file, number of parameters), by directory and then by size."""
    found: dict[str, list[tuple[str, int]]] = {name: [] for name in pages()}
    for directory in sorted(MODELS.iterdir()):
        counts = []
        for path in sorted(directory.glob("*.gin")):
            gin.clear_config()
            gin.parse_config_file(str(path))
            try:
                config = gin.query_parameter("MODEL/gin.macro.value").scoped_configurable_fn()
            except ValueError:  # an included file that does not define a model
                continue
            if "parameters" in path.read_text().splitlines()[0]:
                count = parameters.count(jax.eval_shape(config.make, jax.random.key(0)))
                counts.append((page_of(directory.name, config), f"models/{directory.name}/{path.name}", count))
        for page, file, count in sorted(counts, key=lambda entry: entry[2]):
            found[page].append((file, count))
    return found


def differences(report: pathlib.Path, page: str) -> dict[str, tuple[float, int]]:
    """Returns kind of tensor -> (largest difference, number of comparisons) in the parity tests of a family."""
    largest: dict[str, tuple[float, int]] = {}
    for line in report.read_text().splitlines():
        entry = json.loads(line)
        if entry["test"].startswith(f"test_{page}_"):
            previous, comparisons = largest.get(entry["kind"], (0.0, 0))
            largest[entry["kind"]] = (max(previous, entry["difference"]), comparisons + 1)
    return largest


def section(page: str, title: str, files: list[tuple[str, int]], report: pathlib.Path) -> list[str]:
    """Returns the lines of a family."""
    lines = [f"## {title}", "", f"[Architecture, objective, masks, weights, deviations](families/{page}.md)."]
    if files:
        lines += ["", "| gin file | parameters of the model |", "|---|---|"]
        lines += [f"| `{file}` | {count:,} |" for file, count in files]
    lines += ["", "| compared with transformers 4.57.6 | largest difference | comparisons |", "|---|---|---|"]
    measured = differences(report, page)
    lines += [f"| {kind} | {largest:.1e} | {times} |" for kind, (largest, times) in sorted(measured.items())]
    return [*lines, ""]


def main() -> None:
    """Writes docs/families.md from a parity report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=pathlib.Path, help="JSON lines written by the parity tests")
    report = parser.parse_args().report
    logging.disable(logging.ERROR)  # gin logs every search path in which an included file does not exist
    gin.add_config_file_search_path(str(ROOT / "gin_configs"))
    lines, files = [INTRODUCTION], sizes()
    for page, title in pages().items():
        lines += section(page, title, files[page], report)
    (ROOT / "docs" / "families.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
