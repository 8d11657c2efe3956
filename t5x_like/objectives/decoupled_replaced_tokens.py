"""DeBERTa v3's pretraining: replaced-token detection whose two networks have optimizers and gradients of their own."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like import parameters
from t5x_like.data import specs
from t5x_like.errors import UserError
from t5x_like.kernels.chunks import Readout
from t5x_like.layers import initializers
from t5x_like.layers.mlp import ACTIVATIONS
from t5x_like.layers.norms import LayerNorm
from t5x_like.layers.projections import Projection
from t5x_like.models.deberta import DebertaConfig
from t5x_like.models.networks import MODEL, NetworkSpec, Shared
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import masked_lm
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, Objective, Params, Pass, RunOptions
from t5x_like.objectives.discriminators import ReplacedTokens
from t5x_like.objectives.enhanced_masked_lm import EnhancedMaskedLM, check_deberta, enhanced_outputs
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.replaced_tokens import GENERATOR, one_sample, place
from t5x_like.objectives.staged import Stage, Staged
from t5x_like.optimizers.base import Optimizer
from t5x_like.recorded import recorded

# A row is one example, whose first token the head of replaced tokens reads.
_FEATURES = dataclasses.replace(specs.MASKED_LM, packable=False)
_INPUTS = tuple(name for name in _FEATURES.dtypes if not name.startswith("masked_"))
_TABLE = "token_embedder/embedding"


class ContextualReplacedTokenHead(nnx.Module):
    """The head of the released code: norm(h₀ + h) of each token, a dense layer with GELU, and one logit.

    Args:
      config: Configuration of the model.
      key: Random key for the initial values.

    Attributes:
      norm: Norm of the sum of the states of the first token and of each token.
      dense: Projection with kernel `[embed, embed]` and bias.
      classifier: Projection with kernel `[embed, 1]` and bias, computed in float32.
    """

    def __init__(self, config: DebertaConfig, *, key: jax.Array):
        dense_key, classifier_key = jax.random.split(key)
        size, options = (config.embed_dim,), {"init": initializers.normal(config.initializer_range), "bias": True}
        self.norm = LayerNorm(config.embed_dim, epsilon=config.norm_epsilon)
        self.dense = Projection(size, size, axes=("embed", "mlp"), key=dense_key, dtype=config.compute_dtype, **options)
        self.classifier = Projection(size, (1,), axes=("embed", None), key=classifier_key, dtype="float32", **options)
        self.activation = config.activations[0]

    def __call__(self, hidden: Float[Array, "batch length embed"]) -> Float[Array, "batch length 1"]:
        """Returns the logit of each token in float32; positive for a replaced one."""
        states = self.norm(hidden[:, :1] + hidden)
        return self.classifier(ACTIVATIONS[self.activation](self.dense(states)))


@dataclasses.dataclass(frozen=True)
class ContextualReplacedTokens(ReplacedTokens):
    """Replaced-token detection with the head of DeBERTa v3; see `ReplacedTokens`."""

    coefficient = 10.0

    def make(self, config: DebertaConfig, *, key: jax.Array) -> ContextualReplacedTokenHead:
        """Creates the head; see `discriminators.Discriminator.make`."""
        return ContextualReplacedTokenHead(config, key=key)


def disentangle_gradients(source: nnx.Module, own: nnx.Module) -> nnx.Module:
    """Returns embeddings with the table stop_gradient(source) + own (section 3.3 of the paper), and the norm of own."""
    theirs = parameters.named_leaves(source)[_TABLE]
    return parameters.map_named(
        lambda name, leaf: jax.lax.stop_gradient(theirs) + leaf if name == _TABLE else leaf, own
    )


def zero_table(embeddings: nnx.Module) -> nnx.Module:
    """Returns embeddings with a table of zeros, which a run starts with."""
    return parameters.map_named(lambda name, leaf: jnp.zeros_like(leaf) if name == _TABLE else leaf, embeddings)


@dataclasses.dataclass(frozen=True)
class _Networks:
    """The networks, which both stages declare.

    Attributes:
      generator_layers: Number of layers of the generator relative to the model.
      reader: What the generator predicts by itself.
    """

    generator_layers: float
    reader: EnhancedMaskedLM

    def __call__(self, config: DebertaConfig) -> dict[str, NetworkSpec]:
        shared = Shared(f"{GENERATOR}/embeddings", disentangle_gradients, initial=zero_table)
        return {
            MODEL: NetworkSpec(shares={"embeddings": shared}, features=_INPUTS),
            GENERATOR: NetworkSpec(self.generator(config), objective=self.reader),
        }

    def generator(self, config: DebertaConfig) -> DebertaConfig:
        """Returns the configuration of the generator, as wide as the model."""
        layers = max(1, round(check_deberta(self.reader, config).num_layers * self.generator_layers))
        return dataclasses.replace(config, num_layers=layers)


class _Generator(Objective):
    """The first stage: the generator learns masked language modeling, and passes its samples to the second stage."""

    draws, features, coefficients = True, _FEATURES, {masked_lm.NAME: 1.0}

    def __init__(self, networks: _Networks, temperature: float):
        self.networks, self._reader, self._temperature = networks, networks.reader, temperature

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, nnx.Module]:
        """Initializes the head `masked_lm`; see `Objective.init`."""
        return self._reader.init(key, model)

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns 1 for masked tokens; see `Objective.weights`."""
        return {masked_lm.NAME: self._reader.weights(rows)[masked_lm.NAME]}

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs the generator, from which nothing is captured; see `Objective.run`."""
        networks = params["objective"]
        return enhanced_outputs(networks[GENERATOR], networks[masked_lm.NAME], rows, dropout_key=options.keys.dropout)

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the prediction of the masked tokens, and passes on the text with samples; see `Objective.read`."""
        generator = {"model": params["objective"][GENERATOR], "objective": params["objective"]}
        found = self._reader.read(generator, outputs, rows).predictions[masked_lm.NAME]
        names = {f"{masked_lm.NAME}_loss": "nll", f"{masked_lm.NAME}_accuracy": "correct"}
        predicted = dataclasses.replace(found, losses=()).with_cross_entropy(masked_lm.NAME, names)
        tokens = one_sample(Readout(found.hidden, found.logits), rows, keys.rows, self._temperature)
        return Pass(rows, outputs, {masked_lm.NAME: predicted}, next_stage_features={"encoder_input_tokens": tokens})


