"""DeBERTa's masked language modeling: the enhanced mask decoder adds absolute positions before the last layer."""

from collections.abc import Sequence

import jax
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.adapters import model_adapters
from t5x_like.errors import UserError
from t5x_like.kernels.dropout import split_key
from t5x_like.layers.captures import Edit
from t5x_like.layers.embeddings import Embedder, position_ids
from t5x_like.models.deberta import Deberta, DebertaConfig
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, Objective, Params, RunOptions
from t5x_like.objectives.masked_lm import NAME, MaskedLM, MaskedLMHead
from t5x_like.recorded import recorded


class EnhancedMaskedLMHead(MaskedLMHead):
    """The masked-LM head, and absolute positions.

    Args:
      config: Configuration of the model.
      key: Random key for the initial values.

    Attributes:
      position_embedder: Table `[max_length embed]` of positions.
    """

    def __init__(self, config: DebertaConfig, *, key: jax.Array):
        head_key, position_key = jax.random.split(key)
        super().__init__(config, key=head_key, init=config.initializer)
        self.position_embedder = Embedder(
            config.max_length,
            config.embed_dim,
            axis="positions",
            key=position_key,
            init=config.initializer,
            dtype=config.compute_dtype,
        )


@recorded
class EnhancedMaskedLM(MaskedLM):
    """Masked language modeling with the enhanced mask decoder (He et al. 2021, arXiv:2006.03654, section 3.2).

    Let h be the input of the last layer, and z the sum of h and embeddings of absolute positions. The last layer is
    applied twice: keys and values are computed from h, queries and residual sums first from z, then from the result.
    The head reads the second result (`EnhancedMaskDecoder` of the released code). Term and metrics are those of
    `MaskedLM`.

    Args:
      z_loss: Factor of log(Z)²; see `MaskedLM`.

    Raises:
      UserError: `z_loss` is negative.
    """

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, EnhancedMaskedLMHead]:
        """Initializes the head `masked_lm`; see `Objective.init`.

        Raises:
          UserError: The model is not a DeBERTa.
        """
        return {NAME: EnhancedMaskedLMHead(check_deberta(self, model.config), key=key)}

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs the model and the enhanced mask decoder; see `Objective.run`.

        Returns:
          The states that the head reads, with the captured arrays of the model.
        """
        return enhanced_outputs(params["model"], params["objective"][NAME], rows, **options.of_model())


def check_deberta(objective: Objective, config: DebertaConfig) -> DebertaConfig:
    """Returns the configuration of a DeBERTa.

    Raises:
      UserError: It is the configuration of another model.
    """
    if not isinstance(config, DebertaConfig):
        raise UserError(
            f"{type(objective).__name__}: the model is a {type(config).__name__}. Give a DebertaConfig or a "
            "DebertaV2Config, whose last layer can decode masked tokens, or train MaskedLM."
        )
    return config


def enhanced_outputs(
    model: Deberta,
    head: EnhancedMaskedLMHead,
    rows: Batch,
    *,
    dropout_key: jax.Array | None = None,
    capture: Sequence[str] = (),
    edits: Sequence[Edit] = (),
) -> Outputs:
    """Runs a model and its enhanced mask decoder.

    Args:
      model: The model.
      head: Its head.
      rows: The features; `encoder_positions` unless they are 0, 1, 2 … along each row.
      dropout_key: Random key of dropout; None disables dropout.
      capture: Names of intermediate arrays of the model. Its last layer, which the decoder applies to other inputs, is
        computed only if something is captured or edited.
      edits: Interventions in the same arrays.
    """
    model_key, decoder_key = split_key(dropout_key, 2)
    rows = model_adapters.extend(model.config, rows)
    last, embedded = model.config.num_layers - 1, model.embed(rows)
    captured: dict[str, Array] = {}
    if capture or edits:
        source = f"encoder/layers/{last - 1}/hidden" if last else "encoder/embedding"
        options = {"dropout_key": model_key, "capture": (*capture, source), "edits": edits}
        captured = dict(model.trunk(embedded, rows, **options).captured)
        hidden = captured[source] if source in capture else captured.pop(source)
    else:
        hidden, _ = model.run_layers(embedded, rows, last, dropout_key=model_key)
    positions = position_ids(*hidden.shape[:2], rows.get("encoder_positions"))
    queries: Float[Array, "batch length embed"] = hidden + head.position_embedder(positions)
    decoded = model.decode_masked(queries, hidden, rows, dropout_key=decoder_key)
    return Outputs(hidden=model_adapters.remove(model.config, decoded), captured=captured)
