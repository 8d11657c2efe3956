"""The state of generation before the first step: an encoded input, or a prompt in the cache."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from t5x_like.adapters import model_adapters
from t5x_like.decoding.logits_rules import History

# step(tokens [rows], cache, count) -> (logits [rows vocab], cache): reads the last of the prompt and `count` generated
# tokens, and returns the logits of the next one.
Step = Callable[[Array, Any, Array], tuple[Array, Any]]

FIRST_SEGMENT = 1


@struct.dataclass
class Start:
    """State of generation before the first step.

    Attributes:
      prompt: Tokens before the first generated one, aligned at their end: BOS of an encoder-decoder, or prompts.
      present: Whether a position of `prompt` has a token; the others are padding.
      cache: Cache of the positions before the first step.
      index: Slot of the last token of `prompt` in the cache.
      limit: Maximum number of generated tokens per row.
      logits: Logits of the first generated token, if prompts were processed; otherwise None.
    """

    prompt: Int[Array, "batch prompt"]
    present: Bool[Array, "batch prompt"]
    cache: Any
    index: int = struct.field(pytree_node=False)
    limit: Int[Array, " batch"]
    logits: Float[Array, "batch vocab"] | None = None

    def repeat(self, n: int) -> "Start":
        """Returns every row `n` times, the same rows next to each other."""
        if n == 1:
            return self
        repeated = jax.tree.map(lambda x: jnp.repeat(x, n, axis=0), self.replace(cache=None))
        return repeated.replace(cache=self.cache.repeat(n))

    def previous(self, generated: Int[Array, "batch length"], count: Int[Array, ""]) -> Int[Array, " batch"]:
        """Returns the last of the prompt and the `count` generated tokens."""
        last = jax.lax.dynamic_index_in_dim(generated, jnp.maximum(count - 1, 0), axis=1, keepdims=False)
        return jnp.where(count == 0, self.prompt[:, -1], last)

    def history(self, generated: Int[Array, "batch length"], count: Int[Array, ""]) -> History:
        """Returns what the rules on the logits read."""
        return History(prompt=self.prompt, present=self.present, generated=generated, count=count, limit=self.limit)

    @classmethod
    def of(
        cls, model: Any, batch: Mapping[str, Int[Array, "batch inputs"]], *, max_length: int, bos_id: int
    ) -> "Start":
        """Encodes the inputs of an encoder-decoder, or the prompts of a decoder; see `generate`.

        `bos_id` is the first decoder input of an encoder-decoder.
        """
        if "encoder_input_tokens" in batch:
            return cls._of_inputs(model, batch, max_length, bos_id)
        return cls._of_prompts(model, batch, max_length)

    @classmethod
    def _of_inputs(cls, model, batch, max_length, bos_id) -> "Start":
        rows = batch["encoder_input_tokens"].shape[0]
        return cls(
            prompt=jnp.full((rows, 1), bos_id, jnp.int32),
            present=jnp.ones((rows, 1), bool),
            cache=model.init_cache(rows, max_length, model.encode(batch)),
            index=0,
            limit=jnp.full((rows,), max_length),
        )

    @classmethod
    def _of_prompts(cls, model, batch, max_length) -> "Start":
        prompts = left_pad(batch, model_adapters.features(model.config))
        tokens, present = prompts["decoder_input_tokens"], prompts["decoder_segment_ids"] > 0
        limit = jnp.full(tokens.shape[:1], max_length)
        if (positions := getattr(model.config, "max_length", None)) is not None:
            positions -= model_adapters.count_positions(model.config)
            limit = jnp.minimum(limit, positions - jnp.sum(present, axis=1) + 1)
        # The last generated token is never read, so it needs no cache slot.
        hidden, cache = model.prefill(prompts, tokens.shape[1] + max_length - 1)
        return cls(
            prompt=tokens,
            present=present,
            cache=cache,
            index=tokens.shape[1] - 1,
            limit=limit,
            logits=model.unembed(hidden)[:, 0],
        )


def left_pad(
    batch: Mapping[str, Int[Array, "batch length"]], of_rows: Collection[str] = ()
) -> dict[str, Int[Array, "batch length"]]:
    """Moves the padding of prompts to the front, so that the next token of all rows has the same position.

    `[a b c 0 0]` becomes `[0 0 a b c]` with positions `[0 0 0 1 2]`.

    Args:
      batch: The features of the prompts. `decoder_input_tokens` is required. The other features are optional:
        `decoder_segment_ids` is 0 for padding, and only the first segment of a packed row is read. A prompt ends with
        the first token whose `decoder_loss_weights` is positive. `decoder_prefix` marks the tokens that all positions
        may attend to.
      of_rows: Further features to return, such as those of adapters, which have a value per row.

    Returns:
      `decoder_input_tokens`, `decoder_segment_ids`, `decoder_positions` and, if given, `decoder_prefix` and the
      features of rows, with the shapes of the inputs. An empty row becomes a row with a single token 0.
    """
    tokens = batch["decoder_input_tokens"]
    rows, length = tokens.shape
    count = jnp.full((rows, 1), length)
    if "decoder_segment_ids" in batch:
        count = jnp.sum(batch["decoder_segment_ids"] == FIRST_SEGMENT, axis=1, keepdims=True)
    if "decoder_loss_weights" in batch:
        predicted = batch["decoder_loss_weights"] > 0
        before = jnp.where(jnp.any(predicted, axis=1), jnp.argmax(predicted, axis=1), length)[:, None]
        count = jnp.minimum(count, before + 1)
    positions = jnp.arange(length) - (length - jnp.maximum(count, 1))
    real = positions >= 0

    def move(x):
        return jnp.where(real, jnp.take_along_axis(x, jnp.maximum(positions, 0), axis=1), 0)

    return {
        **{name: move(batch[name]) for name in ("decoder_input_tokens", "decoder_prefix") if name in batch},
        **{name: batch[name] for name in of_rows if name in batch},
        "decoder_segment_ids": real.astype(jnp.int32),
        "decoder_positions": jnp.maximum(positions, 0).astype(jnp.int32),
    }
