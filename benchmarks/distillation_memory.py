"""Compares the memory of a cross-entropy and a KL divergence in chunks of positions with whole logits.

python benchmarks/distillation_memory.py

Prints the temporary memory that XLA plans on CPU for the losses and their gradients, and the two values: 8 rows
of 512 tokens, 30,522 token ids, width 768, float32. It takes a minute.
"""

import jax
import jax.numpy as jnp

from t5x_like.kernels import cross_entropy, divergence
from t5x_like.kernels.chunks import Readout, sum_over_positions

ROWS, LENGTH, VOCABULARY, WIDTH = 8, 512, 30_522, 768


def chunked(student, teacher, targets):
    """Sums both losses over the positions in chunks; `student` and `teacher` are (hidden states, table)."""
    ours, theirs = (Readout(hidden, lambda x, table=table: x @ table) for hidden, table in (student, teacher))
    weights = jnp.ones(targets.shape, jnp.float32)
    losses = {
        "task": cross_entropy.position_loss(targets, weights),
        "kl": divergence.from_teacher(divergence.forward_kl, theirs, weights, temperature=1.0),
    }
    sums = sum_over_positions(ours, losses)
    return sums["task"].total + sums["kl"]


def dense(student, teacher, targets):
    """Sums both losses over the positions with whole logits."""
    log_q, log_p = (jax.nn.log_softmax(hidden @ table) for hidden, table in (student, teacher))
    task = -jnp.sum(jnp.take_along_axis(log_q, targets[..., None], axis=-1))
    return task + jnp.sum(jnp.exp(log_p) * (log_p - log_q))


def main() -> None:
    """Prints the memory of both ways, and their values."""
    keys = jax.random.split(jax.random.key(0), 5)
    student, teacher = (
        (jax.random.normal(a, (ROWS, LENGTH, WIDTH)), 0.02 * jax.random.normal(b, (WIDTH, VOCABULARY)))
        for a, b in (keys[:2], keys[2:4])
    )
    targets = jax.random.randint(keys[4], (ROWS, LENGTH), 0, VOCABULARY)
    for name, function in (("chunked", chunked), ("dense", dense)):
        compiled = jax.jit(jax.value_and_grad(function)).lower(student, teacher, targets).compile()
        value, _ = compiled(student, teacher, targets)
        print(f"{name}: {compiled.memory_analysis().temp_size_in_bytes / 2**20:,.0f} MiB, loss {float(value):,.1f}")


if __name__ == "__main__":
    main()
