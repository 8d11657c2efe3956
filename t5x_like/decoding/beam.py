"""Beam search, with the stopping rules of transformers."""

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
from t5x_like.kernels.top_k import top_k

# Score of a hypothesis that does not exist. Sums with it stay below every real score.
_NO_SCORE = -1e9


@struct.dataclass
class Hypotheses:
    """Several texts per row.

    Attributes:
      tokens: Generated tokens, 0 after the end.
      log_probability: Log-probability of the tokens under the model.
      score: Log-probability after the rules on the logits, and of finished hypotheses after the length penalty.
      lengths: Number of tokens.
      exists: Whether a finished hypothesis exists; true for open ones.
    """

    tokens: Int[Array, "batch beams length"]
    log_probability: Float[Array, "batch beams"]
    score: Float[Array, "batch beams"]
    lengths: Int[Array, "batch beams"]
    exists: Bool[Array, "batch beams"]

    def take(self, beams: Int[Array, "batch chosen"]) -> "Hypotheses":
        """Returns the hypotheses with these indices in each row."""
        return jax.tree.map(lambda x: jnp.take_along_axis(x, _expand(beams, x), axis=1), self)

    def best(self, n: int) -> "Hypotheses":
        """Returns the `n` hypotheses per row with the highest scores, by descending score."""
        return self.take(top_k(self.score, n)[1])

    def join(self, other: "Hypotheses") -> "Hypotheses":
        """Returns the hypotheses of both."""
        return jax.tree.map(lambda *each: jnp.concatenate(each, axis=1), self, other)


@struct.dataclass
class _State:
    """Beam search after `count` generated tokens.

    Attributes:
      count: Number of generated tokens.
      cache: Cache of the positions before the last token, with `beams` neighboring rows per input.
      open: Hypotheses that have not ended, by descending score.
      finished: The best hypotheses that have ended, by descending score.
      active: Rows whose finished hypotheses may still change.
    """

    count: Int[Array, ""]
    cache: Any
    open: Hypotheses
    finished: Hypotheses
    active: Bool[Array, " batch"]


