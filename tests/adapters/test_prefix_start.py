"""The initial values of a prefix in a new run: keys and values of the words of a text, sharded as the parameters."""

import dataclasses
import re
import types

import copying_run
import jax
import numpy as np
import pytest
from families import FAMILIES

from t5x_like import optimizers, parameters
from t5x_like.adapters import prefix_activations
from t5x_like.adapters.lifecycle import Lifecycle
from t5x_like.adapters.prefix import Prefix
from t5x_like.errors import UserError
from t5x_like.models import construct
from t5x_like.partitioning import Partitioner
from t5x_like.training.program import make_program

IDS = {"two words": [5, 6], "": []}
DATA = types.SimpleNamespace(vocabularies=lambda: {"targets": types.SimpleNamespace(encode=IDS.get)})
FROZEN = (optimizers.ParameterGroup("^model/(?!.*/adapter/)", freeze=True),)


def fill(prefix):
    """Returns the model, its trained parameters, and those after the start; None if nothing changes them."""
    config = dataclasses.replace(FAMILIES["gpt2"].config, adapters=(prefix,))
    model = construct.make(config, jax.random.key(0))
    params, frozen = optimizers.split({"model": model, "objective": {}}, FROZEN)
    partitioner = Partitioner(rules="fsdp_tp", ici={"fsdp": 4, "tensor": 2})
    params, frozen = (jax.device_put(each, partitioner.shardings(each)) for each in (params, frozen))
    starts = Lifecycle.of([config]).starts(config, DATA)
    for start in starts:
        filled = partitioner.jit(start, out_shardings=partitioner.shardings(params))(params, frozen)
    return model, params, filled if starts else None


@pytest.mark.parametrize("settings", [{"text": "two words"}, {"token_ids": (5, 6)}], ids=["text", "ids"])
def test_new_run_starts_from_the_keys_and_values_of_words(settings):
    model, before, after = fill(Prefix(length=3, hidden_size=4, **settings))
    expected = parameters.named_leaves(prefix_activations.fill(model, np.array([5, 6, 5])))
    found, old = parameters.named_leaves(after), parameters.named_leaves(before)
    assert found.keys() == old.keys() and all("/adapter/" in name for name in found)
    for name, leaf in found.items():
        np.testing.assert_allclose(leaf, expected[name.removeprefix("model/")], rtol=1e-4, atol=1e-5, err_msg=name)
        assert leaf.sharding == old[name].sharding
    assert any(np.any(leaf != old[name]) for name, leaf in found.items())


@pytest.mark.full
def test_program_starts_parameters_and_averages_together(tmp_path):
    prefix = Prefix(length=3, token_ids=(5, 6))
    recipe = copying_run.recipe(
        tmp_path, model=dataclasses.replace(copying_run.CONFIG, adapters=(prefix,)), ema_decay=0.9
    )
    program = make_program(recipe)
    state, frozen = program.init(jax.random.key(0))
    before = jax.tree.map(np.asarray, parameters.named_leaves(state.params))
    after = program.start_adapters(state, frozen, DATA)
    found = parameters.named_leaves(after.params)
    changed = {name for name, leaf in found.items() if np.any(leaf != before[name])}
    assert changed == {name for name in found if re.search("attention/adapter/(key|value)$", name)} != set()
    for name, leaf in parameters.named_leaves(after.average).items():
        np.testing.assert_array_equal(leaf, found[name], err_msg=name)


def test_prefix_of_another_network_does_not_change_the_model():
    config, other = (
        dataclasses.replace(FAMILIES["gpt2"].config, adapters=(Prefix(length=3, token_ids=ids),))
        for ids in ((5, 6), (7,))
    )
    assert len(Lifecycle.of([config, other]).hooks) == 2
    assert len(Lifecycle.of([config, other]).starts(config, DATA)) == 1
    assert Lifecycle.of([config]).starts(FAMILIES["gpt2"].config, DATA) == []


@pytest.mark.full
def test_random_prefix_stays_and_a_text_without_tokens_raises():
    assert fill(Prefix(length=3))[-1] is None
    with pytest.raises(UserError, match="Prefix.text='': has no tokens"):
        fill(Prefix(length=3, text=""))
