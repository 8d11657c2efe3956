"""Results of evaluations by checkpoint, as JSON and as a table."""

import collections
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import paths

JSON, TABLE = "results.json", "results.md"


@dataclasses.dataclass(frozen=True)
class Result:
    """The results of one checkpoint.

    Attributes:
      checkpoint: Its path.
      step: Its step; None for weights of another format.
      fingerprint: Identifies the values of the checkpoint; None if it is not known.
      settings: Identifies the settings of the evaluation; None if they are not known.
      evaluations: Title, which names task and split -> metric -> value.
      averages: Benchmark -> average.
      options: The settings of the evaluation that users change, by name; empty in results of earlier versions.
      data: Title -> hashes of the data of each task, None where they are not known; empty in results of earlier
        versions.
    """

    checkpoint: str
    step: int | None
    fingerprint: str | None
    settings: str | None
    evaluations: Mapping[str, Mapping[str, float]]
    averages: Mapping[str, float]
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    data: Mapping[str, Sequence[str | None]] = dataclasses.field(default_factory=dict)

    @property
    def key(self) -> tuple[Any, ...]:
        """Identifies the result: a later one with the same key replaces it."""
        return self.checkpoint, self.settings


class EvaluationTable:
    """The results in a directory: `results.json`, and `results.md` with a table per task and split.

    Args:
      directory: A local directory or a bucket.
    """

    def __init__(self, directory: str):
        self._directory = directory

    def read(self) -> list[Result]:
        """Returns the stored results."""
        file = paths.join(self._directory, JSON)
        return [Result(**row) for row in json.loads(paths.read_text(file))] if paths.exists(file) else []

    def find(self, checkpoint: str, fingerprint: str | None, settings: str | None) -> Result | None:
        """Returns the result of a checkpoint with these values and settings, or None."""
        if fingerprint is None or settings is None:
            return None
        found = (each for each in self.read() if each.key == (checkpoint, settings))
        return next((each for each in found if each.fingerprint == fingerprint), None)

    def add(self, result: Result) -> None:
        """Adds a result, and replaces an earlier one of the same checkpoint and settings."""
        kept = [each for each in self.read() if each.key != result.key] + [result]
        kept.sort(key=lambda each: (each.checkpoint.rpartition("/")[0], -1 if each.step is None else each.step))
        text = json.dumps([dataclasses.asdict(each) for each in kept], indent=2)
        paths.write_atomic(paths.join(self._directory, JSON), text + "\n")
        paths.write_atomic(paths.join(self._directory, TABLE), format_table(kept))


def format_table(results: Sequence[Result]) -> str:
    """Returns results in Markdown: a table per task and split with a line per checkpoint, and one of the averages.

    If the settings of the results differ, a column states the ones that do.
    """
    described = _differing(results)
    sections = {title: None for each in results for title in each.evaluations}
    lines = []
    for title in sections:
        rows = [(each, each.evaluations[title]) for each in results if title in each.evaluations]
        lines += [f"## {title}", "", *_rows(rows, described), ""]
    if averaged := [(each, each.averages) for each in results if each.averages]:
        lines += ["## Averages", "", *_rows(averaged, described), ""]
    return "\n".join(lines)


def _differing(results: Sequence[Result]) -> dict[str | None, str]:
    """Returns what distinguishes the settings of each result from the others'; {} if all are the same."""
    options = {each.settings: each.options for each in results}
    if len(options) < 2:
        return {}
    names = sorted({name for each in options.values() for name in each})
    differ = [name for name in names if len({each.get(name) for each in options.values()}) > 1]
    texts = {key: ", ".join(f"{name}={each[name]}" for name in differ if name in each) for key, each in options.items()}
    repeated = [text for text, number in collections.Counter(texts.values()).items() if number > 1 or not text]
    return {key: f"{text} ({key or 'unknown'})".strip() if text in repeated else text for key, text in texts.items()}


def _rows(rows: Sequence[tuple[Result, Mapping[str, float]]], described: Mapping[str | None, str]) -> list[str]:
    columns = sorted(dict.fromkeys(name for _, values in rows for name in values), key=lambda name: name != "loss")
    header = ["checkpoint", *(["settings"] if described else []), *columns]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for result, values in rows:
        shown = result.checkpoint if result.step is None else str(result.step)
        cells = [f"{values[name]:.4g}" if name in values else "" for name in columns]
        cells = [shown, *([described[result.settings]] if described else []), *cells]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
