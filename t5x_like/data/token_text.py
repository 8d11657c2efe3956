"""Renders rows of token ids as text for a terminal, with special tokens, example boundaries and masks visible."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.vocabularies.sentinels import sentinel_ids

if TYPE_CHECKING:
    import seqio

_SPECIAL, _PADDING, _BOUNDARY, _MASKED = "bold magenta", "dim", "bold cyan", "bold yellow"


def rows_as_text(
    spec: FeatureSpec,
    batch: Mapping[str, np.ndarray],
    vocabularies: "Mapping[str, seqio.Vocabulary]",
    names: Mapping[int, str],
    starts: np.ndarray | None = None,
) -> Iterator[tuple[str, Text]]:
    """Renders the first row of each feature with the role `tokens`; each choice is a row of its own.

    Masked positions show their original token, so the targets of a masked LM are not a separate row.

    Args:
      spec: Feature spec of the batch.
      batch: Model feature -> int32 `[batch, *choices, length, *inner]`.
      vocabularies: Task feature -> SeqIO vocabulary, for features that are text.
      names: Id -> name of special tokens that the vocabularies do not name.
      starts: For a row of continuous data, the positions at which a document begins, bool `[length]`; `┃` marks them.

    Yields:
      Title and text of each row.
    """
    predicted = {spec.track(feature.source) for feature in spec.features if feature.role == "row_positions"}
    for feature, row in _first_rows(spec, batch):
        track = spec.track(feature.source)
        if feature.role != "tokens" or track in predicted:
            continue
        vocabulary = vocabularies.get(feature.sources[0])
        segments = _first_row(spec, batch, "segment_ids", track)
        if segments is None:
            real = row.any(axis=tuple(range(1, row.ndim)))
            segments = np.ones_like(row) if track[0] in spec.fixed_lengths else real.astype(np.int32)
        if starts is not None:
            segments = np.where(segments > 0, 1 + np.cumsum(starts), 0)
        if row.ndim > 1:
            shown = _show_items(row, segments, vocabulary)
        elif vocabulary is None:
            shown = _show_numbers(row[segments > 0])
        else:
            shown = show_tokens(row, segments, vocabulary, names=names, masked=_masked(spec, batch, track))
        yield f"{' + '.join(feature.sources)} → {feature.name}", shown


def continuous_rows(
    spec: FeatureSpec, batches: Sequence[Mapping[str, np.ndarray]], number: int, eos_id: int | None
) -> Iterator[tuple[str, Mapping[str, np.ndarray], np.ndarray]]:
    """Follows the rows of continuous data from batch to batch.

    Args:
      spec: Feature spec of the batches.
      batches: The first batches.
      number: Maximum number of rows to follow.
      eos_id: Id of the token that ends a document.

    Yields:
      Title, a batch whose first row is to be shown, and the positions of this row at which a document begins.
    """
    lead = spec.lead(spec.task_features[0])
    tokens = next(each.name for each in spec.features if each.sources == (lead,) and each.role == "tokens")
    for row in range(min(number, len(batches[0][tokens]))):
        begins = True  # with its first document
        for index, batch in enumerate(batches):
            starts = np.concatenate([[begins], batch[tokens][row] == eos_id])
            begins = starts[-1]
            yield f"row {row} of batch {index}", {name: array[row:] for name, array in batch.items()}, starts[:-1]


def length_name(spec: FeatureSpec, feature: ModelFeature) -> str:
    """Returns the keys of TASK_FEATURE_LENGTHS that give the length of a model feature, joined by `+`."""
    return " + ".join(dict.fromkeys(map(spec.length_key, feature.sources)))


def show_tokens(
    tokens: np.ndarray,
    segments: np.ndarray,
    vocabulary: "seqio.Vocabulary",
    *,
    names: Mapping[int, str] | None = None,
    masked: Mapping[int, int] | None = None,
) -> Text:
    """Renders a row as text.

    Sentinels and EOS are colored, `↵` stands for a newline and `␍` for a carriage return, `┃` separates examples, and
    padding is counted.

    Args:
      tokens: int32 `[length]`.
      segments: int32 `[length]`, 0 for padding.
      vocabulary: SeqIO vocabulary.
      names: Id -> name of further special tokens.
      masked: Position whose token is to be predicted -> the original id; shown as `[MASK]→store`.
    """
    shown = Text()
    for segment in range(1, int(segments.max(initial=0)) + 1):
        if segment > 1:
            shown.append(" ┃ ", style=_BOUNDARY)
        positions = np.flatnonzero(segments == segment)
        run = [(int(tokens[position]), (masked or {}).get(int(position))) for position in positions]
        shown.append_text(_show_run(run, vocabulary, names or {}))
    if padding := int(np.sum(segments == 0)):
        shown.append(f" [padding × {padding}]", style=_PADDING)
    return shown


def _show_run(run: list[tuple[int, int | None]], vocabulary: "seqio.Vocabulary", names: Mapping[int, str]) -> Text:
    shown = Text()

    def kind(item: tuple[int, int | None]) -> tuple[str, int | str] | None:
        token, original = item
        if original is not None:
            return _MASKED, f"{_name_or_piece(token, vocabulary, names)}→{_name_or_piece(original, vocabulary, names)}"
        name = special_name(token, vocabulary, names)
        return None if name is None else (_SPECIAL, name)

    for special, items in itertools.groupby(run, key=kind):
        ids = [token for token, _ in items]
        if special is None:
            shown.append(vocabulary.decode(ids).replace("\n", "↵").replace("\r", "␍"))
        else:
            for _ in ids:
                shown.append(f" {special[1]} ", style=special[0])
    return shown


def _show_numbers(values: np.ndarray) -> Text:
    """Renders numbers with repetitions counted: `0 × 8, 1 × 7`."""
    runs = [(value, len(list(run))) for value, run in itertools.groupby(values.tolist())]
    return Text(", ".join(f"{value} × {count}" if count > 1 else f"{value}" for value, count in runs))


def _show_items(items: np.ndarray, segments: np.ndarray, vocabulary: "seqio.Vocabulary | None") -> Text:
    """Renders the values of each item, `[items, inner]`: decoded, such as a word of its characters, or as numbers."""
    shown = []
    for segment in range(1, int(segments.max(initial=0)) + 1):
        run = [
            Text.assemble("[", _show_numbers(item), "]")
            if vocabulary is None
            else Text(vocabulary.decode(item.tolist()))
            for item in items[segments == segment]
        ]
        shown.append(Text(" ").join(run))
    return Text(" ┃ ", style=_BOUNDARY).join(shown)


def _masked(spec: FeatureSpec, batch: Mapping[str, np.ndarray], track: tuple[str, ...]) -> dict[int, int]:
    """Returns the positions of a track's first row whose token is to be predicted -> the original id."""
    masked: dict[int, int] = {}
    for feature in spec.features:
        if feature.within is not None and spec.track(feature.within) == track:
            predicted = spec.track(feature.source)
            weights = _first_row(spec, batch, "weights", predicted)
            targets = _first_row(spec, batch, "tokens", predicted)
            positions = batch[feature.name][0]
            if weights is not None and targets is not None:
                masked |= dict(zip(positions[weights > 0].tolist(), targets[weights > 0].tolist(), strict=True))
    return masked


