"""What families share: projections, norms, embeddings, positions, attention, feed-forward blocks, stacks of layers."""
