"""SeqIO source of the files that the arguments of a task give, one per split."""

from collections.abc import Mapping, Sequence
from typing import Any

from data_tasks.corpora.rows import Rows, RowSource
from t5x_like import paths
from t5x_like.errors import UserError

SPLITS = ("train", "validation", "test")
"""The splits, and the arguments that hold their files: local paths or URLs. A split without a file does not exist."""


class SplitFiles(RowSource):
    """The rows of the files of a task. A subclass defines `read_file`.

    Args:
      task: the name of the task, for messages.
      arguments: the current arguments of the task.
    """

    def __init__(self, task: str, arguments: Mapping[str, Any]):
        self._task, self._arguments = task, arguments
        super().__init__(self._read_split, SPLITS, self._describe_files)

    @property
    def splits(self) -> Sequence[str]:
        """The splits that have a file."""
        found = tuple(split for split in SPLITS if self._arguments[split])
        if not found:
            raise UserError(f"{self._task}: no file given. Set TASK_ARGUMENTS={{'train': 'FILE.jsonl'}}.")
        return found

    def read_file(self, split: str, path: str) -> Rows:
        """Returns the rows of the file of a split. It is called often, so it should cache them.

        Args:
          split: the split.
          path: the file, which exists.
        """
        raise NotImplementedError

    def _read_split(self, split: str) -> Rows:
        path = self._arguments[split]
        if not paths.exists(path):
            raise UserError(
                f"TASK_ARGUMENTS={{{split!r}: {path!r}}}: file not found. Give the path of an existing file."
            )
        return self.read_file(split, path)

    def _describe_files(self) -> str:
        return "; ".join(f"{split}: {self._read_split(split).origin}" for split in self.splits)
