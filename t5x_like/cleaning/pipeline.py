"""The Beam pipeline that cleans pages: read, steps, write."""

import collections
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import beam_errors, paths
from t5x_like.cleaning.pages import Example, Tally
from t5x_like.cleaning.reading import ReadPages
from t5x_like.cleaning.step import Step
from t5x_like.cleaning.writing import WritePages
from t5x_like.errors import RunFailed

_SUMMARY = ".summary.json"
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

    from t5x_like.cleaning import transforms

    # A step may occur twice, with the same labels.
    pipeline = beam_errors.make_pipeline(options, auto_unique_labels=True)
    # One element is one file. Reshuffling distributes them over the workers.
    paths_of_files = pipeline | "files" >> beam.Create(sorted(files)) | "distribute files" >> beam.Reshuffle()
    stage = transforms.apply(paths_of_files, "read", read.process, read.namespace)
    pages, tallies = stage.pages, list(stage.tallies)
    for step in steps:
        stage = step.expand(pages)
        pages, tallies = stage.pages, [*tallies, *stage.tallies]
    tallies.append(write.expand(pages) | "tallies of shards" >> beam.Map(lambda shard: Tally({}, shards=[shard])))
    # The pipeline has a single end, because DaskRunner computes only the last collection. It writes a file, because not
    # every runner returns values.
    summary = paths.join(write.directory, _SUMMARY)
    _ = (
        tallies
        | "all tallies" >> beam.Flatten()
        | "add tallies" >> beam.CombineGlobally(transforms.AddTallies()).without_defaults()
        | "write summary" >> beam.Map(_write_summary, summary)
    )
    beam_errors.run(pipeline)
    tally = _take_summary(summary)
    return Cleaned(_counters(tally, [read, *steps]), sorted(tally.examples), _splits(tally.shards))


def _write_summary(tally: Tally, path: str) -> None:
    counts = [[*key, number] for key, number in tally.counts.items()]
    paths.write_atomic(path, json.dumps({"counts": counts, "examples": tally.examples, "shards": tally.shards}))


def _take_summary(path: str) -> Tally:
    """Reads a file that a worker has written, and removes it.

    Raises:
      RunFailed: the worker has written it elsewhere.
    """
    if not paths.exists(path):
        raise RunFailed(
            f"OUTPUT_PATH: {path} not found after the pipeline has finished. Give a directory that all workers share, "
            "such as gs://…."
        )
    found = json.loads(paths.read_text(path))
    paths.remove(path)
    counts = {(namespace, name): number for namespace, name, number in found["counts"]}
    return Tally(counts, [Example(*example) for example in found["examples"]], [*map(tuple, found["shards"])])


def _splits(shards: Sequence[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    splits: dict[str, dict[str, int]] = collections.defaultdict(dict)
    for split, name, number in sorted(shards):
        splits[split][name] = number
    return dict(splits)


def _counters(tally: Tally, steps: Sequence[Any]) -> dict[str, dict[str, int]]:
    """Returns the counters in the order of the steps and their rules, 0 for rules that removed nothing."""
    counters: dict[str, dict[str, int]] = {step.namespace: dict.fromkeys(step.rules, 0) for step in steps}
    for (namespace, name), number in sorted(tally.counts.items()):
        counters[namespace][name] = counters[namespace].get(name, 0) + number
    return counters
