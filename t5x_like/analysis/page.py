"""The page about an analysis of a model, or of the checkpoints of a run."""

import os
from collections.abc import Mapping, Sequence

from t5x_like.analysis import plots
from t5x_like.analysis.base import Figure, Section, Table
from t5x_like.reporting.html_document import document, table, text


def render(found: Mapping[str, Sequence[Section]]) -> str:
    """Returns the page.

    Args:
      found: Path of a checkpoint -> its sections. Tables and pictures are those of the last one; the summaries of
        several are plotted over their steps.
    """
    path, sections = list(found.items())[-1]
    lead = f"<code>{text(path)}</code>. Written by <code>t5x_like analyze</code>."
    body = [_over_steps(found)] if len(found) > 1 else []
    body += [_section(section) for section in sections]
    return document("What a model knows", lead, "\n".join(body))


def _section(section: Section) -> str:
    parts = [f"<h2>{text(section.title)}</h2>", f"<p>{text(section.lead)}</p>"]
    parts += [_figure(figure) for figure in section.figures if figure.wide]
    parts += [_table(each) for each in section.tables]
    if small := [_figure(figure) for figure in section.figures if not figure.wide]:
        parts.append('<div class="plots">\n' + "\n".join(small) + "\n</div>")
    return "\n".join(parts)


def _table(found: Table) -> str:
    return f"<h3>{text(found.title)}</h3>{table(found.columns, found.rows)}"


def _figure(figure: Figure) -> str:
    if not figure.title:
        return figure.html
    return f"<figure><figcaption>{text(figure.title)}</figcaption>{figure.html}</figure>"


def _over_steps(found: Mapping[str, Sequence[Section]]) -> str:
    """Returns a plot per section of its summaries over the steps."""
    steps = [int(os.path.basename(path)) for path in found]
    figures = []
    for index, section in enumerate(list(found.values())[-1]):
        of_steps = [sections[index].summary for sections in found.values()]
        curves = {name: (steps, [each[name] for each in of_steps]) for name in section.summary}
        if curves:
            html = plots.lines(curves, f"{section.title} over the steps", xlabel="step", ylabel="value")
            figures.append(_figure(Figure(section.title, html)))
    return "<h2>Over the steps</h2>\n" + '<div class="plots">\n' + "\n".join(figures) + "\n</div>"
