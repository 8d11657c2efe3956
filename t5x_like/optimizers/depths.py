"""Distances of parameters from the head of the model, for factors that depend on the depth of a layer.

With n layers, heads have distance 0, what follows the layers (final norm, logits) 1, the last layer 2, the first layer
n + 1, and embeddings n + 2. The distance is `n + 2 - depth` with the depths of ELECTRA's fine-tuning (Clark et al.,
2020, arXiv:2003.10555, appendix B, and the released code): embeddings 0, layers 1 to n, head n + 2.

Each stack counts its own layers, so that the last layers of an encoder and of a decoder have the same distance. For
parameters outside of stacks, n is the number of layers of the stack beside them (`encoder/relative_bias` is beside
`encoder/layers`) or else of the tallest stack.
"""

import re
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from t5x_like import parameters
from t5x_like.parameters import LAYERS

Distance = Int[np.ndarray, " layers"] | int
_HEAD, _AFTER_LAYERS, LAST_LAYER = range(3)
_IS_HEAD = re.compile(r"^objective/")
# `head`, `head_norm` and `bias` are the model's own layer before the logits, as in Ettin's decoders.
_IS_AFTER_LAYERS = re.compile(r"(^|/)((en|de)coder/norm|logits)/|^(model/)?(head/|head_norm/|bias$)")


def distances(layers: Mapping[str, int | None]) -> dict[str, Distance | None]:
    """Computes the distance of each parameter from the head.

    Example:
      >>> distances({"model/encoder/layers/mlp/kernel": 3, "model/embedder/table": None, "objective/head/kernel": None})
      {'model/encoder/layers/mlp/kernel': array([4, 3, 2]), 'model/embedder/table': 5, 'objective/head/kernel': 0}

    Args:
      layers: Name on disk -> number of layers that the array stacks, or None.

    Returns:
      Name -> distance: `[layers]` for stacks. None if the tree has no stack that says how many layers there are.
    """
    heights = {_stack(name): count for name, count in layers.items() if count is not None and not _IS_HEAD.match(name)}
    tallest = max(heights.values(), default=None)
    found: dict[str, Distance | None] = {}
    for name, count in layers.items():
        beside = [stack for stack in heights if name.startswith(f"{stack}/")]
        height = heights[max(beside, key=len)] if beside else tallest
        if _IS_HEAD.match(name):
            found[name] = _HEAD if count is None else np.full(count, _HEAD)
        elif count is not None:
            found[name] = LAST_LAYER + np.arange(count)[::-1]
        elif _IS_AFTER_LAYERS.search(name):
            found[name] = _AFTER_LAYERS
        else:
            found[name] = None if height is None else LAST_LAYER + height
    return found


def stacked_layers(tree: parameters.Tree) -> dict[str, int | None]:
    """Returns name on disk -> number of layers that the array stacks, or None, in either layout of a tree."""
    axes, counts = parameters.logical_axes(tree), dict[str, int | None]()
    for name, array in parameters.named_leaves(tree).items():
        stored, index = parameters.stored_name(name)
        if index is not None:
            counts[stored] = max(counts.get(stored) or 0, index + 1)
        else:
            counts[stored] = array.shape[0] if axes[name][:1] == (LAYERS,) else None
    return counts


def _stack(name: str) -> str:
    """Returns the name of the module that owns the stack: `model/encoder` of `model/encoder/layers/mlp/kernel`."""
    return re.split(rf"(?:^|/){LAYERS}/", name, maxsplit=1)[0]
