"""XLNet as a decoder: the second stream predicts the token after a text (Yang et al. 2019, section 2.3)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.layers.cache import held_positions, step_mask
from t5x_like.layers.captures import Edit
from t5x_like.models import checks
from t5x_like.models.base import Batch
from t5x_like.models.decoder import Cache
from t5x_like.models.outputs import Outputs
from t5x_like.models.unilm_decoder import KEYS_VALUES, TokenHead, cache_of_encoder
from t5x_like.models.xlnet import RANKS, TARGET_POSITIONS, XLNet

# Rank of the tokens of a prompt, which see one another.
_PROMPT = 1


class XLNetDecoder(nnx.Module):
    """An XLNet that continues prompts. It has the methods of `GenerativeDecoder`, except for `embed` and `trunk`.

    The permutation has the prompt first, whose tokens see one another, then the other tokens in their order. So the
    states of a token do not depend on later ones, and a cache has its keys and values: the memory of a text.

    Args:
      model: The model.
      head: The bias of its logits.

    Raises:
      UserError: The model has a prompt.

    Attributes:
      config: The configuration of the model.
    """

    def __init__(self, model: XLNet, head: TokenHead):
        checks.no_adapter_needs(model.config, "prompt", "generation with XLNet reads no prompt")
        self.model, self.head, self.config = model, head, model.config

    def __call__(
        self,
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[Edit] = (),
    ) -> Outputs:
        """Returns the hidden states that predict the token after each position of given texts.

        Args:
          batch: `decoder_input_tokens`; `decoder_prefix`, 1 for the tokens of the prompt; and `decoder_segment_ids`, 0
            for padding. The states of positions before the last token of the prompt have no meaning.
          dropout_key: Random key of dropout; None disables dropout.
          capture: See `Model.__call__`. Captured arrays have one position more than the row.
          edits: See `Model.__call__`.
        """
        segments, in_prompt = batch["decoder_segment_ids"], batch["decoder_prefix"] > 0
        rows, length = segments.shape
        order = _PROMPT + 1 + jnp.arange(length)
        extended = self._extended(batch["decoder_input_tokens"], segments, jnp.where(in_prompt, _PROMPT, order))
        extended[TARGET_POSITIONS] = jnp.broadcast_to(1 + jnp.arange(length), (rows, length))
        return self.model(extended, dropout_key=dropout_key, capture=capture, edits=edits)

    def prefill(
        self, batch: Batch, cache_length: int, num_positions: int = 1
    ) -> tuple[Float[Array, "batch 1 embed"], Cache]:
        """Runs the model on prompts, and predicts the token after them; see `GenerativeDecoder.prefill`.

        Args:
          batch: Prompts padded on the left (`decoding.start.left_pad`).
          cache_length: Number of positions of prompts and continuations. The cache has another one, of a token that is
            not known yet.
          num_positions: Number of positions of a step; 1.

        Returns:
          The hidden states of the next tokens, and the cache with the keys and values of the prompts.
        """
        tokens, present = batch["decoder_input_tokens"], batch["decoder_segment_ids"] > 0
        extended = self._extended(tokens, present.astype(jnp.int32), jnp.full_like(tokens, _PROMPT))
        # The token that is not known yet is not padding, also after a prompt without tokens.
        extended["encoder_segment_ids"] = jnp.pad(present.astype(jnp.int32), ((0, 0), (0, 1)), constant_values=1)
        extended[TARGET_POSITIONS] = jnp.full((len(tokens), 1), tokens.shape[1])
        outputs = self.model(extended, capture=KEYS_VALUES)
        cache = cache_of_encoder(self.model, outputs, cache_length + 1, present)
        return outputs.hidden, cache

    def decode_step(
        self, tokens: Int[Array, "batch 1"], cache: Cache, index: Int[Array, ""]
    ) -> tuple[Float[Array, "batch 1 embed"], Cache]:
        """Runs the model on a token, and predicts the token after it.

        Args:
          tokens: Input tokens at slot `index`.
          cache: Keys and values of all earlier slots.
          index: Slot, the same for all rows.

        Returns:
          The hidden states of the next tokens, from which `unembed` predicts them, and the updated cache.
        """
        content = self.model.token_embedder(tokens)
        target = jnp.broadcast_to(self.model.target_embedding[...].astype(content.dtype), content.shape)
        first_slot = jnp.repeat(cache.first_slot, len(tokens) // len(cache.first_slot))[:, None]
        slots, length = index + jnp.arange(2), cache.self_attention.length_of(0)
        held = held_positions(length, index)
        # Both see the token; the keys and values of the target, in the slot after it, are seen by none.
        visible = jnp.broadcast_to(((held >= first_slot) & (held <= index))[:, None], (len(tokens), 2, length))
        inputs = {
            "mask": step_mask(visible),
            "relative": self.model.relative_table(length, 1),
            "query_types": jnp.zeros((len(tokens), 2), jnp.int32),
            "key_types": jnp.zeros((len(tokens), length), jnp.int32),
            "positions": jnp.broadcast_to(slots, (len(tokens), 2)),
            "key_positions": held[None],
        }
        x = jnp.concatenate([content, target], axis=1)
        x, self_attention = self.model.encoder.step(x, cache.self_attention, index, {"attention": inputs})
        return x[:, 1:], cache.replace(self_attention=self_attention)

    def unembed(self, hidden: Float[Array, "batch length embed"]) -> Float[Array, "batch length vocab"]:
        """Returns the logits in float32, with their bias."""
        return self.head.logits(self.model, self.head(hidden))

    @staticmethod
    def _extended(tokens: Array, segments: Array, ranks: Array) -> dict[str, Array]:
        """Returns rows with one more token, which is not known yet: the highest rank, which no other token sees.

        A position has the segment of the position before it, since it is predicted from there.
        """
        end = ((0, 0), (0, 1))
        last = _PROMPT + 1 + tokens.shape[1]
        return {
            "encoder_input_tokens": jnp.pad(tokens, end),
            "encoder_segment_ids": jnp.concatenate([segments[:, :1], segments], axis=1),
            RANKS: jnp.pad(ranks, end, constant_values=last),
        }
