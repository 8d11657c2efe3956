"""What `t5x_like inspect` finds in the examples and rows of a task."""

import dataclasses
from collections import Counter

import numpy as np


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
    examples_per_row: float = 0.0
    skipped: dict[str, int] = dataclasses.field(default_factory=dict)
    documents: int = 0
    origins: list[tuple[str, dict[str, str]]] = dataclasses.field(default_factory=list)
