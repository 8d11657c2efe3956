"""Attention whose scores stay on the multiprocessor: Pallas kernels for NVIDIA GPUs, which Triton compiles."""
