"""Masked next-token prediction beside causal language modeling in one encoder: GPT-BERT's pretraining."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from t5x_like.data import specs
from t5x_like.data.features import ModelFeature
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.models.bert import BertConfig
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.models.unilm import RANKS
from t5x_like.objectives import masked_lm
from t5x_like.objectives.base import Batch, Objective, Params, Pass
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.masked_lm import MaskedLMHead
from t5x_like.objectives.prediction import Prediction
from t5x_like.objectives.token_prediction import METRICS
from t5x_like.optimizers.schedules import Schedule
from t5x_like.recorded import recorded

MASKED, CAUSAL = "masked_next_token", "causal_lm"
# Of the masked spans, these fractions become random tokens or stay unchanged; the others become mask tokens.
RANDOM_FRACTION, KEEP_FRACTION = 0.1, 0.1
MAX_SPAN = 3
_NEXT, _MASKED_WEIGHTS, _CAUSAL_WEIGHTS = "next_tokens", f"{MASKED}_weights", f"{CAUSAL}_weights"
# Multiplies the positions of the hash of a row; odd, from the golden ratio (Knuth 1998, section 6.4).
_HASH_FACTOR = 0x9E3779B1


@recorded
class MaskedNextToken(Objective):
    """Trains an encoder on masked and on causal rows (Charpentier and Samuel 2024, arXiv:2410.24159).

    In a causal row, each token predicts the next one, and sees itself and the tokens before it. In a masked row, tokens
    see all tokens of their segment, and a masked token is predicted by the token before it, so that both kinds share
    the head and the shift. The first token of a segment is [CLS], which is not predicted.

    Masked tokens are chosen for each segment by itself, as in the released code: its text is cut into spans of 1 to 3
    tokens, each length as probable as the others; spans are chosen in random order until n tokens are, of which the
    last span may add further ones, with n = max(1, ⌊rate · tokens + u⌋) and u uniform in [0, 1). A span becomes mask
    tokens with probability 0.8, random ones with probability 0.1, or stays. The released code favors spans that were
    masked less often in earlier epochs; this one does not count them.

    The terms are `masked_next_token` and `causal_lm`, each a mean over its own tokens, with the shares of rows as
    coefficients. The metrics are `loss` in nats per predicted token of both kinds without z-loss, `masked_loss`,
    `causal_loss`, `accuracy` and `z_loss`. At evaluation, all rows are masked, with masks that depend on the row alone,
    and `causal_loss` is 0.

    Args:
      mask_id: Token id of [MASK].
      special_ids: Token ids that are neither masked nor drawn as random tokens.
      causal_rows: Number of causal rows among `of_rows` rows of the run. Their places in a batch are random.
      of_rows: See `causal_rows`.
      mask_rate: Fraction of masked tokens in training, or a schedule of it.
      evaluation_mask_rate: The fraction at evaluation.
      z_loss: Factor of log(Z)², which keeps the logits close to normalized.

    Raises:
      UserError: An argument is out of range.
    """

    features = dataclasses.replace(
        specs.ENCODER_INPUTS,
        features=(
            *specs.ENCODER_INPUTS.features,
            ModelFeature(_NEXT, "inputs", "next"),
            ModelFeature("next_weights", "inputs", "next_weights"),
        ),
    )

    def __init__(
        self,
        *,
        mask_id: int,
        special_ids: Sequence[int] = (),
        causal_rows: int = 1,
        of_rows: int = 16,
        mask_rate: float | Schedule = 0.15,
        evaluation_mask_rate: float = 0.15,
        z_loss: float = 0.0,
    ):
        for name, index in (("mask_id", mask_id), *(("special_ids", index) for index in special_ids)):
            if index < 0:
                raise UserError(f"{name}={index}: not a token id. Give an id of at least 0.")
        if not 0 <= causal_rows <= of_rows or of_rows < 1:
            raise UserError(f"causal_rows={causal_rows} of of_rows={of_rows}: not a share. Give a part of the rows.")
        rates = {"evaluation_mask_rate": evaluation_mask_rate}
        for name, rate in (rates if callable(mask_rate) else {"mask_rate": mask_rate, **rates}).items():
            if not 0 < rate < 1:
                raise UserError(f"{name}={rate}: not in (0, 1). Give a fraction of the tokens.")
        if z_loss < 0:
            raise UserError(f"z_loss={z_loss} is negative. Give a factor of at least 0.")
        self.mask_id, self.special_ids = mask_id, tuple(special_ids)
        self.causal_rows, self.of_rows = causal_rows, of_rows
        self.mask_rate, self.evaluation_mask_rate, self.z_loss = mask_rate, evaluation_mask_rate, z_loss
        self.coefficients = {MASKED: (of_rows - causal_rows) / of_rows, CAUSAL: causal_rows / of_rows}

    def networks(self, config: ModelConfig) -> dict[str, NetworkSpec]:
        """Declares no further networks, and checks the model; see `Objective.networks`.

        Raises:
          UserError: The model does not read what a token sees, or lacks a token id.
        """
        if not isinstance(config, BertConfig) or RANKS not in config.reads:
            raise UserError(
                f"MaskedNextToken: the model is a {type(config).__name__}, which has one mask for all rows, and not "
                "some causal rows. Give a GPT-BERT, such as models/gptbert/small.gin."
            )
        if (largest := max((self.mask_id, *self.special_ids))) >= config.vocab_size:
            raise UserError(
                f"MaskedNextToken: token id {largest} is not below vocab_size={config.vocab_size} of the model. Give "
                "mask_id and special_ids of the vocabulary."
            )
        return {}

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, MaskedLMHead]:
        """Initializes the head `masked_lm`; see `Objective.init`."""
        return {masked_lm.NAME: MaskedLMHead(model.config, key=key)}

    def prepare(self, params: Params, batch: Batch, *, key: jax.Array | None, step: Any) -> Batch:
        """Makes rows masked or causal; see `Objective.prepare`.

        Returns:
          The batch with corrupted tokens in masked rows, and with `encoder_ranks` and the weights of both terms.
        """
        tokens = batch["encoder_input_tokens"]
        rows, length = tokens.shape
        if key is None:
            causal, rate = jnp.zeros(rows, bool), self.evaluation_mask_rate
            keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), _hash(tokens))
        else:
            row_key, causal_key = jax.random.split(key)
            causal, rate = self.is_causal(step, rows, key=causal_key), self.mask_rate
            rate = rate(step) if callable(rate) else rate
            keys = jax.vmap(jax.random.fold_in, (None, 0))(row_key, jnp.arange(rows))
        vocab_size = params["model"].config.vocab_size
        known = np.setdiff1d(np.arange(vocab_size), (self.mask_id, *self.special_ids))
        named = [tokens, batch["encoder_segment_ids"], batch["encoder_positions"]]
        chosen, corrupted = jax.vmap(self._corrupt, (0, 0, 0, 0, None, None))(keys, *named, rate, known)
        chosen &= ~causal[:, None]
        predicted = jnp.pad(chosen[:, 1:], ((0, 0), (0, 1))) & (batch["next_weights"] > 0)
        return {
            **batch,
            "encoder_input_tokens": jnp.where(chosen, corrupted, tokens),
            RANKS: jnp.where(causal[:, None], jnp.arange(length), 0),
            _MASKED_WEIGHTS: predicted.astype(jnp.int32),
            _CAUSAL_WEIGHTS: batch["next_weights"] * causal[:, None],
        }

    def is_causal(self, step: Int[Array, ""] | int, rows: int, *, key: Key[Array, ""]) -> Bool[Array, " batch"]:
        """Returns which rows of a step are causal.

        The first n batches have ⌊n · rows · causal_rows / of_rows⌋ causal rows. Their places in a batch are random: at
        regular ones, all of them could be in the same microbatch, which a batch ramp may leave empty.

        Args:
          step: The step.
          rows: Number of rows of a batch.
          key: Random key of the places.
        """
        number = (step % self.of_rows) * (rows % self.of_rows) + jnp.arange(rows)
        spread = (number % self.of_rows) * self.causal_rows % self.of_rows + self.causal_rows >= self.of_rows
        return jax.random.permutation(key, spread)

    def _corrupt(
        self,
        key: Key[Array, ""],
        tokens: Int[Array, " length"],
        segments: Int[Array, " length"],
        positions: Int[Array, " length"],
        rate: float | Float[Array, ""],
        known: Int[np.ndarray, " ids"],
    ) -> tuple[Bool[Array, " length"], Int[Array, " length"]]:
        """Returns which tokens of a row are masked, and the row with their replacements."""
        span_key, order_key, count_key, kind_key, token_key = jax.random.split(key, 5)
        row = jnp.arange(len(tokens))
        in_text = (segments > 0) & (positions > 0)
        candidate = in_text & ~jnp.isin(tokens, np.array((self.mask_id, *self.special_ids)))

        def draw(key, at):
            return jax.random.uniform(key, tokens.shape)[at]

        # Spans restart in each segment. The draws of a span are those of its first position.
        ends = jnp.cumsum(jax.random.randint(span_key, tokens.shape, 1, MAX_SPAN + 1))
        number = jnp.searchsorted(ends, positions - 1, side="right")
        first = jnp.clip(row - (positions - 1) + jnp.concatenate([jnp.zeros(1, ends.dtype), ends])[number], 0, row[-1])
        order = jnp.where(candidate, draw(order_key, first), jnp.inf)
        same = segments[:, None] == segments
        size = jnp.sum(same & in_text, axis=1)
        wanted = jnp.maximum(jnp.floor(size * rate + draw(count_key, row - positions)), 1)
        chosen = candidate & (jnp.sum(same & (order < order[:, None]), axis=1) < wanted)
        kind = draw(kind_key, first)
        random = jnp.asarray(known)[jax.random.randint(token_key, tokens.shape, 0, len(known))]
        masked = jnp.where(kind > RANDOM_FRACTION + KEEP_FRACTION, self.mask_id, tokens)
        return chosen, jnp.where(kind < RANDOM_FRACTION, random, masked)

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch length"]]:
        """Returns the weights of both terms: 1 before a masked token, or in a causal row before each token.

        In rows that are not prepared, both are 1 before each token.
        """
        names = {MASKED: _MASKED_WEIGHTS, CAUSAL: _CAUSAL_WEIGHTS}
        every = rows["next_weights"]
        return {term: rows.get(name, every).astype(jnp.float32) for term, name in names.items()}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of the next tokens as the predictions of both terms; see `Objective.read`.

        The losses of both are functions of the same logits, which the first prediction computes once.
        """
        model, head = params["model"], params["objective"][masked_lm.NAME]
        transformed = head(outputs.hidden, dropout_key=keys.dropout)

        def logits(transformed):
            return head.logits(model, transformed)

        masked, causal = (
            Prediction(transformed, logits, weights, rows[_NEXT], weights) for weights in self.weights(rows).values()
        )
        losses = (
            *masked.with_cross_entropy(MASKED, METRICS | {"masked_loss": "nll"}, z_loss=self.z_loss).losses,
            *causal.with_cross_entropy(CAUSAL, METRICS | {"causal_loss": "nll"}, z_loss=self.z_loss).losses,
        )
        return Pass(rows, outputs, {MASKED: masked.with_loss(*losses), CAUSAL: causal})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the most probable next token at each position as `predictions` `[batch, length]`."""
        return {"predictions": masked_lm.most_probable(found.predictions[MASKED])}


def _hash(tokens: Int[Array, "batch length"]) -> Int[Array, " batch"]:
    """Returns a hash of each row, uint32."""
    factors = (2 * np.arange(tokens.shape[1], dtype=np.uint64) + 1) * _HASH_FACTOR
    return jnp.sum(tokens.astype(jnp.uint32) * factors.astype(np.uint32), axis=1, dtype=jnp.uint32)
