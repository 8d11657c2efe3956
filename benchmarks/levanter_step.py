r"""The training step of Levanter that `peers.py` compares, in an environment of its own.

Levanter 1.1, the newest release, needs a JAX of its time, so `peers.py --levanter` gets the Python of an environment:

    python3.11 -m venv levanter
    levanter/bin/pip install jax==0.4.20 jaxlib==0.4.20 equinox==0.11.3 optax==0.2.2 haliax==1.3 jmp==0.0.4 \
      jaxtyping==0.2.28 tensorstore==0.1.56 draccus==0.7.2 'numpy<2' 'scipy<1.13' 'pyarrow<16' 'datasets<3' \
      transformers==4.40.2 'pydantic<2' 'tblib<2' braceexpand dataclasses-json fsspec gcsfs humanfriendly matplotlib \
      pytimeparse 'ray[default]' rich safetensors wandb zstandard
    levanter/bin/pip install --no-deps levanter==1.1

This module runs there, without t5x_like.
"""

import subprocess
import time

from peer_models import Sizes
from peer_steps import LEARNING_RATE, WEIGHT_DECAY, Step

LEVANTER = "Levanter"
FAMILIES = ("gpt",)  # those whose configuration equals ours; it has no T5 and no BERT


def versions(python: str) -> str:
    """Returns the versions of Levanter and its JAX in the environment of `python`.

    Raises:
      SystemExit: There is no such Python, or Levanter is not installed there.
    """
    names = 'from importlib.metadata import version as v; print(f\'levanter {v("levanter")} with jax {v("jax")}\')'
    try:
        return subprocess.run([python, "-c", names], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"--levanter={python}: {error}. Give the Python of an environment with Levanter.") from error


def make_levanter(sizes: Sizes) -> Step:
    """Returns Levanter's step of a decoder like GPT-2 on the CPU, without gradient checkpointing."""
    import equinox
    import haliax
    import jax
    import jax.numpy as jnp
    import optax
    from levanter.models.attention import AttentionMask
    from levanter.models.gpt2 import Gpt2Config, Gpt2LMHeadModel
    from levanter.models.lm_model import LmExample

    config = Gpt2Config(
        seq_len=sizes.inputs, hidden_dim=sizes.width, num_layers=sizes.layers, num_heads=sizes.heads,
        mlp_scale=sizes.mlp // sizes.width, gradient_checkpointing=False,
    )  # fmt: skip
    vocabulary, rows = haliax.Axis("vocab", sizes.vocabulary), haliax.Axis("batch", sizes.rows)
    optimizer = optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    tokens = haliax.random.randint(jax.random.PRNGKey(1), (rows, config.Pos), 2, sizes.vocabulary)
    last = haliax.arange(config.Pos) == sizes.inputs - 1
    example = LmExample(tokens, 1 - last.astype(jnp.float32), AttentionMask.causal())

    @equinox.filter_jit(donate="all-except-first")
    def step(example, model, optimizer_state):
        loss, gradients = equinox.filter_value_and_grad(lambda model: model.compute_loss(example).scalar())(model)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
        return loss, equinox.apply_updates(model, updates), optimizer_state

    model = Gpt2LMHeadModel.init(vocabulary, config, key=jax.random.PRNGKey(0))
    state = [model, optimizer.init(equinox.filter(model, equinox.is_array))]

    def seconds():
        started = time.perf_counter()
        loss, *state[:] = step(example, *state)
        jax.block_until_ready((loss, state))
        return time.perf_counter() - started

    def multiply(left, right):
        left, right, product = jnp.asarray(left), jnp.asarray(right), jax.jit(jnp.matmul)
        return lambda: jax.block_until_ready(product(left, right))

    return Step(seconds, multiply, {})
