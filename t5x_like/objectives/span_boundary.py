"""The span-boundary objective: an encoder predicts the tokens of a masked span from the two tokens around it."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.data import specs
from t5x_like.errors import UserError
from t5x_like.layers import initializers
from t5x_like.layers.mlp import ACTIVATIONS
from t5x_like.layers.norms import LayerNorm
from t5x_like.layers.projections import Projection
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Objective, Params, Pass
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.masked_lm import MaskedLMConfig, MaskedLMHead, gather_positions, most_probable
from t5x_like.objectives.prediction import Prediction
from t5x_like.recorded import recorded

NAME = "span_boundary"
_METRICS = {f"{NAME}_loss": "nll", f"{NAME}_accuracy": "correct"}


class SpanBoundaryHead(nnx.Module):
    """Combines the hidden states around a span and the position within the span; see `SpanBoundary`.

    Args:
      config: Configuration of the model.
      key: Random key for the initial values.
      max_targets: Number of positions.
      position_dim: Size of a position's vector.

    Attributes:
      positions: Vectors of the positions in a span, float32 `[max_targets, position_dim]`.
      dense: Projection with kernel `[2 · embed + position_dim, embed]` and bias.
      norm: Layer norm after the activation.
      prediction: The second layer and the logits, a masked-LM head.
    """

    def __init__(self, config: MaskedLMConfig, *, key: jax.Array, max_targets: int, position_dim: int):
        position_key, dense_key, prediction_key = jax.random.split(key, 3)
        table = initializers.BERT(position_key, (max_targets, position_dim), 1)
        self.positions = nnx.Param(table, axes=(None, None))
        self.dense = Projection(
            (2 * config.embed_dim + position_dim,),
            (config.embed_dim,),
            axes=(None, "mlp"),  # the size of the input has few divisors
            key=dense_key,
            init=initializers.BERT,
            bias=True,
            dtype=config.compute_dtype,
        )
        self.norm = LayerNorm(config.embed_dim, epsilon=config.norm_epsilon)
        self.prediction = MaskedLMHead(config, key=prediction_key)
        self.activation = config.activations[0]

    def __call__(
        self,
        left: Float[Array, "batch predictions embed"],
        right: Float[Array, "batch predictions embed"],
        position: Int[Array, "batch predictions"],
    ) -> Float[Array, "batch predictions embed"]:
        """Returns the vectors that are multiplied with the token embeddings.

        Args:
          left: Hidden states before the spans.
          right: Hidden states after them.
          position: Positions within the spans, from 0.
        """
        # The gradient of a lookup is a scatter, which is not deterministic on GPU.
        one_hot = jax.nn.one_hot(position, self.positions.shape[0], dtype=left.dtype)
        joined = jnp.concatenate([left, right, one_hot @ self.positions[...].astype(left.dtype)], axis=-1)
        return self.prediction(self.norm(ACTIVATIONS[self.activation](self.dense(joined))))


@recorded
class SpanBoundary(Objective):
    """Predicts each token of a masked span from the tokens around the span (SpanBERT, Joshi et al. 2020, section 3.2).

    A span is a run of adjacent `masked_positions`. The only term is `span_boundary`: the cross-entropy of
    softmax(E · h + c) with h = norm(f(W₂ · norm(f(W₁ · [l; r; p])))), where l and r are the hidden states before and
    after the span, p is a learned vector of the position in the span, and E are the token embeddings. Spans at the ends
    of the text have no such pair: their tokens have weight 0, as have tokens after the first `max_targets` of a span.
    The metrics are `span_boundary_loss` in nats per token and `span_boundary_accuracy`.

    Args:
      max_targets: Number of tokens of a span that are predicted.
      position_dim: Size of the vectors of positions.

    Raises:
      UserError: An argument is not positive.
    """

    features = specs.MASKED_LM
    coefficients = {NAME: 1.0}

    def __init__(self, *, max_targets: int = 15, position_dim: int = 200):
        for name, value in (("max_targets", max_targets), ("position_dim", position_dim)):
            if value < 1:
                raise UserError(
                    f"SpanBoundary.{name}={value}: not positive. SpanBERT has 15 targets of 200 dimensions."
                )
        self.max_targets, self.position_dim = max_targets, position_dim

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, SpanBoundaryHead]:
        """Initializes the head `span_boundary`; see `Objective.init`."""
        sizes = {"max_targets": self.max_targets, "position_dim": self.position_dim}
        return {NAME: SpanBoundaryHead(model.config, key=key, **sizes)}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch predictions"]]:
        """Returns 1 for tokens that are predicted; see `Objective.weights`."""
        start, end = spans(rows["masked_positions"], rows["masked_weights"])
        segments = rows["encoder_segment_ids"]
        # The first and the last token of a segment are special tokens.
        own = _at(segments, start)
        inside = (start >= 2) & (_at(segments, start - 2) == own) & (_at(segments, end + 2) == own)
        inside &= end + 2 < segments.shape[1]
        within = rows["masked_positions"] - start < self.max_targets
        return {NAME: (inside & within & (rows["masked_weights"] > 0)).astype(jnp.float32)}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of the tokens of spans; see `Objective.read`."""
        model, head = params["model"], params["objective"][NAME]
        start, end = spans(rows["masked_positions"], rows["masked_weights"])
        weights = self.weights(rows)[NAME]
        # A position without a pair, whose weight is 0, reads the hidden state of another one.
        left, right = (gather_positions(outputs.hidden, position) for position in (start - 1, end + 1))
        transformed = head(left, right, jnp.minimum(rows["masked_positions"] - start, self.max_targets - 1))
        predicted = Prediction(
            transformed, lambda hidden: head.prediction.logits(model, hidden), weights, rows["masked_targets"], weights
        )
        return Pass(rows, outputs, {NAME: predicted.with_cross_entropy(NAME, _METRICS)})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the most probable token id of each masked position as `predictions` `[batch, predictions]`."""
        return {"predictions": most_probable(found.predictions[NAME])}


def spans(
    positions: Int[Array, "batch predictions"], weights: Int[Array, "batch predictions"]
) -> tuple[Int[Array, "batch predictions"], Int[Array, "batch predictions"]]:
    """Returns the first and the last position of the run of adjacent positions that each position belongs to.

    Args:
      positions: Positions in a row, ascending where their weight is not 0.
      weights: 0 after the last position of a row.
    """
    real = weights > 0
    joined = (positions[:, 1:] == positions[:, :-1] + 1) & real[:, 1:] & real[:, :-1]
    first = jnp.pad(~joined, ((0, 0), (1, 0)), constant_values=True)
    last = jnp.pad(~joined, ((0, 0), (0, 1)), constant_values=True)
    start = jax.lax.cummax(jnp.where(first, positions, -1), axis=1)
    end = jax.lax.cummin(jnp.where(last & real, positions, jnp.iinfo(positions.dtype).max), axis=1, reverse=True)
    return jnp.where(real, start, positions), jnp.where(real, end, positions)


def _at(
    array: Int[Array, "batch length"], positions: Int[Array, "batch predictions"]
) -> Int[Array, "batch predictions"]:
    """Returns elements of each row, the nearest one for positions outside."""
    return jnp.take_along_axis(array, jnp.clip(positions, 0, array.shape[1] - 1), axis=1)
