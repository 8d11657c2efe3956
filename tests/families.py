"""The test cases of all families, and models and batches for them.

Test modules use `from families import FAMILIES`. A new family adds a module to `family_cases/` that defines `FAMILIES`,
name -> `Family`, and `PARAMETERS`, model file -> published number of parameters without heads; and for a family without
attention `SMALL`, name -> small configuration.
"""

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family_case import VOCABULARY, Family
from flax import nnx
from numerics import assert_close

from t5x_like import parameters
from t5x_like.kernels.cross_entropy import cross_entropy
from t5x_like.models.base import Model, ModelConfig

_CASES = [
    importlib.import_module(f"family_cases.{path.stem}")
    for path in sorted((Path(__file__).parent / "family_cases").glob("*.py"))
]
FAMILIES: dict[str, Family] = {name: family for case in _CASES for name, family in case.FAMILIES.items()}
# Small configurations of all families for objectives. Families without attention have no `Family`.
CONFIGS: dict[str, ModelConfig] = {name: family.config for name, family in FAMILIES.items()}
CONFIGS |= {name: config for case in _CASES for name, config in getattr(case, "SMALL", {}).items()}


def first_of_each_class(names: Iterable[str]) -> set[str]:
    """Returns the first of these families of each class of models; the others differ from it in settings."""

    def kind(config):
        return inspect.get_annotations(config.make, eval_str=True)["return"]

    return set({kind(type(CONFIGS[name])): name for name in reversed(list(names))}.values())


def others_are_slow(names: Iterable[str], chosen: Container[str]) -> list[Any]:
    """Returns parameters of a test: names that are not chosen run before a release."""
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.slow) for name in names]


def in_lanes(names: Iterable[str], chosen: Container[str]) -> list[Any]:
    """Returns parameters of a test of families: chosen ones run by default, the first of each other class in CI.

    Families that differ in settings from one that runs do so before a release.
    """
    names = sorted(names, key=lambda name: name not in chosen)
    first = first_of_each_class(names)
    marks = {name: () if name in chosen else pytest.mark.full if name in first else pytest.mark.slow for name in names}
    return [pytest.param(name, marks=mark) for name, mark in marks.items()]


# Parameters of tests that compile.
COMPILED = others_are_slow(FAMILIES, first_of_each_class(FAMILIES))
PARAMETERS: dict[str, int] = {name: count for case in _CASES for name, count in case.PARAMETERS.items()}


def scanned(config: ModelConfig, **changes: Any) -> ModelConfig:
    """Returns the configuration with stacked layers."""
    return dataclasses.replace(config, scan_layers=True, **changes)


def resized(config: ModelConfig, **sizes: Any) -> ModelConfig:
    """Returns the configuration with other values of fields, which may be those of its parts."""
    own = {field.name for field in dataclasses.fields(config)}
    of_parts = {name: value for name, value in sizes.items() if name not in own} if config.parts else {}
    parts = {name: dataclasses.replace(part, **of_parts) for name, part in config.parts.items()}
    rest = {name: value for name, value in sizes.items() if name not in of_parts}
    return dataclasses.replace(config, **parts, **rest)


@functools.cache
def shapes(config: ModelConfig) -> Model:
    """Returns the model of a configuration with shapes as parameters."""
    return jax.eval_shape(config.make, jax.random.key(0))


@functools.cache
def random_model(config: ModelConfig) -> Model:
    """Returns a model with random parameters, which do not depend on the layout.

    They are drawn by NumPy because compiling an initialization takes longer than a test.
    """
    stack = shapes(scanned(config))
    rng = np.random.default_rng(0)
    offsets = {"/".join(map(str, path)): getattr(module, "OFFSET", 0.0) for path, module in nnx.iter_modules(stack)}

    def draw(name, leaf):
        # Factors of norms stay close to 1: others amplify rounding.
        if name.endswith("scale"):
            return 1 - offsets[name.rpartition("/")[0]] + 0.2 * rng.normal(size=leaf.shape)
        return (0.3 if name.endswith("kernel") else 0.6) * rng.normal(size=leaf.shape)

    drawn = {name: draw(name, leaf).astype(np.float32) for name, leaf in parameters.named_leaves(stack).items()}
    return parameters.unstack(drawn, shapes(config))


def tokens(*shape: int, seed: int = 0) -> np.ndarray:
    """Returns random token ids that are neither padding nor EOS in any family."""
    return np.random.default_rng(seed).integers(2, VOCABULARY, shape).astype(np.int32)


def example_batch(family: Family, rows: int = 2, encoder: int = 7, decoder: int = 6) -> dict[str, np.ndarray]:
    """Returns a batch of full rows of the given lengths, one feature per stack."""
    lengths = {"encoder": encoder, "decoder": decoder}
    return {
        f"{stack}_input_tokens": tokens(rows, lengths[stack], seed=seed) for seed, stack in enumerate(family.stacks)
    }


def eight_rows(family: Family) -> dict[str, np.ndarray]:
    """Returns a batch with eight rows and positions, to split over eight devices."""
    return example_batch(family, rows=8, encoder=8, decoder=8)


@jax.jit
def hidden(model, batch):
    """Returns the last hidden states, `[batch length embed]`."""
    return model(batch).hidden


@jax.jit
def logits(model, batch):
    """Returns the logits of all positions, `[batch length vocab]`."""
    return model.unembed(model(batch).hidden)


def loss(model, batch, key=None):
    """Returns the summed cross-entropy, with z-loss, of predicting the input tokens of the last stack."""
    targets = batch.get("decoder_input_tokens", batch.get("encoder_input_tokens"))
    states = model(batch, dropout_key=key).hidden
    return cross_entropy(states, model.unembed, targets, jnp.ones(targets.shape), z_loss=1e-3).total


@functools.cache
def loss_and_gradient(name: str, config: Any) -> tuple[jax.Array, Any]:
    """Returns loss and gradient of `eight_rows` on one device; `config` is the family's or a variant of it."""
    return jax.jit(jax.value_and_grad(loss))(random_model(config), eight_rows(FAMILIES[name]))


def assert_trees_close(actual: Any, expected: Any) -> None:
    """Asserts that two trees of parameters or gradients, in either layout, agree up to rounding.

    Kernel and bias of the keys are compared as one tensor. Softmax does not depend on a key bias, so its gradient is
    the rounding error of a sum of zero, whose terms are as large as in the kernel's gradient.
    """
    stacked = [parameters.stack(parameters.named_leaves(tree)) for tree in (actual, expected)]
    assert_close(*(_join_key_biases(tensors) for tensors in stacked))


def _join_key_biases(tensors: Mapping[str, Any]) -> dict[str, Any]:
    joined = dict(tensors)
    for name in tensors:
        if name.endswith("key/bias"):
            kernel = f"{name.removesuffix('bias')}kernel"
            joined[kernel] = np.append(tensors[kernel], joined.pop(name))
    return joined


def parametrize_families(condition: Callable[[Family], bool]) -> pytest.MarkDecorator:
    """Parametrizes a test that compiles over the families for which a condition holds.

    The first of each class of models, and those whose padding token is not 0, are not slow.
    """
    names = [name for name, family in FAMILIES.items() if condition(family)]
    chosen = first_of_each_class(names) | {name for name in names if FAMILIES[name].padding_id}
    return pytest.mark.parametrize("name", others_are_slow(names, chosen))
