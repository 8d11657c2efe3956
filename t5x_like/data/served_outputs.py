r"""Texts of served models with the log-probabilities of their most probable tokens: JSON lines and Parquet.

A record is one text, in one of the forms that servers with OpenAI's interface return, such as vLLM, or their part:

| form | record |
|---|---|
| chat | `{"choices": [{"logprobs": {"content": [{"token": …, "top_logprobs": [{"token": …, "logprob": …}]}]}}]}` |
| completions | `{"choices": [{"logprobs": {"tokens": […], "top_logprobs": [{TOKEN: LOGPROB}]}}]}` |
| part | `{"logprobs": {…}}`, `{"content": […]}` or `{"tokens": […], "top_logprobs": […]}` |

A token is its text, perhaps with `bytes` (a list of numbers), `token_id:NUMBER`, `bytes:\x…`, a special token, or the
piece as the vocabulary spells it.
"""

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from t5x_like import packages
from t5x_like.data import records
from t5x_like.errors import UserError
from t5x_like.vocabularies.base import Vocabulary
from t5x_like.vocabularies.token_bytes import TokenBytes

PARQUET = ".parquet"
# Rounding of the sum of probabilities.
_TOLERANCE = 1e-3
_TOKEN_ID, _BYTES = re.compile(r"token_id:(\d+)"), re.compile(r"bytes:((?:\\x[0-9a-f]{2})+)")


class Position(NamedTuple):
    """A token of a served text.

    Attributes:
      id: Its id.
      top: Ids of the most probable tokens, in descending order of probability.
      log_p: Their log-probabilities.
    """

    id: int
    top: list[int]
    log_p: list[float]


class ServedText(NamedTuple):
    """A text of a served model.

    Attributes:
      where: File and line, or file and row, for messages.
      prompt: The text before it, or None.
      positions: Its tokens.
    """

    where: str
    prompt: str | None
    positions: list[Position]


class ServedVocabulary:
    """Finds the ids of tokens as servers name them.

    Args:
      vocabulary: The vocabulary of the served model.

    Raises:
      UserError: Its pieces do not determine the bytes of a text; see `TokenBytes`.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.tokens = TokenBytes(vocabulary)
        self._vocabulary = self.tokens.vocabulary

    @functools.cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for index, token in enumerate(self.tokens.of):
            if token:
                found.setdefault(token, index)
        return found

    @functools.cached_property
    def _by_name(self) -> dict[str, int]:
        pieces = getattr(self._vocabulary, "pieces", ())
        found = {piece: index for index, piece in enumerate(pieces) if piece}
        return found | {name: index for index, name in getattr(self._vocabulary, "special_names", {}).items()}

    def find(self, token: str, given: Sequence[int] | None = None) -> int | None:
        """Returns the id of a token; None if the vocabulary does not have it.

        Args:
          token: Its name.
          given: Its bytes.
        """
        if (numbered := _TOKEN_ID.fullmatch(token)) is not None:
            return index if (index := int(numbered[1])) < len(self.tokens) else None
        if (escaped := _BYTES.fullmatch(token)) is not None:
            return self._by_bytes.get(bytes.fromhex(escaped[1].replace("\\x", "")))
        special = self._by_name.get(token)
        if special is not None and self.tokens.of[special] is None:
            return special
        found = self._by_bytes.get(bytes(given) if given else token.encode())
        return special if found is None else found


def read(path: str, vocabulary: ServedVocabulary, *, prompt: str | None = None) -> Iterator[ServedText]:
    """Yields the texts of a file.

    Args:
      path: A .jsonl (perhaps .gz) or .parquet file.
      vocabulary: The vocabulary of the served model.
      prompt: Field of a record with the text before it; None without one.

    Raises:
      UserError: A record has another form, a token that the vocabulary does not have, or log-probabilities that are not
        those of a distribution. The message names file and line.
    """
    for where, record in _records(path):
        entries = _entries(where, record)
        if prompt is not None and not isinstance(record.get(prompt), str):
            raise UserError(f"{where}: PROMPT_FIELD={prompt!r} is missing or not text. Name the field of the prompt.")
        found = [_position(f"{where}, token {number}", entry, vocabulary) for number, entry in enumerate(entries)]
        if not found:
            raise UserError(f"{where}: the text has no tokens. Remove the record.")
        yield ServedText(where, None if prompt is None else record[prompt], found)


def _records(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if path.endswith(PARQUET):
        parquet = packages.require("pyarrow.parquet", f"reading {path}", extra="corpora")
        number = 0
        for batch in parquet.ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                yield f"{path}, row {number}", row
                number += 1
        return
    if not path.removesuffix(records.GZIP_SUFFIX).endswith(".jsonl"):
        raise UserError(f"{path}: unknown format of served outputs. Give .jsonl or .parquet files.")
    text = records.decode(path, records.read_bytes(path))
    for record in records.read_records(path, text):
        yield f"{path}:{record.line}", record.values


def _entries(where: str, record: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Returns the token and the most probable tokens of each position."""
    node: Any = record
    if isinstance(choices := node.get("choices"), list) and choices:
        node = choices[0]
    if isinstance(node, Mapping) and isinstance(node.get("logprobs"), Mapping):
        node = node["logprobs"]
    if isinstance(node, Mapping) and isinstance(content := node.get("content"), list):
        return [
            (entry, entry.get("top_logprobs")) if isinstance(entry, Mapping) else (entry, None) for entry in content
        ]
    if isinstance(node, Mapping) and isinstance(tokens := node.get("tokens"), list):
        top = node.get("top_logprobs")
        if not isinstance(top, list) or len(top) != len(tokens):
            raise UserError(
                f"{where}: {len(tokens)} tokens, but {len(top) if isinstance(top, list) else 'no'} top_logprobs. Ask "
                "the server for top_logprobs of each token."
            )
        return list(zip(tokens, top, strict=True))
    raise UserError(
        f"{where}: has neither logprobs.content (chat) nor tokens and top_logprobs (completions), but "
        f"{', '.join(map(str, record))}. Ask the server for logprobs."
    )


