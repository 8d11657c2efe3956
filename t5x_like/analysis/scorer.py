"""Scores and generates text for other programs, such as `lm_eval`."""

import copy
import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from t5x_like.analysis.analyzed_model import DECODER, ENCODER, AnalyzedModel
from t5x_like.analysis.blanks import start_of_text
from t5x_like.decoding.score import Scored, score_hidden
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.inference.layout import Layout
from t5x_like.models.base import Batch, Model
from t5x_like.objectives.base import Objective
from t5x_like.stored import run_tokenizer
from t5x_like.stored.loaded import Loaded


class Continuations(NamedTuple):
    """The scores of continuations.

    Attributes:
      log_probability: Sum over the tokens of each continuation, in nats.
      is_greedy: Whether each of its tokens is the most probable one.
    """

    log_probability: Float[np.ndarray, " rows"]
    is_greedy: Bool[np.ndarray, " rows"]


def score_continuations(
    analyzed: AnalyzedModel,
    given: Sequence[Sequence[int]],
    continuations: Sequence[Sequence[int]],
    encoder: Sequence[Sequence[int]] | None = None,
) -> Continuations:
    """Scores what a decoder writes after tokens that are given.

    Args:
      analyzed: The model.
      given: Token ids that the decoder reads first, at least one in each row.
      continuations: Token ids that are scored, at least one in each row.
      encoder: Token ids that the encoder reads; None without one.

    Raises:
      UserError: A row is longer than the model reads.
    """
    whole = [[*before, *after] for before, after in zip(given, continuations, strict=True)]
    longest = max(len(row) - 1 for row in (*whole, *(encoder or ())))
    if longest > analyzed.max_length:
        raise UserError(f"a text has {longest} tokens, the model reads {analyzed.max_length}. Shorten it.")
    weights = [[0] * (len(before) - 1) + [1] * len(after) for before, after in zip(given, continuations, strict=True)]

    def compute(model: Model, batch: Batch) -> Scored:
        reads = {name: x for name, x in batch.items() if name in model.config.reads}
        return score_hidden(model(reads).hidden, model.unembed, batch)

    decoder = [row[:-1] for row in whole]
    results = analyzed.run(
        compute,
        analyzed.model,
        decoder if encoder is None else encoder,
        what="texts",
        decoder=None if encoder is None else decoder,
        aligned={"decoder_target_tokens": [row[1:] for row in whole], "decoder_loss_weights": weights},
    )
    found = [(float(each.log_probability), bool(each.greedy)) for each in results]
    return Continuations(*map(np.array, zip(*found, strict=True)))


