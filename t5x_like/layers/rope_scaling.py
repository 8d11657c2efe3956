"""Frequencies of rotary position embeddings, and their scaling to rows longer than in pretraining.

Frequencies are computed in float32 on the host, in the order of operations of transformers: at positions of several
thousand, a difference in the last bit of a frequency changes the rotation noticeably. Powers are computed in float64
and rounded, which differs from torch's float32 power only rarely and in the last bit; XLA's differs more often.
"""

import dataclasses
import math
from typing import Protocol

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError

Frequencies = Float[np.ndarray | Array, "half"]


class Scaling(Protocol):
    """A scaling of the rotation frequencies."""

    @property
    def attention_factor(self) -> float:
        """Factor of the sines and cosines."""
        ...

    def frequencies(self, theta: float, size: int, length: Int[Array, ""]) -> Frequencies:
        """Computes the rotation frequency of each pair of entries.

        Args:
          theta: Base of the wavelengths.
          size: Number of entries per head.
          length: The largest position in the batch + 1; may be traced.

        Returns:
          Angles per position, in radians.
        """
        ...


def _powers(theta: float, size: int) -> Float[np.ndarray, " half"]:
    """Returns `theta^(2i / size)` for each pair of entries i."""
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    return np.power(np.float64(np.float32(theta)), exponents.astype(np.float64)).astype(np.float32)


def unscaled(theta: float, size: int) -> Float[np.ndarray, " half"]:
    """Computes the unscaled frequencies `theta^(-2i / size)` (Su et al. 2021, section 3.2.2).

    Args:
      theta: Base of the wavelengths.
      size: Number of entries per head.

    Returns:
      Angles per position, in radians.
    """
    return np.float32(1) / _powers(theta, size)


@dataclasses.dataclass(frozen=True)
class Linear:
    """Divides positions by a factor (Chen et al. 2023, position interpolation).

    Attributes:
      factor: Divisor of the positions, at least 1.
    """

    factor: float

    def __post_init__(self):
        _check_factor(self)

    @property
    def attention_factor(self) -> float:
        """Factor of the sines and cosines; see `Scaling.attention_factor`."""
        return 1.0

    def frequencies(self, theta: float, size: int, length: Int[Array, ""]) -> Frequencies:
        """Computes the scaled frequencies; see `Scaling.frequencies`."""
        return unscaled(theta, size) / np.float32(self.factor)


@dataclasses.dataclass(frozen=True)
class Dynamic:
    """Increases the base with the row length beyond the pretraining length ("dynamic NTK").

    As in transformers 4.57.6, the length is the largest position of the call + 1, over all rows of the batch. The
    compiled program reads it from the batch, so one program serves all lengths. In decoding, each new key is rotated
    for the length at its step and is not changed later. Unlike in transformers, no state is kept between calls, so the
    result for a batch does not depend on earlier batches.

    Attributes:
      factor: The base becomes `theta · (factor · length / original_max_length - factor + 1)^(size / (size - 2))`.
      original_max_length: Number of positions in pretraining. Shorter rows are not scaled.
    """

    factor: float
    original_max_length: int

    def __post_init__(self):
        _check_factor(self)
        _check_length(self)

    @property
    def attention_factor(self) -> float:
        """Factor of the sines and cosines; see `Scaling.attention_factor`."""
        return 1.0

    def frequencies(self, theta: float, size: int, length: Int[Array, ""]) -> Frequencies:
        """Computes the scaled frequencies; see `Scaling.frequencies`."""
        if size == 2:
            return unscaled(theta, size)  # the only frequency is 1 for every base
        longest = jnp.maximum(length, self.original_max_length).astype(jnp.float32)
        growth = self.factor * longest / self.original_max_length - (self.factor - 1)
        # base^(-2i / size) with the base above, as the product of a constant and a factor that depends on the length.
        return unscaled(theta, size) * growth ** (-np.arange(0, size, 2, dtype=np.float32) / np.float32(size - 2))


