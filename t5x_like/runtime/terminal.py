"""Text for people: control characters in data, paths and messages of others do not reach the terminal or the log."""

import re
import sys
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# The characters of Unicode that change the direction of the text after them, so that it is shown in another order.
BIDIRECTIONAL = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
# These, and the control characters of ASCII and Latin-1, such as ESC, except for tabs and the ends of lines.
_CONTROL = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{BIDIRECTIONAL}]")


def visible(text: str) -> str:
    r"""Returns a text whose control characters, except for tabs and ends of lines, are written as in Python: `\x1b`."""
    return _CONTROL.sub(
        lambda found: f"\\x{ord(found[0]):02x}" if found[0] < "\u0100" else f"\\u{ord(found[0]):04x}", text
    )


def print_exception(error: BaseException) -> None:
    """Prints the traceback of an error to standard error; its message may quote data."""
    sys.stderr.write(visible("".join(traceback.format_exception(error))))


def console(**settings: Any) -> "Console":
    """Returns a console of rich that shows the control characters of what is printed instead of sending them.

    Args:
      **settings: Arguments of `rich.console.Console`.
    """
    from rich.console import Console

    made = Console(**settings)
    made.push_render_hook(_Hook())
    return made


class _Hook:
    """A hook of rich, which calls it with everything that is printed."""

    def process_renderables(self, renderables: Iterable[Any]) -> list[Any]:
        return [_Visible(each) for each in renderables]


class _Visible:
    def __init__(self, shown: Any):
        self._shown = shown

    def __rich_console__(self, console, options):
        from rich.segment import Segment

        for segment in console.render(self._shown, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def __rich_measure__(self, console, options):
        from rich.measure import Measurement

        return Measurement.get(console, options, self._shown)
