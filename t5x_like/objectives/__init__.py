"""Objectives: the features they read, the heads they own, the loss terms they return."""
