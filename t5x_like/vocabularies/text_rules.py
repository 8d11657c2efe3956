"""What the released code changes in texts before a SentencePiece model is trained on them."""

import functools
import re
import unicodedata
from collections.abc import Callable

_QUOTES = re.compile("``|''")


def albert(lower_case: bool) -> Callable[[str], str]:
    """Returns the rules of ALBERT and XLNet (`preprocess_text` of the released code).

    Each sequence of whitespace becomes one space, quotation marks become ", and combining characters are removed.

    Args:
      lower_case: whether text is lower-cased.
    """
    return functools.partial(_plain, lower_case=lower_case)


def _plain(text: str, *, lower_case: bool) -> str:
    text = unicodedata.normalize("NFKD", _QUOTES.sub('"', " ".join(text.split())))
    text = "".join(character for character in text if not unicodedata.combining(character))
    # Hugging Face lower-cases characters one by one, without the final form of sigma.
    return text.replace("Σ", "σ").lower() if lower_case else text
