"""Learning-rate schedules: functions from the step (0 for the first update) to a float32 learning rate.

Each function here returns a schedule that can be traced by JAX. Schedules that end with the run take `total_steps`.
`warmup_steps` is a number of steps, or a number between 0 and 1: that fraction of `total_steps`, rounded down as in
BERT's released fine-tuning code.
"""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.optimizers.schedule_checks import check_bounds, check_learning_rate, check_span, check_warmup
from t5x_like.optimizers.schedule_steps import Warmup, in_steps
from t5x_like.recorded import recorded

Step = Int[Array, ""] | int
Schedule = Callable[[Step], Float[Array, ""]]


@recorded
def constant(
    value: float = 1e-3, *, warmup_steps: Warmup = 0, floor: float = 0.0, total_steps: int | None = None
) -> Schedule:
    """Creates a constant schedule with a linear warmup.

    The default is the learning rate of T5's fine-tuning (Raffel et al., 2020, section 3.1.2).

    Args:
      value: The learning rate.
      warmup_steps: Number of steps over which the learning rate rises linearly from 0, or a fraction of `total_steps`.
      floor: The minimum learning rate, also during warmup.
      total_steps: Number of steps of the run; needed if `warmup_steps` is a fraction.

    Returns:
      The schedule.

    Raises:
      UserError: An argument is negative, `floor` exceeds `value`, or `warmup_steps` is not a number of steps.
    """
    warmup_steps = in_steps("WARMUP_STEPS", warmup_steps, total_steps)
    check_bounds(value, floor)
    return _bounded(_after_warmup(optax.constant_schedule(value), value, warmup_steps), floor)


@recorded
def rsqrt(
    base: float = 1.0, *, warmup_steps: Warmup = 10_000, floor: float = 0.0, total_steps: int | None = None
) -> Schedule:
    """Creates T5's inverse square root schedule (Raffel et al., 2020, section 3.1.2).

    The learning rate is `base / sqrt(max(step, warmup_steps))`, so it is constant during warmup. With the defaults it
    is 0.01 up to step 10,000 and 0.001 at step 1,000,000. For a linear warmup use
    `factors("constant * linear_warmup * rsqrt_decay", …)`.

    Args:
      base: The numerator.
      warmup_steps: Number of steps after which the decay begins, positive, or a fraction of `total_steps`.
      floor: The minimum learning rate.
      total_steps: Number of steps of the run; needed if `warmup_steps` is a fraction.

    Returns:
      The schedule.

    Raises:
      UserError: `warmup_steps` is not positive, or another argument is negative.
    """
    warmup_steps = in_steps("WARMUP_STEPS", warmup_steps, total_steps)
    check_bounds(base, floor)
    check_warmup("rsqrt", warmup_steps)
    return _bounded(lambda step: base / jnp.sqrt(jnp.maximum(step, warmup_steps)), floor)


@recorded
def linear(peak: float, *, total_steps: int, warmup_steps: Warmup = 0, floor: float = 0.0) -> Schedule:
    """Creates a schedule that rises linearly to `peak`, then falls linearly to `floor` at `total_steps`.

    Args:
      peak: The maximum learning rate.
      total_steps: The step from which the learning rate is `floor`.
      warmup_steps: Number of steps over which the learning rate rises from 0, or a fraction of `total_steps`.
      floor: The final and minimum learning rate.

    Returns:
      The schedule.

    Raises:
      UserError: An argument is negative, `floor` exceeds `peak`, or the warmup lasts until `total_steps`.
    """
    warmup_steps = in_steps("WARMUP_STEPS", warmup_steps, total_steps)
    return wsd(
        peak, total_steps=total_steps, decay_steps=total_steps - warmup_steps, warmup_steps=warmup_steps, floor=floor
    )