def beam_search(step: Step, start: Start, decoding: Decoding) -> Generated:
    """Searches for the texts with the highest scores.

    Each step extends the open hypotheses of a row by every token. Of the `beams` best extensions, those that end are
    finished hypotheses, of which the `beams` best are kept. The `beams` best extensions that do not end stay open.

    Args:
      step: Runs the model.
      start: Inputs or prompts.
      decoding: The resolved settings.

    Returns:
      `decoding.beams` texts per row, by descending score.
    """
    batch, beams = len(start.prompt), decoding.beams
    repeated, rules = start.repeat(beams), logits_rules.compose(decoding)
    # At most `beams` extensions per EOS end, so that at least `beams` of these do not.
    kept = beams * max(2, 1 + len(decoding.eos_ids))

    def unfinished(state):
        return (state.count < decoding.max_length) & jnp.any(state.active)

    def select(logits, cache, state):
        tokens = state.open.tokens.reshape(batch * beams, -1)
        log_probabilities = jax.nn.log_softmax(logits)
        ruled = rules(log_probabilities, repeated.history(tokens, state.count))
        parents, extended = _extend(state.open, log_probabilities, ruled, state.count, min(kept, ruled.size // batch))
        count, chosen = state.count + 1, extended.tokens[:, :, state.count]
        ends = jnp.isin(chosen, jnp.array(decoding.eos_ids, jnp.int32)) | (count >= start.limit)[:, None]

        ending = ends & state.active[:, None] & (jnp.arange(ends.shape[1]) < beams)
        final = jnp.where(ending, extended.score / length_penalty(decoding, count), _NO_SCORE)
        finished = state.finished.join(extended.replace(score=final, exists=ending)).best(beams)

        score = extended.score + jnp.where(ends, _NO_SCORE, 0.0)
        order = top_k(score, beams)[1]
        rows = jnp.take_along_axis(parents, order, axis=1) + beams * jnp.arange(batch)[:, None]
        still_open = extended.replace(score=score).take(order)
        return _State(
            count=count,
            cache=cache.take(rows.reshape(-1)),
            open=still_open,
            finished=finished,
            active=state.active & (count < start.limit) & _may_improve(still_open, finished, start, decoding, count),
        )

    def advance(state):
        tokens = state.open.tokens.reshape(batch * beams, -1)
        return select(*step(repeated.previous(tokens, state.count), state.cache, state.count), state)

    state = _initial(batch, decoding, repeated.cache)
    if start.logits is not None:
        state = select(repeated.logits, repeated.cache, state)
    found = jax.lax.while_loop(unfinished, advance, state).finished
    return Generated(
        tokens=found.tokens, lengths=found.lengths, log_probability=found.log_probability, score=found.score
    )


def _initial(batch: int, decoding: Decoding, cache: Any) -> _State:
    """Returns the state before the first token, with an empty open hypothesis per row."""
    shape = (batch, decoding.beams)
    nothing = Hypotheses(
        tokens=jnp.zeros((*shape, decoding.max_length), jnp.int32),
        log_probability=jnp.zeros(shape, jnp.float32),
        score=jnp.full(shape, _NO_SCORE, jnp.float32),
        lengths=jnp.zeros(shape, jnp.int32),
        exists=jnp.zeros(shape, bool),
    )
    return _State(
        count=jnp.zeros((), jnp.int32),
        cache=cache,
        # All beams are equal at first: one of them is extended.
        open=nothing.replace(score=nothing.score.at[:, 0].set(0.0), exists=jnp.ones(shape, bool)),
        finished=nothing,
        active=jnp.ones((batch,), bool),
    )


def _extend(
    hypotheses: Hypotheses,
    log_probabilities: Float[Array, "rows vocab"],
    ruled: Float[Array, "rows vocab"],
    count: Int[Array, ""],
    kept: int,
) -> tuple[Int[Array, "batch kept"], Hypotheses]:
    """Extends hypotheses by their most probable next tokens.

    Args:
      hypotheses: Open hypotheses of `count` tokens.
      log_probabilities: Log-probabilities of the next token under the model.
      ruled: The same after the rules on the logits, which are added to the scores.
      count: Number of tokens.
      kept: Number of extensions per row.

    Returns:
      The index of the hypothesis that each extension extends, and the extensions by descending score.
    """
    batch, beams = hypotheses.score.shape
    vocab_size = ruled.shape[-1]
    scores = ruled.reshape(batch, beams, vocab_size) + hypotheses.score[..., None]
    score, index = top_k(scores.reshape(batch, -1), kept)
    parents, chosen = index // vocab_size, index % vocab_size
    gained = jnp.take_along_axis(log_probabilities.reshape(batch, -1), index, axis=1)
    extended = hypotheses.take(parents)
    return parents, extended.replace(
        tokens=jax.lax.dynamic_update_slice(extended.tokens, chosen[..., None].astype(jnp.int32), (0, 0, count)),
        log_probability=extended.log_probability + gained,
        score=score,
        lengths=extended.lengths + 1,
    )


def _may_improve(
    still_open: Hypotheses, finished: Hypotheses, start: Start, decoding: Decoding, count: Int[Array, ""]
) -> Bool[Array, " batch"]:
    """Returns per row whether an open hypothesis may replace a finished one; see `Decoding.early_stopping`."""
    complete = jnp.all(finished.exists, axis=1)
    if decoding.early_stopping is True:
        return ~complete
    # A positive exponent favors long texts: the best that an open hypothesis can reach has the maximum length.
    length = start.limit if decoding.early_stopping == "never" and decoding.alpha > 0 else count
    attainable = still_open.score[:, 0] / length_penalty(decoding, length)
    return ~complete | (attainable > finished.score[:, -1])


def _expand(index: Array, like: Array) -> Array:
    return index.reshape(*index.shape, *(1,) * (like.ndim - index.ndim))
