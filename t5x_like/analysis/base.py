"""The interface of analyses, and what they return: tables, figures and numbers."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from t5x_like.analysis.analyzed_model import AnalyzedModel


@dataclasses.dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
      title: What it shows.
      columns: Names of the columns.
      rows: The cells of each row: text, numbers, or None for an empty cell.
      shown: Number of rows that the terminal shows; the page has all of them.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    shown: int = 20


@dataclasses.dataclass(frozen=True)
class Figure:
    """A picture.

    Attributes:
      title: What it shows.
      html: An SVG image, or HTML that loads nothing.
      wide: Whether it takes the whole width of the page.
    """

    title: str
    html: str
    wide: bool = False


@dataclasses.dataclass(frozen=True)
class Section:
    """The result of an analysis of one checkpoint.

    Attributes:
      title: Name of the analysis.
      lead: What was measured, in plain text.
      tables: Tables.
      figures: Pictures.
      data: All numbers, as JSON values.
      summary: Name -> number, the few that are plotted over the checkpoints of a run.
    """

    title: str
    lead: str
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    summary: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Analysis(Protocol):
    """An analysis of a model.

    Attributes:
      setting: The setting that gives its data; empty if it needs none.
      is_ready: Whether its data is given.
    """

    setting: str
    is_ready: bool

    def check(self) -> None:
        """Reads the data, so that it is checked before any analysis computes.

        Raises:
          UserError: The data is not found or invalid.
        """

    def run(self, analyzed: "AnalyzedModel") -> Section:
        """Analyzes a checkpoint of a model.

        Raises:
          UserError: The model or the data do not fit the analysis.
        """
