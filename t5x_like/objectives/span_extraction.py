"""Span extraction: the first and last token of the answer to a question, in a text that contains it."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.data import specs
from t5x_like.decoding.spans import MAX_ANSWER_LENGTH, NULL_POSITION
from t5x_like.errors import UserError
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Objective, Params, Pass
from t5x_like.objectives.heads import HeadForm, check_form
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.labels import real_tokens, row_weights
from t5x_like.objectives.prediction import Prediction, Scalar, identity
from t5x_like.recorded import recorded

NAME = "span_extraction"
START, END = "span_start", "span_end"
# Logit of padding, whose probability is 0. Sums and squares are finite.
MASKED = -1e9


@recorded
class SpanExtraction(Objective):
    """Predicts the first and the last token of an answer (Devlin et al. 2019, sections 4.2 and 4.3).

    The head computes two logits per token, and two softmaxes over the tokens of a row give the probabilities of start
    and end. The terms are `span_start` and `span_end`: the cross-entropies of the two positions, each with coefficient
    1/2. A position below 0 (not known) or beyond the tokens of the row has weight 0. An unanswerable question has the
    span (0, 0). This is the loss of BERT's code and of transformers' classes for question answering, except that these
    include the states of padding in the softmax, so that their loss depends on the amount of padding.

    The metrics are `loss` in nats per position, and `accuracy`: how often both positions are the most probable ones.

    Args:
      head: What the head reads, and how: a form of `objectives.heads` that reads each token. The published heads have
        no dropout: `heads.EachToken(dropout_rate=0.0)`.
      max_answer_length: Maximum number of tokens of a predicted span of positions. It does not apply to answers that
        the metrics of a task and `infer` read from the logits: these have at most 30 tokens, as in BERT's run_squad.py.

    Raises:
      UserError: The head does not read each token, or `max_answer_length` is not positive.
    """

    coefficients = {START: 0.5, END: 0.5}

    def __init__(self, *, head: HeadForm, max_answer_length: int = MAX_ANSWER_LENGTH):
        check_form(head, each_token=True)
        if max_answer_length < 1:
            raise UserError(f"max_answer_length={max_answer_length} is not positive. Give a number of tokens.")
        self.features = specs.with_span(head.inputs)
        self._head = self.head_form = head
        self._max_answer_length = max_answer_length

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the head `span_extraction`; see `Objective.init`."""
        return {NAME: self._head.make(model.config, 2, key=key)}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for rows of text, with or without a span; see `Objective.weights`."""
        return dict.fromkeys((START, END), row_weights(rows))

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for rows whose position has a token; see `Objective.target_weights`."""
        known = known_positions(rows)
        return {START: known[:, :1], END: known[:, 1:]}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns two distributions over the tokens of a row, `MASKED` at padding; see `Objective.read`."""
        logits = params["objective"][NAME](self._head.read(outputs.hidden, rows), keys.dropout)
        logits = jnp.where(real_tokens(rows)[:, jnp.newaxis], jnp.swapaxes(logits, 1, 2), MASKED)
        weights, known = self.weights(rows), self.target_weights(rows) if "span" in rows else {}
        predictions = {}
        for number, term in enumerate((START, END)):
            at = slice(number, number + 1)
            targets = rows["span"][:, at] if known else None
            predicted = Prediction(logits[:, at], identity, weights[term], targets, known.get(term))
            predictions[term] = predicted.with_cross_entropy(term, {"loss": "nll"})
        return Pass(rows, outputs, predictions, metrics={"accuracy": both_correct(predictions)} if known else {})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Predicts the span of the answer.

        Which tokens belong to the context is not known here, so the metrics of a task choose among the spans of its
        context by the logits.

        Returns:
          * `predictions` `[batch, 2]`: the first and last position of the span with the highest sum of logits, among
            spans of at most `max_answer_length` tokens after position 0 and before padding; (0, 0) without any.
          * `start_logits` and `end_logits` `[batch, length]`, `MASKED` at padding.
          * `null_score_difference` `[batch]`: the score of no answer, of the span (0, 0), minus the score of the
            predicted span. An unanswerable question has a value above a threshold, which the metric tunes.
        """
        start, end = (found.predictions[term].hidden[:, 0] for term in (START, END))
        span, score = best_span(start, end, self._max_answer_length)
        null_score = start[:, NULL_POSITION] + end[:, NULL_POSITION]
        return {
            "predictions": span,
            "start_logits": start,
            "end_logits": end,
            "null_score_difference": null_score - score,
        }


def known_positions(rows: Batch) -> Float[Array, "batch 2"]:
    """Returns 1 for the positions of `span` that have a token, 0 for others and for unknown ones."""
    real = real_tokens(rows)
    is_position = rows["span"][:, :, jnp.newaxis] == jnp.arange(real.shape[1])
    return jnp.any(is_position & real[:, jnp.newaxis], axis=2).astype(jnp.float32)


def both_correct(predictions: Mapping[str, Prediction]) -> tuple[Scalar, Scalar]:
    """Returns how many answers have both positions as the most probable ones, and how many are known."""
    # Both positions of an answer are known, or none.
    known = jnp.minimum(*(each.target_weights for each in predictions.values()))
    start, end = (jnp.argmax(each.logits(each.hidden), axis=2) == each.targets for each in predictions.values())
    return jnp.sum((start & end) * known), jnp.sum(known)


def best_span(
    start: Float[Array, "batch length"], end: Float[Array, "batch length"], max_length: int
) -> tuple[Int[Array, "batch 2"], Float[Array, " batch"]]:
    """Finds the span with the highest sum of its start and end logits, position 0 excluded.

    Args:
      start: Logits of the first position.
      end: Logits of the last position.
      max_length: Maximum number of positions of a span.

    Returns:
      First and last position, and the sum of their logits; (0, 0) and `MASKED` if all positions are masked.
    """
    length = start.shape[1]
    start = jnp.where(jnp.arange(length) == NULL_POSITION, MASKED, start)
    offsets = range(min(max_length, length))
    # sums[b, d, i] = start[b, i] + end[b, i + d]
    sums = start[:, jnp.newaxis] + jnp.stack(
        [jnp.pad(end[:, d:], ((0, 0), (0, d)), constant_values=MASKED) for d in offsets], axis=1
    )
    best = jnp.argmax(sums.reshape(sums.shape[0], -1), axis=1)
    score = jnp.max(sums, axis=(1, 2))
    found = score > MASKED / 2
    first = best % length
    span = jnp.stack([first, first + best // length], axis=1)
    return jnp.where(found[:, jnp.newaxis], span, 0).astype(jnp.int32), jnp.maximum(score, MASKED)
