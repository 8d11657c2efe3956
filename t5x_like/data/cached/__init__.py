"""Reads packed rows on disk through Grain, without TensorFlow and SeqIO; only `writer` needs them."""

from t5x_like.data.cached.iterator import CachedIterator
from t5x_like.data.cached.layout import Layout
from t5x_like.data.cached.manifest import Manifest, Shard
from t5x_like.data.cached.mixture import CachedMixture
from t5x_like.data.cached.mixture_file import MixtureFile
from t5x_like.data.cached.source import CachedSource

__all__ = ["CachedIterator", "CachedMixture", "CachedSource", "Layout", "Manifest", "MixtureFile", "Shard"]
