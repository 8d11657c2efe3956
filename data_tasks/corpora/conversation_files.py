"""SeqIO source of conversations in JSON lines, which Python encodes with the chat template of a tokenizer.

A template is a program of its own, so the token ids of all rows are computed when a split is first read, and are held
in memory. Messages about a conversation name its file and line.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from data_tasks.corpora.columns import Column, to_tensor
from data_tasks.corpora.rows import Rows
from data_tasks.corpora.split_files import SplitFiles
from data_tasks.downstream.classification import VOCABULARY_PATH, late_vocabulary
from t5x_like.data.records import decode, read_bytes, read_records
from t5x_like.errors import UserError
from t5x_like.vocabularies.chat_template import ChatTemplate

Encode = Callable[[ChatTemplate, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
"""Function that returns the features of a row, given a template, a record, the next record of the file (the first one
after the last) and the arguments of the task."""
Message = Mapping[str, Any]


class ConversationFiles(SplitFiles):
    """The encoded records of the files of a task.

    Args:
      task: the name of the task, for messages.
      arguments: the current arguments of the task, with `vocabulary_path`.
      columns: the features of a row, which `encode` returns.
      encode: makes the features of a record. It raises a `UserError` without the place of the record.
    """

    def __init__(self, task: str, arguments: Mapping[str, Any], columns: Mapping[str, Column], encode: Encode):
        super().__init__(task, arguments)
        self._columns, self._encode = dict(columns), encode
        self._found: dict[str, tuple[Mapping[str, Any], Rows]] = {}

    def read_file(self, split: str, path: str) -> Rows:
        """Returns the rows of the file of a split; see `SplitFiles.read_file`."""
        arguments = dict(self._arguments)
        known, rows = self._found.get(split, (None, None))
        if known != arguments:
            rows = self._encoded(path, arguments)
            self._found[split] = arguments, rows
        return rows

    def _encoded(self, path: str, arguments: Mapping[str, Any]) -> Rows:
        late_vocabulary(arguments).vocabulary  # noqa: B018 (raises an error if the path is not set)
        template = ChatTemplate(arguments[VOCABULARY_PATH])
        values: dict[str, list[Any]] = {name: [] for name in self._columns}
        digest = hashlib.blake2b(digest_size=8)
        records = list(read_records(path, decode(path, read_bytes(path))))
        for record, following in zip(records, [*records[1:], *records[:1]], strict=True):
            try:
                made = self._encode(template, record.values, following.values, arguments)
            except UserError as error:
                raise UserError(f"{path}:{record.line}: {error}") from error
            for name, each in values.items():
                each.append(made[name])
                digest.update(np.asarray(made[name]).tobytes() + b";")
        count = len(next(iter(values.values())))
        if not count:
            raise UserError(f"{path}: the file has no rows. Give a file with at least one row.")
        origin = f"{count:,} conversations of {path}, hash of their tokens {digest.hexdigest()}"
        return Rows({name: to_tensor(column, values[name]) for name, column in self._columns.items()}, origin)


def messages(record: Mapping[str, Any], name: str, role: str) -> Sequence[Message]:
    """Returns the messages of a field: a list of messages, or a text as the only message of a role.

    Raises:
      UserError: the field is missing or holds something else.
    """
    if name not in record:
        raise UserError(f"field {name!r} not found among {', '.join(map(repr, record)) or 'no fields'}. Add it.")
    value = record[name]
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list) or not value:
        raise UserError(f"field {name!r}: {value!r:.80} is neither a text nor a list of messages. Correct it.")
    for number, each in enumerate(value):
        if not isinstance(each, dict) or not isinstance(each.get("role"), str) or "content" not in each:
            raise UserError(
                f"field {name!r}: message {number}, {each!r:.80}, is not an object with 'role' and 'content'. "
                "Correct it."
            )
    return value
