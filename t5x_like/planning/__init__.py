"""Predicts memory and speed of a train step on TPU slices from its compiled program, on a host without TPUs."""
