"""Layer maps: which layer of the teacher each layer of the student learns from.

A map is a sequence of pairs (layer of the student, layer of the teacher), counted from 0, where -1 is the last layer.
Or it is a function from the two numbers of layers to such pairs, as the functions here return.
"""

import operator
from collections.abc import Callable, Sequence

from t5x_like.errors import UserError
from t5x_like.recorded import recorded

Pairs = tuple[tuple[int, int], ...]
LayerMap = Sequence[tuple[int, int]] | Callable[[int, int], Pairs]


@recorded
def every(k: int) -> LayerMap:
    """Maps each layer of the student to the last layer of a block of `k` layers of the teacher.

    Student layer m learns from teacher layer k · (m + 1) - 1. With k = 3, TinyBERT's four layers learn from the layers
    2, 5, 8 and 11 (Jiao et al. 2020, section 4.1).

    Args:
      k: Positive integer.

    Raises:
      UserError: `k` is not a positive integer.
    """
    _check_positive("every", "k", k)
    return lambda student, teacher: tuple((layer, k * (layer + 1) - 1) for layer in range(student))


@recorded
def uniform() -> LayerMap:
    """Maps each layer of the student as `every`, with k = number of teacher layers / number of student layers."""

    def pairs(student: int, teacher: int) -> Pairs:
        if teacher % student:
            raise UserError(
                f"uniform: the {teacher} layers of the teacher are not a multiple of the {student} layers of the "
                "student. Give pairs of layers."
            )
        return every(teacher // student)(student, teacher)

    return pairs


@recorded
def first(n: int) -> LayerMap:
    """Maps the first `n` layers of the student to the first `n` layers of the teacher.

    Args:
      n: Positive integer.

    Raises:
      UserError: `n` is not a positive integer.
    """
    _check_positive("first", "n", n)
    return lambda student, teacher: tuple((layer, layer) for layer in range(n))


@recorded
def last(n: int) -> LayerMap:
    """Maps the last `n` layers of the student to the last `n` layers of the teacher.

    Args:
      n: Positive integer.

    Raises:
      UserError: `n` is not a positive integer.
    """
    _check_positive("last", "n", n)
    return lambda student, teacher: tuple((-layer, -layer) for layer in range(n, 0, -1))


def only(layer_map: LayerMap, index: int) -> LayerMap:
    """Returns a map of a single pair of another map.

    Args:
      layer_map: The other map.
      index: Index of the pair.

    Returns:
      The map. When it is applied, it raises `UserError` if the other map has fewer pairs.
    """

    def pair(student: int, teacher: int) -> Pairs:
        found = tuple(layer_map(student, teacher) if callable(layer_map) else layer_map)
        if index >= len(found):
            raise UserError(
                f"layers={found}: pair {index} is needed, but there are {len(found)} pairs. Give more pairs."
            )
        return (found[index],)

    return pair


def resolve(layer_map: LayerMap, student: tuple[str, int], teacher: tuple[str, int], setting: str = "layers") -> Pairs:
    """Returns the pairs of a map for two networks, with layers counted from 0.

    Args:
      layer_map: The map.
      student: A description of the student's stack, and its number of layers.
      teacher: The same of the teacher.
      setting: Name of the setting, for error messages.

    Raises:
      UserError: The map is empty, is not a map, or names a layer that does not exist.
    """
    pairs = layer_map(student[1], teacher[1]) if callable(layer_map) else layer_map
    try:
        pairs = tuple((operator.index(ours), operator.index(theirs)) for ours, theirs in pairs)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{setting}={layer_map!r} is not a layer map. Give pairs of layers, such as ((0, 1), (1, 3)), or a map of "
            "t5x_like.distillation.layer_maps."
        ) from error
    if not pairs:
        raise UserError(f"{setting}={layer_map!r} is empty. Give at least one pair of layers.")
    for number, (network, layers) in enumerate((student, teacher)):
        for pair in pairs:
            if not -layers <= pair[number] < layers:
                raise UserError(
                    f"{setting} maps student layer {pair[0]} to teacher layer {pair[1]}: {network} has {layers} "
                    f"layers. Give layers from 0 to {layers - 1}, or from -{layers} to -1."
                )
    return tuple((ours % student[1], theirs % teacher[1]) for ours, theirs in pairs)


def _check_positive(function: str, name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{function}.{name}={value!r} is not a positive integer. Give a positive integer.")