@dataclasses.dataclass(frozen=True)
class Llama3:
    """Divides low frequencies by a factor, keeps high ones and interpolates in between (Llama 3.1 and later).

    Attributes:
      factor: Divisor of the low frequencies, at least 1.
      low_freq_factor: A frequency is low if it makes fewer rotations than this within `original_max_length` positions.
      high_freq_factor: A frequency is high if it makes more rotations than this within `original_max_length` positions.
      original_max_length: Number of positions in pretraining before the extension.
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_length: int = 8192

    def __post_init__(self):
        _check_factor(self)
        _check_length(self)
        _check_numbers(self, "low_freq_factor", "high_freq_factor")
        if self.low_freq_factor >= self.high_freq_factor:
            raise UserError(f"{_field(self, 'low_freq_factor')} must be less than high_freq_factor")

    @property
    def attention_factor(self) -> float:
        """Factor of the sines and cosines; see `Scaling.attention_factor`."""
        return 1.0

    def frequencies(self, theta: float, size: int, length: Int[Array, ""]) -> Frequencies:
        """Computes the scaled frequencies; see `Scaling.frequencies`."""
        high = unscaled(theta, size)
        wavelengths = np.float32(2 * math.pi) / high
        low = high / np.float32(self.factor)
        smooth = (self.original_max_length / wavelengths - np.float32(self.low_freq_factor)) / np.float32(
            self.high_freq_factor - self.low_freq_factor
        )
        medium = (1 - smooth) * high / np.float32(self.factor) + smooth * high
        longest, shortest = (self.original_max_length / f for f in (self.low_freq_factor, self.high_freq_factor))
        return np.where(wavelengths > longest, low, np.where(wavelengths < shortest, high, medium))


@dataclasses.dataclass(frozen=True)
class Yarn:
    """Divides low frequencies by a factor, keeps high ones and scales attention (Peng et al. 2023, YaRN).

    Attributes:
      factor: Divisor of the low frequencies, at least 1.
      original_max_length: Number of positions in pretraining before the extension.
      beta_fast: A frequency is kept if it makes more rotations than this within `original_max_length` positions.
      beta_slow: A frequency is divided if it makes fewer rotations than this within `original_max_length` positions.
      attention_scale: Factor of sines and cosines. None computes it from `mscale` and `mscale_all_dim`, or without them
        as the paper's `0.1 · ln(factor) + 1`.
      mscale: Weight of `ln(factor)` in the numerator of the factor (DeepSeek).
      mscale_all_dim: Weight of `ln(factor)` in its denominator (DeepSeek).
      truncate: Whether the bounds of the interpolation are rounded to integers.
    """

    factor: float
    original_max_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_scale: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self):
        _check_factor(self)
        _check_length(self)
        _check_numbers(self, "beta_fast", "beta_slow")
        for name in ("attention_scale", "mscale", "mscale_all_dim"):
            if getattr(self, name) is not None:
                _check_numbers(self, name)
        if self.beta_fast <= self.beta_slow:
            raise UserError(f"{_field(self, 'beta_fast')} must be greater than beta_slow")
        if not isinstance(self.truncate, bool):
            raise UserError(f"{_field(self, 'truncate')} must be True or False")

    @property
    def attention_factor(self) -> float:
        """Factor of the sines and cosines; see `Scaling.attention_factor`."""
        if self.attention_scale is not None:
            return self.attention_scale
        growth = 0.1 * math.log(self.factor)  # 0 for a factor of 1
        if self.mscale and self.mscale_all_dim:
            return (self.mscale * growth + 1) / (self.mscale_all_dim * growth + 1)
        return growth + 1

    def frequencies(self, theta: float, size: int, length: Int[Array, ""]) -> Frequencies:
        """Computes the scaled frequencies; see `Scaling.frequencies`."""
        powers = _powers(theta, size)
        kept, divided = np.float32(1) / powers, np.float32(1) / (np.float32(self.factor) * powers)
        low, high = (self._pair(rotations, theta, size) for rotations in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        width = high - low or 0.001
        ramp = np.clip((np.arange(size // 2, dtype=np.float32) - np.float32(low)) / np.float32(width), 0, 1)
        keep = 1 - ramp
        return divided * (1 - keep) + kept * keep

    def _pair(self, rotations: float, theta: float, size: int) -> float:
        """Returns the fractional index of the pair that makes `rotations` within `original_max_length` positions."""
        return size * math.log(self.original_max_length / (rotations * 2 * math.pi)) / (2 * math.log(theta))


SCALINGS = (Linear, Dynamic, Llama3, Yarn)


def _field(scaling: Scaling, name: str) -> str:
    return f"{type(scaling).__name__}.{name}={getattr(scaling, name)!r}"


def _check_numbers(scaling: Scaling, *names: str) -> None:
    for name in names:
        value = getattr(scaling, name)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise UserError(f"{_field(scaling, name)} must be a positive number")


def _check_factor(scaling: Scaling) -> None:
    _check_numbers(scaling, "factor")
    if scaling.factor < 1:
        raise UserError(f"{_field(scaling, 'factor')} must be at least 1")


def _check_length(scaling: Scaling) -> None:
    value = scaling.original_max_length
    if type(value) is not int or value < 1:
        raise UserError(f"{_field(scaling, 'original_max_length')} must be a positive integer")
