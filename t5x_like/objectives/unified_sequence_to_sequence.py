"""UniLM's fine-tuning to sequence to sequence: masked tokens of the target, which sees the source and its past."""

import dataclasses
import types
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t5x_like.data import specs
from t5x_like.data.features import ModelFeature
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.models.unilm import RANKS, UnilmConfig
from t5x_like.models.unilm_decoder import SOURCE_TYPE, TARGET_TYPE, UnilmDecoder
from t5x_like.objectives import masked_lm
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, Params, Pass, RunOptions
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.masked_lm import MaskedLMHead, gather_positions
from t5x_like.objectives.token_prediction import TERM, TokenPrediction
from t5x_like.recorded import recorded

# Of the chosen tokens, these fractions become [MASK] or stay unchanged; the others become random tokens.
MASK_FRACTION, KEEP_FRACTION = 0.8, 0.1
_INPUTS, _TARGETS = "encoder_input_tokens", "target_tokens"


@recorded
class UnifiedSequenceToSequence(TokenPrediction):
    """Fine-tunes UniLM to generate `targets` from `inputs` (Dong et al. 2019, section 2.4, and the released code).

    A row is [CLS] source [SEP] target [SEP]. The source sees itself; a token of the target sees the source, itself and
    the tokens of the target before it. In training, 70 % of the tokens of the target, its [SEP] included, are chosen.
    80 % of them become [MASK], 10 % random tokens, 10 % stay. The chosen tokens are predicted at their own positions.

    At evaluation, every token of the target is predicted from a [MASK] in its place and the true tokens before it.
    `loss` is then the negative log-probability of the text that generation computes, and no token is random.

    The head `masked_lm` is the head of pretraining. The term and the metrics are those of `TokenPrediction`.

    Args:
      cls_id: Token id of [CLS]. The default ids are those of BERT's published vocabularies.
      sep_id: Token id of [SEP], which ends `inputs` and `targets`.
      mask_id: Token id of [MASK].
      mask_rate: Fraction of the tokens of each target to choose, at least one token.
      z_loss: See `TokenPrediction`.
      label_smoothing: See `TokenPrediction`.

    Attributes:
      eos_id: Token id that ends a text whose vocabulary has no EOS: [SEP].

    Raises:
      UserError: An argument is out of range.
    """

    # The model is an encoder, which reads the row that a decoder would read.
    read_as = types.MappingProxyType(
        {f"decoder_{name}": f"encoder_{name}" for name in ("input_tokens", "segment_ids", "positions")}
    )

    def __init__(
        self,
        *,
        cls_id: int = 101,
        sep_id: int = 102,
        mask_id: int = 103,
        mask_rate: float = 0.7,
        z_loss: float = 0.0,
        label_smoothing: float = 0.1,
    ):
        super().__init__(z_loss=z_loss, label_smoothing=label_smoothing)
        for name, value in (("cls_id", cls_id), ("sep_id", sep_id), ("mask_id", mask_id)):
            if value < 0:
                raise UserError(f"{name}={value} is not a token id. Give an id of at least 0.")
        if not 0 < mask_rate <= 1:
            raise UserError(f"mask_rate={mask_rate} is out of range. Give a fraction in (0, 1].")
        self.eos_id, self.mask_id, self.mask_rate = sep_id, mask_id, mask_rate
        features = (*specs.PREFIX_LM.features, ModelFeature(_TARGETS, "targets", "tokens"))
        self.features = dataclasses.replace(specs.PREFIX_LM, features=features, bos_id=cls_id, packable=False)

    def networks(self, config: ModelConfig) -> dict[str, NetworkSpec]:
        """Declares no further networks, and checks the model; see `Objective.networks`.

        Raises:
          UserError: The model is not a UniLM, or does not have the token types of sequence to sequence.
        """
        if not isinstance(config, UnilmConfig):
            raise UserError(
                f"UnifiedSequenceToSequence: the model is a {type(config).__name__}, whose source would see the "
                "target. Give a UniLM, such as models/unilm/base.gin."
            )
        if config.num_token_types <= TARGET_TYPE:
            raise UserError(
                f"UnilmConfig.num_token_types={config.num_token_types}: UnifiedSequenceToSequence reads the types "
                f"{SOURCE_TYPE} and {TARGET_TYPE}. Give {TARGET_TYPE + 1}."
            )
        return {}

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, MaskedLMHead]:
        """Initializes the head `masked_lm`; see `Objective.init`."""
        return {masked_lm.NAME: MaskedLMHead(model.config, key=key)}

    def generator(self, params: Params) -> UnilmDecoder:
        """Returns the decoder that generates text; see `Objective.generator`."""
        return UnilmDecoder(params["model"], params["objective"][masked_lm.NAME], mask_id=self.mask_id)

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns 1 for the chosen tokens in training, and for all tokens of the targets at evaluation."""
        return {TERM: rows["masked_weights"].astype(jnp.float32)} if _INPUTS in rows else super().weights(rows)

    def prepare(self, params: Params, batch: Batch, *, key: jax.Array | None, step: Any) -> Batch:
        """Adds rows of corrupted tokens, and the chosen positions; see `Objective.prepare`. Not at evaluation."""
        if key is None:
            return batch
        targets = batch[_TARGETS]
        first = jnp.sum(batch["decoder_prefix"], axis=1, keepdims=True)
        count = jnp.sum(batch["decoder_loss_weights"] > 0, axis=1, keepdims=True)
        number = jnp.arange(targets.shape[1])
        row_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(targets)))
        chosen, corrupted = jax.vmap(self._corrupt, (0, 0, 0, None))(
            row_keys, targets, number < count, params["model"].config.vocab_size
        )
        # The targets of a decoder begin with the token after [CLS].
        original, segments = (
            jnp.concatenate([batch[read][:, :1], batch[others]], axis=1)
            for read, others in (
                ("decoder_input_tokens", "decoder_target_tokens"),
                ("decoder_segment_ids", "decoder_segment_ids"),
            )
        )
        positions = jnp.broadcast_to(jnp.arange(original.shape[1]), original.shape)
        in_target = (positions >= first) & (positions < first + count)
        placed = jnp.take_along_axis(corrupted, jnp.clip(positions - first, 0, len(number) - 1), axis=1)
        return {
            **batch,
            _INPUTS: jnp.where(in_target, placed, original),
            "encoder_segment_ids": segments,
            "encoder_positions": positions,
            "token_types": jnp.where(in_target, TARGET_TYPE, SOURCE_TYPE) * segments,
            RANKS: jnp.where(in_target, positions, 0),
            "masked_positions": jnp.minimum(first + number, original.shape[1] - 1),
            "masked_weights": chosen.astype(jnp.int32),
        }

    def _corrupt(
        self, key: jax.Array, tokens: Int[Array, " length"], in_target: Bool[Array, " length"], vocab_size: int
    ) -> tuple[Bool[Array, " length"], Int[Array, " length"]]:
        """Returns which tokens of a row are chosen, and the row with their replacements."""
        order_key, choice_key, token_key = jax.random.split(key, 3)
        order = jnp.where(in_target, jax.random.uniform(order_key, tokens.shape), jnp.inf)
        rank = jnp.argsort(jnp.argsort(order))
        wanted = jnp.maximum(jnp.round(self.mask_rate * jnp.sum(in_target)), 1)
        chosen = in_target & (rank < wanted)
        choice = jax.random.uniform(choice_key, tokens.shape)
        drawn = jax.random.randint(token_key, tokens.shape, 0, vocab_size)
        unmasked = jnp.where(choice < MASK_FRACTION + KEEP_FRACTION, tokens, drawn)
        return chosen, jnp.where(chosen, jnp.where(choice < MASK_FRACTION, self.mask_id, unmasked), tokens)

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs the model on corrupted rows, or at evaluation on rows with a [MASK] per position; see `Objective.run`.

        Returns:
          At evaluation, the hidden states at the positions of `decoder_target_tokens`.
        """
        model = params["model"] if _INPUTS in rows else self.generator(params)
        return model(rows, **options.of_model())

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of the chosen tokens, or of all, as `targets`; see `Objective.read`."""
        hidden, targets = outputs.hidden, rows["decoder_target_tokens"]
        if _INPUTS in rows:
            hidden, targets = gather_positions(hidden, rows["masked_positions"]), rows[_TARGETS]
        return self.read_tokens(outputs, rows, hidden, self.generator(params).unembed, targets)
