"""The length arithmetic of T5's span corruption, without TensorFlow.

Span corruption replaces each noise span of the inputs by a sentinel. This module computes how many raw tokens fill an
encoder of a given length, how long the targets are, and how many sentinels are needed (Raffel et al. 2020, section
3.1.4; T5's `random_spans_helper`).
"""

import dataclasses

import numpy as np

from t5x_like.errors import UserError

NOISE_DENSITY = 0.15
MEAN_NOISE_SPAN_LENGTH = 3.0


@dataclasses.dataclass(frozen=True)
class SpanLengths:
    """Lengths in tokens of one corrupted chunk.

    Attributes:
      raw: Tokens before corruption.
      inputs: Tokens that are not noise, one sentinel per span, and EOS.
      targets: Tokens that are noise, one sentinel per span, and EOS.
      noise: Tokens that are noise.
      spans: Noise spans, which is also the number of sentinels in the inputs and in the targets.
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
    """Returns how many of `length` tokens are noise, and the number of noise spans.

    As in T5, the counts are rounded in float32: half of a token in float64 may be a little more there. At least one
    token is noise and at least one is not. The number of spans is at most the number of noise tokens and
    at most the number of other tokens.

    Raises:
      UserError: `length` is below 2, or a rate is out of range.
    """
    _check_rates(noise_density, mean_noise_span_length)
    if length < 2:
        raise UserError(f"length={length}: span corruption needs at least 2 tokens. Give a longer sequence.")
    noise = int(np.round(np.float32(length) * np.float32(noise_density)))
    noise = min(max(noise, 1), length - 1)
    spans = int(np.round(np.float32(noise) / np.float32(mean_noise_span_length)))
    return noise, min(max(spans, 1), noise, length - noise)


def span_lengths(
    inputs_length: int,
    noise_density: float = NOISE_DENSITY,
    mean_noise_span_length: float = MEAN_NOISE_SPAN_LENGTH,
) -> SpanLengths:
    """Returns the lengths of the largest chunk whose corrupted inputs fit into `inputs_length` tokens.

    For example, inputs of 512 tokens hold 568 raw tokens in 28 spans, with 114 tokens of targets.

    Raises:
      UserError: no chunk fits, or a rate is out of range.
    """
    raw = 2
    if corrupted_lengths(raw, noise_density, mean_noise_span_length).inputs > inputs_length:
        raise UserError(
            f"TASK_FEATURE_LENGTHS inputs={inputs_length}: too short for span corruption. Give at least 3 tokens (a "
            "token, a sentinel and EOS)."
        )
    raw = max(raw, inputs_length // 2)
    while corrupted_lengths(raw + 1, noise_density, mean_noise_span_length).inputs <= inputs_length:
        raw += 1
    lengths = corrupted_lengths(raw, noise_density, mean_noise_span_length)
    # Like T5, use one token less at density 0.5, so that the targets are not longer than the inputs.
    if noise_density == 0.5 and lengths.targets > lengths.inputs:
        lengths = dataclasses.replace(lengths, raw=raw - 1, targets=lengths.targets - 1, noise=lengths.noise - 1)
    return lengths


def corrupted_lengths(
    raw: int,
    noise_density: float = NOISE_DENSITY,
    mean_noise_span_length: float = MEAN_NOISE_SPAN_LENGTH,
) -> SpanLengths:
    """Returns the lengths of a chunk of `raw` tokens (at least 2) after corruption."""
    noise, spans = noise_counts(raw, noise_density, mean_noise_span_length)
    return SpanLengths(raw=raw, inputs=raw - noise + spans + 1, targets=noise + spans + 1, noise=noise, spans=spans)


def check_fits(
    inputs_length: int,
    targets_length: int,
    sentinels: int,
    noise_density: float = NOISE_DENSITY,
    mean_noise_span_length: float = MEAN_NOISE_SPAN_LENGTH,
) -> SpanLengths:
    """Computes the lengths of a chunk, and checks that the targets and the sentinels suffice.

    Args:
      inputs_length: Length of `inputs` in tokens, including EOS.
      targets_length: Maximum length of `targets` in tokens, including EOS.
      sentinels: Number of sentinels of the vocabulary (its `extra_ids`).
      noise_density: Fraction of tokens that are noise.
      mean_noise_span_length: Mean length of a noise span in tokens.

    Raises:
      UserError: the targets are too long or the sentinels too few; the message names the values to change.
    """
    lengths = span_lengths(inputs_length, noise_density, mean_noise_span_length)
    setting = f"inputs={inputs_length}, noise_density={noise_density}, mean_noise_span_length={mean_noise_span_length}"
    if lengths.spans > sentinels:
        longest = _longest_inputs(lengths.raw, sentinels, noise_density, mean_noise_span_length)
        raise UserError(
            f"TASK_FEATURE_LENGTHS {setting}: {lengths.raw} raw tokens have {lengths.spans} noise spans, but the "
            f"vocabulary has only {sentinels} sentinels (extra_ids={sentinels}). "
            + (f"Set inputs to at most {longest} in TASK_FEATURE_LENGTHS, " if longest else "")
            + ("increase" if longest else "Increase")
            + f" mean_noise_span_length, or use a vocabulary with extra_ids={lengths.spans} or more."
        )
    if lengths.targets > targets_length:
        raise UserError(
            f"TASK_FEATURE_LENGTHS {setting}: the targets have {lengths.targets} tokens, but targets={targets_length}. "
            f"Set targets to {lengths.targets} in TASK_FEATURE_LENGTHS (more is only padding), or shorten inputs."
        )
    return lengths


def _longest_inputs(raw: int, sentinels: int, noise_density: float, mean_noise_span_length: float) -> int | None:
    """Returns the longest inputs of chunks shorter than `raw` that need at most `sentinels`; None if none does."""
    for shorter in range(raw - 1, 1, -1):
        lengths = corrupted_lengths(shorter, noise_density, mean_noise_span_length)
        if lengths.spans <= sentinels:
            return lengths.inputs
    return None


def _check_rates(noise_density: float, mean_noise_span_length: float) -> None:
    if not 0 < noise_density < 1:
        raise UserError(f"noise_density={noise_density} is out of range. Give a number between 0 and 1, exclusive.")
    if mean_noise_span_length < 1:
        raise UserError(f"mean_noise_span_length={mean_noise_span_length} is too small. Give at least 1 token.")
