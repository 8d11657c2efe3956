"""Stop strings: texts that end a generated text."""

from collections.abc import Sequence


def cut_at_stop_string(text: str, stop_strings: Sequence[str]) -> str:
    """Returns a text before the first stop string in it, or the whole text if it has none.

    Args:
      text: Generated text before EOS.
      stop_strings: Strings that end the text; the first to occur does.
    """
    return text[: min((found for found in map(text.find, stop_strings) if found >= 0), default=len(text))]
