"""Generation token by token: greedy, or sampled with temperature, top-k and top-p."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from t5x_like.decoding import logits_rules
from t5x_like.decoding.generated import Generated
from t5x_like.decoding.length_penalty import length_penalty
from t5x_like.decoding.settings import Decoding
from t5x_like.decoding.start import Start, Step
from t5x_like.kernels.top_k import argmax, top_k


@struct.dataclass
class _State:
    """Rows after `count` generated tokens. There are `samples` neighboring rows per input.

    Attributes:
      count: Number of generated tokens.
      cache: Cache of the positions before the last token.
      tokens: Generated tokens, 0 after the end.
      finished: Whether a row has ended.
      lengths: Number of tokens of each row.
      log_probability: Their log-probability.
    """

    count: Int[Array, ""]
    cache: Any
    tokens: Int[Array, "rows length"]
    finished: Bool[Array, " rows"]
    lengths: Int[Array, " rows"]
    log_probability: Float[Array, " rows"]


def sample(step: Step, start: Start, decoding: Decoding, keys: jax.Array | None) -> Generated:
    """Generates one token after another, without revising earlier ones.

    Args:
      step: Runs the model.
      start: Inputs or prompts.
      decoding: The resolved settings.
      keys: Random key per sample from `keys_of_samples`; None selects the most probable tokens.

    Returns:
      `decoding.samples` texts per row, by descending score.
    """
    start, rules = start.repeat(decoding.samples), logits_rules.compose(decoding)
    rows = len(start.prompt)

    def unfinished(state):
        return (state.count < decoding.max_length) & ~jnp.all(state.finished)

    def select(logits, cache, state):
        ruled = rules(logits, start.history(state.tokens, state.count))
        chosen = argmax(ruled) if keys is None else _draw(ruled, decoding, keys, state.count)
        gained = jnp.take_along_axis(logits, chosen[:, None], axis=-1)[:, 0] - jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.where(state.finished, 0, chosen).astype(jnp.int32)
        count, ends = state.count + 1, jnp.isin(chosen, jnp.array(decoding.eos_ids, jnp.int32))
        return _State(
            count=count,
            cache=cache,
            tokens=jax.lax.dynamic_update_slice(state.tokens, chosen[:, None], (0, state.count)),
            finished=state.finished | ends | (count >= start.limit),
            lengths=jnp.where(state.finished, state.lengths, count),
            log_probability=state.log_probability + jnp.where(state.finished, 0.0, gained),
        )

    def advance(state):
        return select(*step(start.previous(state.tokens, state.count), state.cache, state.count), state)

    state = _State(
        count=jnp.zeros((), jnp.int32),
        cache=start.cache,
        tokens=jnp.zeros((rows, decoding.max_length), jnp.int32),
        finished=jnp.zeros((rows,), bool),
        lengths=jnp.zeros((rows,), jnp.int32),
        log_probability=jnp.zeros((rows,), jnp.float32),
    )
    if start.logits is not None:
        state = select(start.logits, start.cache, state)
    return _ranked(jax.lax.while_loop(unfinished, advance, state), decoding)


def keys_of_samples(key: jax.Array, example_ids: Int[Array, " batch"], samples: int) -> jax.Array:
    """Derives one random key per sample, which depends on the example and the number of the sample alone.

    Args:
      key: Random key.
      example_ids: Number of each row.
      samples: Number of samples per row.

    Returns:
      Keys `[batch * samples]`, the keys of a row next to each other.
    """
    of_rows = jax.vmap(jax.random.fold_in, (None, 0))(key, example_ids)
    of_samples = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(of_rows, jnp.arange(samples))
    return of_samples.reshape(-1, *key.shape)


def _draw(
    logits: Float[Array, "rows vocab"], decoding: Decoding, keys: jax.Array, count: Int[Array, ""]
) -> Int[Array, " rows"]:
    """Draws the next token of each row.

    The logits are divided by the temperature. Then the `top_k` most probable tokens are kept, and of those the smallest
    set of the most probable ones whose probability reaches `top_p`, as in transformers.
    """
    keys, logits = jax.vmap(jax.random.fold_in, (0, None))(keys, count), logits / decoding.temperature
    # Mapped over rows, so that the random numbers of a row do not depend on the other rows.
    draw = jax.vmap(jax.random.categorical)
    if not decoding.top_k and decoding.top_p == 1:
        return draw(keys, logits)
    size = logits.shape[-1]
    logits, ids = top_k(logits, min(decoding.top_k or size, size))
    if decoding.top_p < 1:
        probabilities = jax.nn.softmax(logits, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        logits = jnp.where(before < decoding.top_p, logits, -jnp.inf)
    return jnp.take_along_axis(ids, draw(keys, logits)[:, None], axis=-1)[:, 0]


def _ranked(state: _State, decoding: Decoding) -> Generated:
    """Orders the samples of each row by descending score."""

    def per_row(x):
        return x.reshape(-1, decoding.samples, *x.shape[1:])

    log_probability, lengths = per_row(state.log_probability), per_row(state.lengths)
    score = log_probability / length_penalty(decoding, lengths)
    order = jnp.argsort(-score, axis=1)
    return Generated(
        tokens=jnp.take_along_axis(per_row(state.tokens), order[..., None], axis=1),
        lengths=jnp.take_along_axis(lengths, order, axis=1),
        log_probability=jnp.take_along_axis(log_probability, order, axis=1),
        score=jnp.take_along_axis(score, order, axis=1),
    )