class _Discriminator(Objective):
    """The second stage: the model classifies each token as original or replaced by the generator."""

    features = _FEATURES

    def __init__(self, networks: _Networks, coefficient: float):
        self.networks, self._kind = networks, ContextualReplacedTokens()
        self.coefficients = {self._kind.term: coefficient}

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, nnx.Module]:
        """Initializes the head `replaced_tokens`; see `Objective.init`."""
        return {self._kind.term: self._kind.make(model.config, key=key)}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch length"]]:
        """Returns 1 for all tokens; see `Objective.weights`."""
        return {self._kind.term: self._kind.weights(rows)}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns one logit per token; see `Objective.read`."""
        tokens = rows["encoder_input_tokens"]
        original = place(tokens, rows, rows["masked_targets"])
        return Pass(rows, outputs, {self._kind.term: self._kind.read(params, outputs.hidden, tokens, original, rows)})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the probability that each token is replaced, as `predictions`; see `Objective.predict`."""
        return {"predictions": self._kind.predict(found.predictions[self._kind.term])}


@recorded
class DecoupledReplacedTokens(Staged):
    """DeBERTa v3's pretraining (He et al. 2023, arXiv:2111.09543, sections 3.2 and 3.3, and the released code).

    A step has two stages. The generator, as wide as the model, learns masked language modeling with the enhanced mask
    decoder and is updated. The model then classifies each token as original or replaced by a sample of the generator,
    drawn before its update. The model's token embeddings are stop_gradient(E) + Δ, where E is the generator's table
    and Δ the model's own table, 0 at the start (gradient-disentangled embedding sharing). The released code also has a
    Δ of absolute positions, which the model does not read.

    The terms are `masked_lm`, the cross-entropy per masked token, and `replaced_tokens`, the binary cross-entropy per
    token. The metrics are `loss`, `accuracy` and `replaced` of the model, and `masked_lm_loss` and
    `masked_lm_accuracy` of the generator.

    Args:
      generator_layers: Number of layers of the generator relative to the model.
      coefficient: Factor of the term of the model (`rtd_lambda` of the released code; the paper has 50). With an
        optimizer of its own, only epsilon and clipping depend on it.
      temperature: Divisor of the generator's logits before sampling.
      generator_optimizer: Optimizer of the generator; None for the optimizer of the run, with a state of its own.
      max_grad_norm: Largest norm of the gradients of each stage; None for the limit of the run.

    Raises:
      UserError: A number is not positive.
    """

    def __init__(
        self,
        *,
        generator_layers: float = 0.5,
        coefficient: float = ContextualReplacedTokens.coefficient,
        temperature: float = 1.0,
        generator_optimizer: Optimizer | None = None,
        max_grad_norm: float | None = None,
    ):
        numbers = {"generator_layers": generator_layers, "coefficient": coefficient, "temperature": temperature}
        for name, value in numbers.items():
            if value <= 0:
                raise UserError(f"{name}={value} of DecoupledReplacedTokens is not positive. Give a positive number.")
        networks = _Networks(generator_layers, EnhancedMaskedLM())
        stage = functools.partial(Stage, max_grad_norm=max_grad_norm)
        generator, discriminator = _Generator(networks, temperature), _Discriminator(networks, coefficient)
        trains = rf"^objective/({GENERATOR}|{masked_lm.NAME})/"
        super().__init__(
            {
                GENERATOR: stage(objective=generator, trains=trains, optimizer=generator_optimizer),
                "discriminator": stage(objective=discriminator, trains=rf"^({MODEL}|objective/{ReplacedTokens.term})/"),
            }
        )
