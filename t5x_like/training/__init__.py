"""Training: the loop, its program and update, checkpoints, and the run directory."""
