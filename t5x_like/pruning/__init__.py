"""Structured pruning: the importance of heads and feed-forward units, and models without some of them."""
