"""What a launch costs per hour, and for the whole run: list prices, for dry runs.

Nothing is fetched: prices change, differ between regions, and are lower for spot capacity and commitments. --price
replaces the price of this table. A generation that is not listed has no price here.

Source: cloud.google.com/tpu/pricing in February 2025, on demand in US regions, as quoted by jax-ml.github.io/
scaling-book, page "Serving LLaMA 3-70B on TPUs", for v5e and v5p.

Requires Python 3.10 and only its standard library.
"""

import argparse
import math

from slices import LaunchError

# USD per chip and hour.
PRICES = {"v5e": 1.20, "v5p": 4.20}
SOURCE = "list price on demand in the US, February 2025"
UNKNOWN = "unknown"
SECONDS_PER_HOUR = 3600


def add_options(parser: argparse._ActionsContainer) -> None:
    """Adds the options for the cost that a dry run prints."""
    parser.add_argument("--price", type=float, help="price of a chip or GPU per hour in USD, for the cost in a dry run")
    parser.add_argument("--hours", type=float, help="hours of the run, as `t5x_like plan` estimates, for its cost")


def check(options: argparse.Namespace) -> None:
    """Checks the options for the cost.

    Raises:
      LaunchError: A value is negative or not finite.
    """
    for name in ("price", "hours"):
        value = getattr(options, name, None)
        if value is not None and not 0 <= value < math.inf:
            raise LaunchError(f"--{name}={value:g}: negative or not finite. Give for example --{name}=1.20")


def describe(kind: str, devices: int, options: argparse.Namespace, limit_seconds: int = 0) -> str:
    """Returns lines of comments with the cost per hour and of the run.

    Args:
      kind: The generation of the chips, or the kind of GPU.
      devices: Number of chips or GPUs.
      options: The parsed command line, with the options for the cost.
      limit_seconds: Seconds after which the machines are deleted, or 0.
    """
    price, source = options.price, "--price"
    if price is None:
        price, source = PRICES.get(kind), SOURCE
    if price is None:
        return f"# cost per hour: {UNKNOWN} (add --price, of one of {devices} {kind})\n# cost of the run: {UNKNOWN}"
    hourly = price * devices
    lines = [f"# cost per hour: {hourly:.2f} USD ({devices} {kind} at {price:.2f} USD; {source})"]
    hours = options.hours
    if hours is not None:
        lines.append(f"# cost of the run: {hourly * hours:.2f} USD (--hours={hours:g})")
    elif limit_seconds:
        hours = limit_seconds / SECONDS_PER_HOUR
        lines.append(f"# cost of the run: at most {hourly * hours:.2f} USD ({hours:g} h by --max_run_duration)")
    else:
        lines.append(f"# cost of the run: {UNKNOWN} (add --hours, which `t5x_like plan` estimates)")
    return "\n".join(lines)