@recorded
def polynomial(
    peak: float, *, total_steps: int, power: float, warmup_steps: Warmup = 0, floor: float = 0.0
) -> Schedule:
    """Creates a schedule that rises linearly to `peak`, then falls as a power of the remaining steps.

    Longformer's pretraining has power 3 (Beltagy et al., 2020, section 5).

    Args:
      peak: The maximum learning rate.
      total_steps: The step from which the learning rate is `floor`.
      power: The power; 1 is `linear`.
      warmup_steps: Number of steps over which the learning rate rises from 0, or a fraction of `total_steps`.
      floor: The final and minimum learning rate.

    Returns:
      The schedule.

    Raises:
      UserError: An argument is negative, `floor` exceeds `peak`, or the warmup lasts until `total_steps`.
    """
    warmup_steps = in_steps("WARMUP_STEPS", warmup_steps, total_steps)
    check_bounds(peak, floor)
    check_span(warmup_steps, total_steps)
    if power <= 0:
        raise UserError(f"power={power} of the schedule is not positive. Give 1 for a linear decay, or 3.")
    decay = optax.polynomial_schedule(peak, floor, power, total_steps - warmup_steps)
    return _bounded(_after_warmup(decay, peak, warmup_steps), floor)


@recorded
def cosine(peak: float, *, total_steps: int, warmup_steps: Warmup = 0, floor: float = 0.0) -> Schedule:
    """Creates a schedule that rises linearly to `peak`, then falls to `floor` along half a cosine.

    Source: Loshchilov and Hutter, 2017, arXiv:1608.03983, equation 5.

    Args:
      peak: The maximum learning rate.
      total_steps: The step from which the learning rate is `floor`.
      warmup_steps: Number of steps over which the learning rate rises from 0, or a fraction of `total_steps`.
      floor: The final and minimum learning rate.

    Returns:
      The schedule.

    Raises:
      UserError: An argument is negative, `floor` exceeds `peak`, or the warmup lasts until `total_steps`.
    """
    warmup_steps = in_steps("WARMUP_STEPS", warmup_steps, total_steps)
    check_bounds(peak, floor)
    check_span(warmup_steps, total_steps)
    decay = optax.cosine_decay_schedule(peak, total_steps - warmup_steps, alpha=floor / peak if peak else 0.0)
    return _bounded(_after_warmup(decay, peak, warmup_steps), floor)


@recorded
def triangle(peak: float, *, total_steps: int, start: float = 0.25, fall: float = 0.25) -> Schedule:
    """Returns a schedule that rises linearly from a fraction of `peak` to `peak`, then falls linearly to 0.

    Source: Geiping and Goldstein, 2022, arXiv:2212.14034, and the released code (`triangle2`).

    Args:
      peak: The maximum learning rate.
      total_steps: The step from which the learning rate is 0.
      start: The learning rate of step 0 as a fraction of `peak`.
      fall: The fraction of the steps in which the learning rate falls.

    Raises:
      UserError: `peak` is negative, a fraction is out of range, or there are no steps.
    """
    check_learning_rate(peak)
    check_span(0, total_steps)
    if not (0 <= start <= 1 and 0 < fall < 1):
        raise UserError(f"start={start} and fall={fall} of triangle: out of range. Give fractions between 0 and 1.")

    def schedule(step: Step) -> Float[Array, ""]:
        done = step / total_steps
        return peak * jnp.clip(jnp.minimum(start + done * (1 - start) / (1 - fall), (1 - done) / fall), 0, 1)

    return schedule


