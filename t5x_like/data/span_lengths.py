"""The length arithmetic of T5's span corruption, in plain Python.

How many raw tokens fill an encoder of a given length once noise spans have shrunk to sentinels, how long the targets
then are, and how many sentinels it takes (Raffel et al. 2020, section 3.1.4; T5's `random_spans_helper`).
"""

import dataclasses

from t5x_like.errors import UserError

NOISE_DENSITY = 0.15
MEAN_NOISE_SPAN_LENGTH = 3.0


@dataclasses.dataclass(frozen=True)
class SpanLengths:
    """Lengths in tokens of one corrupted chunk.

    Attributes:
      raw: tokens of text before corruption.
      inputs: what is left of them, a sentinel a span, EOS.
      targets: what was taken out, a sentinel a span, EOS.
      noise: tokens taken out.
      spans: noise spans, thus sentinels on each side.
    """

    raw: int
    inputs: int
    targets: int
    noise: int
    spans: int


def noise_counts(
    length: int,
    noise_density: float = NOISE_DENSITY,
    mean_noise_span_length: float = MEAN_NOISE_SPAN_LENGTH,
) -> tuple[int, int]:
    """How many of `length` tokens are noise, and in how many spans.

    At least one token is noise and one is not; there are never more spans than tokens on either side.

    Raises:
      UserError: `length` is below 2, or a rate is out of range.
    """
    _check_rates(noise_density, mean_noise_span_length)
    if length < 2:
        raise UserError(f"{length} tokens cannot be corrupted: it takes one that is noise and one that is not")
    noise = min(max(round(length * noise_density), 1), length - 1)
    return noise, min(max(round(noise / mean_noise_span_length), 1), noise, length - noise)


def span_lengths(
    inputs_length: int,
    noise_density: float = NOISE_DENSITY,
    mean_noise_span_length: float = MEAN_NOISE_SPAN_LENGTH,
) -> SpanLengths:
    """The largest chunk whose corrupted inputs fit `inputs_length` tokens: 512 -> 568 raw, 114 targets, 28 spans.

    Raises:
      UserError: nothing fits, or a rate is out of range.
    """
    raw = 2
    if corrupted_lengths(raw, noise_density, mean_noise_span_length).inputs > inputs_length:
        raise UserError(
            f"TASK_FEATURE_LENGTHS inputs={inputs_length}: span corruption needs at least 3 (a token, a sentinel, EOS)"
        )
    raw = max(raw, inputs_length // 2)
    while corrupted_lengths(raw + 1, noise_density, mean_noise_span_length).inputs <= inputs_length:
        raw += 1
    lengths = corrupted_lengths(raw, noise_density, mean_noise_span_length)
    # T5 gives up one token at density 0.5 so that the targets are no longer than the inputs' round number.
    if noise_density == 0.5 and lengths.targets > lengths.inputs:
        lengths = dataclasses.replace(lengths, raw=raw - 1, targets=lengths.targets - 1, noise=lengths.noise - 1)
    return lengths


def corrupted_lengths(
    raw: int,
    noise_density: float = NOISE_DENSITY,
    mean_noise_span_length: float = MEAN_NOISE_SPAN_LENGTH,
) -> SpanLengths:
    """The lengths that `raw` tokens (at least 2) have once corrupted."""
    noise, spans = noise_counts(raw, noise_density, mean_noise_span_length)
    return SpanLengths(raw=raw, inputs=raw - noise + spans + 1, targets=noise + spans + 1, noise=noise, spans=spans)


def check_fits(
    inputs_length: int,
    targets_length: int,
    sentinels: int,
    noise_density: float = NOISE_DENSITY,
    mean_noise_span_length: float = MEAN_NOISE_SPAN_LENGTH,
) -> SpanLengths:
    """The lengths for these feature lengths, refused where targets or sentinels do not suffice.

    Args:
      inputs_length: tokens of `inputs`, with EOS.
      targets_length: tokens that `targets` may have, with EOS.
      sentinels: how many the vocabulary has (its `extra_ids`).
      noise_density: fraction of tokens taken out.
      mean_noise_span_length: tokens of a span, on average.

    Raises:
      UserError: with the numbers and what to change.
    """
    lengths = span_lengths(inputs_length, noise_density, mean_noise_span_length)
    what = f"inputs={inputs_length} at noise_density={noise_density}, mean_noise_span_length={mean_noise_span_length}"
    if lengths.spans > sentinels:
        longest = _longest_inputs(lengths.raw, sentinels, noise_density, mean_noise_span_length)
        raise UserError(
            f"TASK_FEATURE_LENGTHS {what} makes {lengths.spans} noise spans in {lengths.raw} tokens, but the "
            f"vocabulary has {sentinels} sentinels (extra_ids={sentinels}): the rest would be ordinary tokens. "
            + (f"Set inputs to at most {longest} in TASK_FEATURE_LENGTHS, " if longest else "")
            + f"raise mean_noise_span_length, or use a vocabulary with extra_ids={lengths.spans} or more"
        )
    if lengths.targets > targets_length:
        raise UserError(
            f"TASK_FEATURE_LENGTHS {what} makes targets of {lengths.targets} tokens, but targets={targets_length}: set "
            f"targets to {lengths.targets} in TASK_FEATURE_LENGTHS (more is only padding), or shorten inputs"
        )
    return lengths


def _longest_inputs(raw: int, sentinels: int, noise_density: float, mean_noise_span_length: float) -> int | None:
    """The longest inputs of chunks below `raw` tokens that do with so many sentinels; None where none does."""
    for shorter in range(raw - 1, 1, -1):
        lengths = corrupted_lengths(shorter, noise_density, mean_noise_span_length)
        if lengths.spans <= sentinels:
            return lengths.inputs
    return None


def _check_rates(noise_density: float, mean_noise_span_length: float) -> None:
    if not 0 < noise_density < 1:
        raise UserError(f"noise_density={noise_density} must lie between 0 and 1")
    if mean_noise_span_length < 1:
        raise UserError(f"mean_noise_span_length={mean_noise_span_length} must be at least 1 token")
