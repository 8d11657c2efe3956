"""Sampled softmax: the cross-entropy of a target against a sample of a large vocabulary (Jean et al. 2015).

The samples are those of TensorFlow's candidate samplers: ids are drawn one after another with given probabilities, and
repetitions are left out, until there are n of them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from t5x_like.kernels.contraction import einsum_in_float32

# A logit that the softmax ignores.
_EXCLUDED = -1e30


class Samples(NamedTuple):
    """Different ids that were drawn for all positions.

    Attributes:
      ids: The ids, `[samples]`.
      draws: Expected number of draws until there were so many different ids.
      log_probability: Logarithm of the probability of each id in a draw.
    """

    ids: Int[Array, " samples"]
    draws: Float[Array, ""]
    log_probability: Float[Array, " vocab"]

    def log_expected_count(self, ids: Int[Array, "..."]) -> Float[Array, "..."]:
        """Returns log(1 - (1 - p)^draws), the logarithm of the probability that an id is in such a sample."""
        probability = jnp.exp(self.log_probability[ids])
        return jnp.log(-jnp.expm1(self.draws * jnp.log1p(-probability)))


def log_uniform(key: Key[Array, ""], number: int, vocab_size: int) -> Samples:
    """Draws different ids as TensorFlow's `log_uniform_candidate_sampler`.

    The probabilities p(k) = log((k + 2) / (k + 1)) / log(V + 1) are close to Zipf's law for V ids in the order of
    frequency.

    Args:
      key: Random key.
      number: Number of ids, less than `vocab_size`.
      vocab_size: Number of ids to draw from.
    """
    ranks = jnp.arange(vocab_size, dtype=jnp.float32)
    return draw(key, number, jnp.log(jnp.log1p(1 / (ranks + 1)) / jnp.log(vocab_size + 1.0)))


def draw(key: Key[Array, ""], number: int, log_probability: Float[Array, " vocab"]) -> Samples:
    """Draws different ids, with the distribution of successive draws.

    Let each id k be drawn at the times of a Poisson process of rate p(k). The first times of all ids are independent
    and exponential, so the sample is the `number` ids with the smallest ones, without a loop of unknown length. Until
    the last of these times T, the ids were drawn again Σ p(k) (T - T(k)) times on average. TensorFlow counts the actual
    draws, whose standard deviation around this expectation is less than their square root.

    Args:
      key: Random key.
      number: Number of ids, less than there are.
      log_probability: Logarithm of the probability of each id.
    """
    order, ids = jax.lax.top_k(jax.random.gumbel(key, log_probability.shape) + log_probability, number)
    times = jnp.exp(-order)  # exponential with rate p
    again = jnp.sum(jnp.exp(log_probability[ids]) * (times[-1] - times))
    return Samples(ids, number + again, log_probability)


def cross_entropy(
    hidden: Float[Array, "batch length embed"],
    kernel: Float[Array, "vocab embed"],
    bias: Float[Array, " vocab"],
    targets: Int[Array, "batch length"],
    samples: Samples,
) -> Float[Array, "batch length"]:
    """Returns the cross-entropy of each target among itself and the samples, in nats.

    The logit of each class is lower by the logarithm of its expected count, and a sample that is the target is left
    out, as in TensorFlow's `sampled_softmax_loss`. Products are in the dtype of `hidden`, sums in float32.

    Args:
      hidden: Hidden states.
      kernel: The vector of each class.
      bias: The bias of each class.
      targets: The target classes.
      samples: The other classes, the same ones for all positions.
    """
    dtype = hidden.dtype

    def corrected(ids):
        return jnp.take(bias, ids) - samples.log_expected_count(ids)

    vectors, others = (jnp.take(kernel, ids, axis=0).astype(dtype) for ids in (targets, samples.ids))
    target = einsum_in_float32("bld,bld->bl", hidden, vectors) + corrected(targets)
    logits = einsum_in_float32("bld,nd->bln", hidden, others) + corrected(samples.ids)
    logits = jnp.where(samples.ids == targets[..., None], _EXCLUDED, logits)
    return jnp.logaddexp(target, jax.nn.logsumexp(logits, axis=-1)) - target
