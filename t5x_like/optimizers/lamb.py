"""LAMB (You et al. 2020, arXiv:1904.00962) as in the code of ALBERT and of GPT-BERT, composed of optax's parts."""

import optax

from t5x_like.optimizers.adamw import scale_by_raw_moments
from t5x_like.optimizers.base import check_rates
from t5x_like.optimizers.from_optax import matrices


def albert_lamb(
    *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-6, weight_decay: float = 0.01
) -> optax.GradientTransformation:
    """Returns the LAMB that ALBERT was trained with, for `from_optax`.

    The moments m and v have no bias correction, u = m / (sqrt(v) + eps). The update of a matrix w is `-(|w| / |d|) d`
    with d = u + weight_decay * w; this trust ratio is 1 if a norm is 0. The update of a vector (norms, biases) is `-u`.

    Args:
      b1: Decay rate of the first moment.
      b2: Decay rate of the second moment.
      eps: Added to the root of the second moment.
      weight_decay: The weight decay, a part of the norm of the update.

    Raises:
      UserError: `weight_decay` is negative, or `b1` or `b2` is not in [0, 1).
    """
    check_rates("albert_lamb", weight_decay=weight_decay, b1=b1, b2=b2)
    return _with_trust_ratio(scale_by_raw_moments(b1, b2, eps), weight_decay)


def gpt_bert_lamb(
    *, b1: float = 0.9, b2: float = 0.98, eps: float = 1e-8, weight_decay: float = 0.1
) -> optax.GradientTransformation:
    """Returns the LAMB of LTG-BERT and GPT-BERT (Charpentier and Samuel 2024), for `from_optax`.

    As `albert_lamb`, with bias-corrected moments.

    Args:
      b1: Decay rate of the first moment.
      b2: Decay rate of the second moment.
      eps: Added to the root of the second moment.
      weight_decay: The weight decay, a part of the norm of the update.

    Raises:
      UserError: `weight_decay` is negative, or `b1` or `b2` is not in [0, 1).
    """
    check_rates("gpt_bert_lamb", weight_decay=weight_decay, b1=b1, b2=b2)
    return _with_trust_ratio(optax.scale_by_adam(b1=b1, b2=b2, eps=eps), weight_decay)


def _with_trust_ratio(moments: optax.GradientTransformation, weight_decay: float) -> optax.GradientTransformation:
    scaled = optax.chain(optax.add_decayed_weights(weight_decay), optax.scale_by_trust_ratio())
    return optax.chain(moments, optax.masked(scaled, matrices), optax.scale(-1.0))
