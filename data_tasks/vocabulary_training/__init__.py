"""Trains vocabularies from text."""
