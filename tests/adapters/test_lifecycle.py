"""Hooks of adapters: which are called, in which order, and what models refuse."""

import dataclasses
import types

import jax.numpy as jnp
import numpy as np
import pytest
from families import CONFIGS

from t5x_like.adapters import lifecycle
from t5x_like.adapters.lifecycle import NO_HOOKS, Hooks, Lifecycle
from t5x_like.adapters.lora import LoRA
from t5x_like.adapters.prefix import Prefix
from t5x_like.adapters.prompt import Prompt
from t5x_like.adapters.pruned import MagnitudePruning, MovementPruning
from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True)
class Adding(Hooks):
    """Observes parameters named `seen`, and adds a digit to all others after an update."""

    digit: int

    def is_observed(self, name):
        return name.endswith("seen")

    def combine_observations(self, one, other):
        return jnp.maximum(one, other)

    def update_observed(self, old, observation):
        return old + observation

    def after_update(self, trainable, frozen, step):
        return {name: 10 * leaf + self.digit for name, leaf in trainable.items()}

    def metrics(self, trainable, frozen):
        return {f"digit/{self.digit}": (jnp.ones(()), jnp.ones(()))}


def hooked(*digits):
    return types.SimpleNamespace(adapters=[types.SimpleNamespace(hooks=Adding(digit)) for digit in digits])


def test_equal_hooks_of_several_networks_are_called_once_in_order():
    found = Lifecycle.of([hooked(1, 2), types.SimpleNamespace(adapters=(LoRA(),)), hooked(2, 3)])
    assert found.hooks == (Adding(1), Adding(2), Adding(3))
    assert found.after_update({"w": 0}, {}, 1) == {"w": 123}
    assert set(found.metrics({}, {})) == {"digit/1", "digit/2", "digit/3"}


def test_observations_are_split_off_combined_and_applied():
    found, tree = Lifecycle.of([hooked(1)]), {"seen": jnp.array([1.0, 5.0]), "w": jnp.array([1.0, 5.0])}
    trained, observed = found.split(tree)
    assert trained["seen"] is None and observed["w"] is None
    total = found.accumulate(tree, {name: jnp.array([3.0, 2.0]) for name in tree})
    np.testing.assert_array_equal(total["seen"], [3, 5])
    np.testing.assert_array_equal(total["w"], [4, 7])
    np.testing.assert_array_equal(found.update_observed(observed, {"seen": jnp.ones(2), "w": None})["seen"], [2, 6])


def test_without_adapters_nothing_is_observed_or_changed():
    tree = {"seen": jnp.ones(2), "w": jnp.ones(2)}
    trained, observed = NO_HOOKS.split(tree)
    assert trained == tree and set(observed.values()) == {None}
    assert NO_HOOKS.after_update(tree, {}, 1) is tree and NO_HOOKS.metrics(tree, {}) == {}


def test_kinds_in_float32_are_those_that_adapters_compare():
    found = {
        kind: lifecycle.kept_in_float32(types.SimpleNamespace(adapters=(kind(total_steps=10),)))
        for kind in (MagnitudePruning, MovementPruning)
    }
    assert found == {MagnitudePruning: {"kernel", "threshold"}, MovementPruning: {"score", "threshold"}}
    assert lifecycle.kept_in_float32(types.SimpleNamespace(adapters=(LoRA(),))) == set()


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, config in CONFIGS.items() for kind in config.lacks])
def test_families_without_what_an_adapter_needs_refuse_it(name, kind):
    config = CONFIGS[name]
    (adapter,) = (each for each in (Prompt(length=2), Prefix(length=2)) if each.needs == kind)
    with pytest.raises(UserError, match=rf"{type(config).__name__}.adapters=.*: {config.lacks[kind]}. Choose"):
        dataclasses.replace(config, adapters=(adapter,))
