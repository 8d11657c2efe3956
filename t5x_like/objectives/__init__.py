"""Training objectives. Each declares the features it reads, the heads it owns and the loss terms it returns."""
