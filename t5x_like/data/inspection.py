"""What `t5x_like inspect` finds in the examples and rows of a task."""

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from t5x_like.data.features import FeatureSpec

if TYPE_CHECKING:
    from t5x_like.data.seqio_feed import SeqIOSource


@dataclasses.dataclass
class Inspection:
    """Results of an inspection.

    Attributes:
      problems: Problems, each with advice; empty if none was found.
      lengths: Task feature -> number of tokens of each inspected example.
      classes: Task feature of labels -> label -> number of occurrences in these examples, in the order of the indices.
      trimmed: Task feature -> number of these examples that are too long.
      unknown: Task feature -> fraction of unknown tokens.
      efficiency: Task feature -> fraction of the positions that are not padding.
      kept: Task -> fraction of the tokens of the first documents that reach a row; see `KeptText`.
      examples_per_row: Mean number of examples per row.
      skipped: Reason -> number of documents that are skipped for it, among the inspected `documents`.
      documents: Number of inspected documents; 0 without the shipped `documents` preprocessor.
      origins: File and record, and other fields such as the URL, of documents with a text.
    """

    problems: list[str] = dataclasses.field(default_factory=list)
    lengths: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    classes: dict[str, Counter[str]] = dataclasses.field(default_factory=dict)
    trimmed: dict[str, int] = dataclasses.field(default_factory=dict)
    unknown: dict[str, float] = dataclasses.field(default_factory=dict)
    efficiency: dict[str, float] = dataclasses.field(default_factory=dict)
    kept: dict[str, float] = dataclasses.field(default_factory=dict)
    examples_per_row: float = 0.0
    skipped: dict[str, int] = dataclasses.field(default_factory=dict)
    documents: int = 0
    origins: list[tuple[str, dict[str, str]]] = dataclasses.field(default_factory=list)


def against_padding(name: str, source: "SeqIOSource", spec: FeatureSpec, found: Inspection) -> str:
    """Suggests lengths that reduce padding without truncating any of the examples."""
    advice = []
    if source.pack:
        # A row ends when an example does not fit into one of its features, which leaves padding in the others.
        fullest = max(found.efficiency, key=found.efficiency.get)
        wanted = fullest if found.efficiency[fullest] > found.efficiency[name] else name
        where = "" if wanted == name else f", which fills up first ({found.efficiency[wanted]:.0%}),"
        advice.append(f"increase {wanted!r}{where} in TASK_FEATURE_LENGTHS, so that more examples share a row")
    elif spec.packable:
        advice.append("set pack=True")
    longest = int(found.lengths[name].max()) if name in found.lengths else None
    if longest is not None and longest < source.task_feature_lengths[name]:
        advice.append(f"decrease {name!r} to {longest}, the length of its longest example here")
    return ", or ".join(advice) or f"decrease {name!r} in TASK_FEATURE_LENGTHS, which truncates its longest examples"
