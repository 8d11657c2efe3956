"""Learning-rate schedules: functions from the step (0 for the first update) to a float32 learning rate.

Each constructor returns a function that may be traced. Its shape is fixed by the constructor's arguments alone; a
schedule that must know where training ends takes `total_steps`.
"""

import difflib
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.runtime.recorded import recorded

Step = Int[Array, ""] | int
Schedule = Callable[[Step], Float[Array, ""]]


@recorded
def constant(value: float = 1e-3, *, warmup_steps: int = 0, floor: float = 0.0) -> Schedule:
    """The same learning rate at every step; 0.001 is what T5 is fine-tuned with (Raffel et al., 2020, section 3.1).

    Args:
      value: the learning rate.
      warmup_steps: a linear rise from 0 over this many steps comes first.
      floor: the lowest learning rate returned, also during warmup.

    Returns:
      The schedule.
    """
    _check(value, warmup_steps, floor)
    return _schedule(lambda step: value * _warmup(step, warmup_steps), floor)


@recorded
def rsqrt(base: float = 1.0, *, warmup_steps: int = 10_000, floor: float = 0.0) -> Schedule:
    """`base / sqrt(max(step, warmup_steps))`, what T5 is pretrained with (Raffel et al., 2020, section 3.1.2).

    The warmup is flat: with the defaults the learning rate is 0.01 up to step 10,000 and 0.001 at step 1,000,000. A
    linear rise in its place is `factors("constant * linear_warmup * rsqrt_decay", …)`.

    Args:
      base: the learning rate that the square root divides.
      warmup_steps: the decay begins after this many steps; at least 1.
      floor: the lowest learning rate returned.

    Returns:
      The schedule.
    """
    _check(base, warmup_steps, floor)
    if warmup_steps < 1:
        raise UserError(
            f"rsqrt divides by sqrt(max(step, warmup_steps)); warmup_steps={warmup_steps} must be at least 1"
        )
    return _schedule(lambda step: base / jnp.sqrt(jnp.maximum(step, warmup_steps)), floor)


@recorded
def linear(peak: float, *, total_steps: int, warmup_steps: int = 0, floor: float = 0.0) -> Schedule:
    """A linear rise to `peak` over `warmup_steps`, then a linear fall to `floor` at `total_steps`.

    Args:
      peak: the highest learning rate.
      total_steps: the step from which on the learning rate is `floor`.
      warmup_steps: the length of the rise from 0.
      floor: the learning rate at the end, and the lowest one returned.

    Returns:
      The schedule.
    """
    return wsd(
        peak, total_steps=total_steps, decay_steps=total_steps - warmup_steps, warmup_steps=warmup_steps, floor=floor
    )


@recorded
def cosine(peak: float, *, total_steps: int, warmup_steps: int = 0, floor: float = 0.0) -> Schedule:
    """A linear rise to `peak`, then half a cosine down to `floor` at `total_steps` (Loshchilov and Hutter, 2017).

    Args:
      peak: the highest learning rate.
      total_steps: the step from which on the learning rate is `floor`.
      warmup_steps: the length of the rise from 0.
      floor: the learning rate at the end, and the lowest one returned.

    Returns:
      The schedule.
    """
    _check(peak, warmup_steps, floor)
    _check_span(warmup_steps, total_steps)

    def learning_rate(step):
        progress = jnp.clip((step - warmup_steps) / (total_steps - warmup_steps), 0.0, 1.0)
        decayed = floor + (peak - floor) * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
        return jnp.where(step < warmup_steps, peak * _warmup(step, warmup_steps), decayed)

    return _schedule(learning_rate, floor)