@recorded
def exponential(
    peak: float,
    *,
    decay_rate: float,
    decay_steps: int = 1,
    warmup_steps: Warmup = 0,
    floor: float = 0.0,
    total_steps: int | None = None,
) -> Schedule:
    """Creates a schedule that rises linearly to `peak`, then is multiplied by `decay_rate` every `decay_steps` steps.

    The learning rate is `peak * decay_rate ** (s / decay_steps)`, s steps after the warmup. The released code of Dai
    and Le (2015) multiplies it by 0.9999 per step in pretraining, and by 0.9998 in fine-tuning.

    Args:
      peak: The maximum learning rate.
      decay_rate: The factor, in (0, 1].
      decay_steps: Number of steps over which the learning rate is multiplied by the factor.
      warmup_steps: Number of steps over which the learning rate rises from 0, or a fraction of `total_steps`.
      floor: The minimum learning rate, also during warmup.
      total_steps: Number of steps of the run; needed if `warmup_steps` is a fraction.

    Returns:
      The schedule.

    Raises:
      UserError: `decay_rate` or `decay_steps` is out of range, another argument is negative, or `floor` exceeds `peak`.
    """
    warmup_steps = in_steps("WARMUP_STEPS", warmup_steps, total_steps)
    check_bounds(peak, floor)
    if not 0 < decay_rate <= 1:
        raise UserError(f"decay_rate={decay_rate} of the schedule is out of range. Give a number in (0, 1].")
    if decay_steps < 1:
        raise UserError(f"decay_steps={decay_steps} of the schedule is not positive. Give a positive integer.")
    decay = optax.exponential_decay(peak, decay_steps, decay_rate)
    return _bounded(_after_warmup(decay, peak, warmup_steps), floor)


