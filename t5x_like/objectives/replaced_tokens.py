"""ELECTRA's pretraining: a generator fills in masked tokens, and the model says which it replaced."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from t5x_like.data import specs
from t5x_like.errors import UserError
from t5x_like.kernels import position_samples
from t5x_like.kernels.chunks import Readout
from t5x_like.kernels.dropout import FIRST_NAMED_KEY
from t5x_like.models.bert import BertConfig
from t5x_like.models.networks import MODEL, NetworkSpec, Shared
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import masked_lm
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, Objective, Params, Pass, RunOptions
from t5x_like.objectives.discriminators import Discriminator, ReplacedTokens
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.masked_lm import MaskedLM, MaskedLMHead
from t5x_like.recorded import recorded

GENERATOR = "generator"
# Name among the captured arrays of the token ids that the model reads.
READ_TOKENS = "read_tokens"
# Size of a head of ELECTRA's networks.
_HEAD_DIM = 64
# Function of the logits of the masked tokens, the features, a key per row and the temperature, that returns token ids.
Insert = Callable[[Readout, Batch, Key[Array, " batch"], float], Int[Array, "batch length"]]
# Number of the generator's key among the keys derived from those of the model.
_GENERATOR_KEY = FIRST_NAMED_KEY + 1


@recorded
class ReplacedTokenDetection(Objective):
    """ELECTRA's pretraining (Clark et al. 2020, arXiv:2003.10555, section 2).

    A generator, a smaller network on the model's embeddings, is trained by masked language modeling. A sample of its
    distribution replaces each masked token, and the model says of every token whether it is not the original one.
    Another `discriminator` predicts something else. The samples have no gradient.

    The terms are `masked_lm`, the cross-entropy of the generator per masked token, with coefficient 1, and the term of
    the discriminator: `replaced_tokens`, the binary cross-entropy of the model per token, with coefficient 50. The
    metrics are the metrics of the discriminator, and `masked_lm_loss` and `masked_lm_accuracy` of the generator.

    Args:
      discriminator: What the model predicts from the text with samples: `discriminators.ReplacedTokens()` by default,
        or an ablation of section 3.4, `discriminators.MaskedReplacedTokens()`, `replaced_mlm.ReplaceMLM()` or
        `replaced_mlm.AllTokensMLM()`.
      generator_size: Width of the generator relative to the model. Its hidden states have this share of those of the
        model, rounded; a head has 64 dimensions, and a feed-forward block four times the size of a hidden state. The
        paper has 1/4 for small and large, and 1/3 for base.
      generator_layers: Number of layers of the generator relative to the model.
      coefficient: Factor of the term of the discriminator. None: its own, 50 for `ReplacedTokens`.
      temperature: Divisor of the generator's logits before sampling.
      token_types: Whether both networks read `token_types`, which distinguish the two segments of an example.
      shared: Modules of the model that the generator uses too (section 3.2). ELECTRA shares the `embeddings`; a
        generator of the size of the model may share the `encoder` as well.
      insert: How samples replace masked tokens: `one_sample` by default, or `averaged_samples`.

    Raises:
      UserError: An argument is not positive, the model is not a BERT, or the heads of the generator do not divide the
        size of its hidden states.
    """

    draws = True

    def __init__(
        self,
        *,
        discriminator: Discriminator | None = None,
        generator_size: float = 0.25,
        generator_layers: float = 1.0,
        coefficient: float | None = None,
        temperature: float = 1.0,
        token_types: bool = True,
        shared: Sequence[str] = ("embeddings",),
        insert: Insert | None = None,
    ):
        self._masked_lm, self._discriminator = MaskedLM(), discriminator or ReplacedTokens()
        coefficient = self._discriminator.coefficient if coefficient is None else coefficient
        arguments = {
            "generator_size": generator_size,
            "generator_layers": generator_layers,
            "coefficient": coefficient,
            "temperature": temperature,
        }
        for name, value in arguments.items():
            if value <= 0:
                raise UserError(f"{name}={value} of ReplacedTokenDetection is not positive. Give a positive number.")
        self.features = specs.MASKED_LM_WITH_TYPES if token_types else specs.MASKED_LM
        self.generator_size, self.generator_layers = generator_size, generator_layers
        self.temperature, self.shared = temperature, tuple(shared)
        self._insert = insert or one_sample
        self.coefficients = {masked_lm.NAME: 1.0, self._discriminator.term: coefficient}

    def networks(self, config: BertConfig) -> dict[str, NetworkSpec]:
        """Declares the generator, on the shared modules of the model; see `Objective.networks`."""
        inputs = tuple(name for name in self.features.dtypes if not name.startswith("masked_"))
        shared = {module: Shared(f"{MODEL}/{module}") for module in self.shared}
        return {
            MODEL: NetworkSpec(features=inputs),
            GENERATOR: NetworkSpec(self._generator(config), shared, objective=self._masked_lm),
        }

    def _generator(self, config: BertConfig) -> BertConfig:
        """Returns the configuration of the generator (`get_generator_config` of the released code)."""
        if not isinstance(config, BertConfig):
            raise UserError(
                f"ReplacedTokenDetection: the model is a {type(config).__name__}. Give a BertConfig, on whose "
                "embeddings the generator can be built."
            )
        size = max(1, round(config.embed_dim * self.generator_size))
        heads = max(1, size // _HEAD_DIM)
        if size % heads:
            raise UserError(
                f"generator_size={self.generator_size}: hidden states of size {size}, which {heads} heads do not "
                f"divide. Give a size for which embed_dim={config.embed_dim} times it is a multiple of {_HEAD_DIM}."
            )
        return dataclasses.replace(
            config,
            embedding_dim=config.unembed_dim,
            embed_dim=size,
            mlp_dim=4 * size,
            num_heads=heads,
            head_dim=size // heads,
            num_layers=max(1, round(config.num_layers * self.generator_layers)),
        )

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, nnx.Module]:
        """Initializes the heads of the generator, `masked_lm`, and of the model; see `Objective.init`."""
        generator_key, model_key = jax.random.split(key)
        return {
            masked_lm.NAME: MaskedLMHead(self._generator(model.config), key=generator_key),
            self._discriminator.term: self._discriminator.make(model.config, key=model_key),
        }

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns 1 for masked tokens, and the weights of the discriminator; see `Objective.weights`."""
        of_model = {self._discriminator.term: self._discriminator.weights(rows)}
        return {masked_lm.NAME: self._masked_lm.weights(rows)[masked_lm.NAME], **of_model}

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs the generator, samples its tokens, and runs the model on them; see `Objective.run`."""
        own = None if options.keys.dropout is None else jax.random.fold_in(options.keys.dropout, _GENERATOR_KEY)
        generated = params["objective"][GENERATOR](rows, dropout_key=own)
        predicted = self._read_generator(params, generated, rows).predictions[masked_lm.NAME]
        tokens = self._insert(Readout(predicted.hidden, predicted.logits), rows, options.keys.rows, self.temperature)
        read = {**rows, "encoder_input_tokens": tokens}
        outputs = params["model"](read, **options.of_model())
        captured = {**outputs.captured, READ_TOKENS: tokens}
        return outputs.replace(captured=captured, networks={GENERATOR: generated})

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the predictions of the generator and of the model; see `Objective.read`."""
        generated = self._read_generator(params, outputs.networks[GENERATOR], rows)
        original = place(rows["encoder_input_tokens"], rows, rows["masked_targets"])
        read = outputs.captured[READ_TOKENS]
        predicted = self._discriminator.read(params, outputs.hidden, read, original, rows)
        masked = dataclasses.replace(generated.predictions[masked_lm.NAME], losses=()).with_cross_entropy(
            masked_lm.NAME, {f"{masked_lm.NAME}_loss": "nll", f"{masked_lm.NAME}_accuracy": "correct"}
        )
        return Pass(rows, outputs, {masked_lm.NAME: masked, self._discriminator.term: predicted})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns what the discriminator predicts, such as the probability that each token is replaced."""
        return {"predictions": self._discriminator.predict(found.predictions[self._discriminator.term])}

    def _read_generator(self, params: Params, outputs: Outputs, rows: Batch) -> Pass:
        generator = {"model": params["objective"][GENERATOR], "objective": params["objective"]}
        return self._masked_lm.read(generator, outputs, rows)


def one_sample(
    readout: Readout, rows: Batch, row_keys: Key[Array, " batch"], temperature: float
) -> Int[Array, "batch length"]:
    """Replaces each masked token by a sample. A token that is predicted several times has one sample.

    Args:
      readout: Logits of the masked tokens.
      rows: The features.
      row_keys: One key per row.
      temperature: Divisor of the logits.

    Returns:
      Token ids.
    """
    at = rows["masked_positions"]
    sampled = position_samples.sample(readout, row_keys, positions=at, temperature=temperature)
    return place(rows["encoder_input_tokens"], rows, sampled)


def averaged_samples(
    readout: Readout, rows: Batch, row_keys: Key[Array, " batch"], temperature: float
) -> Int[Array, "batch length"]:
    """Replaces each masked token by the mean of the ids of its samples, rounded down; see `one_sample`.

    A token that is predicted several times has several samples, whose mean is the id of an unrelated token, as in the
    released code (`scatter_update` in `pretrain_helpers.py`).
    """
    sampled = position_samples.sample(readout, row_keys, temperature=temperature)
    tokens = rows["encoder_input_tokens"]
    at = _is_masked(tokens, rows)
    counts, sums = jnp.sum(at, axis=1), jnp.sum(jnp.where(at, sampled[:, :, None], 0), axis=1)
    return jnp.where(counts > 0, sums // jnp.maximum(counts, 1), tokens)


def place(
    tokens: Int[Array, "batch length"], rows: Batch, values: Int[Array, "batch predictions"]
) -> Int[Array, "batch length"]:
    """Returns tokens with other values at the masked positions of each row.

    Args:
      tokens: Token ids.
      rows: `masked_positions` and `masked_weights`; positions with weight 0 stay as they are.
      values: Token ids of the masked positions. Of several at one position, the largest is taken.
    """
    placed = jnp.max(jnp.where(_is_masked(tokens, rows), values[:, :, None], -1), axis=1)
    return jnp.where(placed >= 0, placed, tokens)


def _is_masked(tokens: Int[Array, "batch length"], rows: Batch) -> Bool[Array, "batch predictions length"]:
    """Returns which token each prediction of a row is about."""
    at = rows["masked_positions"][:, :, None] == jnp.arange(tokens.shape[1])
    return at & (rows["masked_weights"][:, :, None] > 0)
