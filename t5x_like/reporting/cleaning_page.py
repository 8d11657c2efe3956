"""The page about a cleaning: what each rule removed, with examples."""

from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like.cleaning.pages import Example
from t5x_like.cleaning.pipeline import Cleaned
from t5x_like.reporting.html_document import document, table, text


def render(files: str, steps: Sequence[Any], cleaned: Cleaned) -> str:
    """Returns the page.

    Args:
      files: the files that were read, as the user named them.
      steps: reading and the steps in their order, with `namespace` and `rules`; see `cleaning.step.Step`.
      cleaned: the result.
    """
    kept = sum(sum(numbers.values()) for numbers in cleaned.splits.values())
    read = cleaned.counters[steps[0].namespace].get("passed", 0)
    lead = f"{kept:,} of {read:,} pages of <code>{text(files)}</code> are kept. Written by <code>t5x_like clean</code>."
    examples: dict[tuple[str, str], list[Example]] = {}
    for example in cleaned.examples:
        examples.setdefault((example.namespace, example.rule), []).append(example)
    body = [f"<h2>Result</h2>{_splits(cleaned.splits)}"]
    body += [_step(step, cleaned.counters[step.namespace], examples) for step in steps]
    return document("Cleaned pages", lead, "\n".join(body))


def _splits(splits: Mapping[str, Mapping[str, int]]) -> str:
    rows = [[split, f"{len(numbers):,}", f"{sum(numbers.values()):,}"] for split, numbers in splits.items()]
    return table(["split", "files", "pages"], rows)


def _step(step: Any, counters: Mapping[str, int], examples: Mapping[tuple[str, str], Sequence[Example]]) -> str:
    rows = [[name, f"{number:,}", step.rules.get(name, "")] for name, number in counters.items()]
    parts = [f"<h2>{text(step.namespace)}</h2>", table(["counter", "number", "meaning"], rows)]
    for name in counters:
        if found := examples.get((step.namespace, name)):
            shown = table(["page", "removed"], [[example.url, example.text] for example in found])
            parts.append(f"<details><summary>{text(name)}: examples</summary>{shown}</details>")
    return "\n".join(parts)
