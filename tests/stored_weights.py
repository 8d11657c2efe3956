"""Weights by stored name, and changes of the tensors in a Hugging Face directory."""

from t5x_like import parameters
from t5x_like.interop import safetensors_files


def leaves(model):
    return parameters.stack(parameters.named_leaves(model))


def rewrite(directory, change):
    """Writes the tensors of a directory after `change` has modified their mapping in place."""
    tensors = dict(safetensors_files.Tensors(str(directory)))
    change(tensors)
    safetensors_files.write(str(directory), tensors)
