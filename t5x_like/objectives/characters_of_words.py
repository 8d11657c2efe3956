"""Objectives on words for a model that reads the characters of words, such as classification with ELMo."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.layers.captures import Edit
from t5x_like.models.base import ModelConfig
from t5x_like.models.elmo import CHARACTERS
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, Objective, Params, Pass, RunOptions
from t5x_like.objectives.heads.text_ids import text_ids
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.recorded import recorded
from t5x_like.vocabularies import word_characters, word_counts

_TOKENS, _SEGMENTS = "encoder_input_tokens", "encoder_segment_ids"


@recorded
class CharactersOfWords(Objective):
    """Another objective, whose task has ids of words, for a model that reads their characters.

    The characters are those of the words of a file. A word that the file lacks is read as `<unk>`, so count the words
    of all texts of the task. The words `</s>` of a row separate its texts, and each text is read by itself. The hidden
    states of `</s>` are 0.

    Args:
      objective: The objective.
      vocabulary_path: Words and their counts, the vocabulary of the task; see `vocabularies.word_counts`.
      texts_per_row: Largest number of texts per row, 2 for pairs.
      max_characters: Characters per word.

    Raises:
      UserError: `texts_per_row` is not 1 or 2.
    """

    computed_features = (CHARACTERS,)

    def __init__(
        self,
        objective: Objective,
        *,
        vocabulary_path: str | None,
        texts_per_row: int = 1,
        max_characters: int = word_characters.MAX_CHARACTERS,
    ):
        if texts_per_row not in (1, 2):
            raise UserError(
                f"texts_per_row={texts_per_row!r} of CharactersOfWords: out of range. Give 1, or 2 for pairs of texts."
            )
        self.objective, self.vocabulary_path = objective, vocabulary_path
        self.texts_per_row, self.max_characters = texts_per_row, max_characters
        self.features, self.coefficients = objective.features, objective.coefficients
        self.other_names, self.labels = objective.other_names, objective.labels
        self.prepare, self.draws = objective.prepare, objective.draws

    def networks(self, config: ModelConfig) -> Mapping[str, NetworkSpec]:
        """Returns `networks` of the other objective."""
        return self.objective.networks(config)

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the heads of the other objective; see `Objective.init`."""
        return self.objective.init(key, model)

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns `weights` of the other objective."""
        return self.objective.weights(rows)

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns `target_weights` of the other objective."""
        return self.objective.target_weights(rows)

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs the other objective with the characters of its words; see `Objective.run`."""
        return self.objective.run(self._reading(params), rows, options)

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns what the other objective reads; see `Objective.read`."""
        return self.objective.read(self._reading(params), outputs, rows, keys=keys)

    def predict(self, found: Pass) -> dict[str, Array]:
        """Predicts the targets of the other objective; see `Objective.predict`."""
        return self.objective.predict(found)

    def _reading(self, params: Params) -> dict[str, Any]:
        table = characters_of(self.vocabulary_path, self.max_characters)
        return {**params, "model": _ReadsWords(params["model"], table, self.texts_per_row)}


@functools.lru_cache(maxsize=2)
def characters_of(path: str | None, max_characters: int) -> Int[np.ndarray, "ids characters"]:
    """Returns the characters of each id of a vocabulary of words; 0 for padding.

    Raises:
      UserError: The file is invalid.
    """
    names = (*word_counts.SPECIAL, *word_counts.read(path).words)
    found = word_characters.of_words(names, max_characters)
    found[word_counts.PAD_ID] = 0
    return found.astype(np.int16)


class _ReadsWords:
    """A model that reads the characters of words, as one that reads their ids.

    Args:
      model: The model.
      table: The characters of each id.
      texts_per_row: Largest number of texts per row.
    """

    def __init__(self, model: nnx.Module, table: Int[np.ndarray, "ids characters"], texts_per_row: int):
        self._model, self._table, self._texts_per_row = model, table, texts_per_row

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(
        self,
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[Edit] = (),
    ) -> Outputs:
        """Returns the hidden states of words; see `Model.__call__`. `edits` see each text as a row."""
        tokens = batch[_TOKENS]
        ones = jnp.ones_like(tokens)
        text_of_word = text_ids(tokens, batch.get(_SEGMENTS, ones) != 0)
        # [texts, batch, length]: the words of each text, from position 0 on.
        of_text = text_of_word == jnp.arange(self._texts_per_row)[:, None, None]
        starts = jnp.argmax(of_text, axis=-1, keepdims=True)
        at = jnp.arange(tokens.shape[1])
        ids = jnp.take_along_axis(jnp.broadcast_to(tokens, of_text.shape), starts + at, axis=-1, mode="clip")
        is_word = at < jnp.sum(of_text, axis=-1, keepdims=True)
        characters = jnp.take(jnp.asarray(self._table), ids, axis=0, mode="clip").astype(jnp.int32)
        rows = {_TOKENS: ids, _SEGMENTS: is_word.astype(jnp.int32), CHARACTERS: characters * is_word[..., None]}
        rows = {name: x.reshape(-1, *x.shape[2:]) for name, x in rows.items()}
        outputs = self._model(rows, dropout_key=dropout_key, capture=capture, edits=edits)

        def in_row(states: Float[Array, "... texts_and_batch length embed"]) -> Float[Array, "... batch length embed"]:
            """Puts the states of each text where its words are in the row."""
            texts = states.reshape(*states.shape[:-3], *of_text.shape, states.shape[-1])
            places = jnp.broadcast_to((at - starts)[..., None], (*texts.shape[:-1], 1))
            moved = jnp.take_along_axis(texts, places, axis=-2, mode="clip")
            return jnp.sum(jnp.where(of_text[..., None], moved, 0), axis=-4)

        captured = {name: in_row(states) for name, states in outputs.captured.items()}
        return Outputs(hidden=in_row(outputs.hidden), captured=captured)