class Scorer:
    """Log-likelihoods and generated text of a decoder or an encoder-decoder, in the terms of `lm_eval`.

    Args:
      loaded: The model; see `open_model`.
      batch_size: Rows per batch.
      add_bos: Whether a decoder reads BOS before a context. None: as the tokenizer of the model does, whatever the
        model was trained with; a SentencePiece model without settings has BOS of the training, as its export has.

    Raises:
      UserError: The model has no decoder.
    """

    def __init__(self, loaded: Loaded, batch_size: int = 32, *, add_bos: bool | None = None):
        self._analyzed, self._add_bos = AnalyzedModel(loaded, batch_size), add_bos
        if DECODER not in self._analyzed.stacks:
            raise UserError(
                f"{loaded.path}: {type(loaded.resolved).__name__} has no decoder, and does not score text. Give a "
                "decoder or an encoder-decoder."
            )

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a row."""
        return self._analyzed.max_length

    @functools.cached_property
    def _has_encoder(self) -> bool:
        return ENCODER in self._analyzed.stacks

    @functools.cached_property
    def _bos(self) -> tuple[int, ...]:
        """The tokens before a context of a decoder; see `add_bos`."""
        if self._add_bos is None and run_tokenizer.has_settings(self._analyzed.loaded.path):
            return self._analyzed.frame.prefix
        if self._add_bos is None:
            return Layout.of(self._analyzed.loaded.features).bos
        return start_of_text(self._analyzed)[-1:] if self._add_bos else ()

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a text without special tokens."""
        return list(self._analyzed.vocabulary.encode(text)) if text else []

    def _encode_context(self, text: str) -> list[int]:
        """Returns the token ids that a decoder reads of a text: with BOS, unless the text has it."""
        ids, bos = self.encode(text), list(self._bos)
        return ids if ids[: len(bos)] == bos else [*bos, *ids]

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        """Scores continuations of contexts.

        The end of a long context is read. A decoder reads context and continuation as one text, whose tokens are
        divided where those of the context end. Spaces at the end of a context belong to the continuation.

        Args:
          pairs: Contexts, which may be empty, and continuations.

        Returns:
          The log-probability of each continuation in nats, and whether greedy decoding would write it.
        """
        if not pairs:
            return []
        encoder, given, continuations = [], [], []
        for context, continuation in pairs:
            size = len(context.rstrip())
            context, continuation = context[:size], context[size:] + continuation
            if self._has_encoder:
                encoder.append([*self.encode(context), *self._analyzed.frame.suffix][-self.max_length :])
                given.append([self._analyzed.start_id])
                continuations.append(self.encode(continuation))
            else:
                before, whole = self._encode_context(context), self._encode_context(context + continuation)
                if not context:
                    before, whole = list(start_of_text(self._analyzed)[-1:]), self.encode(continuation)
                    whole = [*before, *whole]
                after = whole[len(before) :]
                given.append(before[-(self.max_length - len(after) + 1) :])
                continuations.append(after)
            if not continuations[-1]:
                raise UserError(f"the continuation {continuation!r:.40} has no token. Give another one.")
        found = score_continuations(self._analyzed, given, continuations, encoder if self._has_encoder else None)
        return list(zip(found.log_probability.tolist(), found.is_greedy.tolist(), strict=True))

    def loglikelihood_rolling(self, texts: Sequence[str]) -> list[float]:
        """Returns the log-probability of each text of any length, in nats.

        The text is divided into windows as long as a row. Each is predicted after the token before it, the last one
        after as many tokens as the row has room for, as in `lm_eval`.

        Raises:
          UserError: The model has an encoder.
        """
        if self._has_encoder:
            raise UserError(
                f"{self._analyzed.loaded.path}: encoder-decoders do not score a whole text. Give a decoder."
            )
        given, windows, sizes = [], [], []
        for text in texts:
            ids = [*start_of_text(self._analyzed)[-1:], *self._encode_context(text)]
            starts = range(1, len(ids), self.max_length)
            ends = [min(start + self.max_length, len(ids)) for start in starts]
            given += [ids[max(0, end - 1 - self.max_length) : start] for start, end in zip(starts, ends, strict=True)]
            windows += [ids[start:end] for start, end in zip(starts, ends, strict=True)]
            sizes.append(len(starts))
        if not windows:
            return [0.0] * len(texts)
        scores = score_continuations(self._analyzed, given, windows).log_probability
        ends = list(itertools.accumulate(sizes))
        return [float(scores[end - size : end].sum()) for size, end in zip(sizes, ends, strict=True)]

    def generate_until(
        self, contexts: Sequence[str], *, until: Sequence[str] = (), max_tokens: int = 256, **settings: Any
    ) -> list[str]:
        """Continues contexts up to a string, which is cut off.

        Args:
          contexts: The contexts. The end of a long one is read.
          until: Strings that end a text.
          max_tokens: Maximum number of generated tokens.
          **settings: Further settings of `Decoding`, such as `temperature`.
        """
        if not contexts:
            return []
        loaded = self._analyzed.loaded
        decoding = Decoding(max_length=max_tokens, stop_strings=tuple(until), **settings)
        room = self.max_length if self._has_encoder else self.max_length - max_tokens
        if room < 2:
            raise UserError(f"max_tokens={max_tokens}: no room for a context in {self.max_length} tokens. Give less.")
        most = room - 1 if self._has_encoder or self._bos else room
        kept = [self._analyzed.vocabulary.decode(self.encode(context)[-most:]) for context in contexts]
        shorter = [len(self.encode(context)) > most for context in contexts]
        texts = [cut if is_cut else context for context, cut, is_cut in zip(contexts, kept, shorter, strict=True)]
        lengths = {"inputs": room, "targets": max_tokens}
        objective = loaded.objective if self._has_encoder else _starting_with(loaded.objective, self._bos)
        opened = dataclasses.replace(loaded, objective=objective, decoding=decoding, task_feature_lengths=lengths)
        return [str(each["prediction"]) for each in opened.predict(texts, batch_size=self._analyzed.batch_size)]


def _starting_with(objective: Objective, bos: tuple[int, ...]) -> Objective:
    """Returns an objective whose decoder reads other tokens before a prompt, at most one."""
    spec = objective.features
    role = "shifted" if bos else "tokens"
    changed = tuple(
        dataclasses.replace(each, role=role) if each.name == "decoder_input_tokens" else each for each in spec.features
    )
    found = copy.copy(objective)
    found.features = dataclasses.replace(spec, features=changed, bos_id=bos[0] if bos else spec.bos_id)
    return found
