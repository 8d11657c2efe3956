"""Measures the speed of a run: tokens per second, model FLOPs utilization and peak device memory."""

import collections
import re
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

# Dense bfloat16 peak in FLOP/s per JAX device, by a prefix of its `device_kind`; the longest match counts. A v2, v3 or
# TPU7x chip is two JAX devices, so its peak is halved. Sources: cloud.google.com/tpu/docs ("peak compute per chip" on
# the page of each version) and NVIDIA's data sheets (tensor cores without sparsity).
PEAK_FLOPS = {
    "TPU v2": 45e12 / 2,
    "TPU v3": 123e12 / 2,
    "TPU v4": 275e12,
    "TPU v4 lite": 138e12,
    "TPU v5": 459e12,  # the `device_kind` of a v5p
    "TPU v5p": 459e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 2307e12 / 2,
    "NVIDIA A100": 312e12,
    "NVIDIA A10G": 70e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA GH200": 989e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA GB200": 2500e12,
}


# The steps whose median time is the usual one.
_REMEMBERED_STEPS = 1000


def peak_flops(device_kind: str) -> float | None:
    """Returns the bfloat16 peak of one device in FLOP/s, or None if it is unknown, as for CPUs."""
    known = [kind for kind in PEAK_FLOPS if re.match(re.escape(kind) + r"(?![a-zA-Z0-9])", device_kind)]
    return PEAK_FLOPS[max(known, key=len)] if known else None


def mfu(model_flops_per_step: float, seconds: float, device_kind: str, num_devices: int) -> float | None:
    """Computes the model FLOPs utilization (PaLM, Chowdhery et al. 2022, arXiv:2204.02311, appendix B).

        mfu = model_flops_per_step / (seconds · num_devices · peak bfloat16 FLOP/s per device)

    Args:
      model_flops_per_step: FLOPs of the forward and backward pass of one update, at any precision. A multiply-add
        counts as two. Recomputation by rematerialization does not count.
      seconds: Duration of a step.
      device_kind: The device kind as JAX names it.
      num_devices: Number of devices.

    Returns:
      A number between 0 and 1, or None if the peak is unknown.
    """
    peak = peak_flops(device_kind)
    return None if peak is None or seconds <= 0 else model_flops_per_step / (seconds * num_devices * peak)


class Throughput:
    """Measures tokens and seconds per step, without the time of evaluations and checkpoints.

    Args:
      flops_per_step: Model FLOPs per step, see `mfu`; None if unknown.
      devices: An array or list of the JAX devices of the run.
      now: The clock, in seconds.
    """

    def __init__(self, flops_per_step: float | None, devices: Any, *, now: Callable[[], float] = time.monotonic):
        self._flops, self._now = flops_per_step, now
        self._devices = list(getattr(devices, "flat", devices))
        self._steps, self._batches, self._tokens, self._seconds, self._waited = 0, 0.0, 0.0, 0.0, 0.0
        self._since: float | None = None
        self._wait_seen = 0.0
        self._step_seconds: collections.deque[float] = collections.deque(maxlen=_REMEMBERED_STEPS)
        self._counted_seconds = 0.0  # of this window, until the last counted step

    def start(self, wait_seconds: float) -> None:
        """Starts the clock.

        Args:
          wait_seconds: Total time that the feed has waited for data so far.
        """
        self._since, self._wait_seen = self._now(), wait_seconds

    resume = start

    def pause(self) -> None:
        """Stops the clock until `resume`."""
        if self._since is not None:
            self._seconds += self._now() - self._since
            self._since = None

    def count(self, tokens: float, wait_seconds: float, fraction: float = 1.0) -> None:
        """Counts a finished step.

        Args:
          tokens: Number of real tokens of the step.
          wait_seconds: Total time that the feed has waited for data so far.
          fraction: Fraction of the model FLOPs of a step that it has computed; less than 1 in a batch ramp.
        """
        self._steps, self._batches = self._steps + 1, self._batches + fraction
        seconds = self._seconds + (0.0 if self._since is None else self._now() - self._since)
        self._step_seconds.append(seconds - self._counted_seconds)
        self._counted_seconds = seconds
        self._tokens += tokens
        self._waited += wait_seconds - self._wait_seen
        self._wait_seen = wait_seconds

    def rates(self) -> dict[str, float | None]:
        """Returns the rates since the last call and starts the next window.

        Returns:
          `tokens_per_second`, `seconds_per_step`, `step_time_deviation` (`seconds_per_step` minus the median of the
          latest 1,000 steps), `data_wait_fraction` (fraction of the time spent waiting for data), `mfu`, and
          `peak_memory_bytes` (maximum over the devices of this process). `mfu` and `peak_memory_bytes` are None if
          unknown. The other values are None if no step was counted.
        """
        paused = self._since is None
        self.pause()
        seconds, steps = max(self._seconds, 1e-9), self._steps
        rates = {
            "tokens_per_second": self._tokens / seconds if steps else None,
            "seconds_per_step": seconds / steps if steps else None,
            "step_time_deviation": seconds / steps - statistics.median(self._step_seconds) if steps else None,
            "data_wait_fraction": min(self._waited / seconds, 1.0) if steps else None,
            "mfu": self._mfu(seconds / self._batches) if self._batches else None,
            "peak_memory_bytes": peak_memory(self._devices),
        }
        self._steps, self._batches, self._tokens, self._seconds, self._waited = 0, 0.0, 0.0, 0.0, 0.0
        self._counted_seconds = 0.0
        if not paused:
            self._since = self._now()
        return rates

    def _mfu(self, seconds_per_step: float) -> float | None:
        if self._flops is None or not self._devices:
            return None
        return mfu(self._flops, seconds_per_step, self._devices[0].device_kind, len(self._devices))


def peak_memory(devices: Iterable[Any]) -> int | None:
    """Returns the peak memory in bytes since the start, the maximum over the JAX devices of this process.

    None if they do not report it, as CPUs.
    """
    devices = list(devices)
    stats = [device.memory_stats() for device in devices if device.process_index == devices[0].client.process_index()]
    peaks = [stat["peak_bytes_in_use"] for stat in stats if stat and "peak_bytes_in_use" in stat]
    return max(peaks, default=None)
