"""The main text of HTML pages, extracted by trafilatura (Barbaresi 2021)."""

import dataclasses

from t5x_like.cleaning.packages import require


@dataclasses.dataclass(frozen=True, kw_only=True)
class HtmlText:
    """Extracts the main text of a page: without menus, headers and footers.

    The attributes are those of `trafilatura.extract`, with its defaults.

    Attributes:
      favor_precision: Prefer less text, but without boilerplate.
      favor_recall: Prefer more text, even if not sure.
      include_comments: Keep the comments of readers.
      include_tables: Keep the text of tables.
    """

    favor_precision: bool = False
    favor_recall: bool = False
    include_comments: bool = True
    include_tables: bool = True

    def __call__(self, source: str | bytes, url: str) -> str:
        """Returns the text of a page, empty if none is found.

        Args:
          source: HTML, or bytes whose encoding is guessed.
          url: URL of the page.

        Raises:
          UserError: trafilatura is not installed.
        """
        trafilatura = require("trafilatura", "reading HTML from web archives")
        return trafilatura.extract(source, url=url or None, **dataclasses.asdict(self)) or ""
