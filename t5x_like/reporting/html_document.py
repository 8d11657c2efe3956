"""An HTML page in one file that loads nothing: its style, text and tables."""

import base64
import html
from collections.abc import Iterable, Sequence
from typing import Any

from t5x_like.runtime import terminal

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; margin: .6rem 0; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #e4e4e4; vertical-align: top; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
pre { background: #f5f5f5; padding: .6rem; overflow-x: auto; font-size: .85rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr)); gap: 1rem; }
figure { margin: 0; } figcaption { font-weight: 600; font-size: .9rem; } img { width: 100%; height: auto; }
"""


def document(title: str, lead: str, body: str) -> str:
    """Returns a page.

    Args:
      title: The title, as plain text.
      lead: HTML of the first paragraph.
      body: HTML of the rest.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{text(title)}</h1>\n<p>{lead}</p>\n"
        f"{body}\n</body>\n</html>\n"
    )


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a table.

    Args:
      head: The names of the columns.
      rows: The cells of each row: text, numbers, or None for an empty cell.
    """
    lines = [_row(head, "th"), *(_row(row, "td") for row in rows)]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def image(svg: str, alt: str) -> str:
    """Returns an image. As data of its own it shares no ids with other images of the page.

    Args:
      svg: The SVG image.
      alt: The text for readers who do not see it.
    """
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{text(alt)}" src="data:image/svg+xml;base64,{data}">'


def text(value: Any) -> str:
    """Returns the HTML of a text, without control characters."""
    return html.escape(printable(str(value)))


def printable(value: str) -> str:
    """Returns a text that can be written as UTF-8, without control characters."""
    return terminal.visible(value.encode("utf-8", "backslashreplace").decode())


def _row(cells: Sequence[Any], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{text(_number(cell))}</{tag}>" for cell in cells) + "</tr>"


def _number(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1e5 else f"{cell:,.5g}"
    return "" if cell is None else str(cell)