@recorded
def wsd(
    peak: float, *, total_steps: int, decay_steps: int | None = None, warmup_steps: int = 0, floor: float = 0.0
) -> Schedule:
    """Warmup, stable, decay: a linear rise to `peak`, `peak`, a linear fall (Hägele et al., 2024, 2405.18392).

    Args:
      peak: the highest learning rate.
      total_steps: the step from which on the learning rate is `floor`.
      decay_steps: the length of the fall; a tenth of `total_steps` where it is not given.
      warmup_steps: the length of the rise from 0.
      floor: the learning rate at the end, and the lowest one returned.

    Returns:
      The schedule.
    """
    _check(peak, warmup_steps, floor)
    decay_steps = max(1, total_steps // 10) if decay_steps is None else decay_steps
    _check_span(warmup_steps, total_steps)
    if not 0 < decay_steps <= total_steps - warmup_steps:
        raise UserError(
            f"decay_steps={decay_steps} must lie between 1 and total_steps - warmup_steps = "
            f"{total_steps} - {warmup_steps} = {total_steps - warmup_steps}"
        )

    def learning_rate(step):
        remaining = jnp.clip((total_steps - step) / decay_steps, 0.0, 1.0)
        decayed = floor + (peak - floor) * remaining
        return jnp.where(step < warmup_steps, peak * _warmup(step, warmup_steps), decayed)

    return _schedule(learning_rate, floor)


@recorded
def factors(
    factors: str = "constant * linear_warmup * rsqrt_decay",
    *,
    base_learning_rate: float = 0.5,
    warmup_steps: int = 1000,
    decay_factor: float = 0.5,
    steps_per_decay: int = 20_000,
    steps_per_cycle: int = 100_000,
    step_offset: int = 0,
    min_learning_rate: float = 1e-8,
) -> Schedule:
    """A product of named factors, with the meaning and the defaults of T5X's `create_learning_rate_scheduler`.

    With `s = max(0, step - step_offset)` the factors are

    * `constant`: `base_learning_rate`;
    * `linear_warmup`: `min(1, s / warmup_steps)`;
    * `linear_decay`: `base_learning_rate * min(s / warmup_steps, 1 + decay_factor * (warmup_steps - s))`, alone;
    * `rsqrt_decay`: `1 / sqrt(max(s, warmup_steps))`;
    * `rsqrt_normalized_decay`: `sqrt(warmup_steps) / sqrt(max(s, warmup_steps))`;
    * `decay_every`: `decay_factor ** (s // steps_per_decay)`;
    * `cosine_decay`: `(1 + cos(pi * p)) / 2`, `p = max(0, (s - warmup_steps) / steps_per_cycle)` modulo 1.

    Args:
      factors: the factors' names with ` * ` between them.
      base_learning_rate: what `constant` and `linear_decay` multiply by.
      warmup_steps: the length of the warmup.
      decay_factor: the factor of `decay_every`, the slope of `linear_decay`.
      steps_per_decay: the period of `decay_every`.
      steps_per_cycle: the period of `cosine_decay`.
      step_offset: the step that counts as the first.
      min_learning_rate: the lowest learning rate returned.

    Returns:
      The schedule.

    Raises:
      UserError: a factor is unknown.
    """
    known = {
        "constant": lambda s: base_learning_rate,
        "linear_warmup": lambda s: jnp.minimum(1.0, s / warmup_steps),
        "linear_decay": lambda s: (
            base_learning_rate * jnp.minimum(s / warmup_steps, 1.0 + decay_factor * (warmup_steps - s))
        ),
        "rsqrt_decay": lambda s: 1.0 / jnp.sqrt(jnp.maximum(s, warmup_steps)),
        "rsqrt_normalized_decay": lambda s: jnp.sqrt(warmup_steps) / jnp.sqrt(jnp.maximum(s, warmup_steps)),
        "decay_every": lambda s: decay_factor ** (s // steps_per_decay),
        "cosine_decay": lambda s: (
            0.5 * (1.0 + jnp.cos(jnp.pi * (jnp.maximum(0.0, (s - warmup_steps) / steps_per_cycle) % 1.0)))
        ),
    }
    names = [name.strip() for name in factors.split("*")]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the factors are {', '.join(known)}"
            raise UserError(f"unknown factor {name!r} in the schedule {factors!r}; {hint}")

    def learning_rate(step):
        since = jnp.maximum(0, step - step_offset)
        product = 1.0
        for name in names:
            product = product * known[name](since)
        return product

    return _schedule(learning_rate, min_learning_rate)


def _schedule(learning_rate, floor: float) -> Schedule:
    return lambda step: jnp.asarray(jnp.maximum(learning_rate(jnp.asarray(step)), floor), jnp.float32)


def _warmup(step, warmup_steps: int):
    return jnp.minimum(1.0, step / warmup_steps) if warmup_steps else 1.0


def _check(peak: float, warmup_steps: int, floor: float):
    if not 0.0 <= floor <= peak:
        raise UserError(
            f"a schedule needs 0 <= floor <= its highest learning rate, but floor={floor} and that is {peak}"
        )
    if warmup_steps < 0:
        raise UserError(f"warmup_steps={warmup_steps} must not be negative")


def _check_span(warmup_steps: int, total_steps: int):
    if warmup_steps >= total_steps:
        raise UserError(
            f"warmup_steps={warmup_steps} leaves nothing of total_steps={total_steps}: "
            "set WARMUP_STEPS below TRAIN_STEPS, or use a schedule that does not decay (constant, rsqrt)"
        )
