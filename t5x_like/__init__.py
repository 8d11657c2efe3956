"""T5X-like pretraining of text models with JAX and Flax: encoder, encoder-decoder and decoder."""

__version__ = "0.1.0"
