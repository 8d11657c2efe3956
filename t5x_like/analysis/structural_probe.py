"""The structural probe: are distances between words in their syntax tree distances between their vectors?

Hewitt and Manning (2019): a linear map B of a low rank is trained so that |B (h_i - h_j)|² approaches the number of
edges between words i and j, by the absolute error over the squared length of the sentence.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy import stats
from scipy.sparse import csgraph

from t5x_like.analysis.probe_training import fit_in_batches
from t5x_like.analysis.treebank import ROOT, Sentence
from t5x_like.errors import UserError

UUAS, CORRELATION = "UUAS", "distance correlation"
# Longer sentences are left out, since all are padded to the longest one.
_MAX_WORDS = 60
_BATCH = 16
_PUNCTUATION = "PUNCT"
# Numbers of words. Rank correlations are averaged over sentences of a length, then over lengths, as in the paper.
_CORRELATED = range(5, 51)


def measure(
    sentences: Sequence[Sentence],
    vectors: Sequence[Float[np.ndarray, "layers words embed"]],
    is_test: np.ndarray,
    *,
    rank: int,
    steps: int,
    seed: int,
) -> dict[str, list[float]]:
    """Trains a probe per layer, and measures it on the sentences for testing.

    Args:
      sentences: The sentences.
      vectors: Vectors of their words.
      is_test: Which sentences are for testing.
      rank: Rank of B.
      steps: Number of updates of a round; see `fit_in_batches`.
      seed: Seed of initial values and batches.

    Returns:
      Name of a metric -> its value at each layer. `UUAS` is the share of the edges of the syntax tree, from 0 to 1,
      that the minimum spanning tree of the predicted distances has, without punctuation. `distance correlation` is
      Spearman's, from -1 to 1, of the distances from each word, the mean over sentences of 5 to 50 words.

    Raises:
      UserError: No sentence for training, or none for testing, has 2 to 60 words.
    """
    kept = [index for index, each in enumerate(sentences) if 2 <= len(each.words) <= _MAX_WORDS]
    of_test = is_test[kept]
    if of_test.all() or not of_test.any():
        raise UserError(
            f"TREEBANK: the structural probe reads sentences of 2 to {_MAX_WORDS} words, of which there are none for "
            "training or none for testing. Give more sentences."
        )
    longest = max(len(sentences[index].words) for index in kept)
    layers, _, size = vectors[0].shape
    x = np.zeros((layers, len(kept), longest, size), np.float32)
    distances = np.full((len(kept), longest, longest), -1.0, np.float32)  # -1 for no word
    for number, index in enumerate(kept):
        count = len(sentences[index].words)
        x[:, number, :count] = vectors[index]
        distances[number, :count, :count] = tree_distances(sentences[index].heads)
    # Vectors of all layers have one scale, so that one rate suits all.
    x /= np.maximum(x.std(axis=(1, 2, 3), keepdims=True), 1e-6)

    def predicted(kernel: Float[Array, "layers embed rank"], x: Array) -> Float[Array, "layers batch words words"]:
        mapped = jnp.einsum("lbwe,ler->lbwr", x, kernel)
        norms = jnp.sum(mapped**2, axis=-1)
        products = jnp.einsum("lbwr,lbvr->lbwv", mapped, mapped)
        return norms[..., :, None] + norms[..., None, :] - 2 * products

    def loss(kernel: Array, x: Array, distances: Array) -> Array:
        known = distances >= 0
        error = jnp.where(known, jnp.abs(predicted(kernel, x) - distances), 0.0).sum(axis=(-1, -2))
        return (error / known.sum(axis=(-1, -2))).mean(axis=1).sum()

    rank = min(rank, size)
    kernel = jax.random.normal(jax.random.key(seed), (layers, size, rank)) * (size * rank) ** -0.5
    known = x[:, ~of_test], distances[~of_test]
    kernel = fit_in_batches(loss, kernel, *known, steps=steps, seed=seed, batch_size=_BATCH)
    tested = [sentences[index] for number, index in enumerate(kept) if of_test[number]]
    compute = jax.jit(predicted)
    found: dict[str, list[float]] = {UUAS: [], CORRELATION: []}
    for layer in range(layers):
        one = np.asarray(compute(kernel[layer : layer + 1], x[layer : layer + 1, of_test]))[0]
        found[UUAS].append(_edge_accuracy(tested, one))
        found[CORRELATION].append(_correlation(tested, one))
    return found


def tree_distances(heads: Sequence[int]) -> Int[np.ndarray, "words words"]:
    """Returns the number of edges between any two words of a tree.

    Args:
      heads: Index of the head of each word, `ROOT` for the root.
    """
    edges = np.zeros((len(heads), len(heads)), np.int32)
    for word, head in enumerate(heads):
        if head != ROOT:
            edges[word, head] = 1
    found = csgraph.shortest_path(edges, directed=False, unweighted=True)
    # Trees of several roots are joined at a distance that no path of one tree has.
    return np.where(np.isfinite(found), found, len(heads)).astype(np.int32)


def adjacent_share(sentences: Sequence[Sentence]) -> float:
    """Returns the share of the edges that are between neighbors, without punctuation."""
    words = [_words(each) for each in sentences]
    edges = [_edges(each, of) for each, of in zip(sentences, words, strict=True)]
    chains = [set(map(frozenset, zip(of, of[1:], strict=False))) for of in words]
    right = sum(len(of & chain) for of, chain in zip(edges, chains, strict=True))
    return right / max(sum(map(len, edges)), 1)


def _words(sentence: Sentence) -> list[int]:
    return [index for index, tag in enumerate(sentence.tags) if tag != _PUNCTUATION]


def _edges(sentence: Sentence, words: Sequence[int]) -> set[frozenset[int]]:
    known = set(words)
    return {frozenset((word, head)) for word, head in enumerate(sentence.heads) if {word, head} <= known}


def _edge_accuracy(sentences: Sequence[Sentence], predicted: Float[np.ndarray, "sentences words words"]) -> float:
    right = total = 0
    for each, distances in zip(sentences, predicted, strict=True):
        words = _words(each)
        edges = _edges(each, words)
        # Weights of 0 would be no edges.
        chosen = np.maximum(distances[np.ix_(words, words)], 1e-6)
        np.fill_diagonal(chosen, 0)
        tree = csgraph.minimum_spanning_tree(chosen).tocoo()
        found = {frozenset((words[row], words[column])) for row, column in zip(tree.row, tree.col, strict=True)}
        right += len(found & edges)
        total += len(edges)
    return right / max(total, 1)


def _correlation(sentences: Sequence[Sentence], predicted: Float[np.ndarray, "sentences words words"]) -> float:
    by_length: dict[int, list[float]] = {}
    for each, distances in zip(sentences, predicted, strict=True):
        size = len(each.words)
        if size in _CORRELATED:
            true = tree_distances(each.heads)
            of_words = [stats.spearmanr(distances[word, :size], true[word]).statistic for word in range(size)]
            by_length.setdefault(size, []).append(float(np.nanmean(of_words)))
    return float(np.mean([np.mean(of) for of in by_length.values()])) if by_length else 0.0
