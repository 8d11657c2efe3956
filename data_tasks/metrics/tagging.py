"""Precision, recall and F1 of entities, in percent (Tjong Kim Sang and De Meulder 2003)."""

import collections
from collections.abc import Sequence

Metrics = dict[str, float]


def entity_f1(targets: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> Metrics:
    """Computes the metrics of conlleval, the script of the shared task.

    An entity is correct if its first word, its last word and its type are. As in conlleval, `I-X` after a word of
    another type begins an entity.

    Args:
      targets: the IOB2 tags of each sentence. Sentences without known tags are not counted.
      predictions: the predicted tags of each sentence.

    Returns:
      `precision`, `recall` and `f1` over all sentences.
    """
    correct = wanted = found = 0
    known = [(target, each) for target, each in zip(targets, predictions, strict=True) if target]
    for target, prediction in known:
        entities, predicted = entities_of_tags(target), entities_of_tags(prediction)
        correct += len(entities & predicted)
        wanted, found = wanted + len(entities), found + len(predicted)
    return _percentages(correct, wanted, found) if known else {}


def entities_of_tags(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Returns the entities of a sentence.

    Args:
      tags: `O`, `B-X` or `I-X` of each word, where X is the type.

    Returns:
      The type, the position of the first word, and the position after the last word of each entity.
    """
    entities, start = set(), 0
    for position in range(1, len(tags) + 1):
        if position < len(tags) and tags[position][0] == "I" and tags[position][1:] == tags[start][1:]:
            continue
        if tags[start] != "O":
            entities.add((tags[start][2:], start, position))
        start = position
    return entities


def entity_text_f1(
    targets: Sequence[Sequence[tuple[str, str]] | None], predictions: Sequence[Sequence[tuple[str, str]]]
) -> Metrics:
    """Computes the metrics of entities that a model writes as text: type and words are equal, positions unknown.

    Args:
      targets: the entities of each sentence as pairs of type and words, None if they are unknown. An entity may occur
        several times.
      predictions: the predicted entities of each sentence.

    Returns:
      `precision`, `recall` and `f1` over all sentences.
    """
    correct = wanted = found = 0
    known = [(target, each) for target, each in zip(targets, predictions, strict=True) if target is not None]
    for target, prediction in known:
        correct += sum((collections.Counter(target) & collections.Counter(prediction)).values())
        wanted, found = wanted + len(target), found + len(prediction)
    return _percentages(correct, wanted, found) if known else {}


def _percentages(correct: int, wanted: int, found: int) -> Metrics:
    return {
        "precision": 100 * correct / found if found else 0.0,
        "recall": 100 * correct / wanted if wanted else 0.0,
        "f1": 100 * 2 * correct / (wanted + found) if wanted + found else 0.0,
    }
