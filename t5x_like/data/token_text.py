"""Rows of token ids as text for a terminal: special tokens, borders of examples and masks made visible."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from rich.text import Text

from t5x_like.data.features import FeatureSpec, ModelFeature

_SPECIAL, _PADDING, _BOUNDARY, _MASKED = "bold magenta", "dim", "bold cyan", "bold yellow"


def rows_as_text(
    spec: FeatureSpec, batch: Mapping[str, np.ndarray], vocabularies: Mapping[str, Any], names: Mapping[int, str]
) -> Iterator[tuple[str, Text]]:
    """The first row of every feature that holds what the model reads, with a title.

    What stood at masked positions is shown there, so it is no row of its own.

    Args:
      spec: what the features are.
      batch: model feature -> int32 `[batch, length]`.
      vocabularies: task feature -> SeqIO's vocabulary, for those that are text.
      names: ids of special tokens that the vocabularies do not know -> what to call them.
    """
    predicted = {spec.track(feature.source) for feature in spec.features if feature.role == "row_positions"}
    for feature in spec.features:
        track = spec.track(feature.source)
        if feature.role != "tokens" or track in predicted:
            continue
        row, vocabulary = batch[feature.name][0], vocabularies.get(feature.sources[0])
        segments = _first_row(spec, batch, "segment_ids", track)
        if segments is None:
            segments = np.ones_like(row) if track[0] in spec.fixed_lengths else np.sign(row)
        if vocabulary is None:
            shown = _show_numbers(row[segments > 0])
        else:
            shown = show_tokens(row, segments, vocabulary, names=names, masked=_masked(spec, batch, track))
        yield f"{joined_name(feature)} → {feature.name}", shown


def joined_name(feature: ModelFeature) -> str:
    """The task features that a model feature is made from."""
    return " + ".join(feature.sources)


def show_tokens(
    tokens: np.ndarray,
    segments: np.ndarray,
    vocabulary: Any,
    *,
    names: Mapping[int, str] | None = None,
    masked: Mapping[int, int] | None = None,
) -> Text:
    """A row as text: sentinels and EOS in colour, `↵` for \\n and `␍` for \\r, `┃` between examples, padding counted.

    Args:
      tokens: int32 `[length]`.
      segments: int32 `[length]`, 0 for padding.
      vocabulary: SeqIO's.
      names: further special tokens, id -> name.
      masked: places whose token is to be predicted -> the id that stood there; shown as `[MASK]→what`.
    """
    shown = Text()
    for segment in range(1, int(segments.max(initial=0)) + 1):
        if segment > 1:
            shown.append(" ┃ ", style=_BOUNDARY)
        places = np.flatnonzero(segments == segment)
        run = [(int(tokens[place]), (masked or {}).get(int(place))) for place in places]
        shown.append_text(_show_run(run, vocabulary, names or {}))
    if padding := int(np.sum(segments == 0)):
        shown.append(f" [padding × {padding}]", style=_PADDING)
    return shown


def _show_run(run: list[tuple[int, int | None]], vocabulary: Any, names: Mapping[int, str]) -> Text:
    shown = Text()

    def kind(item: tuple[int, int | None]) -> tuple[str, int | str] | None:
        token, original = item
        if original is not None:
            return _MASKED, f"{_name_or_piece(token, vocabulary, names)}→{_name_or_piece(original, vocabulary, names)}"
        name = special_name(token, vocabulary, names)
        return None if name is None else (_SPECIAL, name)

    for what, items in itertools.groupby(run, key=kind):
        ids = [token for token, _ in items]
        if what is None:
            shown.append(vocabulary.decode(ids).replace("\n", "↵").replace("\r", "␍"))
        else:
            for _ in ids:
                shown.append(f" {what[1]} ", style=what[0])
    return shown


def _show_numbers(values: np.ndarray) -> Text:
    """Runs of the same number, counted."""
    runs = [(value, len(list(run))) for value, run in itertools.groupby(values.tolist())]
    return Text(", ".join(f"{value} × {count}" if count > 1 else f"{value}" for value, count in runs))


def _masked(spec: FeatureSpec, batch: Mapping[str, np.ndarray], track: tuple[str, ...]) -> dict[int, int]:
    """The places of a track's row whose token is to be predicted, and what stood there."""
    masked: dict[int, int] = {}
    for feature in spec.features:
        if feature.within is not None and spec.track(feature.within) == track:
            predicted = spec.track(feature.source)
            weights = _first_row(spec, batch, "weights", predicted)
            targets = _first_row(spec, batch, "tokens", predicted)
            places = batch[feature.name][0]
            if weights is not None and targets is not None:
                masked |= dict(zip(places[weights > 0].tolist(), targets[weights > 0].tolist(), strict=True))
    return masked


def _first_row(spec: FeatureSpec, batch: Mapping[str, np.ndarray], role: str, track: tuple[str, ...]):
    """The first row of the feature that has a role on a track, `[length]`; None where there is no such feature."""
    found = (batch[f.name][0] for f in spec.features if f.role == role and spec.track(f.source) == track)
    return next(found, None)


def special_name(token: int, vocabulary: Any, names: Mapping[int, str]) -> str | None:
    """The name of a token that stands for no text."""
    if token in names:
        return names[token]
    first_sentinel = vocabulary.vocab_size - 1
    if first_sentinel - vocabulary.extra_ids < token <= first_sentinel:
        return f"<extra_id_{first_sentinel - token}>"
    return {vocabulary.pad_id: "<pad>", vocabulary.eos_id: "</s>", vocabulary.unk_id: "<unk>"}.get(token)


def piece(token: int, vocabulary: Any) -> str:
    """A single token's text, what cannot be seen in it escaped."""
    tokenizer = getattr(vocabulary, "tokenizer", None)
    text = tokenizer.IdToPiece(token) if hasattr(tokenizer, "IdToPiece") else vocabulary.decode([token])
    return repr(text)[1:-1] or "·"


def _name_or_piece(token: int, vocabulary: Any, names: Mapping[int, str]) -> str:
    return special_name(token, vocabulary, names) or piece(token, vocabulary)
