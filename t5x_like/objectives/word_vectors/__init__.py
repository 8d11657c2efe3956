"""Objectives that train vectors of words, and classifiers of their means."""
