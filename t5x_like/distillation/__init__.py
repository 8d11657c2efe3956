"""Distillation: a student learns from the outputs of teachers."""
