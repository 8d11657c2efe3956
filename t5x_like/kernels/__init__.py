"""Attention, masks, dropout and cross-entropy: the implementations, and the one place that picks among them."""
