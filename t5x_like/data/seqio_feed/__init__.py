"""SeqIO tasks as they are, straight into the loop: the only room of the library that imports SeqIO and TensorFlow.

Naming a `SeqIOSource`, as every gin file of a run does, imports neither: a run that reads a cache instead never does.
"""

import importlib

from t5x_like.data.seqio_feed.source import SeqIOSource

__all__ = ["SeqIOIterator", "SeqIOSource", "SpecConverter"]
_MODULES = {
    "SeqIOIterator": "t5x_like.data.seqio_feed.iterator",
    "SpecConverter": "t5x_like.data.seqio_feed.converter",
}


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
