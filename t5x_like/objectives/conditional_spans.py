"""Span extraction in which the end of an answer depends on its start, with a score of no answer."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.data import specs
from t5x_like.decoding.spans import MAX_ANSWER_LENGTH, N_BEST, NULL_POSITION
from t5x_like.errors import UserError
from t5x_like.kernels import binary_cross_entropy
from t5x_like.kernels.dropout import split_key
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Objective, Params, Pass
from t5x_like.objectives.heads.question_heads import QuestionForm
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.labels import row_weights
from t5x_like.objectives.masked_lm import gather_positions
from t5x_like.objectives.prediction import LogitTerm, Prediction, identity
from t5x_like.objectives.span_extraction import END, START, both_correct, known_positions
from t5x_like.recorded import recorded

NAME = "conditional_span"
NO_ANSWER = "no_answer"

# Added to the logits of positions where the head allows no answer, as in the released code of ELECTRA. An answer there,
# as of data without token types, has a loss of about 1,000.
EXCLUDED = -1000.0

Logits = Float[Array, "batch starts length"]


@recorded
class ConditionalSpanExtraction(Objective):
    """Predicts the first token of an answer, its last token given the first one, and whether there is no answer.

    This is the fine-tuning of XLNet (Yang et al. 2019) and of ELECTRA's released code on SQuAD 2.0. The terms are
    `span_start` and `span_end`, the cross-entropies of the two positions, each with coefficient 1/2; the logits of the
    end depend on the hidden state of the true start. A position below 0 (not known) or beyond the tokens of the row has
    weight 0. An unanswerable question has the span (0, 0). `no_answer` is the binary cross-entropy of whether a row is
    unanswerable. Its logit reads a hidden state of the row, the first or the last one, and the mean of all hidden
    states weighted by the probabilities of the start.

    The metrics are `loss` in nats per position, `accuracy`: how often both positions are the most probable ones, the
    end given the true start, and `no_answer_accuracy`.

    Args:
      head: A form of `objectives.heads.question_heads`, such as `question_heads.ElectraQuestion()`.
      no_answer_coefficient: Factor of the term `no_answer`.
      beam_size: Number of starts, and of ends for each, that predictions combine.
      no_answer_threshold: Logit of `no_answer` above which a question counts as unanswerable. The released code of
        ELECTRA has -2.75 for the test set of SQuAD 2.0.
      max_answer_length: Maximum number of tokens of a predicted span of positions; see `SpanExtraction`.

    Raises:
      UserError: An argument is out of range.
    """

    def __init__(
        self,
        *,
        head: QuestionForm,
        no_answer_coefficient: float = 0.5,
        beam_size: int = N_BEST,
        no_answer_threshold: float = 0.0,
        max_answer_length: int = MAX_ANSWER_LENGTH,
    ):
        for name, value in (("beam_size", beam_size), ("max_answer_length", max_answer_length)):
            if value < 1:
                raise UserError(f"ConditionalSpanExtraction.{name}={value}: not positive. Give a positive integer.")
        if no_answer_coefficient < 0:
            raise UserError(f"no_answer_coefficient={no_answer_coefficient} is negative. Give a factor of at least 0.")
        self.features = specs.with_span(head.inputs)
        self.coefficients = {START: 0.5, END: 0.5, NO_ANSWER: no_answer_coefficient}
        self._head = self.head_form = head
        self._beam_size, self._max_answer_length = beam_size, max_answer_length
        self._threshold = no_answer_threshold

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the head `conditional_span`; see `Objective.init`."""
        return {NAME: self._head.make(model.config, key=key)}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for rows of text, with or without a span; see `Objective.weights`."""
        return dict.fromkeys(self.coefficients, row_weights(rows))

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for rows whose position has a token; see `Objective.target_weights`."""
        known = known_positions(rows)
        return {START: known[:, :1], END: known[:, 1:], NO_ANSWER: known[:, :1]}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of both positions, and the logit of no answer; see `Objective.read`.

        The hidden states of `span_end` are states of starts, the true one in the pass. Its function maps any starts to
        the logits of their ends.
        """
        head, hidden = params["objective"][NAME], outputs.hidden
        excluded = jnp.where(self._head.allowed(rows), 0.0, EXCLUDED)
        weights, known = self.weights(rows), self.target_weights(rows) if "span" in rows else {}
        end_key, no_answer_key = split_key(keys.dropout, 2)
        start_logits = (head.start(hidden)[:, :, 0] + excluded)[:, jnp.newaxis]
        targets = {START: rows["span"][:, :1], END: rows["span"][:, 1:]} if known else {}

        def end_logits(starts: Float[Array, "batch starts embed"]) -> Logits:
            def of_start(start):
                return head.end(jnp.broadcast_to(start[:, jnp.newaxis], hidden.shape), hidden, end_key) + excluded

            # One start after another, because a dense layer for all pairs of positions is large.
            return jnp.swapaxes(jax.lax.map(of_start, jnp.swapaxes(starts, 0, 1)), 0, 1)

        start = targets.get(START, jnp.argmax(start_logits, axis=2))
        expected = jnp.einsum("bpl,ble->bpe", jax.nn.softmax(start_logits).astype(hidden.dtype), hidden)
        no_answer = head.no_answer(self._head.summary(hidden, rows), expected, no_answer_key)[:, :, jnp.newaxis]
        parts = {START: (start_logits, identity), END: (gather_positions(hidden, start), end_logits)}
        predictions = {
            term: Prediction(*part, weights[term], targets.get(term), known.get(term)).with_cross_entropy(
                term, {"loss": "nll"}
            )
            for term, part in parts.items()
        }
        predictions[NO_ANSWER] = Prediction(no_answer, identity, weights[NO_ANSWER])
        if not known:
            return Pass(rows, outputs, predictions)
        is_null = (targets[START] == NULL_POSITION).astype(jnp.int32)
        loss = LogitTerm(
            NO_ANSWER,
            binary_cross_entropy.position_loss(is_null, known[NO_ANSWER]),
            metrics={f"{NO_ANSWER}_accuracy": lambda sums: (sums["correct"], sums["weight"])},
        )
        predictions[NO_ANSWER] = Prediction(
            no_answer, identity, weights[NO_ANSWER], is_null, known[NO_ANSWER]
        ).with_loss(loss)
        spans = {term: predictions[term] for term in parts}
        return Pass(rows, outputs, predictions, metrics={"accuracy": both_correct(spans)})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Predicts the span of the answer by a beam over its start and its end.

        Returns:
          * `predictions` `[batch, 2]`: the most probable span of the beam, of at most `max_answer_length` tokens after
            position 0; (0, 0) without any.
          * `beam_spans` `[batch, beam², 2]`: first and last position of each span of the beam, in any order.
          * `beam_scores` `[batch, beam²]`: their log-probabilities in nats.
          * `null_score_difference` `[batch]`: the logit of `no_answer` minus the threshold. An unanswerable question
            has a positive value.
        """
        spans, scores = beam(
            found.predictions[START].hidden[:, 0],
            lambda at: found.predictions[END].logits(gather_positions(found.outputs.hidden, at)),
            self._beam_size,
        )
        first, last = spans[:, :, 0], spans[:, :, 1]
        is_span = (first > NULL_POSITION) & (first <= last) & (last - first < self._max_answer_length)
        is_span &= scores > EXCLUDED / 2
        allowed = jnp.where(is_span, scores, -jnp.inf)
        best = jnp.take_along_axis(spans, jnp.argmax(allowed, axis=1)[:, jnp.newaxis, jnp.newaxis], axis=1)[:, 0]
        return {
            "predictions": jnp.where(jnp.any(is_span, axis=1, keepdims=True), best, NULL_POSITION),
            "beam_spans": spans,
            "beam_scores": scores,
            "null_score_difference": found.predictions[NO_ANSWER].hidden[:, 0, 0] - self._threshold,
        }


def beam(
    start_logits: Float[Array, "batch length"],
    end_logits: Callable[[Int[Array, "batch starts"]], Logits],
    size: int,
) -> tuple[Int[Array, "batch spans 2"], Float[Array, "batch spans"]]:
    """Returns the most probable starts, with the most probable ends of each.

    Args:
      start_logits: Logits of the first position.
      end_logits: Function of first positions that returns the logits of the last one.
      size: Number of starts, and of ends for each; at most the number of positions.

    Returns:
      First and last positions, int32, and their log-probabilities in nats.
    """
    size = min(size, start_logits.shape[1])
    start_scores, starts = jax.lax.top_k(jax.nn.log_softmax(start_logits), size)
    end_scores, ends = jax.lax.top_k(jax.nn.log_softmax(end_logits(starts)), size)
    spans = jnp.stack([jnp.broadcast_to(starts[:, :, jnp.newaxis], ends.shape), ends], axis=3)
    scores = start_scores[:, :, jnp.newaxis] + end_scores
    return spans.reshape(len(spans), -1, 2).astype(jnp.int32), scores.reshape(len(scores), -1)
