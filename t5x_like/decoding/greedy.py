"""Greedy decoding: the most probable token at each step."""

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
    """What decoding returns.

    Attributes:
      tokens: generated ids up to and including EOS, then 0.
      lengths: how many tokens of each row were generated, EOS included; id 0 can be one of them.
      log_probability: the sum of the log-probabilities of these tokens, in nats.
    """

    tokens: Int[Array, "batch length"]
    lengths: Int[Array, "batch"]
    log_probability: Float[Array, "batch"]

    def token_ids(self, eos_id: int) -> list[list[int]]:
        """The generated ids of each row, up to and without the first EOS; of a result that is on the host."""
        rows = [tokens[:length].tolist() for tokens, length in zip(self.tokens, self.lengths, strict=True)]
        return [row[: row.index(eos_id)] if eos_id in row else row for row in rows]


@struct.dataclass
class Start:
    """Where decoding starts from.

    Attributes:
      previous: the token before the first to be generated.
      cache: of what is before that.
      index: where in the cache `previous` goes.
      limit: how many tokens each row can have at most.
    """

    previous: Int[Array, "batch"]
    cache: Any
    index: int = struct.field(pytree_node=False)
    limit: Int[Array, "batch"]


def greedy(
    model: Any,
    batch: Mapping[str, Int[Array, "batch inputs"]],
    *,
    max_length: int,
    bos_id: int = BOS_ID,
    eos_id: int = EOS_ID,
) -> Generated:
    """Decodes `max_length` tokens at most for each row: an encoder-decoder's answer, or a decoder's continuation.

    What is given is read in one pass: the encoder with the keys and values of the cross-attention, or the prompts.
    Decoding ends early when every row has produced EOS, or when there is no position left for what it has produced.

    Args:
      model: offers `decode_step` and `unembed`; and `encode` and `init_cache`, or `prefill` for prompts.
      batch: `encoder_input_tokens`, 0 for padding; or prompts as `prompts.left_pad` reads them.
      max_length: tokens to generate at most, EOS included.
      bos_id: what an answer begins with; prompts have it in them, where there is one.
      eos_id: the id that ends a row.
    """
    answers = "encoder_input_tokens" in batch
    start = _inputs(model, batch, max_length, bos_id) if answers else _prompts(model, batch, max_length)
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


def _inputs(model, batch, max_length, bos_id) -> Start:
    rows = batch["encoder_input_tokens"].shape[0]
    return Start(
        previous=jnp.full((rows,), bos_id, jnp.int32),
        cache=model.init_cache(rows, max_length, model.encode(batch)),
        index=0,
        limit=jnp.full((rows,), max_length),
    )


def _prompts(model, batch, max_length) -> Start:
    """The prompts' last token, which is in the cache already, is decoded once more to start with."""
    prompts = left_pad(batch)
    tokens, lengths = prompts["decoder_input_tokens"], jnp.sum(prompts["decoder_segment_ids"], axis=1)
    return Start(
        previous=tokens[:, -1],
        # What is generated last is never read: it needs neither a slot nor a position.
        cache=model.prefill(prompts, tokens.shape[1] + max_length - 1),
        index=tokens.shape[1] - 1,
        limit=model.config.max_length - lengths + 1,
    )
