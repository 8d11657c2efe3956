"""Tokenizers that a tokenizer.json defines alone."""

from t5x_like.vocabularies.tokenizers.base import GENERIC, TokenizerClass

TOKENIZERS = (TokenizerClass(name=GENERIC, special_tokens={}),)
