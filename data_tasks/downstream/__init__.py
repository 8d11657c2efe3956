"""Downstream tasks: benchmarks, tasks over own files, and their forms for each kind of model."""
