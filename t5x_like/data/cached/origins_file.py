"""The documents of the rows of a cache: beside each file of rows, a file with a JSON record per row.

A record lists, for each example of the row, the descriptions of its documents: `place`, the file and the record, and
the fields `url`, `timestamp`, `source` and `record` that the document has. Training does not read these files.
"""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader

from t5x_like import paths
from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.data.origins import DOCUMENTS, PLACE, Recorder
from t5x_like.data.task_features import TaskFeature
from t5x_like.errors import UserError

if TYPE_CHECKING:
    from t5x_like.data.cached.source import CachedSource

# The rows of a file share most of their text, which is compressed in groups.
WRITER_OPTIONS = "group_size:64"
Documents = Mapping[str, str | int]


def name(file: str) -> str:
    """Returns the path of the documents of a file of rows."""
    return file.removesuffix(".array_record") + ".documents.array_record"


def with_documents(spec: FeatureSpec) -> FeatureSpec:
    """Returns a spec that also reads the documents of each example, after its other features."""
    return dataclasses.replace(
        spec,
        features=(*spec.features, ModelFeature(DOCUMENTS, DOCUMENTS, "tokens")),
        aligned_features=(*spec.aligned_features, TaskFeature(DOCUMENTS, inner=PLACE)),
    )


def encode(places: np.ndarray, segments: np.ndarray, recorder: Recorder) -> list[bytes]:
    """Returns the record of each row.

    Args:
      places: Places of the documents of the rows, `[rows, documents, 2]`.
      segments: Number of the example of each, from 1, and 0 after the last one, `[rows, documents]`.
      recorder: Describes the documents.
    """
    records = []
    for row, numbers in zip(places, segments, strict=True):
        examples = [
            [recorder[tuple(place)] for place in row[numbers == number].tolist()]
            for number in range(1, numbers.max(initial=0) + 1)
        ]
        records.append(json.dumps(examples, ensure_ascii=False).encode("utf-8", "replace"))
    return records


def read(source: "CachedSource", row: int) -> Sequence[Sequence[Documents]]:
    """Returns the documents of each example of a row.

    Args:
      source: The cache.
      row: Number of the stored row, from 0.

    Raises:
      UserError: the cache has no documents, or not this row, or a file cannot be read.
    """
    manifest = source.manifest
    if not manifest.settings.get("provenance"):
        raise UserError(
            f"the cache {source.directory} does not contain the documents of its rows. Write it with "
            "--gin.PROVENANCE=True, or find a part of the row with --find."
        )
    ends = list(itertools.accumulate(shard.rows for shard in manifest.shards))
    if not 0 <= row < ends[-1]:
        raise UserError(f"ROW={row}: the cache {source.directory} has the rows 0 to {ends[-1] - 1}. Give one of them.")
    index = next(index for index, end in enumerate(ends) if row < end)
    file = name(manifest.shards[index].file)
    try:
        reader = ArrayRecordReader(paths.join(source.directory, file), "readahead_buffer_size:0,max_parallelism:0")
        (record,) = reader.read([row - (ends[index] - manifest.shards[index].rows)])
        return json.loads(record)
    except (RuntimeError, ValueError, OSError, IndexError) as error:
        raise UserError(
            f"{file} in the cache {source.directory} cannot be read ({error}). Copy the file again, or delete it and "
            "repeat the `t5x_like cache` command, which writes it again."
        ) from error
