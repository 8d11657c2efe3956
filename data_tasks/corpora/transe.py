"""TransE (Bordes et al. 2013): vectors of the entities of a knowledge graph."""

from collections.abc import Sequence

import numpy as np

from t5x_like.errors import UserError


def train(
    triples: Sequence[tuple[int, int, int]],
    *,
    entities: int,
    relations: int,
    size: int = 100,
    epochs: int = 200,
    batch_size: int = 256,
    margin: float = 1.0,
    learning_rate: float = 0.05,
    seed: int = 0,
) -> np.ndarray:
    """Trains vectors with |head + relation - tail| smaller for triples than for others (Bordes et al., algorithm 1).

    The distance is Euclidean. A triple is compared with one whose head or tail is a random entity, and the loss is
    max(0, margin + distance - other distance).

    Args:
      triples: (head, relation, tail) as numbers from 0.
      entities: number of entities.
      relations: number of relations.
      size: size of a vector.
      epochs: passes over the triples.
      batch_size: triples per step of gradient descent.
      margin: margin between the distances.
      learning_rate: learning rate.
      seed: seed of initial values and of random entities.

    Returns:
      The vectors of the entities, float32 `[entities, size]`, of length 1.

    Raises:
      UserError: there are no triples, or a number is out of range.
    """
    found = np.asarray(triples, np.int64).reshape(-1, 3)
    if not len(found) or found.min() < 0 or (found.max(0) >= (entities, relations, entities)).any():
        raise UserError(
            f"TransE: {len(found)} triples of {entities} entities and {relations} relations: empty, or with numbers "
            "out of range. Give (head, relation, tail) as numbers from 0."
        )
    rng = np.random.default_rng(seed)
    bound = 6 / np.sqrt(size)
    vectors, moves = (rng.uniform(-bound, bound, (count, size)) for count in (entities, relations))
    moves = _normalized(moves)
    for _ in range(epochs):
        order = rng.permutation(len(found))
        for start in range(0, len(found), batch_size):
            vectors = _normalized(vectors)
            true = found[order[start : start + batch_size]]
            other, side = true.copy(), 2 * rng.integers(0, 2, len(true))
            other[np.arange(len(true)), side] = rng.integers(0, entities, len(true))
            directions = []
            for heads, kinds, tails in (true.T, other.T):
                difference = vectors[heads] + moves[kinds] - vectors[tails]
                directions.append((np.linalg.norm(difference, axis=1), difference))
            (distance, _), (other_distance, _) = directions
            violates = margin + distance > other_distance
            for (heads, kinds, tails), (length, difference), sign in zip(
                (true.T, other.T), directions, (1, -1), strict=True
            ):
                step = sign * learning_rate * violates[:, None] * difference / np.maximum(length, 1e-9)[:, None]
                np.subtract.at(vectors, heads, step)
                np.subtract.at(moves, kinds, step)
                np.add.at(vectors, tails, step)
    return _normalized(vectors).astype(np.float32)


def _normalized(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
