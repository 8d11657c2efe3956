"""Sources of benchmarks: prepared by TFDS, or the files in the directory that the task argument `data_dir` gives."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import seqio
import tensorflow as tf

from data_tasks.corpora.columns import Column, Text
from data_tasks.corpora.rows import Rows, RowSource
from data_tasks.corpora.table_files import ParsesRows, Table
from t5x_like import paths
from t5x_like.data.records import read_bytes
from t5x_like.errors import UserError

DATA_DIR = "data_dir"
"""The name of the task argument."""


class Layout(Protocol):
    """How the examples of a split are stored at a path, such as `table_files.Table`."""

    def files(self, path: str) -> Sequence[str]:
        """Returns the files that hold the examples; empty if the path does not have this layout."""

    def read(self, path: str) -> Rows:
        """Returns the examples. They are read once.

        Raises:
          UserError: a file is invalid.
        """


Files = Mapping[str, Sequence[tuple[str, Layout]]]
"""For each split, the paths in the directory that may hold it, with their layouts. The first existing one is read."""


def with_tfds_schema(official: Files, columns: Mapping[str, Column]) -> dict[str, list[tuple[str, Layout]]]:
    """Adds files named after the split, `validation.jsonl` or `validation.csv`, whose columns have the names of TFDS.

    Args:
      official: the files as the benchmark publishes them.
      columns: the features of TFDS.

    Returns:
      All files that may hold each split.
    """
    table = Table.of(columns)
    return {
        split: [*files, *((f"{split}{suffix}", table) for suffix in (".jsonl", ".csv"))]
        for split, files in official.items()
    }


class DataDirSource(ParsesRows, seqio.DataSource):
    """A benchmark's data: the files in a directory, or TFDS if no directory is given.

    Args:
      task: the name of the task, for messages.
      arguments: the current arguments of the task, with `data_dir`.
      files: the files of each split.
      folders: directories within `data_dir` that may hold the files, so that one `data_dir` serves several tasks.
      tfds: the dataset in TFDS, if it has one, as name, configuration and version.
      tfds_splits: the names of the splits in TFDS, where they differ.
      target_texts: returns the features with texts that the task predicts, which rows to predict may lack.
    """

    def __init__(
        self,
        task: str,
        arguments: Mapping[str, Any],
        files: Files,
        *,
        folders: Sequence[str] = (),
        tfds: str | None = None,
        tfds_splits: Mapping[str, str] | None = None,
        target_texts: Callable[[], Sequence[str]] = tuple,
    ):
        self._task, self._arguments, self._files, self._folders = task, arguments, files, tuple(folders)
        self._tfds_name, self._target_texts = tfds, target_texts
        self._tfds_splits = {split: (tfds_splits or {}).get(split, split) for split in files}
        super().__init__(splits=tuple(files))

    @property
    def _directory(self) -> str | None:
        directory = self._arguments[DATA_DIR]
        if not directory:
            return None
        inner = (paths.join(directory, folder) for folder in self._folders)
        return next((path for path in inner if paths.listdir(path)), str(directory))

    @functools.cached_property
    def _tfds(self) -> seqio.TfdsDataSource:
        if self._tfds_name is None:
            raise UserError(f"{self._task}: TFDS does not have this dataset. {self._how()}")
        return seqio.TfdsDataSource(self._tfds_name, splits=self._tfds_splits)

    @functools.cached_property
    def _rows(self) -> RowSource:
        return RowSource(self._read, self.splits, self.describe)

    def _how(self, split: str | None = None) -> str:
        split = split or next(iter(self._files))
        names = ", ".join(dict.fromkeys(name for name, _ in self._files[split]))
        return f"Set TASK_ARGUMENTS={{'{DATA_DIR}': …}} to a directory with one of {names}."

    def _find(self, split: str) -> tuple[str, Layout] | None:
        """Returns the path and the layout of a split in the directory, or None."""
        for name, layout in self._files[split]:
            if layout.files(path := paths.join(self._directory, name)):
                return path, layout
        return None

    def _read(self, split: str) -> Rows:
        found = self._find(split)
        if found is None:
            raise UserError(f"{self._task}, split {split!r}: no file found in {self._directory!r}. {self._how(split)}")
        path, layout = found
        return layout.read(path)

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """Whether the data can be distributed over any number of shards: rows can, files of TFDS cannot."""
        return self._directory is not None

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns the shards of a split."""
        return self._source().list_shards(split)

    def num_input_examples(self, split: str) -> int | None:
        """Returns the number of examples of a split."""
        return self._source().num_input_examples(split)

    def _source(self) -> seqio.DataSource:
        return self._tfds if self._directory is None else self._rows

    @property
    def row_columns(self) -> Mapping[str, Column]:
        """The features of a row as columns, with the names of TFDS, from the last file of the last split.

        Targets have defaults.
        """
        _, table = self._files[self.splits[-1]][-1]
        return dict(table.columns) | {name: Text(default=b"") for name in self._target_texts()}

    def describe(self) -> str:
        """Returns one line about the data: the files and a hash of their contents, or the dataset of TFDS."""
        if self._directory is None:
            return f"{self._task}: TFDS {self._tfds_name}"
        found = dict.fromkeys(place for split in self.splits if (place := self._find(split)))
        digest = hashlib.blake2b(digest_size=8)
        for file in dict.fromkeys(file for path, layout in found for file in layout.files(path)):
            digest.update(read_bytes(file))
        return f"{self._task}: {', '.join(dict.fromkeys(path for path, _ in found))}, hash {digest.hexdigest()}"

    def get_dataset(self, split="train", shuffle=True, seed=None, shard_info=None, **reading) -> tf.data.Dataset:
        """Returns the examples of a split; see `seqio.DataSource`."""
        if split not in self.splits:
            raise UserError(f"{self._task}: split {split!r} not found. Give one of {', '.join(self.splits)}.")
        if self._directory is not None:
            return self._rows.get_dataset(split, shuffle=shuffle, seed=seed, shard_info=shard_info)
        try:
            return self._tfds.get_dataset(split, shuffle=shuffle, seed=seed, shard_info=shard_info)
        except UserError:
            raise
        except Exception as error:  # a missing download or a missing network: TFDS raises many types
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"{self._task}: TFDS cannot read {self._tfds_name} ({reason:.200}). {self._how(split)}"
            ) from error
