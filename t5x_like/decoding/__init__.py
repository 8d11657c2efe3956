"""Generation: token by token over an explicit key-value cache."""
