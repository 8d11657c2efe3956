"""What is measured, and where it goes: a JSONL file, TensorBoard, and the terminal.

A logged step of training has `loss` (that step's own, in nats a real target token), `accuracy`, `z_loss`,
`learning_rate` (the one applied), `grad_norm` (before clipping), `param_norm`, and over the steps since the last row
`tokens_per_second`, `seconds_per_step`, `data_wait_fraction`, and where they are known `mfu` and `peak_memory_bytes`.
"""

from t5x_like.metrics.progress import Progress
from t5x_like.metrics.rows import MetricsWriter, Scalars, read_metrics
from t5x_like.metrics.throughput import PEAK_FLOPS, Throughput, mfu, peak_flops

__all__ = ["PEAK_FLOPS", "MetricsWriter", "Progress", "Scalars", "Throughput", "mfu", "peak_flops", "read_metrics"]
