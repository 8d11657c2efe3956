"""SeqIO tasks as they are, straight into the loop: the only room of the library that imports SeqIO and TensorFlow."""

import contextlib

import tensorflow as tf

# TensorFlow reads data here; a GPU's memory is JAX's. It cannot give back devices that it already uses.
with contextlib.suppress(RuntimeError):
    tf.config.set_visible_devices([], "GPU")

from t5x_like.data.seqio_feed.converter import SpecConverter  # noqa: E402
from t5x_like.data.seqio_feed.iterator import SeqIOIterator  # noqa: E402
from t5x_like.data.seqio_feed.source import SeqIOSource  # noqa: E402

__all__ = ["SeqIOIterator", "SeqIOSource", "SpecConverter"]
