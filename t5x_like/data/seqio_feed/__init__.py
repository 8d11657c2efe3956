"""Reads SeqIO tasks directly; with the cache's writer, the only package of the library that imports TensorFlow.

Importing `SeqIOSource`, as the gin file of every run does, imports neither SeqIO nor TensorFlow. Only its methods
do, so a run that reads a cache needs neither.
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
