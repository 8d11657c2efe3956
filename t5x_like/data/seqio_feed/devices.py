"""TensorFlow reads data here; a GPU's memory is JAX's. To be imported before anything that computes with TensorFlow."""

import contextlib

import tensorflow as tf

# It cannot give back devices that it already uses.
with contextlib.suppress(RuntimeError):
    tf.config.set_visible_devices([], "GPU")
