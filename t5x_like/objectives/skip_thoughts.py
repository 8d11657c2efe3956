"""Skip-thoughts: the vector of a sentence predicts the sentences around it (Kiros et al. 2015, arXiv:1506.06726)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.data import specs
from t5x_like.errors import UserError
from t5x_like.kernels.cross_entropy import target_probabilities
from t5x_like.models.base import ModelConfig
from t5x_like.models.gru import VECTORS, Conditioning, GRUConfig, GRUDecoderConfig
from t5x_like.models.networks import MODEL, NetworkSpec, Shared
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, Objective, Params, Pass, RunOptions
from t5x_like.objectives.heads import last_token
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prediction import Prediction
from t5x_like.recorded import recorded

PREVIOUS, NEXT = "previous", "next"
_METRICS = {"loss": "nll", "accuracy": "correct"}


@recorded
class SkipThoughts(Objective):
    """Two decoders predict the sentences before and after a sentence from the last state of its encoder.

    The decoders are the networks `previous` and `next`, which share the embeddings and the logits of the model. The
    terms have the same names: the cross-entropy per token of each sentence, with coefficient 1. The metrics `loss`, in
    nats per token, and `accuracy` are means over the tokens of both.

    Args:
      conditioning: What the vector is to a decoder; see `models.gru.GRUDecoderConfig`. The released code has
        'first_state', the paper 'every_step' (equations 5 to 8).

    Raises:
      UserError: The model is not a GRU encoder.
    """

    features = specs.SENTENCE_TRIPLES
    coefficients = {PREVIOUS: 1.0, NEXT: 1.0}

    def __init__(self, *, conditioning: Conditioning = "first_state"):
        self.conditioning = conditioning

    def networks(self, config: ModelConfig) -> dict[str, NetworkSpec]:
        """Declares the decoders; see `Objective.networks`."""
        if not isinstance(config, GRUConfig):
            raise UserError(f"SkipThoughts: the model is a {type(config).__name__}. Give a GRUConfig.")
        shared = {module: Shared(f"{MODEL}/{module}") for module in ("token_embedder", "logits")}
        found = {MODEL: NetworkSpec(features=("encoder_input_tokens",))}
        for name in self.coefficients:
            decoder = GRUDecoderConfig(
                vocab_size=config.vocab_size,
                embed_dim=config.embed_dim,
                embedding_dim=config.embedding_dim,
                tokens=_tokens(name),
                conditioning=self.conditioning,
                initializer_range=config.initializer_range,
            )
            found[name] = NetworkSpec(decoder, shared, features=(decoder.tokens,))
        return found

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch length"]]:
        """Returns 1 for the tokens of each neighbor; see `Objective.weights`."""
        return {name: rows[f"{name}_loss_weights"].astype(jnp.float32) for name in self.coefficients}

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs the encoder, and the decoders from the states of the last tokens; see `Objective.run`."""
        outputs = params["model"](rows, **options.of_model())
        vectors = last_token(outputs.hidden, rows["encoder_segment_ids"])[:, 0]
        read = {**rows, VECTORS: vectors}
        return outputs.replace(networks={name: params["objective"][name](read) for name in self.coefficients})

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of the tokens of both sentences; see `Objective.read`."""
        found = {}
        for name, weights in self.weights(rows).items():
            decoder, targets = params["objective"][name], rows[_tokens(name)]
            predicted = Prediction(outputs.networks[name].hidden, decoder.unembed, weights, targets, weights)
            found[name] = predicted.with_cross_entropy(name, _METRICS)
        return Pass(rows, outputs, found)

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the log-probability of both sentences of each row as `scores`; see `Objective.predict`."""
        scores = []
        for each in found.predictions.values():
            positions = target_probabilities(each.hidden, each.logits, each.targets).log_probability
            scores.append(jnp.sum(positions * each.weights, axis=1))
        return {"scores": sum(scores)}


def _tokens(name: str) -> str:
    """Returns the feature with the tokens of a neighbor."""
    return f"{name}_target_tokens"