def _first_row(
    spec: FeatureSpec, batch: Mapping[str, np.ndarray], role: str, track: tuple[str, ...]
) -> np.ndarray | None:
    """Returns the first row of the feature with a role on a track, `[length]`, or None if no feature has this role."""
    found = (row for f, row in _first_rows(spec, batch) if f.role == role and spec.track(f.source) == track)
    return next(found, None)


def _first_rows(spec: FeatureSpec, batch: Mapping[str, np.ndarray]) -> Iterator[tuple[ModelFeature, np.ndarray]]:
    """Yields the first row of each feature, `[length, *inner]`, and with choices one for each of them."""
    for feature in spec.features:
        rows = batch[feature.name][0] if feature.choices else batch[feature.name]
        rows = rows[: len(feature.parts)]
        yield from zip(feature.parts, rows, strict=True)


def special_name(token: int, vocabulary: "seqio.Vocabulary", names: Mapping[int, str]) -> str | None:
    """Returns the name of a special token, or None for a token of text."""
    if token in names:
        return names[token]
    if token in (sentinels := sentinel_ids(vocabulary)):
        return f"<extra_id_{sentinels.index(token)}>"
    known = {vocabulary.pad_id: "<pad>", vocabulary.eos_id: "</s>", vocabulary.unk_id: "<unk>"}
    return known.get(token) or getattr(vocabulary, "special_names", {}).get(token)


def piece(token: int, vocabulary: "seqio.Vocabulary") -> str:
    """Returns the text of a single token, with invisible characters escaped."""
    tokenizer = getattr(vocabulary, "tokenizer", None)
    if hasattr(tokenizer, "IdToPiece"):
        text = tokenizer.IdToPiece(token)
    else:
        has_symbol = getattr(vocabulary, "has_space_symbol", False)
        text = vocabulary.pieces[token] if has_symbol else vocabulary.decode([token])
    return repr(text)[1:-1] or "·"


def _name_or_piece(token: int, vocabulary: "seqio.Vocabulary", names: Mapping[int, str]) -> str:
    return special_name(token, vocabulary, names) or piece(token, vocabulary)
