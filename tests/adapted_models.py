"""Small models with random parameters and adapters, by stored name, for tests of the files of other libraries."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from families import FAMILIES

from t5x_like import parameters
from t5x_like.models import construct


def base_of(family):
    """Returns the configuration of a family with sizes that transformers supports."""
    return dataclasses.replace(FAMILIES[family].config, **FAMILIES[family].huggingface_sizes)


def randomized(config, std=1 / 3):
    """Returns a model with random parameters."""
    model = construct.make(config, jax.random.key(0))
    rng = np.random.default_rng(0)

    def draw(name, leaf):
        return jnp.asarray(std * rng.normal(size=leaf.shape) + (1 if name.endswith("/scale") else 0), jnp.float32)

    return parameters.map_named(draw, model)


def randomized_by_stored_name(config):
    """Returns a model with random parameters that are equal for scanned and unrolled layers."""
    model = construct.make(config, jax.random.key(0))
    rng, leaves = np.random.default_rng(0), parameters.stack(parameters.named_leaves(model))
    drawn = {name: jnp.asarray(rng.normal(size=leaf.shape) / 3, jnp.float32) for name, leaf in sorted(leaves.items())}
    return parameters.unstack(drawn, model)


def stacked(model):
    """Returns stored name, `model/…` -> array, with stacked layers."""
    return parameters.stack({f"model/{name}": leaf for name, leaf in parameters.named_leaves(model).items()})


def bare(leaves):
    """Returns the parameters of the base model."""
    return {name: leaf for name, leaf in leaves.items() if "/adapter/" not in name}
