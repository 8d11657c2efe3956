"""Permutation language modeling: tokens are predicted in an order that is drawn for each row."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.data import specs
from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.errors import UserError
from t5x_like.models.base import Model, ModelConfig
from t5x_like.models.networks import MODEL, NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.models.xlnet import RANKS, TARGET_POSITIONS
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, HeadConfig, Objective, Params, Pass, RunOptions
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.masked_lm import most_probable
from t5x_like.objectives.prediction import Prediction
from t5x_like.objectives.token_prediction import METRICS
from t5x_like.recorded import recorded

NAME = "permutation_lm"
IS_TARGET = "is_target"


class VocabularyBias(nnx.Module):
    """Adds a bias to the logits of the model.

    Args:
      config: Configuration of the model.

    Attributes:
      bias: float32 `[vocab]`, initially 0.
    """

    def __init__(self, config: HeadConfig):
        self.bias = nnx.Param(jnp.zeros((config.vocab_size,), jnp.float32), axes=("vocab",))

    def __call__(self, hidden: Float[Array, "batch positions embed"]) -> Float[Array, "batch positions embed"]:
        """Returns the input of `logits`, the hidden states."""
        return hidden

    def logits(
        self, model: Model, hidden: Float[Array, "batch positions embed"]
    ) -> Float[Array, "batch positions vocab"]:
        """Returns logits in float32."""
        return model.unembed(hidden) + self.bias[...]


def check_streams(objective: Objective, config: ModelConfig) -> dict[str, NetworkSpec]:
    """Returns no further networks, after checking that a model has two streams; see `Objective.networks`.

    Raises:
      UserError: The model has no second stream.
    """
    if TARGET_POSITIONS not in config.reads:
        raise UserError(
            f"{type(objective).__name__}: the model is a {type(config).__name__}, which sees the tokens that it "
            "predicts. Give an XLNetConfig."
        )
    return {}


class OrderedLM(Objective):
    """Predicts the tokens at some positions of a row in an order; base class.

    The only term is `permutation_lm`, the cross-entropy of the targets. The metrics are `loss` in nats per target,
    `accuracy` and `z_loss`. The head `permutation_lm` is the bias of the logits. Subclasses set `features` and define
    `order` and `targets`.

    Args:
      z_loss: Factor of log(Z)², which keeps the logits close to normalized.

    Raises:
      UserError: `z_loss` is negative.
    """

    coefficients = {NAME: 1.0}

    def __init__(self, *, z_loss: float = 0.0):
        if z_loss < 0:
            raise UserError(f"z_loss={z_loss} is negative. Give a factor of at least 0.")
        self.z_loss = z_loss

    def order(self, rows: Batch) -> dict[str, Array]:
        """Returns the features of a batch that say what each token sees; see `models.xlnet.XLNet.trunk`."""
        raise NotImplementedError

    def targets(self, rows: Batch) -> tuple[Int[Array, "batch targets"], Float[Array, "batch targets"]]:
        """Returns the positions of the targets, and 1 for targets, 0 for the rest of the array."""
        raise NotImplementedError

    def networks(self, config: ModelConfig) -> dict[str, NetworkSpec]:
        """Declares no further networks, and checks the model; see `Objective.networks`."""
        return check_streams(self, config)

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, VocabularyBias]:
        """Initializes the head `permutation_lm`; see `Objective.init`."""
        return {NAME: VocabularyBias(model.config)}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch targets"]]:
        """Returns 1 for targets; see `Objective.weights`."""
        return {NAME: self.targets(rows)[1]}

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs both streams of the model; see `Objective.run`. `Outputs.hidden` are the states of the targets."""
        read = {**rows, **self.order(rows), TARGET_POSITIONS: self.targets(rows)[0]}
        return params["model"](read, **options.of_model())

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of the targets; see `Objective.read`."""
        model, head = params["model"], params["objective"][NAME]
        positions, weights = self.targets(rows)
        tokens = jnp.take_along_axis(rows["encoder_input_tokens"], positions, axis=1)
        predicted = Prediction(
            outputs.hidden, lambda hidden: head.logits(model, hidden), weights, jnp.asarray(tokens), weights
        )
        return Pass(rows, outputs, {NAME: predicted.with_cross_entropy(NAME, METRICS, z_loss=self.z_loss)})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Predicts the targets.

        Returns:
          `predictions` `[batch, targets]`, the most probable token of each target.
        """
        return {"predictions": most_probable(found.predictions[NAME])}


