"""What a model predicts for one token of a text: at a mask, a sentinel, a hidden position, or the end of a prefix."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t5x_like.analysis.analyzed_model import DECODER, ENCODER, AnalyzedModel
from t5x_like.errors import UserError
from t5x_like.inference.layout import Layout
from t5x_like.models.base import Batch
from t5x_like.models.xlnet import TARGET_POSITIONS
from t5x_like.objectives import masked_lm, passes, permutation_lm
from t5x_like.objectives.base import Objective
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.permutation_lm import PermutationLM
from t5x_like.vocabularies import special_tokens
from t5x_like.vocabularies.sentinels import sentinel_ids


class Blank(NamedTuple):
    """A token of a text that is predicted.

    Attributes:
      ids: Token ids of the text without special tokens; that of the blank itself is not read.
      start: Position of the token.
      stop: Position after the last token that is hidden with it, such as the rest of its word.
      where: File and line, for messages.
    """

    ids: Sequence[int]
    start: int
    stop: int
    where: str = ""


class Rows(NamedTuple):
    """The rows of blanks.

    Attributes:
      rows: Token ids of the first stack of each blank.
      decoder: Token ids of the decoder beside an encoder; None without one.
      positions: Position of the prediction in each row.
      aligned: Further features with a value per token.
    """

    rows: Sequence[Sequence[int]]
    decoder: Sequence[Sequence[int]] | None
    positions: Sequence[int]
    aligned: dict[str, Sequence[Sequence[int]]]


class Reader(Protocol):
    """How a kind of model predicts a blank.

    Attributes:
      reads_after: Whether it reads the text after the blank.
    """

    reads_after: bool

    def params(self) -> Any:
        """Returns the parameters that `logits` reads."""

    def rows(self, blanks: Sequence[Blank]) -> Rows:
        """Returns the rows of blanks."""

    def logits(self, params: Any, batch: Batch) -> Float[Array, "batch vocab"]:
        """Returns the logits of the token in the blank. The feature `position` has the position of the prediction."""


def reader_of(analyzed: AnalyzedModel) -> Reader:
    """Returns how a model predicts a blank.

    Raises:
      UserError: It does not predict tokens.
    """
    config = analyzed.loaded.resolved
    if TARGET_POSITIONS in config.reads:
        return _PermutationReader(analyzed)
    if analyzed.stacks == (ENCODER,):
        return _MaskReader(analyzed)
    if analyzed.stacks == (DECODER,):
        return _PrefixReader(analyzed)
    if analyzed.stacks == (ENCODER, DECODER):
        return _InfillingReader(analyzed) if mask_id(analyzed) is not None else _SentinelReader(analyzed)
    raise UserError(f"ANALYSES: {type(config).__name__} does not predict tokens of a text. Give another model.")


def mask_id(analyzed: AnalyzedModel) -> int | None:
    """Returns the id of the mask of a vocabulary, of an encoder as in training; None if it has none."""
    try:
        if analyzed.stacks != (ENCODER,):
            return getattr(analyzed.vocabulary, "mask_id", None)
        return special_tokens.special_tokens(analyzed.vocabulary).mask
    except UserError:
        return None


def log_probabilities(
    analyzed: AnalyzedModel, reader: Reader, blanks: Sequence[Blank], *, what: str
) -> Iterator[Float[np.ndarray, " vocab"]]:
    """Yields the log-probability of every token in each blank, in nats."""

    def compute(params: Any, batch: Batch) -> Array:
        return jax.nn.log_softmax(reader.logits(params, batch))

    yield from map(np.asarray, _run(analyzed, reader, compute, blanks, what))


def target_log_probabilities(
    analyzed: AnalyzedModel, reader: Reader, blanks: Sequence[Blank], *, what: str
) -> Float[np.ndarray, " blanks"]:
    """Returns the log-probability of the token of the text in each blank, in nats."""

    def compute(params: Any, batch: Batch) -> Array:
        found = jax.nn.log_softmax(reader.logits(params, batch))
        return jnp.take_along_axis(found, batch["target"][:, None], axis=1)[:, 0]

    targets = [blank.ids[blank.start] for blank in blanks]
    return np.array(list(_run(analyzed, reader, compute, blanks, what, target=targets)), np.float64)


def _run(
    analyzed: AnalyzedModel, reader: Reader, compute: Any, blanks: Sequence[Blank], what: str, **extra: Sequence[int]
) -> Iterator[Any]:
    made = reader.rows(blanks)
    for blank, *rows in zip(blanks, made.rows, made.decoder or made.rows, strict=True):
        if (size := max(map(len, rows))) > analyzed.max_length:
            raise UserError(
                f"{blank.where}: the row has {size} tokens, and the model reads {analyzed.max_length}. Shorten the "
                "text, or give other ANALYSES."
            )
    yield from analyzed.run(
        compute,
        reader.params(),
        made.rows,
        what=what,
        decoder=made.decoder,
        aligned=made.aligned,
        extra={"position": made.positions, **extra},
    )


def _at(hidden: Float[Array, "batch length embed"], batch: Batch) -> Float[Array, "batch 1 embed"]:
    return jnp.take_along_axis(hidden, batch["position"][:, None, None], axis=1)


def _model_features(config: Any, batch: Batch) -> dict[str, Array]:
    """Returns the features of the model, without those of the analysis."""
    kept = {name: x for name, x in batch.items() if name in config.reads or name.endswith("_segment_ids")}
    return {name: x for name, x in kept.items() if name in config.reads}


class _HeadReader:
    """What readers by the head of an objective share."""

    def __init__(self, analyzed: AnalyzedModel, objective: Objective):
        self._analyzed, self._objective = analyzed, objective

    def params(self) -> Any:
        return dataclasses.replace(self._analyzed.loaded, objective=self._objective).read()

    def _framed(self, blank: Blank, ids: Sequence[int]) -> tuple[list[int], int]:
        """Returns a row with its special tokens, and the position of the blank in it."""
        frame = self._analyzed.frame
        return [*frame.prefix, *ids, *frame.suffix], len(frame.prefix) + blank.start


class _MaskReader(_HeadReader):
    """An encoder predicts the token at a mask. The tokens that are hidden with it are masks too."""

    reads_after = True

    def __init__(self, analyzed: AnalyzedModel):
        own = analyzed.loaded.objective
        parts = [own, *getattr(own, "objectives", ())]
        super().__init__(analyzed, next((each for each in parts if isinstance(each, MaskedLM)), MaskedLM()))
        mask = mask_id(analyzed)
        if mask is None:
            raise UserError(
                f"VOCABULARY_PATH: {type(analyzed.vocabulary).__name__} has no mask, which an encoder needs to predict "
                "a word. Give the vocabulary of the model, or ANALYSES that do not predict words."
            )
        self._mask = mask

    def rows(self, blanks: Sequence[Blank]) -> Rows:
        rows, positions = [], []
        for blank in blanks:
            hidden = [self._mask] * (blank.stop - blank.start)
            row, position = self._framed(blank, [*blank.ids[: blank.start], *hidden, *blank.ids[blank.stop :]])
            rows.append(row)
            positions.append(position)
        return Rows(rows, None, positions, {})

    def logits(self, params: Any, batch: Batch) -> Float[Array, "batch vocab"]:
        ones = jnp.ones_like(batch["position"][:, None])
        masked = {"masked_positions": batch["position"][:, None], "masked_targets": ones, "masked_weights": ones}
        predicted = passes.forward(self._objective, params, {**batch, **masked}).predictions[masked_lm.NAME]
        return predicted.logits(predicted.hidden)[:, 0]


class _PermutationReader(_HeadReader):
    """XLNet predicts the token at a position that it does not see."""

    reads_after = True

    def __init__(self, analyzed: AnalyzedModel):
        super().__init__(analyzed, PermutationLM())

    def rows(self, blanks: Sequence[Blank]) -> Rows:
        rows, positions, ranks, targets = [], [], [], []
        for blank in blanks:
            row, position = self._framed(blank, blank.ids)
            hidden = range(position, position + blank.stop - blank.start)
            rows.append(row)
            positions.append(position)
            # A token sees its own rank and lower ones.
            ranks.append([1 + at - position if at in hidden else 0 for at in range(len(row))])
            targets.append([int(at == position) for at in range(len(row))])
        return Rows(rows, None, positions, {"encoder_ranks": ranks, permutation_lm.IS_TARGET: targets})

    def logits(self, params: Any, batch: Batch) -> Float[Array, "batch vocab"]:
        tokens = batch["encoder_input_tokens"]
        rows = {"token_types": jnp.zeros_like(tokens), "reversed": jnp.zeros_like(tokens)} | dict(batch)
        predicted = passes.forward(self._objective, params, rows).predictions[permutation_lm.NAME]
        return predicted.logits(predicted.hidden[:, :1])[:, 0]


class _ModelReader:
    """What readers by the model alone share."""

    def __init__(self, analyzed: AnalyzedModel):
        self._analyzed = analyzed

    def params(self) -> Any:
        return self._analyzed.model

    def logits(self, params: Any, batch: Batch) -> Float[Array, "batch vocab"]:
        hidden = params(_model_features(params.config, batch)).hidden
        return params.unembed(_at(hidden, batch))[:, 0]


class _PrefixReader(_ModelReader):
    """A decoder continues the text before the blank."""

    reads_after = False

    def rows(self, blanks: Sequence[Blank]) -> Rows:
        start = start_of_text(self._analyzed)
        rows = [[*start, *blank.ids[: blank.start]] for blank in blanks]
        if not all(rows):
            raise UserError("ANALYSES: the decoder has no token before a text. Give texts with a blank further on.")
        return Rows(rows, None, [len(row) - 1 for row in rows], {})


class _SentinelReader(_ModelReader):
    """An encoder reads a sentinel in place of the blank; a decoder predicts what follows the sentinel (T5)."""

    reads_after = True

    def rows(self, blanks: Sequence[Blank]) -> Rows:
        sentinel, suffix = first_sentinel(self._analyzed), self._analyzed.frame.suffix
        rows = [[*blank.ids[: blank.start], sentinel, *blank.ids[blank.stop :], *suffix] for blank in blanks]
        decoder = [[self._analyzed.start_id, sentinel]] * len(blanks)
        return Rows(rows, decoder, [1] * len(blanks), {})


class _InfillingReader(_ModelReader):
    """An encoder reads a mask in place of the blank; a decoder writes the whole text up to the blank (BART)."""

    reads_after = True

    def rows(self, blanks: Sequence[Blank]) -> Rows:
        frame, mask = self._analyzed.frame, mask_id(self._analyzed)
        rows = [
            [*frame.prefix, *blank.ids[: blank.start], mask, *blank.ids[blank.stop :], *frame.suffix]
            for blank in blanks
        ]
        decoder = [[self._analyzed.start_id, *frame.prefix, *blank.ids[: blank.start]] for blank in blanks]
        return Rows(rows, decoder, [len(row) - 1 for row in decoder], {})


def start_of_text(analyzed: AnalyzedModel) -> tuple[int, ...]:
    """Returns the tokens from which a decoder predicts the first token of a text.

    BOS of the training of the model; without one, EOS of the vocabulary, as `<|endoftext|>` of GPT-2; or none.
    """
    bos = Layout.of(analyzed.loaded.features).bos
    if bos:
        return bos
    try:
        eos = analyzed.vocabulary.eos_id
    except (UserError, AttributeError, NotImplementedError):
        return ()
    return () if eos is None or eos < 0 else (eos,)


def first_sentinel(analyzed: AnalyzedModel) -> int:
    """Returns the id of the first sentinel of span corruption.

    Raises:
      UserError: The vocabulary has no sentinels.
    """
    if not getattr(analyzed.vocabulary, "extra_ids", 0):
        raise UserError(
            f"VOCABULARY_PATH: {type(analyzed.vocabulary).__name__} has neither sentinels nor a mask, which an "
            "encoder-decoder needs to predict a word. Give the vocabulary of the model."
        )
    return sentinel_ids(analyzed.vocabulary)[0]
