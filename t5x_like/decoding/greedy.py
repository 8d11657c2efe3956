"""Greedy decoding: the most probable token at each step."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from t5x_like.decoding.prompts import aligned

BOS_ID = 0
EOS_ID = 1


@struct.dataclass
class Generated:
    """What decoding returns.

    Attributes:
      tokens: generated ids up to and with EOS, then 0.
      log_probability: the sum of the log-probabilities of these tokens, in nats.
    """

    tokens: Int[Array, "batch length"]
    log_probability: Float[Array, "batch"]


def greedy(
    model: Any, batch: Mapping[str, Int[Array, "batch inputs"]], *, max_length: int, eos_id: int = EOS_ID
) -> Generated:
    """Decodes `max_length` tokens at most for each row: an encoder-decoder's answer, or a decoder's continuation.

    What is given is read in one pass: the encoder with the keys and values of the cross-attention, or the prompts.
    Decoding ends early when every row has produced EOS.

    Args:
      model: offers `decode_step` and `unembed`; and `encode` and `init_cache`, or `prefill` for prompts.
      batch: `encoder_input_tokens`, 0 for padding; or prompts, `decoder_input_tokens` with padding behind them, which
        `decoder_segment_ids` marks by 0.
      max_length: tokens to generate at most, EOS included.
      eos_id: the id that ends a row.

    Raises:
      ValueError: the network has not as many positions.
    """
    read = _read_inputs if "encoder_input_tokens" in batch else _read_prompts
    first, previous, cache = read(model, batch, max_length)
    rows = len(previous)

    def unfinished(carry):
        index, _, _, finished, _, _ = carry
        return (index < max_length) & ~jnp.all(finished)

    def advance(carry):
        index, previous, cache, finished, tokens, score = carry
        hidden, cache = model.decode_step(previous[:, None], cache, first + index)
        log_probabilities = jax.nn.log_softmax(model.unembed(hidden)[:, 0])
        best = jnp.argmax(log_probabilities, axis=-1).astype(jnp.int32)
        gained = jnp.take_along_axis(log_probabilities, best[:, None], axis=-1)[:, 0]
        best = jnp.where(finished, 0, best)
        score = score + jnp.where(finished, 0.0, gained)
        tokens = jax.lax.dynamic_update_slice(tokens, best[:, None], (0, index))
        return index + 1, best, cache, finished | (best == eos_id), tokens, score

    start = (
        jnp.zeros((), jnp.int32),
        previous,
        cache,
        jnp.zeros((rows,), bool),
        jnp.zeros((rows, max_length), jnp.int32),
        jnp.zeros((rows,), jnp.float32),
    )
    *_, tokens, score = jax.lax.while_loop(unfinished, advance, start)
    return Generated(tokens=tokens, log_probability=score)


def _read_inputs(model, batch, max_length):
    """Where the first token goes in the cache, what precedes it [batch], and the cache."""
    rows = batch["encoder_input_tokens"].shape[0]
    return 0, jnp.full((rows,), BOS_ID, jnp.int32), model.init_cache(rows, max_length, model.encode(batch))


def _read_prompts(model, batch, max_length):
    """The same for prompts; their last token, already in the cache, is decoded once more to start with."""
    prompts = aligned(batch)
    tokens = prompts["decoder_input_tokens"]
    # What is generated last is never read.
    cache = model.prefill(prompts, tokens.shape[1] + max_length - 1)
    return tokens.shape[1] - 1, tokens[:, -1], cache
