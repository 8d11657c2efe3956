"""Greedy decoding, which selects the most probable token at each step."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from t5x_like.data.features import BOS_ID, EOS_ID
from t5x_like.decoding.prompts import left_pad


@struct.dataclass
class Generated:
    """Generated tokens.

    Attributes:
      tokens: generated ids up to and including EOS, padded with 0.
      lengths: number of generated tokens per row, including EOS. It distinguishes a generated id 0 from padding.
      log_probability: sum of the log-probabilities of the generated tokens, in nats.
    """

    tokens: Int[Array, "batch length"]
    lengths: Int[Array, " batch"]
    log_probability: Float[Array, " batch"]

    def token_ids(self, eos_id: int) -> list[list[int]]:
        """Returns the generated ids of each row before its first EOS. The arrays must be on the host."""
        rows = [tokens[:length].tolist() for tokens, length in zip(self.tokens, self.lengths, strict=True)]
        return [row[: row.index(eos_id)] if eos_id in row else row for row in rows]


@struct.dataclass
class _InitialState:
    """State of decoding before the first step.

    Attributes:
      previous: last token before the first generated one.
      cache: cache of the positions before `previous`.
      index: position of `previous` in the cache.
      limit: maximum number of generated tokens per row.
    """

    previous: Int[Array, " batch"]
    cache: Any
    index: int = struct.field(pytree_node=False)
    limit: Int[Array, " batch"]


def greedy(
    model: Any,
    batch: Mapping[str, Int[Array, "batch inputs"]],
    *,
    max_length: int,
    bos_id: int = BOS_ID,
    eos_id: int = EOS_ID,
) -> Generated:
    """Generates the targets of an encoder-decoder, or continues the prompts of a decoder.

    The inputs or prompts are processed in one forward pass. Decoding ends early once every row has generated EOS or
    reached the model's maximum length.

    Args:
      model: has `decode_step` and `unembed`. An encoder-decoder also has `encode` and `init_cache`; a decoder has
        `prefill` and `config.max_length`.
      batch: `encoder_input_tokens` with 0 for padding, or prompts as `prompts.left_pad` reads them.
      max_length: maximum number of tokens to generate per row, including EOS.
      bos_id: first decoder input of an encoder-decoder. Prompts contain their own BOS.
      eos_id: token id that ends a row.

    Returns:
      The generated tokens.
    """
    if "encoder_input_tokens" in batch:
        start = _start_from_inputs(model, batch, max_length, bos_id)
    else:
        start = _start_from_prompts(model, batch, max_length)
    rows = len(start.previous)

    def unfinished(carry):
        count, _, _, finished, _, _, _ = carry
        return (count < max_length) & ~jnp.all(finished)

    def advance(carry):
        count, previous, cache, finished, tokens, lengths, score = carry
        hidden, cache = model.decode_step(previous[:, None], cache, start.index + count)
        log_probabilities = jax.nn.log_softmax(model.unembed(hidden)[:, 0])
        best = jnp.argmax(log_probabilities, axis=-1).astype(jnp.int32)
        gained = jnp.take_along_axis(log_probabilities, best[:, None], axis=-1)[:, 0]
        best = jnp.where(finished, 0, best)
        score = score + jnp.where(finished, 0.0, gained)
        tokens = jax.lax.dynamic_update_slice(tokens, best[:, None], (0, count))
        lengths = jnp.where(finished, lengths, count + 1)
        finished = finished | (best == eos_id) | (count + 1 >= start.limit)
        return count + 1, best, cache, finished, tokens, lengths, score

    first = (
        jnp.zeros((), jnp.int32),
        start.previous,
        start.cache,
        jnp.zeros((rows,), bool),
        jnp.zeros((rows, max_length), jnp.int32),
        jnp.zeros((rows,), jnp.int32),
        jnp.zeros((rows,), jnp.float32),
    )
    *_, tokens, lengths, score = jax.lax.while_loop(unfinished, advance, first)
    return Generated(tokens=tokens, lengths=lengths, log_probability=score)


def _start_from_inputs(model, batch, max_length, bos_id) -> _InitialState:
    rows = batch["encoder_input_tokens"].shape[0]
    return _InitialState(
        previous=jnp.full((rows,), bos_id, jnp.int32),
        cache=model.init_cache(rows, max_length, model.encode(batch)),
        index=0,
        limit=jnp.full((rows,), max_length),
    )


def _start_from_prompts(model, batch, max_length) -> _InitialState:
    """Prefills the cache with the prompts.

    The first step decodes the last token of each prompt again, which the cache already holds.
    """
    prompts = left_pad(batch)
    tokens, lengths = prompts["decoder_input_tokens"], jnp.sum(prompts["decoder_segment_ids"], axis=1)
    return _InitialState(
        previous=tokens[:, -1],
        # The last generated token is never read, so it needs no cache slot.
        cache=model.prefill(prompts, tokens.shape[1] + max_length - 1),
        index=tokens.shape[1] - 1,
        limit=model.config.max_length - lengths + 1,
    )
