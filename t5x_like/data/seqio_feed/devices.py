"""Hides GPUs from TensorFlow, which only reads data; their memory belongs to JAX.

Import this module before TensorFlow computes.
"""

import contextlib

import tensorflow as tf

# TensorFlow raises RuntimeError if it already uses its devices.
with contextlib.suppress(RuntimeError):
    tf.config.set_visible_devices([], "GPU")
