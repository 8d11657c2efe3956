"""Bytes of stored weights, without reading them."""

from collections.abc import Collection

from t5x_like.checkpoints import checkpoint_choice, weight_files
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import UserError
from t5x_like.interop import safetensors_files
from t5x_like.stored import frozen_base
from t5x_like.stored.weight_source import AVERAGE, PARAMS, strip_prefix


def stored_bytes(path: str, names: Collection[str] | None = None, *, averaged: bool = True) -> int:
    """Returns the bytes of the weights of a model in its files, before compression.

    The optimizer state of a checkpoint does not count. The weights of the base that a run reads frozen parameters from
    count as a whole.

    Args:
      path: A run directory, one of its checkpoints, or a Hugging Face directory.
      names: Stored names of the parameters of a run that count; None for all.
      averaged: Whether the averages of parameters count instead of the parameters, where the run has any.

    Raises:
      UserError: There are no weights.
    """
    if weight_files.is_huggingface(path):
        return safetensors_files.Tensors(path).num_bytes
    directory, step = checkpoint_choice.locate(path)
    reader = Checkpoints(directory, read_only=True)
    try:
        step = reader.latest() if step is None else step
        if step is None:
            raise UserError(weight_files.explain_missing(path))
        sizes = reader.sizes(step)
    finally:
        reader.close()
    found = strip_prefix(PARAMS, sizes) | (strip_prefix(AVERAGE, sizes) if averaged else {})
    total = sum(size for name, size in found.items() if names is None or name in names)
    base = frozen_base.of_run(checkpoint_choice.run_of(path))
    if base is not None and base.without(found) is not None:
        total += stored_bytes(base.path, averaged=base.averaged)
    return total
