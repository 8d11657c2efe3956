"""The Beam pipeline that cleans pages: read, steps, write."""

import collections
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import beam_errors, paths
from t5x_like.cleaning.pages import Example
from t5x_like.cleaning.reading import ReadPages
from t5x_like.cleaning.step import Step
from t5x_like.cleaning.writing import WritePages

Counters = Mapping[str, Mapping[str, int]]
"""Namespace of a step -> counter -> number."""


@dataclasses.dataclass(frozen=True)
class Cleaned:
    """The result of a pipeline.

    Attributes:
      counters: the counters of reading and of each step, in this order.
      examples: examples of what the rules removed.
      splits: split -> file -> number of pages.
    """

    counters: Counters
    examples: Sequence[Example]
    splits: Mapping[str, Mapping[str, int]]


def run(
    files: Sequence[str], read: ReadPages, steps: Sequence[Step], write: WritePages, options: Sequence[str] = ()
) -> Cleaned:
    """Runs the pipeline and waits for its end.

    Args:
      files: paths or URLs of the files to read, which all workers can open.
      read: how pages are read.
      steps: the steps in their order.
      write: how pages are written.
      options: options of Beam, such as `--runner=DataflowRunner`; by default, the pipeline runs in this process.

    Raises:
      UserError: a file cannot be read; the message names the place.
      RunFailed: a shard cannot be written.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from t5x_like.cleaning import transforms

    # A step may occur twice, with the same labels.
    pipeline = beam.Pipeline(options=PipelineOptions(list(options), auto_unique_labels=True))
    # One element is one file. Reshuffling distributes them over the workers.
    paths_of_files = pipeline | "files" >> beam.Create(sorted(files)) | "distribute files" >> beam.Reshuffle()
    stage = transforms.apply(paths_of_files, "read", read.process, read.namespace)
    pages, removed = stage.pages, list(stage.removed)
    for step in steps:
        stage = step.expand(pages)
        pages, removed = stage.pages, [*removed, *stage.removed]
    written = write.expand(pages)
    summary = {"examples": transforms.select_examples(removed), "shards": written}
    for name, collection in summary.items():
        path = _summary_path(write.directory, name)
        _ = collection | f"gather {name}" >> beam.combiners.ToList() | f"write {name}" >> beam.Map(_write_json, path)
    with beam_errors.explained():
        result = pipeline.run()
        result.wait_until_finish()
    found = {name: _take_json(_summary_path(write.directory, name)) for name in summary}
    return Cleaned(
        _counters(result, [read, *steps]),
        sorted(Example(*example) for example in found["examples"]),
        _splits(found["shards"]),
    )


def _summary_path(directory: str, name: str) -> str:
    return paths.join(directory, f".{name}.json")


def _write_json(value: Any, path: str) -> None:
    paths.write_atomic(path, json.dumps(value))


def _take_json(path: str) -> Any:
    """Reads a file that a worker has written, and removes it."""
    found = json.loads(paths.read_text(path))
    paths.remove(path)
    return found


def _splits(shards: Sequence[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    splits: dict[str, dict[str, int]] = collections.defaultdict(dict)
    for split, name, number in sorted(map(tuple, shards)):
        splits[split][name] = number
    return dict(splits)


def _counters(result: Any, steps: Sequence[Any]) -> dict[str, dict[str, int]]:
    """Returns the counters in the order of the steps and their rules, 0 for rules that removed nothing."""
    counters: dict[str, dict[str, int]] = {step.namespace: dict.fromkeys(step.rules, 0) for step in steps}
    for metric in result.metrics().query()["counters"]:
        namespace, name = metric.key.metric.namespace, metric.key.metric.name
        if namespace in counters:
            number = metric.committed if metric.committed is not None else metric.attempted
            counters[namespace][name] = counters[namespace].get(name, 0) + number
    return counters
