"""ELMo's pretraining: a forward and a backward language model over words (Peters et al. 2018, section 3.1)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.data.task_features import TaskFeature
from t5x_like.errors import UserError
from t5x_like.kernels import sampled_softmax
from t5x_like.kernels.cross_entropy import target_probabilities
from t5x_like.layers import initializers
from t5x_like.layers.embeddings import logits
from t5x_like.models.elmo import BACKWARD_CHARACTERS, CHARACTERS, DIRECTIONS
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Objective, Params, Pass
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prediction import Prediction
from t5x_like.recorded import recorded
from t5x_like.vocabularies.word_characters import NUM_CHARACTERS

NAME = "softmax"
# The next words of each direction. The model only counts its input tokens, so they are the words to predict.
_TARGETS = {"forward": "encoder_input_tokens", "backward": "backward_targets"}


class Softmax(nnx.Module):
    """The vectors and the biases of all words, shared by both directions.

    Args:
      vocab_size: Number of words.
      size: Size of the output of a direction.
      key: Random key for the initial values, normal with variance 1/size.

    Attributes:
      kernel: float32 `[words, size]`.
      bias: float32 `[words]`.
    """

    def __init__(self, vocab_size: int, size: int, *, key: jax.Array):
        self.kernel = nnx.Param(initializers.normal(size**-0.5)(key, (vocab_size, size), 1), axes=("vocab", "embed"))
        self.bias = nnx.Param(jnp.zeros(vocab_size, jnp.float32), axes=("vocab",))

    def __call__(self, hidden: Float[Array, "batch length size"]) -> Float[Array, "batch length vocab"]:
        """Returns the logits of all words in float32."""
        return logits(hidden, self.kernel[...].T) + self.bias[...]


@recorded
class BidirectionalLM(Objective):
    """Predicts each word from the words before it, and from the words after it.

    Rows continue the rows of the batch before (`data/continuous.gin`). The task has two streams: the sentences, from
    `<S>` to their last word, and the sentences backwards, from `</S>` to their first word. `targets` are the next words
    of the first stream, which ends each sentence with `</S>`, `backward_targets` those of the second, which ends it
    with `<S>`; `characters` and `backward_characters` are the words that the model reads. The state is never reset.

    The terms are `forward` and `backward`. In training, both have a sampled softmax, each with a sample of its own that
    all positions share; at evaluation, and without samples, a softmax over all words. The metrics are `loss`, in nats
    per word over both directions, `forward_loss` and `backward_loss`, and at evaluation `accuracy`.

    Args:
      max_characters: Number of characters per word in the task.
      samples: Number of words of the sampled softmax; None: all words.
      unroll_steps: Factor of the mean of both losses. The released code multiplies its gradients by the length of a
        row, before they are clipped and before Adagrad adds them to its initial accumulator.

    Raises:
      UserError: An argument is not a positive number.
    """

    draws = True

    def __init__(self, *, max_characters: int = 50, samples: int | None = 8192, unroll_steps: float = 20):
        for name, value in (("max_characters", max_characters), ("samples", samples), ("unroll_steps", unroll_steps)):
            if value is not None and not value > 0:
                raise UserError(f"{name}={value!r} is not a positive number. Give one, such as the default.")
        self.max_characters, self.samples = max_characters, samples
        self.features = features(max_characters)
        self.coefficients = dict.fromkeys(DIRECTIONS, unroll_steps / len(DIRECTIONS))

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the softmax over words; see `Objective.init`.

        Raises:
          UserError: The model does not read in two directions, or has too few words for the samples.
        """
        config = model.config
        if not hasattr(config, "projection_dim"):
            raise UserError(
                f"{type(config).__name__} does not fit BidirectionalLM, which needs outputs of two directions. Give a "
                "model of models/elmo/."
            )
        if self.samples is not None and self.samples >= config.vocab_size:
            raise UserError(
                f"samples={self.samples} of BidirectionalLM: not fewer than the vocab_size={config.vocab_size} of the "
                "model. Give fewer, or None for a softmax over all words."
            )
        return {NAME: Softmax(config.vocab_size, config.projection_dim, key=key)}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch length"]]:
        """Returns 1 for words, 0 for padding; see `Objective.weights`."""
        return dict.fromkeys(DIRECTIONS, (rows["encoder_segment_ids"] != 0).astype(jnp.float32))

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of the next words of both directions; see `Objective.read`."""
        softmax, weights, predictions = params["objective"][NAME], self.weights(rows), {}
        halves = dict(zip(DIRECTIONS, jnp.split(outputs.hidden, 2, axis=-1), strict=True))
        for direction, hidden in halves.items():
            weight = weights[direction]
            predictions[direction] = Prediction(hidden, softmax, weight, rows[_TARGETS[direction]], weight)
        # Only training has dropout keys.
        if keys.dropout is not None and self.samples is not None:
            return Pass(rows, outputs, predictions, *self._sampled(softmax, predictions, keys))
        metrics = {"loss": "nll", "accuracy": "correct"}
        return Pass(
            rows,
            outputs,
            {
                name: each.with_cross_entropy(name, {**metrics, f"{name}_loss": "nll"})
                for name, each in predictions.items()
            },
        )

    def _sampled(
        self, softmax: Softmax, predictions: Mapping[str, Prediction], keys: Keys
    ) -> tuple[dict[str, Array], dict[str, tuple[Array, Array]]]:
        """Returns the sums and the metrics of the sampled softmax."""
        sums, metrics = {}, {}
        for number, (name, each) in enumerate(predictions.items()):
            key = jax.random.fold_in(keys.step, number)
            samples = sampled_softmax.log_uniform(key, self.samples, softmax.kernel.shape[0])
            losses = sampled_softmax.cross_entropy(
                each.hidden, softmax.kernel[...], softmax.bias[...], each.targets, samples
            )
            sums[name] = jnp.sum(losses * each.weights)
            metrics[f"{name}_loss"] = (sums[name], jnp.sum(each.weights))
        pairs = list(metrics.values())
        return sums, metrics | {"loss": jax.tree.map(lambda *each: sum(each), *pairs)}

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the log-probability of each row in both directions together as `scores`; see `Objective.predict`."""
        scores = 0.0
        for each in found.predictions.values():
            positions = target_probabilities(each.hidden, each.logits, each.targets).log_probability
            scores += jnp.sum(positions * each.weights, axis=1)
        return {"scores": scores}


def features(max_characters: int) -> FeatureSpec:
    """Returns the features of two streams of words with `max_characters` characters each."""
    characters = {CHARACTERS: "characters", BACKWARD_CHARACTERS: "backward_characters"}
    return FeatureSpec(
        features=(
            ModelFeature(_TARGETS["forward"], "targets", "tokens"),
            ModelFeature("encoder_segment_ids", "targets", "segment_ids"),
            ModelFeature(_TARGETS["backward"], "backward_targets", "tokens"),
            *(ModelFeature(name, source, "tokens") for name, source in characters.items()),
        ),
        packable=False,
        aligned_features=(
            TaskFeature("backward_targets", aligned_with="targets"),
            *(
                TaskFeature(name, aligned_with="targets", inner=max_characters, num_ids=NUM_CHARACTERS)
                for name in characters.values()
            ),
        ),
    )
