"""Exports that transformers reads: every tensor equals the one of the model that they were imported from."""

from t5x_like import interop


def check_export(params, config, reference, directory, *, same=(), unused=frozenset(), **options):
    """Exports parameters, and asserts that the class of the reference reads them completely.

    Args:
      params: The parameters, by `model` and `objective`.
      config: Their configuration.
      reference: The model of transformers with the same weights.
      directory: Directory of the export.
      same: Keys of config.json with the values of the reference.
      unused: Tensors of the class that it does not use.
      **options: Further arguments of the export.

    Returns:
      The model that transformers has read.
    """
    import torch

    interop.to_huggingface(params, config, str(directory), **options)
    loaded, report = type(reference).from_pretrained(directory, output_loading_info=True)
    assert set(report["missing_keys"]) <= unused
    assert not report["unexpected_keys"] and not report["mismatched_keys"]
    for name in same:
        assert getattr(loaded.config, name, None) == getattr(reference.config, name, None), name
    for name, tensor in reference.state_dict().items():
        assert name in unused or torch.equal(loaded.state_dict()[name], tensor), name
    return loaded
