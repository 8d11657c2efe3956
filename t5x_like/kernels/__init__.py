"""Attention with its masks and its dispatcher, products with kernels, dropout and cross-entropy."""
