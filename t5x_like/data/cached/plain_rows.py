"""Writes a cache of given token ids, one example per row, without a task and without TensorFlow."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from t5x_like import paths
from t5x_like.data.cached import manifest as manifests
from t5x_like.data.cached import shard_files, vocabularies
from t5x_like.data.cached.layout import Layout
from t5x_like.data.cached.manifest import Manifest, Shard
from t5x_like.data.cached.rows import encode, storage_dtype
from t5x_like.data.features import FeatureSpec
from t5x_like.version import __version__
from t5x_like.vocabularies.base import Vocabulary

_FILE = "pass-000/00000-of-00001.array_record"


def write(
    directory: str,
    rows: Sequence[Mapping[str, Sequence[int]]],
    spec: FeatureSpec,
    lengths: Mapping[str, int],
    *,
    vocabulary: Vocabulary,
    settings: Mapping[str, Any],
) -> Manifest:
    """Writes a cache.

    Args:
      directory: Directory of the split.
      rows: Task feature -> token ids, at most as many as its length, of each row.
      spec: Features of token ids that the objective reads.
      lengths: Task feature -> maximum length.
      vocabulary: The vocabulary of all task features.
      settings: `task`, `split` and others that determine the rows, as JSON values.

    Returns:
      Its manifest.
    """
    layout = Layout.of(spec, lengths, pack=False)
    dtypes = (storage_dtype(vocabulary.vocab_size),) * len(layout.values)
    stored = {f"value {index}": _joined(rows, each.sources, each.length) for index, each in enumerate(layout.values)}
    for index, track in enumerate(layout.tracks):
        counts = np.array([sum(len(row[name]) for name in track) for row in rows])[:, None]
        at = np.arange(layout.track_length(index))
        stored[f"segments {index}"] = (at < counts).astype(np.int32)
        last = counts - np.array([len(row[track[-1]]) for row in rows])[:, None]
        stored[f"last {index}"] = ((at >= last) & (at < counts)).astype(np.int32)
    target = paths.join(directory, _FILE)
    with shard_files.local_file(target) as local:
        writer = ArrayRecordWriter(local, shard_files.WRITER_OPTIONS)
        for record in encode(stored, layout, dtypes):
            writer.write(record)
        writer.close()
        tokens = tuple(int(stored[f"segments {index}"].sum()) for index in range(len(layout.tracks)))
        shard = Shard(_FILE, len(rows), os.path.getsize(local), manifests.checksum(local), 0, len(rows), tokens)
        shard_files.store(local, target)
    made = Manifest(
        settings=dict(settings),
        layout=layout,
        dtypes=dtypes,
        vocabularies=dict.fromkeys(layout.lengths, vocabularies.describe(vocabulary)),
        shards=(shard,),
        versions={"t5x_like": __version__},
    )
    made.write(directory)
    return made


def _joined(rows: Sequence[Mapping[str, Sequence[int]]], sources: Sequence[str], length: int) -> np.ndarray:
    found = np.zeros((len(rows), length), np.int32)
    for array, row in zip(found, rows, strict=True):
        ids = [index for name in sources for index in row[name]]
        array[: len(ids)] = ids
    return found
