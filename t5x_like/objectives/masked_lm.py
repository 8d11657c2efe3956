"""Masked language modeling: an encoder predicts the original tokens at masked positions."""

from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.data import specs
from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout
from t5x_like.layers import embeddings, initializers
from t5x_like.layers.mlp import ACTIVATIONS
from t5x_like.layers.norms import LayerNorm
from t5x_like.layers.projections import Projection
from t5x_like.models.base import Model, PredictionHead
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, HeadConfig, Objective, Params, Pass
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prediction import Prediction
from t5x_like.objectives.token_prediction import METRICS
from t5x_like.recorded import recorded

NAME = "masked_lm"
# The prediction at every token, not only at masked ones.
ALL_TOKENS = "all_tokens"


class MaskedLMConfig(HeadConfig, Protocol):
    """The fields of a model's configuration that `MaskedLMHead` needs.

    Attributes:
      vocab_size: Number of rows of the embedding table.
      norm_epsilon: Epsilon of the norm.
      activations: Activations of the feed-forward blocks; the head uses the first.
      unembed_dim: Size of the vectors that the model's `unembed` reads.
      untied_dim: Number of the last features of a hidden state that token embeddings lack.
    """

    vocab_size: int
    norm_epsilon: float
    activations: Sequence[str]

    @property
    def unembed_dim(self) -> int:
        """Size of the vectors that are multiplied with token embeddings."""

    @property
    def untied_dim(self) -> int:
        """Number of features that the head unembeds."""

    @property
    def prediction_head(self) -> PredictionHead:
        """Parts of the head."""


class MaskedLMHead(nnx.Module):
    """Transforms the hidden states of masked positions before the product with the token embeddings.

    Args:
      config: Configuration of the model.
      key: Random key for the initial values.
      init: Initializer of the kernels.

    A family may lack some of the parts; see `PredictionHead`.

    Attributes:
      dense: Projection with kernel `[embed, unembed_dim]` and bias.
      norm: Layer norm after the activation.
      bias: float32 `[vocab]`, initially 0, added to the logits.
      untied: float32 `[untied_dim, vocab]`, kernel of the features that token embeddings lack; only if there are such.
    """

    def __init__(self, config: MaskedLMConfig, *, key: jax.Array, init: initializers.Initializer = initializers.BERT):
        self.parts = config.prediction_head
        if self.parts.transform:
            bias = self.parts.transform_bias
            sizes, axes = ((config.embed_dim,), (config.unembed_dim,)), ("embed", "mlp")
            init = initializers.truncated_normal(self.parts.stddev) if self.parts.stddev else init
            self.dense = Projection(*sizes, axes=axes, key=key, init=init, bias=bias, dtype=config.compute_dtype)
            affine = {"scale": False, "bias": False} if self.parts.plain_norm else {"bias": bias}
            self.norm = LayerNorm(config.unembed_dim, epsilon=config.norm_epsilon, **affine)
        if self.parts.output_bias:
            self.bias = nnx.Param(jnp.zeros((config.vocab_size,), jnp.float32), axes=("vocab",))
        if config.untied_dim:
            shape = (config.untied_dim, config.vocab_size)
            self.untied = nnx.Param(init(jax.random.fold_in(key, 1), shape, 1), axes=("embed", "vocab"))
        self.activation, self.untied_dim = self.parts.activation or config.activations[0], config.untied_dim
        self.dropout = Dropout(config.dropout_rate if self.parts.dropout else 0.0)

    def __call__(
        self, hidden: Float[Array, "batch predictions embed"], *, dropout_key: jax.Array | None = None
    ) -> Float[Array, "batch predictions embed"]:
        """Returns the vectors that are multiplied with the token embeddings."""
        if not self.parts.transform:
            return hidden
        transformed = self.norm(ACTIVATIONS[self.activation](self.dense(hidden)))
        return self.dropout(transformed, dropout_key)

    def logits(
        self, model: Model, transformed: Float[Array, "batch predictions embed"]
    ) -> Float[Array, "batch predictions vocab"]:
        """Returns logits in float32.

        Args:
          model: The model with the token embeddings.
          transformed: Result of a call.
        """
        logits = model.unembed(transformed)
        if self.parts.output_bias:
            logits += self.bias[...]
        if self.untied_dim:
            logits += embeddings.logits(transformed[..., -self.untied_dim :], self.untied[...])
        return logits


