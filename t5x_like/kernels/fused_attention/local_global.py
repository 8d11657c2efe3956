"""Attention of a text and its global tokens to each other (ETC, Ainslie et al. 2020), by the fused kernel.

The queries of each input, the text or the global tokens, see keys of both inputs in one softmax. The kernel is called
for each pair of inputs. Within an input, queries see a window of the text, or all global tokens, with vectors of
distances. Keys of the other input have a score of whether they belong to the same sentence. Log-sum-exps merge the two
averages of a query.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.kernels import head_exchange, local_global_attention
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.kernels.fused_attention import blocks
from t5x_like.kernels.fused_attention.attention import attention_and_log_sum_exp
from t5x_like.kernels.local_global_attention import BetweenScores, InputScores
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.score_bias import ScoreTerms
from t5x_like.kernels.scoring import Scoring

KeysValues = tuple[Float[Array, "batch globals+length heads kv"], Float[Array, "batch globals+length heads kv"]]
# Averages of values, and log-sum-exps `[batch, heads, 1, q_len]`.
Average = tuple[Float[Array, "batch q_len heads kv"], Float[Array, "batch heads 1 q_len"]]


def attention(
    q: Float[Array, "batch globals+length heads kv"],
    kv_for_globals: KeysValues,
    kv_for_text: KeysValues,
    *,
    inputs: local_global_attention.Inputs,
    of_globals: InputScores,
    of_text: InputScores,
    scale: float,
    dropout: Dropout,
    dropout_key: jax.Array | None = None,
    interpret: bool = False,
    sizes: blocks.Sizes | None = None,
) -> Float[Array, "batch globals+length heads kv"]:
    """Computes the attention of both inputs without scores in memory.

    Args:
      q: Queries, those of the global tokens first.
      kv_for_globals: Keys and values of both inputs for the queries of global tokens.
      kv_for_text: Keys and values of both inputs for the queries of the text; the same tuple if they are the same.
      inputs: What the tokens see.
      of_globals: Scores of relative positions of global tokens.
      of_text: Scores of relative positions of the text.
      scale: Factor of the scores.
      dropout: Dropout of the attention weights, without shared decisions.
      dropout_key: Random key for dropout; None disables dropout.
      interpret: Whether to interpret the kernels, on any device.
      sizes: Blocks and memory; by default the bound mesh's devices decide.

    Returns:
      Averages of the values. Dropout has the same distribution as in the reference and other random bits.
    """
    pairs = (kv_for_text,) if kv_for_globals is kv_for_text else (kv_for_text, kv_for_globals)
    exchanged = [head_exchange.exchange(q, *kv) for kv in pairs]
    (q, *kv_for_text), (_, *kv_for_globals) = exchanged[0], exchanged[-1]
    number, segments, sentence = inputs.number, inputs.segments, inputs.sentence
    scoring, options = Scoring(scale=scale, dropout=dropout), {"interpret": interpret, "sizes": sizes}
    keys = split_key(dropout_key, 4)

    def within(part: slice, kv, scores: InputScores, key, window: int | None = None) -> Average:
        of_part = tuple(each[:, part] for each in (q, *kv))
        mask = Mask(window=window, query_segments=segments[:, part], key_segments=segments[:, part])
        terms = scores.within.terms(*of_part[:2], scale=scale)
        own = dataclasses.replace(scoring, mask=mask, dropout_key=key)
        return attention_and_log_sum_exp(*of_part, terms, own, **options)

    text, globals_ = slice(number, None), slice(0, number)
    local = within(text, kv_for_text, of_text, keys[0], inputs.radius + 1)
    if not number:
        return local[0]
    index = jnp.broadcast_to(jnp.arange(number), (len(sentence), number))
    of_both = Mask(query_segments=segments[:, text], key_segments=segments[:, globals_])
    to_globals = _between(
        q[:, text],
        *(each[:, globals_] for each in kv_for_text),
        of_text.between,
        (sentence, index),
        dataclasses.replace(scoring, mask=of_both, dropout_key=keys[1]),
        options,
    )
    if inputs.is_hard:  # no global token has the index -1 of tokens without a sentence
        seen, types = Mask(query_segments=index, key_segments=sentence), None
    else:
        seen, types = Mask(query_segments=segments[:, globals_], key_segments=segments[:, text]), (index, sentence)
    of_text_kv = (each[:, text] for each in kv_for_globals)
    seen = dataclasses.replace(scoring, mask=seen, dropout_key=keys[2])
    to_text = _between(q[:, globals_], *of_text_kv, of_globals.between, types, seen, options)
    among_globals = within(globals_, kv_for_globals, of_globals, keys[3])
    return jnp.concatenate([_merge(among_globals, to_text), _merge(local, to_globals)], axis=1)


def _between(
    q: Float[Array, "batch q_len heads kv"],
    k: Float[Array, "batch kv_len heads kv"],
    v: Float[Array, "batch kv_len heads kv"],
    scores: BetweenScores,
    sentences: tuple[Int[Array, "batch q_len"], Int[Array, "batch kv_len"]] | None,
    scoring: Scoring,
    options: dict,
) -> Average:
    """Computes attention to keys of the other input.

    The vector of other sentences is added to all keys, and their score to the log-sum-exps. For keys of the query's own
    sentence, the difference from other sentences is a score per query.

    Args:
      q: Queries.
      k: Keys.
      v: Values.
      scores: Scores of relative positions.
      sentences: Sentences of queries and keys; None if queries see keys of their own sentence alone.
      scoring: Mask, scale and dropout.
      options: Options of `attention_and_log_sum_exp`.
    """
    if sentences is None:
        vector, score, terms = scores.own, scores.own_score, ScoreTerms()
    else:
        vector, score = scores.other, scores.other_score
        further = (scores.own - vector).astype(q.dtype)
        same = jnp.einsum("bqhd,hd->bhq", q, further, preferred_element_type=jnp.float32)
        same += (scores.own_score - score)[:, None]
        terms = ScoreTerms(same_type=same, query_types=sentences[0], key_types=sentences[1])
    k = k + vector.astype(k.dtype)
    output, lse = attention_and_log_sum_exp(q, k, v, terms, scoring, **options)
    return output, lse + scoring.scale * score[:, None, None]


# Recomputed from the averages that the kernels save. The backward pass would read float32 copies of them otherwise.
@functools.partial(jax.checkpoint, prevent_cse=False)
def _merge(first: Average, second: Average) -> Float[Array, "batch q_len heads kv"]:
    """Returns the average over the keys of both."""
    (one, lse), (other, other_lse) = first, second
    total = jnp.logaddexp(lse, other_lse)
    share, other_share = (jnp.moveaxis(jnp.exp(each - total), 3, 1)[:, :, :, 0, None] for each in (lse, other_lse))
    return (share * one + other_share * other).astype(one.dtype)