@recorded
def wsd(
    peak: float,
    *,
    total_steps: int,
    decay_steps: int | None = None,
    decay_power: float = 1.0,
    warmup_steps: Warmup = 0,
    floor: float = 0.0,
) -> Schedule:
    """Creates a warmup-stable-decay schedule: a linear rise to `peak`, a constant phase and a decay.

    Source: Hägele et al., 2024, arXiv:2405.18392.

    Args:
      peak: The maximum learning rate.
      total_steps: The step from which the learning rate is `floor`.
      decay_steps: Number of steps of the decay. By default a tenth of `total_steps`; 0 for none.
      decay_power: After a fraction f of the decay, the learning rate has fallen by f^decay_power of its way to
        `floor`: 1 is linear, 0.5 the source's 1-sqrt decay.
      warmup_steps: Number of steps over which the learning rate rises from 0, or a fraction of `total_steps`.
      floor: The final and minimum learning rate.

    Returns:
      The schedule.

    Raises:
      UserError: An argument is negative, `floor` exceeds `peak`, `decay_power` is not positive, or warmup and decay do
        not fit into `total_steps`.
    """
    warmup_steps = in_steps("WARMUP_STEPS", warmup_steps, total_steps)
    check_bounds(peak, floor)
    decay_steps = max(1, total_steps // 10) if decay_steps is None else decay_steps
    check_span(warmup_steps, total_steps)
    if not 0 <= decay_steps <= total_steps - warmup_steps:
        raise UserError(
            f"DECAY_STEPS={decay_steps} is not between 0 and TRAIN_STEPS - WARMUP_STEPS = "
            f"{total_steps} - {warmup_steps} = {total_steps - warmup_steps}. "
            "Give fewer steps, or None for a tenth of the run."
        )
    if not decay_power > 0:
        raise UserError(f"decay_power={decay_power} is not positive. 1 is a linear decay, 0.5 a 1-sqrt decay.")
    begin = total_steps - decay_steps - warmup_steps

    def decay(step: Step) -> Float[Array, ""]:
        fraction = jnp.clip((step - begin) / max(decay_steps, 1), 0, 1)
        return floor + (peak - floor) * (1 - fraction**decay_power)

    return _bounded(_after_warmup(decay, peak, warmup_steps), floor)


@recorded
def piecewise(values: Mapping[int, float]) -> Schedule:
    """Creates a schedule of constant values, such as the coefficient of a loss that is active for some of the steps.

    Args:
      values: Step -> the value from this step on. Step 0 must have a value.

    Returns:
      The schedule.

    Raises:
      UserError: Step 0 has no value, or a step is negative or not an integer.
    """
    steps = sorted(values)
    if not steps or steps[0] != 0 or not all(isinstance(step, int) for step in steps):
        raise UserError(f"piecewise.values={dict(values)} is not valid. Give integer steps, the first of which is 0.")
    schedules = [optax.constant_schedule(values[step]) for step in steps]
    joined = optax.join_schedules(schedules, steps[1:])
    return lambda step: jnp.asarray(joined(jnp.asarray(step)), jnp.float32)


@recorded
def product(schedules: Sequence[Schedule]) -> Schedule:
    """Creates the product of schedules, such as a decay that counts from step 0 times a warmup of factors up to 1.

    Args:
      schedules: The schedules, at least one.

    Returns:
      The schedule.

    Raises:
      UserError: There are no schedules.
    """
    if not schedules:
        raise UserError("product.schedules is empty. Give at least one schedule.")

    return lambda step: math.prod((each(step) for each in schedules), start=jnp.ones((), jnp.float32))


@recorded
def factors(
    factors: str = "constant * linear_warmup * rsqrt_decay",
    *,
    base_learning_rate: float = 0.5,
    warmup_steps: Warmup = 1000,
    decay_factor: float = 0.5,
    steps_per_decay: int = 20_000,
    steps_per_cycle: int = 100_000,
    step_offset: int = 0,
    min_learning_rate: float = 1e-8,
    total_steps: int | None = None,
) -> Schedule:
    """Creates a product of named factors, like T5X's `create_learning_rate_scheduler`, with the same defaults.

    With `s = max(0, step - step_offset)` the factors are

    * `constant`: `base_learning_rate`;
    * `linear_warmup`: `min(1, s / warmup_steps)`;
    * `linear_decay`: `base_learning_rate * min(s / warmup_steps, 1 + decay_factor * (warmup_steps - s))`, without
      `constant`;
    * `rsqrt_decay`: `1 / sqrt(max(s, warmup_steps))`;
    * `rsqrt_normalized_decay`: `sqrt(warmup_steps) / sqrt(max(s, warmup_steps))`;
    * `decay_every`: `decay_factor ** (s // steps_per_decay)`;
    * `cosine_decay`: `(1 + cos(pi * p)) / 2`, `p = max(0, (s - warmup_steps) / steps_per_cycle)` modulo 1.

    Args:
      factors: Names of the factors, separated by ` * `.
      base_learning_rate: The value of `constant`, and a factor of `linear_decay`.
      warmup_steps: Number of warmup steps, or a fraction of `total_steps`.
      decay_factor: The factor of `decay_every`, or the slope of `linear_decay`.
      steps_per_decay: The period of `decay_every`.
      steps_per_cycle: The period of `cosine_decay`.
      step_offset: The step at which the schedule starts.
      min_learning_rate: The minimum learning rate.
      total_steps: Number of steps of the run; needed if `warmup_steps` is a fraction.

    Returns:
      The schedule.

    Raises:
      UserError: A factor is unknown, or `warmup_steps` is not a number of steps, or 0 for a factor that divides by it.
    """
    warmup_steps = in_steps("WARMUP_STEPS", warmup_steps, total_steps)
    check_learning_rate(base_learning_rate)
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
        if name in ("linear_warmup", "linear_decay", "rsqrt_decay", "rsqrt_normalized_decay"):
            check_warmup(name, warmup_steps)

    def learning_rate(step):
        since = jnp.maximum(0, step - step_offset)
        return math.prod(known[name](since) for name in names)

    return _bounded(learning_rate, min_learning_rate)


def _after_warmup(schedule: optax.Schedule, peak: float, warmup_steps: int) -> optax.Schedule:
    """Returns a linear rise from 0 to `peak`, followed by `schedule`, whose steps count from the end of the warmup."""
    if not warmup_steps:
        return schedule
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup_steps), schedule], [warmup_steps])


def _bounded(learning_rate: optax.Schedule, floor: float) -> Schedule:
    return lambda step: jnp.asarray(jnp.maximum(learning_rate(jnp.asarray(step)), floor), jnp.float32)
