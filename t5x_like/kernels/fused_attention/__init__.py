"""Attention whose scores stay on the core: a Pallas kernel for TPUs with masks, relative biases and dropout."""
