"""Hides GPUs from TensorFlow, which only reads data; their memory belongs to JAX.

Import this module before TensorFlow computes.
"""

import contextlib

import tensorflow as tf

from t5x_like.runtime import quiet_imports

# TensorFlow raises RuntimeError if it already uses its devices. Where no GPU is usable, it reports that at length.
quietly = quiet_imports.without_startup_lines() if quiet_imports.is_installed() else contextlib.nullcontext()
with contextlib.suppress(RuntimeError), quietly:
    tf.config.set_visible_devices([], "GPU")
