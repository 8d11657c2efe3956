"""Regular expressions of files, whose time is limited: the search with one may take time exponential in the name."""

import re
from typing import Any

from t5x_like import limits
from t5x_like.errors import UserError

_REMEDY = "Save the adapter again, with names of modules instead."


def match(expression: str, text: str, *, whole: bool = False) -> Any:
    """Matches a regular expression of a file with a text, as `re.match` does.

    Args:
      expression: The expression.
      text: The text.
      whole: Whether the whole text must match, and not only its beginning.

    Returns:
      The match with the methods of `re.Match`, or None.

    Raises:
      UserError: The expression is invalid, or exceeds `limits.PATTERN_CHARACTERS` or `limits.PATTERN_SECONDS`. The
        caller adds the file.
    """
    import regex  # has a limit of time, which `re` lacks

    if len(expression) > limits.PATTERN_CHARACTERS:
        raise UserError(f"{expression!r:.80}: a regular expression of {len(expression):,} characters. {_REMEDY}")
    try:
        re.compile(expression)  # `regex` accepts more
        function = regex.fullmatch if whole else regex.match
        return function(expression, text, timeout=limits.PATTERN_SECONDS)
    except TimeoutError as error:
        raise UserError(
            f"{expression!r:.80}: a regular expression that takes more than {limits.PATTERN_SECONDS:g} s for "
            f"{text!r:.80}. {_REMEDY}"
        ) from error
    except (re.error, regex.error, RecursionError, OverflowError, MemoryError) as error:
        raise UserError(f"{expression!r:.80}: not a regular expression ({error}). Save the adapter again.") from error
