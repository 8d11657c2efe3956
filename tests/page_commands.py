"""The commands that the pages of the documentation show in indented blocks."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def read(page):
    """Returns the text of a page."""
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def commands(page, start=""):
    """Returns the shell lines of the indented blocks of a page, with continued lines joined.

    Args:
      page: Name of the page.
      start: Text from which on the page is read.
    """
    text = read(page)
    joined = text[text.index(start) :].replace("\\\n", " ").splitlines()
    lines = [line.removeprefix("    ") for line in joined if line.startswith("    ")]
    return [re.sub(" +", " ", line) for line in lines if re.match(r"(t5x_like|echo|printf) ", line)]


def described(value):
    """Returns the start of a command as the id of a test."""
    return re.sub(r"[^\w ]+", " ", value)[:40].strip()
