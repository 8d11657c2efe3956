"""Maximal update parametrization: parameter groups with which learning rates suit models of any width."""

from t5x_like.errors import UserError
from t5x_like.optimizers.groups import ParameterGroup

# Kernels of logits, whose number of outputs does not grow with the width, and kernels both of whose sides do.
LOGITS, HIDDEN = r"(^|/)logits/kernel$", r"/kernel$"


def mup_groups(*, width: int, base_width: int, constant_range: bool = True) -> list[ParameterGroup]:
    """Returns the groups of muP for Adam (Yang et al. 2021, arXiv:2203.03466, table 3).

    With m = width / base_width, hidden matrices and logits have 1 / m of the learning rate; hidden matrices an initial
    variance of 1 / fan-in, and logits of 1 / fan-in². Embeddings, biases and norms keep theirs. Models of the base
    width are not changed, and a learning rate that is best for them is nearly so for wider ones.

    The width is that of everything but the heads: `embed_dim`, `mlp_dim` and `num_heads` grow by m, while `head_dim`
    stays, so that scores need no other scale. The logits need a kernel of their own (`tied_embeddings=False`).

    Args:
      width: `embed_dim` of the model.
      base_width: `embed_dim` of the model for which the learning rate was chosen.
      constant_range: Whether the family draws its kernels with one standard deviation at all widths, as all families
        but T5's do, instead of 1 / √fan-in.

    Returns:
      The groups, for an optimizer of the family of Adam.

    Raises:
      UserError: A width is not positive.
    """
    for name, value in (("WIDTH", width), ("BASE_WIDTH", base_width)):
        if not value > 0:
            raise UserError(f"{name}={value} is not a width. Give the embed_dim of a model.")
    factor = base_width / width
    hidden = factor**0.5 if constant_range else 1.0
    return [
        ParameterGroup(LOGITS, learning_rate_factor=factor, initial_factor=hidden * factor**0.5),
        ParameterGroup(HIDDEN, learning_rate_factor=factor, initial_factor=hidden),
    ]
