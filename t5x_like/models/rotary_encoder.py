"""Encoders of the layers of `rotary_layers`: ModernBERT and EuroBERT."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from t5x_like.kernels.masks import Mask
from t5x_like.layers import captures as capturing
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.layer_kinds import LayerKind, over_layers
from t5x_like.models import checks
from t5x_like.models.base import Batch, StackInfo
from t5x_like.models.bert import PREDICTED
from t5x_like.models.outputs import Outputs
from t5x_like.models.rotary_layers import RotaryConfig, RotaryModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryEncoderConfig(RotaryConfig):
    """Sizes and hyperparameters of an encoder."""

    # Id of the padding token, which is masked in batches without segment ids.
    padding_id: int = 0

    def __post_init__(self):
        super().__post_init__()
        checks.non_negative_integers(self, "padding_id")

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of the stack; see `ModelConfig.stacks`."""
        return {"encoder": self.stack(self.num_layers)}

    def make(self, key: jax.Array) -> "RotaryEncoder":
        """Returns a model with newly initialized parameters; see `ModelConfig.make`."""
        return RotaryEncoder(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step; see `forward_flops`."""
        batch, length = shapes["encoder_input_tokens"]
        predictions = next((shapes[name][1] for name in PREDICTED if name in shapes), 0)
        # The backward pass computes two matrix products of the same size per product of the forward pass.
        return 3.0 * forward_flops(self, batch, length, predictions)


def forward_flops(config: RotaryEncoderConfig, batch: int, length: int, predictions: int) -> float:
    """Returns the floating-point operations of the matrix products in a forward pass.

    As `decoder.forward_flops`, but a layer with a window of W positions attends to 2W - 1 of them. The layers of an
    objective's head do not count.

    Args:
      config: Configuration of the model.
      batch: Number of rows.
      length: Tokens per row.
      predictions: Positions per row for which logits are computed.
    """
    d, f, m = config.embed_dim, config.mlp_dim, len(config.activations) + 1
    a, k = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
    windows = over_layers(config.attention_windows, config.num_layers)
    keys = sum(min(2 * window - 1 if window else length, length) for window in windows)
    layers = config.num_layers * (2 * d * a + 2 * d * k + m * d * f) + 2 * a * keys
    return 2.0 * batch * (length * layers + predictions * d * config.vocab_size)


class RotaryEncoder(RotaryModel):
    """An encoder. Implements `Model` of `models/base.py`.

    Attributes:
      token_embedder: See `RotaryModel`.
      encoder: Layers of the encoder.
      logits: See `RotaryModel`.
    """

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Embeds the tokens of `encoder_input_tokens` as `encoder`.

        Raises:
          UserError: Rows are longer than `max_length`.
        """
        tokens = batch["encoder_input_tokens"]
        checks.row_length(self.config, tokens.shape[1])
        return {"encoder": self.config.scale_embeddings(self.token_embedder(tokens))}

    def trunk(
        self,
        embedded: Mapping[str, Hidden],
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[capturing.Edit] = (),
    ) -> Outputs:
        """Computes everything between the embeddings and the logits; see `Model.trunk`.

        Packed rows have `encoder_segment_ids` and `encoder_positions`. Without segments, `encoder_input_tokens` equal
        to `padding_id` are masked.
        """
        sizes = {"encoder": (self.config.num_layers, self.encoder.capturable)}
        captures = capturing.parse(capture, sizes, edits)["encoder"]
        segments, positions = batch.get("encoder_segment_ids"), batch.get("encoder_positions")
        valid = batch["encoder_input_tokens"] != self.config.padding_id if segments is None else None

        def inputs(kind):
            mask = Mask(**kind.reach, query_segments=segments, key_segments=segments, key_valid=valid)
            return self.layer_inputs(kind, {"mask": mask, "positions": positions, "rotary": kind.rotary})

        hidden, captured = self.encoder(
            embedded["encoder"], *map(inputs, self.layer_kinds), dropout_key=dropout_key, captures=captures
        )
        hidden, output = captures.state(capturing.OUTPUT, hidden)
        return Outputs(hidden=hidden, captured=captured | output)

    def layer_inputs(self, kind: LayerKind, attention: dict[str, Any]) -> Any:
        """Returns the inputs of the layers of a kind, or a function from their index to them; see `Stack`.

        Args:
          kind: The kind.
          attention: The inputs of the self-attention.
        """
        return {"attention": attention}
