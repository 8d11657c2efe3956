"""Token ids of the texts in records, and texts of predicted token ids."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from t5x_like.data import features
from t5x_like.data.records import Record
from t5x_like.data.source import DataSource
from t5x_like.decoding.generated import before_eos
from t5x_like.decoding.settings import Decoding
from t5x_like.decoding.stop_strings import cut_at_stop_string
from t5x_like.errors import UserError
from t5x_like.inference.layout import Layout
from t5x_like.vocabularies.chat_template import ChatTemplate, is_conversation


class Codec:
    """Encodes records as token ids, and decodes results for the output.

    Args:
      vocabularies: Vocabulary of `targets`, and of `inputs` if it differs; None if all records are token ids. Its
        attribute `text_prefix`, if it has one, begins each text of an encoder-decoder.
      lengths: Maximum lengths of `inputs` and `targets`.
      layout: Determines whether inputs may be empty, and which end of long inputs is truncated.
      eos_id: Token that ends a sequence; by default EOS of the vocabulary.
      model_eos_id: Token that ends a sequence if the vocabulary has none; by default 1.
      inputs_eos: Whether EOS is appended to inputs that are text. Inputs that are token ids are complete.
      targets_eos: The same for targets.
      separator: Text that is appended to inputs that are text.
      chat: Returns the template of the tokenizer, for inputs that are messages; None if there is no tokenizer.
      decoding: Its `eos_ids` end a generated text, by default `eos_id`; its `stop_strings` end a decoded one.

    Attributes:
      eos_id: Token that ends a sequence.
      eos_ids: Tokens that end a generated text.
      truncated: Number of sequences that were truncated.
    """

    def __init__(
        self,
        vocabularies: Mapping[str, Any] | None,
        lengths: Mapping[str, int],
        layout: Layout = Layout(),  # noqa: B008 (frozen)
        eos_id: int | None = None,
        model_eos_id: int | None = None,
        *,
        inputs_eos: bool = False,
        targets_eos: bool = False,
        separator: str = "",
        chat: Callable[[], ChatTemplate] | None = None,
        decoding: Decoding = Decoding(),  # noqa: B008 (frozen)
    ):
        self._vocabularies, self._lengths, self._layout = vocabularies, lengths, layout
        self._ended = {"inputs": inputs_eos, "targets": targets_eos}
        self._after = {"inputs": separator, "targets": ""}
        if eos_id is None and vocabularies is not None:
            eos_id = vocabularies["targets"].eos_id
        known = (each for each in (eos_id, model_eos_id, features.EOS_ID) if each is not None)
        self.eos_id, self.truncated = next(known), 0
        self.eos_ids = (self.eos_id,) if decoding.eos_ids is None else decoding.eos_ids
        self._stop_strings, self._chat = decoding.stop_strings, chat

    def check(self, path: str, records: Sequence[Record], vocab_size: int, *, needs_targets: bool) -> None:
        """Checks records without encoding their text, so that an error appears before the first batch.

        Args:
          path: Their path, for messages.
          records: The records, with `inputs` and possibly `targets`.
          vocab_size: Number of token ids of the model.
          needs_targets: Whether the targets are read too.

        Raises:
          UserError: A field is missing or of an unsuitable type, or a token id is out of range.
        """
        for record in records:
            for name in ("inputs", "targets") if needs_targets else ("inputs",):
                where = f"{path}:{record.line}"
                value = self._value(where, record.values, name)
                if isinstance(value, list):
                    check_ids(where, {name: value}, vocab_size)

    def encode(self, where: str, record: Mapping[str, Any], *, needs_targets: bool) -> dict[str, list[int]]:
        """Encodes a record.

        Args:
          where: File and line of the record, for messages.
          record: `inputs` and possibly `targets`, each text or token ids.
          needs_targets: Whether to encode the targets too.

        Returns:
          Token ids by field, truncated to the maximum lengths.

        Raises:
          UserError: The record is invalid.
        """
        wanted = ("inputs", "targets") if needs_targets else ("inputs",)
        example = {name: self._ids(where, record, name) for name in wanted}
        if not (self._layout.encoder or self._layout.bos or example["inputs"]):
            raise UserError(f"{where}: 'inputs' is empty, and the objective has no BOS. Give a prompt.")
        return example

    def _value(self, where: str, record: Mapping[str, Any], name: str) -> str | list[int]:
        if name not in record:
            raise UserError(
                f"{where}: missing {name!r}. Fields of this line: {', '.join(sorted(record))}. Add the field."
            )
        value = record[name]
        if isinstance(value, str):
            if self._vocabularies is None:
                raise UserError(
                    f"{where}: {name!r} is text without a vocabulary. Give VOCABULARY_PATH, "
                    "MIXTURE_OR_TASK_NAME, or token ids."
                )
        elif name == "inputs" and is_conversation(value):
            if self._chat is None:
                raise UserError(f"{where}: 'inputs' is a conversation without a chat template. Give VOCABULARY_PATH.")
            try:
                ids = self._chat().prompt(value)
            except UserError as error:
                raise UserError(f"{where}: {error}") from error
            bos = [] if self._layout.encoder else list(self._layout.bos)
            return ids[len(bos) :] if bos and ids[: len(bos)] == bos else ids  # the row of the model begins with BOS
        elif not (isinstance(value, list) and all(isinstance(token, int) and token >= 0 for token in value)):
            raise UserError(f"{where}: {name!r} must be text or a list of token ids, not {value!r:.80}. Correct it.")
        return value

    def _ids(self, where: str, record: Mapping[str, Any], name: str) -> list[int]:
        value, length = self._value(where, record, name), self._lengths[name]
        ended = self._ended[name] and (name == "inputs" or isinstance(value, str))
        if isinstance(value, str):
            vocabulary = self._vocabularies.get(name) or self._vocabularies["targets"]
            before, after = self._prefix(name, vocabulary), [self.eos_id] * ended
            value = [*before, *vocabulary.encode(value + self._after[name]), *after]
        if len(value) > length:
            self.truncated += 1
            if ended:
                value = value[: length - 1] + [self.eos_id]
            else:
                # A prompt keeps its end, from which the model continues.
                value = value[-length:] if name == "inputs" and not self._layout.encoder else value[:length]
        return value

    def _prefix(self, name: str, vocabulary: Any) -> Sequence[int]:
        """Returns the ids before a text of a field."""
        if name == "inputs" and self._layout.encoder_bos is not None:
            return (self._layout.encoder_bos,)
        return getattr(vocabulary, "text_prefix", ()) if self._layout.encoder else ()

    def report(self) -> None:
        """Logs a warning if sequences were truncated."""
        if self.truncated:
            logging.warning("%d sequences were longer than %s and were truncated", self.truncated, dict(self._lengths))

    def decode(self, mode: str, result: Any) -> dict[str, Any]:
        """Returns the output fields of a row.

        Args:
          mode: `predict` or `score`.
          result: Its `Generated` or `Scored`, on the host.

        Returns:
          The best text and its log-probability in nats; with several samples also the lists of all of them. In mode
          `score` the log-probability of the targets, their number of tokens, and whether each is the most probable one.
        """
        if mode == "score":
            fields = {"score": float(result.log_probability), "tokens": int(result.tokens)}
            fields["greedy"] = bool(result.greedy)
            if result.positions is not None:
                fields["token_scores"] = [float(value) for value in result.positions]
            return fields
        texts = [
            self._text(tokens[:length].tolist()) for tokens, length in zip(result.tokens, result.lengths, strict=True)
        ]
        log_probabilities = [float(value) for value in result.log_probability]
        best = {"prediction": texts[0], "log_probability": log_probabilities[0]}
        return best if len(texts) == 1 else best | {"predictions": texts, "log_probabilities": log_probabilities}

    def _text(self, tokens: list[int]) -> Any:
        """Returns the text before EOS and before the first stop string; token ids without vocabularies."""
        tokens = before_eos(tokens, self.eos_ids)
        if self._vocabularies is None:
            return tokens
        return cut_at_stop_string(self._vocabularies["targets"].decode(tokens), self._stop_strings)


def check_ids(where: str, ids: Mapping[str, Sequence[int]], vocab_size: int) -> None:
    """Checks that token ids are in the vocabulary: an embedding lookup would return NaN without an error.

    Args:
      where: File and line of the record.
      ids: Token ids by field.
      vocab_size: Number of token ids of the model.

    Raises:
      UserError: A token id is out of range. The message names the file, the line, the field and the id.
    """
    for name, tokens in ids.items():
        if tokens and max(tokens) >= vocab_size:
            raise UserError(
                f"{where}: token id {max(tokens)} in {name!r}: the model only has the ids 0 … {vocab_size - 1}. "
                "Correct the ids, or give the vocabulary that the model was trained with."
            )


def has_task(data: DataSource | None) -> bool:
    """Returns whether `data` is a task, which provides vocabularies and preprocessors."""
    return data is not None and bool(getattr(data, "mixture_or_task_name", True))


def vocabularies_for(
    data: DataSource | None, records: Sequence[Mapping[str, Any]], vocabulary: Any = None
) -> Mapping[str, Any] | None:
    """Returns the vocabularies for texts and conversations in the records; None if all records are token ids.

    Args:
      data: The task, or a source with only a vocabulary.
      records: The records.
      vocabulary: The vocabulary of the model, which needs no task; None for the vocabulary of `data`.

    Raises:
      UserError: Records have text, and neither a task nor VOCABULARY_PATH provides its vocabulary.
    """
    values = [record.get(name) for record in records for name in ("inputs", "targets")]
    if not any(isinstance(value, str) or is_conversation(value) for value in values):
        return None
    if vocabulary is not None:
        return {"targets": vocabulary}
    if not has_task(data) and not getattr(data, "vocabulary_path", None):
        raise UserError(
            "INPUT_PATH: contains text, but neither a task nor VOCABULARY_PATH provides its vocabulary. Give "
            "--gin.VOCABULARY_PATH=…, --gin.MIXTURE_OR_TASK_NAME=…, or token ids in a .jsonl file."
        )
    return data.vocabularies()