@recorded
class PermutationLM(OrderedLM):
    """Predicts the last tokens of a permutation (Yang et al. 2019, sections 2.2 and 2.3).

    The task gives `inputs`, `token_types`, and three features of each token: `ranks`, of which a token sees its own and
    lower ones, `is_target`, and `reversed`, 1 in rows whose text is reversed. A row has at most a sixth of its length
    of targets, each of which is predicted from lower ranks, without its own content. Term, metrics and head are those
    of `OrderedLM`.

    With continuous data (`data/continuous.gin`), the memory of the model is carried from row i of a batch to row i of
    the next one. A row begins in the middle of the row before, so the `reuse_length` of the model is half of a row.

    Args:
      z_loss: Factor of log(Z)², which keeps the logits close to normalized.
    """

    features = specs.PERMUTATION_LM

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs both streams of the model; see `OrderedLM.run`.

        Raises:
          UserError: The memory has tokens of the row that it continues, whose targets it would show to the model.
        """
        if MODEL in options.carry:
            length, reuse = rows["encoder_input_tokens"].shape[1], params["model"].config.reuse_length
            if not 0 < reuse <= length // 2:
                raise UserError(
                    f"REUSE_LENGTH={reuse}: the memory of rows of {length} tokens would have targets of the next row. "
                    f"Set {length // 2}, half of a row."
                )
        return super().run(params, rows, options)

    def order(self, rows: Batch) -> dict[str, Array]:
        """Returns the ranks of the task; see `OrderedLM.order`."""
        return {RANKS: rows[RANKS]}

    def targets(self, rows: Batch) -> tuple[Int[Array, "batch targets"], Float[Array, "batch targets"]]:
        """Returns the positions where `is_target` is 1, in the order of the text; see `OrderedLM.targets`."""
        flags = jnp.asarray(rows[IS_TARGET])
        number = max(1, flags.shape[1] // specs.TOKENS_PER_TARGET)
        found, positions = jax.lax.top_k(flags, number)  # equal flags keep their order
        return positions, (found > 0).astype(jnp.float32)


@recorded
class SequentialLM(OrderedLM):
    """Predicts every token of `targets` from the tokens before it: the perplexity of the order of the text.

    The first token of a text is not predicted: no token is before it. Term, metrics and head are those of `OrderedLM`,
    so that a run of `PermutationLM` can be evaluated.

    Args:
      z_loss: Factor of log(Z)², which keeps the logits close to normalized.
    """

    features = FeatureSpec(
        features=(
            ModelFeature("encoder_input_tokens", "targets", "tokens"),
            ModelFeature("encoder_segment_ids", "targets", "segment_ids"),
        ),
        packable=True,
    )

    def order(self, rows: Batch) -> dict[str, Array]:
        """Returns ranks that grow along each row; see `OrderedLM.order`."""
        tokens = rows["encoder_input_tokens"]
        return {RANKS: jnp.broadcast_to(1 + jnp.arange(tokens.shape[1]), tokens.shape)}

    def targets(self, rows: Batch) -> tuple[Int[Array, "batch targets"], Float[Array, "batch targets"]]:
        """Returns all positions, with weight 0 for padding and for the first token of each text."""
        segments = rows["encoder_segment_ids"]
        before = jnp.pad(segments, ((0, 0), (1, 0)))[:, :-1]
        weights = ((segments != 0) & (segments == before)).astype(jnp.float32)
        return jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape), weights
