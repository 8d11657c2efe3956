"""Metrics of a run, written to a JSONL file, TensorBoard and the terminal.

A row of a training step has `loss` (of that step alone, in nats per real target token), `accuracy`, `z_loss`,
`learning_rate` (as applied), `grad_norm` (before clipping) and `param_norm`. It also has rates over the steps since the
last row: `tokens_per_second`, `seconds_per_step`, `data_wait_fraction`, and if known `mfu` and `peak_memory_bytes`.
"""

from t5x_like.metrics.goodput import Goodput, GoodputMonitor, read_goodput
from t5x_like.metrics.progress import Progress
from t5x_like.metrics.rows import MetricsWriter, Scalars, read_metrics
from t5x_like.metrics.starts import read_starts
from t5x_like.metrics.throughput import PEAK_FLOPS, Throughput, mfu, peak_flops, peak_memory

__all__ = [
    "PEAK_FLOPS",
    "Goodput",
    "GoodputMonitor",
    "MetricsWriter",
    "Progress",
    "Scalars",
    "Throughput",
    "mfu",
    "peak_flops",
    "peak_memory",
    "read_goodput",
    "read_metrics",
    "read_starts",
]