def gather_positions(
    hidden: Float[Array, "batch length embed"], positions: Int[Array, "batch predictions"]
) -> Float[Array, "batch predictions embed"]:
    """Gathers the hidden states at the given positions of each row.

    The gather is a product with one-hot vectors. Where `length` is sharded, each device contributes a partial sum and
    only the result is communicated. The gradient is a product as well; the gradient of an indexed gather is a scatter,
    which is not deterministic on GPU. At 512 tokens and 77 positions the product costs less than a thousandth of the
    FLOPs of BERT base for the row.

    Args:
      hidden: Hidden states.
      positions: Indices along `length`.

    Returns:
      The hidden states at `positions`, bit-exact.
    """
    one_hot = jax.nn.one_hot(positions, hidden.shape[1], dtype=hidden.dtype)
    # All but one term of each sum are 0, so the highest precision makes the result exact.
    return jnp.einsum("bpl,ble->bpe", one_hot, hidden, precision=jax.lax.Precision.HIGHEST)


def most_probable(predicted: Prediction) -> Int[Array, "batch predictions"]:
    """Returns the most probable id at each position, without the logits of all positions in memory."""
    ids = jax.lax.map(
        lambda hidden: jnp.argmax(predicted.logits(hidden[:, None])[:, 0], axis=-1), predicted.hidden.swapaxes(0, 1)
    )
    return ids.swapaxes(0, 1).astype(jnp.int32)


@recorded
class MaskedLM(Objective):
    """Predicts the tokens at `masked_positions` (Devlin et al. 2019, section 3.1).

    The only term is `masked_lm`: the cross-entropy of softmax(E · norm(f(W · h + b)) + c), weighted by
    `masked_weights`, where E are the token embeddings and f is the model's activation. The metrics are `loss` in nats
    per masked token without z-loss, `accuracy` and `z_loss`.

    Args:
      z_loss: Factor of log(Z)², which keeps the logits close to normalized.

    Raises:
      UserError: `z_loss` is negative.
    """

    features = specs.MASKED_LM
    coefficients = {NAME: 1.0}

    def __init__(self, *, z_loss: float = 0.0):
        if z_loss < 0:
            raise UserError(f"z_loss={z_loss} is negative. Give a factor of at least 0.")
        self.z_loss = z_loss

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, MaskedLMHead]:
        """Initializes the head `masked_lm`; see `Objective.init`."""
        return {NAME: MaskedLMHead(model.config, key=key)}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns 1 for the masked tokens, and for all tokens; see `Objective.weights`."""
        return {
            NAME: rows["masked_weights"].astype(jnp.float32),
            ALL_TOKENS: (rows["encoder_segment_ids"] != 0).astype(jnp.float32),
        }

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions at the masked tokens and at all tokens; see `Objective.read`.

        Returns:
          A pass with two predictions:

          * `masked_lm` `[batch, predictions]`, the distributions of the masked tokens;
          * `all_tokens` `[batch, length]`, those at every token. DistilBERT's student learns all of them. Its logits
            include the head, so nothing of it is computed unless it is read.
        """
        model, head = params["model"], params["objective"][NAME]

        def logits(transformed):
            return head.logits(model, transformed)

        weights = self.weights(rows)
        masked_states = gather_positions(outputs.hidden, rows["masked_positions"])
        transformed = head(masked_states, dropout_key=keys.dropout)
        masked = Prediction(transformed, logits, weights[NAME], rows["masked_targets"], weights[NAME])
        every = Prediction(outputs.hidden, lambda hidden: logits(head(hidden)), weights[ALL_TOKENS])
        masked = masked.with_cross_entropy(NAME, METRICS, z_loss=self.z_loss)
        return Pass(rows, outputs, {NAME: masked, ALL_TOKENS: every})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the most probable token id of each masked position as `predictions` `[batch, predictions]`."""
        return {"predictions": most_probable(found.predictions[NAME])}
