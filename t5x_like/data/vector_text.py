"""Vectors as text."""

import numpy as np
from jaxtyping import Float32


def format_vector(vector: Float32[np.ndarray, " embed"]) -> str:
    """Returns the numbers of a vector, separated by spaces, each with as few digits as give the same float32."""
    return " ".join(map(str, vector))
