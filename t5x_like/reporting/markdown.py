"""Markdown in which the text of a user cannot become markup."""

import re
from collections.abc import Iterable, Sequence

from t5x_like.runtime import terminal

_CONTROL = re.compile(rf"[\x00-\x1f\x7f-\x9f\u2028\u2029{terminal.BIDIRECTIONAL}]")


def code(text: object) -> str:
    """Returns a code span, in which Markdown and HTML have no effect. Control characters are written as escapes.

    Args:
      text: the text, or another value in the form of `str`.
    """
    plain = _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text)) or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", plain)), default=0))
    padding = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{padding}{plain}{padding}{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table, or none without rows.

    Args:
      header: names of the columns.
      rows: the cells in Markdown, such as `code(…)`. A `|` in a cell does not end it.
    """
    # A backslash before a pipe would be read together with the one that escapes the pipe.
    cells = [[cell.replace(r"\|", r"\\x7c").replace("|", r"\|") for cell in row] for row in rows]
    if not cells:
        return []
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *cells)]