def _position(where: str, entry: tuple[Any, Any], vocabulary: ServedVocabulary) -> Position:
    token, top = entry
    index = _id(where, token, vocabulary)
    # Parquet has a struct with all tokens of a map, and null for those that are missing.
    pairs = [(name, value) for name, value in top.items() if value is not None] if isinstance(top, Mapping) else top
    if not isinstance(pairs, list) or not pairs:
        raise UserError(f"{where}: has no top_logprobs. Ask the server for them, and leave out echoed prompts.")
    found: dict[int, float] = {}
    for pair in pairs:
        name, value = (pair, pair.get("logprob")) if isinstance(pair, Mapping) else pair
        if isinstance(value, bool) or not isinstance(value, int | float) or not value <= _TOLERANCE:
            raise UserError(
                f"{where}: the logprob {value!r} is not a log-probability of at most 0. Correct the record."
            )
        other = _id(where, name, vocabulary)
        if other in found:
            raise UserError(f"{where}: {_name(name)!r} is given twice, or stands for the id {other} of another token.")
        found[other] = min(float(value), 0.0)
    if (total := sum(map(math.exp, found.values()))) > 1 + _TOLERANCE:
        raise UserError(f"{where}: the probabilities add up to {total:.4f}, more than 1. Correct the record.")
    order = sorted(found, key=lambda each: -found[each])
    return Position(index, order, [found[each] for each in order])


def _name(token: Any) -> Any:
    return token.get("token") if isinstance(token, Mapping) else token


def _id(where: str, token: Any, vocabulary: ServedVocabulary) -> int:
    name = _name(token)
    if not isinstance(name, str):
        raise UserError(f"{where}: the token {name!r} is not text. Correct the record.")
    index = vocabulary.find(name, token.get("bytes") if isinstance(token, Mapping) else None)
    if index is None:
        raise UserError(
            f"{where}: the token {name!r} is not in the vocabulary. Give the tokenizer of the served model, or ask the "
            "server for token ids (`return_tokens_as_token_ids` of vLLM) or bytes."
        )
    return index
