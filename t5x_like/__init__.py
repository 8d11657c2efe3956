"""T5X-like pretraining of text models with JAX and Flax: encoder, encoder-decoder and decoder."""

from typing import TYPE_CHECKING

from t5x_like.version import __version__ as __version__

if TYPE_CHECKING:
    from t5x_like.loading import open_model as open_model


def __getattr__(name: str):
    """Imports `open_model` when it is first used: the package itself imports nothing heavy."""
    if name != "open_model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from t5x_like.loading import open_model

    return open_model
