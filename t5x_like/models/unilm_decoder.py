"""UniLM as a decoder: a [MASK] after a text predicts the next token (Dong et al. 2019, section 2.4)."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t5x_like.kernels.masks import Mask
from t5x_like.layers import stacks
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.cache import KeyValueCache, held_positions, step_mask
from t5x_like.layers.captures import Edit
from t5x_like.layers.embeddings import position_ids
from t5x_like.models import checks
from t5x_like.models.base import Batch, Model
from t5x_like.models.decoder import Cache
from t5x_like.models.outputs import Outputs
from t5x_like.models.unilm import RANKS, Unilm

# Token types of sequence to sequence: the source, and the target.
SOURCE_TYPE, TARGET_TYPE = 4, 5
# Captures of which `cache_of_encoder` makes a cache.
KEYS_VALUES = ("encoder/layers/attention/key", "encoder/layers/attention/value")


def cache_of_encoder(model: nnx.Module, outputs: Outputs, length: int, present: Bool[Array, "batch prompt"]) -> Cache:
    """Returns the cache of an encoder that has read prompts.

    Args:
      model: The model.
      outputs: Its outputs with the captures `KEYS_VALUES`.
      length: Number of positions of the cache.
      present: Which positions of the prompts, padded on the left, have a token.
    """
    cache = KeyValueCache.from_prompts(
        *(outputs.captured[name] for name in KEYS_VALUES),
        lengths=[length] * model.config.num_layers,
        stacked=stacks.is_scanned(model.encoder.layers),
    )
    return Cache(self_attention=cache, first_slot=jnp.sum(~present, axis=1))


class TokenHead(Protocol):
    """A head that predicts tokens, such as `masked_lm.MaskedLMHead`."""

    def __call__(self, hidden: Hidden) -> Hidden:
        """Returns the input of `logits`."""

    def logits(self, model: Model, transformed: Hidden) -> Float[Array, "batch positions vocab"]:
        """Returns logits in float32."""


class UnilmDecoder(nnx.Module):
    """A UniLM that continues prompts. It has the methods of `GenerativeDecoder`, except for `embed` and `trunk`.

    The prompt sees itself. A generated token sees the prompt, itself and the tokens before it. The next token is
    predicted at a [MASK] after the last token, which sees all of them.

    Args:
      model: The model.
      head: Its masked-LM head.
      mask_id: Token id of [MASK].

    Raises:
      UserError: The model has a prompt.

    Attributes:
      config: The configuration of the model, with a `max_length` that leaves a position for [MASK].
    """

    def __init__(self, model: Unilm, head: TokenHead, *, mask_id: int):
        checks.no_adapter_needs(model.config, "prompt", "sequence to sequence with UniLM reads no prompt")
        self.model, self.head, self.mask_id = model, head, mask_id
        self.config = dataclasses.replace(model.config, max_length=model.config.max_length - 1)

    def __call__(
        self,
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[Edit] = (),
    ) -> Outputs:
        """Returns the hidden states that predict the token after each position of given texts.

        A row is read once, followed by a [MASK] per position. Each [MASK] has the position after its own, and sees the
        prompt, the tokens up to its own, and itself. Captured arrays have twice the length of the row.

        Args:
          batch: `decoder_input_tokens`; `decoder_prefix`, 1 for the tokens of the prompt; `decoder_segment_ids`, 0 for
            padding; and `decoder_positions` unless they are 0, 1, 2 … along each row.
          dropout_key: Random key of dropout; None disables dropout.
          capture: See `Model.__call__`.
          edits: See `Model.__call__`.

        Raises:
          UserError: Rows and the [MASK] after them are longer than `max_length` of the model.
        """
        tokens, in_prompt = batch["decoder_input_tokens"], batch["decoder_prefix"] > 0
        checks.row_length(self.model.config, tokens.shape[1] + 1)
        positions = position_ids(*tokens.shape, batch.get("decoder_positions"))
        valid = batch["decoder_segment_ids"] > 0
        types = jnp.where(in_prompt, SOURCE_TYPE, TARGET_TYPE)
        embedded = [
            self._embed(tokens, positions, types),
            self._embed(jnp.full_like(tokens, self.mask_id), positions + 1, jnp.full_like(types, TARGET_TYPE)),
        ]
        index = jnp.arange(tokens.shape[1])
        before = index[None, :] <= index[:, None]
        # Queries of the text, then of [MASK]; keys of the text, then of [MASK].
        text = jnp.where(in_prompt[:, :, None], in_prompt[:, None], in_prompt[:, None] | before) & valid[:, None]
        masks = (in_prompt[:, None] | before) & valid[:, None]
        own = jnp.broadcast_to(index[None, :] == index[:, None], text.shape)
        visible = jnp.block([[text, jnp.zeros_like(own)], [masks, own]])
        outputs = self.model.apply_layers(
            jnp.concatenate(embedded, axis=1),
            {"mask": Mask(dense=visible)},
            dropout_key=dropout_key,
            capture=capture,
            edits=edits,
        )
        return outputs.replace(hidden=outputs.hidden[:, tokens.shape[1] :])

    def prefill(
        self, batch: Batch, cache_length: int, num_positions: int = 1
    ) -> tuple[Float[Array, "batch 1 embed"], Cache]:
        """Runs the model on prompts, each followed by a [MASK]; see `GenerativeDecoder.prefill`.

        Args:
          batch: Prompts padded on the left (`decoding.start.left_pad`).
          cache_length: Number of positions of prompts and continuations. The cache has another one, for [MASK].
          num_positions: Number of positions of a step; 1.

        Returns:
          The hidden states of [MASK], and the cache with the keys and values of the prompts. The first step replaces
          those of [MASK].
        """
        tokens, present = batch["decoder_input_tokens"], batch["decoder_segment_ids"] > 0
        ends = ((0, 0), (0, 1))
        is_mask = jnp.pad(jnp.zeros_like(tokens), ends, constant_values=1)
        rows = {
            "encoder_input_tokens": jnp.pad(tokens, ends, constant_values=self.mask_id),
            "encoder_segment_ids": jnp.pad(present.astype(jnp.int32), ends, constant_values=1),
            "encoder_positions": jnp.concatenate(
                [batch["decoder_positions"], batch["decoder_positions"][:, -1:] + 1], axis=1
            ),
            "token_types": jnp.where(is_mask > 0, TARGET_TYPE, SOURCE_TYPE),
            RANKS: is_mask,
        }
        embedded = self._embed(*(rows[name] for name in ("encoder_input_tokens", "encoder_positions", "token_types")))
        outputs = self.model.trunk({"encoder": embedded}, rows, capture=KEYS_VALUES)
        cache = cache_of_encoder(self.model, outputs, cache_length + 1, present)
        return outputs.hidden[:, -1:], cache

    def decode_step(
        self, tokens: Int[Array, "batch 1"], cache: Cache, index: Int[Array, ""]
    ) -> tuple[Float[Array, "batch 1 embed"], Cache]:
        """Runs the model on a token, which replaces the [MASK] in the cache, and on a new [MASK] after it.

        Args:
          tokens: Input tokens at slot `index`.
          cache: Keys and values of all earlier slots.
          index: Slot, the same for all rows.

        Returns:
          The hidden states of [MASK], from which `unembed` predicts the next tokens, and the updated cache.
        """
        tokens = jnp.pad(tokens, ((0, 0), (0, 1)), constant_values=self.mask_id)
        first_slot = jnp.repeat(cache.first_slot, len(tokens) // len(cache.first_slot))[:, None]
        slots = index + jnp.arange(tokens.shape[1])
        held = held_positions(cache.self_attention.length_of(0), slots[-1])
        visible = (held >= first_slot)[:, None] & (held <= slots[:, None])
        x, self_attention = self.model.encoder.step(
            self.model.first_layer_input(self._embed(tokens, slots - first_slot, jnp.full_like(tokens, TARGET_TYPE))),
            cache.self_attention,
            index,
            {"attention": {"mask": step_mask(visible)}},
        )
        return x[:, -1:], cache.replace(self_attention=self_attention)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns the logits of the masked-LM head in float32."""
        return self.head.logits(self.model, self.head(hidden))

    def _embed(
        self,
        tokens: Int[Array, "batch length"],
        positions: Int[Array, "batch length"],
        token_types: Int[Array, "batch length"],
    ) -> Hidden:
        rows = {"encoder_input_tokens": tokens, "encoder_positions": positions, "token_types": token_types}
        return self.model.embeddings(rows)
