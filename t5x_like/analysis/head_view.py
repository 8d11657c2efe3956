"""Pictures of attention: every head of a sentence as a small picture, and one enlarged, with lines between tokens."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from t5x_like import paths
from t5x_like.analysis import attention
from t5x_like.analysis.analyzed_model import AnalyzedModel, Row
from t5x_like.analysis.base import Figure, Section
from t5x_like.data.records import decode, read_bytes
from t5x_like.errors import UserError
from t5x_like.reporting.html_document import text

_MAX_TOKENS = 64
# Smaller probabilities are not drawn.
_SMALLEST = 0.03
# Units of a small picture: its width, and the height of a token.
_WIDTH, _HEIGHT = 100, 10
# The same for the large picture, whose tokens are written beside the lines.
_LARGE_WIDTH, _LARGE_HEIGHT, _MARGIN = 320, 20, 150
_MEAN = "mean"

_STYLE = """
<style>
.heads { display: grid; gap: 3px; overflow-x: auto; }
.heads a { border: 1px solid #ddd; background: #fafafa; min-width: 34px; } .heads a.chosen { border-color: #c40; }
.heads span { font-size: .7rem; align-self: center; white-space: nowrap; color: #555; }
.view path { stroke: #1f4e9c; fill: none; vector-effect: non-scaling-stroke; stroke-width: 1.2; }
.view .large path { stroke-width: 2.2; } .view svg { display: block; width: 100%; }
.view .large { max-width: 640px; } .view text { font: 13px system-ui, sans-serif; cursor: default; }
.view .dim path:not(.on) { display: none; } .view .on { font-weight: 700; }
</style>
"""
# A click on a head enlarges it. The mouse over a token hides the lines of others. Without JavaScript, one is enlarged.
_SCRIPT = """
<script>
document.querySelectorAll('.view').forEach(view => {
  const lines = view.querySelector('.lines'), name = view.querySelector('.name');
  view.querySelectorAll('.heads a').forEach(head => head.addEventListener('click', event => {
    event.preventDefault();
    lines.replaceChildren(...[...head.querySelectorAll('path')].map(path => path.cloneNode()));
    view.querySelectorAll('.chosen').forEach(other => other.classList.remove('chosen'));
    head.classList.add('chosen');
    name.textContent = head.title;
  }));
  view.querySelectorAll('text[data-token]').forEach(token => {
    token.addEventListener('mouseenter', () => {
      lines.classList.add('dim');
      lines.querySelectorAll('.' + token.dataset.token).forEach(path => path.classList.add('on'));
    });
    token.addEventListener('mouseleave', () => {
      lines.classList.remove('dim');
      lines.querySelectorAll('.on').forEach(path => path.classList.remove('on'));
    });
  });
});
</script>
"""


class HeadView:
    """Draws the attention of every head for some sentences.

    A line leads from the token that attends, on the left, to the token that it attends to, on the right. Its opacity is
    the probability. The last picture of a layer is the mean of its heads.

    Args:
      sentences: A .txt file with a sentence per line, or a sentence.
      head: The head that is enlarged at first, such as `3-2` for head 2 of layer 3. None: the head with the
        most attention between different tokens, special ones left out.
    """

    setting = "SENTENCES"

    def __init__(self, *, sentences: str | None = None, head: str | None = None):
        self._sentences, self._head = sentences, head

    @property
    def is_ready(self) -> bool:
        """Whether there are sentences."""
        return self._sentences is not None

    def check(self) -> None:
        """Reads the data; see `Analysis`."""
        self._read()

    def _read(self) -> list[str]:
        lines = [self._sentences]
        if self._sentences.endswith(".txt"):
            if not paths.is_file(self._sentences):
                raise UserError(f"SENTENCES={self._sentences}: file not found. Give an existing file, or a sentence.")
            lines = decode(self._sentences, read_bytes(self._sentences)).split("\n")
        texts = [line.strip() for line in lines if line.strip()]
        if not texts:
            raise UserError("SENTENCES: no sentence. Give one, or a .txt file with a sentence per line.")
        return texts

    def run(self, analyzed: AnalyzedModel) -> Section:
        """Draws the heads of a checkpoint; see `Analysis`."""
        texts = self._read()
        rows = [analyzed.text_row("SENTENCES", each) for each in texts]
        for each, row in zip(texts, rows, strict=True):
            if len(row.ids) > _MAX_TOKENS:
                raise UserError(
                    f"SENTENCES: {each!r:.60} has {len(row.ids)} tokens; a picture has {_MAX_TOKENS} at most. Cut it."
                )
        figures = [Figure("", _STYLE, wide=True)]
        data: dict[str, object] = {"tokens": [list(row.tokens) for row in rows]}
        for kind in attention.kinds(analyzed):
            arrays = list(attention.probabilities(analyzed, kind, rows))
            for row, array in zip(rows, arrays, strict=True):
                chosen = self._chosen(array, row)
                figures.append(Figure(kind.name.capitalize(), _view(row.tokens, array, chosen), wide=True))
            data[kind.name] = [np.round(array, 4).tolist() for array in arrays]
        figures.append(Figure("", _SCRIPT, wide=True))
        lead = (
            "Lines lead from the token that attends, on the left, to the token that it attends to. Opacity is the "
            "probability. A row of small pictures is a layer. A click enlarges a head."
        )
        return Section("Pictures of attention", lead, (), figures, data)

    def _chosen(self, array: Float[np.ndarray, "layers heads query key"], row: Row) -> tuple[int, int]:
        """Returns layer and head of the head that is enlarged at first."""
        layers, heads = array.shape[:2]
        if self._head is not None:
            layer, _, head = str(self._head).partition("-")
            if layer.isdecimal() and head.isdecimal() and 1 <= int(layer) <= layers and 1 <= int(head) <= heads:
                return int(layer) - 1, int(head) - 1
            raise UserError(f"ENLARGED_HEAD={self._head!r}: not a head. Give 1-1 … {layers}-{heads}: layer and head.")
        between = attention.between_words(array, np.array(row.word_of), "mean").sum(axis=(-1, -2))
        layer, head = np.unravel_index(np.argmax(between), between.shape)
        return int(layer), int(head)


def _view(tokens: Sequence[str], array: Float[np.ndarray, "layers heads query key"], chosen: tuple[int, int]) -> str:
    """Returns the pictures of a sentence."""
    layers, heads = array.shape[:2]
    parts = [f'<div class="heads" style="grid-template-columns: 2.6rem repeat({heads + 1}, minmax(34px, 110px))">']
    parts += ["<span></span>", *(f"<span>head {head + 1}</span>" for head in range(heads)), f"<span>{_MEAN}</span>"]
    for layer in range(layers):
        parts.append(f"<span>layer {layer + 1}</span>")
        for head in range(heads + 1):
            name = (
                f"layer {layer + 1}, {_MEAN} of its heads" if head == heads else f"layer {layer + 1}, head {head + 1}"
            )
            of = array[layer].mean(axis=0) if head == heads else array[layer, head]
            mark = ' class="chosen"' if (layer, head) == chosen else ""
            box = f'viewBox="0 0 {_WIDTH} {_HEIGHT * len(tokens)}" preserveAspectRatio="none"'
            parts.append(f'<a href="#"{mark} title="{name}"><svg {box} height="64">{_lines(of)}</svg></a>')
    parts.append("</div>")
    layer, head = chosen
    parts.append(f'<p class="name">layer {layer + 1}, head {head + 1}</p>{_large(tokens, array[layer, head])}')
    return f'<div class="view">{"".join(parts)}</div>'


def _lines(array: Float[np.ndarray, "query key"]) -> str:
    middle = _HEIGHT // 2
    return "".join(
        f'<path class="q{query} k{key}" d="M0 {_HEIGHT * query + middle}L{_WIDTH} {_HEIGHT * key + middle}" '
        f'stroke-opacity="{min(array[query, key], 1):.2f}"/>'
        for query, key in np.argwhere(array >= _SMALLEST)
    )


def _large(tokens: Sequence[str], array: Float[np.ndarray, "query key"]) -> str:
    height = _LARGE_HEIGHT * len(tokens)
    scale = f"translate({_MARGIN},0) scale({_LARGE_WIDTH / _WIDTH},{_LARGE_HEIGHT / _HEIGHT})"
    parts = [f'<svg class="large" viewBox="0 0 {_LARGE_WIDTH + 2 * _MARGIN} {height}">']
    parts.append(f'<g class="lines" transform="{scale}">{_lines(array)}</g>')
    for index, token in enumerate(tokens):
        y = _LARGE_HEIGHT * index + 14
        left = f'x="{_MARGIN - 6}" y="{y}" text-anchor="end" data-token="q{index}"'
        right = f'x="{_MARGIN + _LARGE_WIDTH + 6}" y="{y}" data-token="k{index}"'
        parts += [f"<text {left}>{text(token)}</text>", f"<text {right}>{text(token)}</text>"]
    return "".join([*parts, "</svg>"])
