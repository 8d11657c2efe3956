"""LoRA: names and initial values, the update by hand, frozen bases, scanned and unrolled layers, and imports."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, example_batch, random_model, scanned

from t5x_like import optimizers, parameters
from t5x_like.adapters.lora import LoRA
from t5x_like.errors import UserError
from t5x_like.models import construct
from t5x_like.models.base import for_platform

LORA = LoRA(rank=3, alpha=6.0)
FROZEN = (optimizers.ParameterGroup("^model/(?!.*/adapter/)", freeze=True),)


def adapted(family, scan=False, **changes):
    config = dataclasses.replace(FAMILIES[family].config, adapters=(LORA,), **changes)
    return scanned(config) if scan else config


def randomized(config):
    """Returns a model whose updates are not 0, equal for scanned and unrolled layers."""
    model = construct.make(config, jax.random.key(0))
    stacked = parameters.stack(parameters.named_leaves(model))
    rng = np.random.default_rng(0)
    drawn = {name: jnp.asarray(rng.normal(size=leaf.shape) / 3, jnp.float32) for name, leaf in sorted(stacked.items())}
    return parameters.unstack(drawn, model)


@pytest.mark.parametrize("family", ["t5_1_1", "bert", "llama"])
def test_new_model_equals_its_base_and_keeps_its_names(family):
    config, batch = adapted(family), example_batch(FAMILIES[family])
    model, base = construct.make(config, jax.random.key(1)), FAMILIES[family].config.make(jax.random.key(1))
    leaves, known = parameters.named_leaves(model), parameters.named_leaves(base)
    added = leaves.keys() - known.keys()
    assert added and all(re.search(r"attention/(query|value)/adapter/(down|up)$", name) for name in added)
    for name, leaf in known.items():
        np.testing.assert_array_equal(leaves[name], leaf)
    np.testing.assert_array_equal(model(batch).hidden, base(batch).hidden)
    assert all(not np.any(leaves[name]) for name in added if name.endswith("/up"))


@pytest.mark.parametrize("family", ["t5_1_1", "bert", "llama"])
def test_scanned_and_unrolled_layers_are_equal(family):
    batch = example_batch(FAMILIES[family])
    unrolled, stacked = (construct.make(adapted(family, scan), jax.random.key(1)) for scan in (False, True))
    found = parameters.stack(parameters.named_leaves(unrolled))
    for name, leaf in parameters.named_leaves(stacked).items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)
    one, other = (randomized(adapted(family, scan))(batch).hidden for scan in (False, True))
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["t5_1_1", "bert", "llama"])
def test_update_is_that_of_merged_kernels(family):
    config, batch = adapted(family), example_batch(FAMILIES[family])
    model = randomized(config)
    leaves = dict(parameters.named_leaves(model))
    for name in [name for name in leaves if name.endswith("/adapter/down")]:
        projection = name.removesuffix("/adapter/down")
        down, up = leaves.pop(name), leaves.pop(f"{projection}/adapter/up")
        kernel = leaves[f"{projection}/kernel"]
        delta = 6.0 / 3 * down.reshape(-1, 3) @ up.reshape(3, -1)
        leaves[f"{projection}/kernel"] = kernel + delta.reshape(kernel.shape)
    base = random_model(FAMILIES[family].config)
    merged = parameters.rebuild(base, {name: leaves[name] for name in parameters.named_leaves(base)})
    np.testing.assert_allclose(model(batch).hidden, merged(batch).hidden, rtol=1e-4, atol=1e-5)


def test_only_updates_are_trained_on_a_frozen_base():
    config, batch = adapted("t5_1_1"), example_batch(FAMILIES["t5_1_1"])
    params = {"model": randomized(config), "objective": {}}
    trainable, frozen = optimizers.split(params, FROZEN)
    assert all("/adapter/" in name for name in parameters.named_leaves(trainable))
    assert not any("/adapter/" in name for name in parameters.named_leaves(frozen))

    def total(trainable):
        return jnp.sum(optimizers.merge(trainable, frozen)["model"](batch).hidden ** 2)

    gradient = parameters.named_leaves(jax.jit(jax.grad(total))(trainable))
    assert gradient and all(np.any(leaf) for leaf in gradient.values())


def test_generation_has_the_update():
    config = adapted("llama")
    model, batch = randomized(config), {"decoder_input_tokens": np.array([[3, 4, 5, 6]])}
    whole = model(batch).hidden[:, -1:]
    prompt = {"decoder_input_tokens": [[3, 4, 5]], "decoder_segment_ids": [[1, 1, 1]], "decoder_positions": [[0, 1, 2]]}
    _, cache = model.prefill({name: np.array(x, np.int32) for name, x in prompt.items()}, 4)
    step, _ = model.decode_step(jnp.array([[6]]), cache, jnp.asarray(3))
    np.testing.assert_allclose(step, whole, rtol=1e-4, atol=1e-5)


def test_scale_of_rslora_and_dtype():
    config = for_platform(adapted("bert", dtype="bfloat16"), "cpu")
    config = dataclasses.replace(config, adapters=(LoRA(rank=4, alpha=6.0, rank_stabilized=True, pattern="mlp/wi$"),))
    model = construct.make(config, jax.random.key(0))
    adapter = model.encoder.layers[0].mlp.wi.adapter
    assert adapter.scale == 3.0 and model(example_batch(FAMILIES["bert"])).hidden.dtype == jnp.bfloat16
    assert adapter.delta().shape == model.encoder.layers[0].mlp.wi.kernel.shape


def test_invalid_settings_raise():
    config = dataclasses.replace(FAMILIES["bert"].config, adapters=(LoRA(pattern="atention/query"),))
    with pytest.raises(UserError, match="LoRA.pattern='atention/query' matches no projection of Bert. The projections"):
        construct.make(config, jax.random.key(0))
    with pytest.raises(UserError, match=r"LoRA.pattern='\(' is not a regular expression"):
        construct.make(dataclasses.replace(config, adapters=(LoRA(pattern="("),)), jax.random.key(0))
    for adapters in (LORA, ("LoRA",)):
        with pytest.raises(UserError, match=r"BertConfig.adapters=.*: not a tuple of adapters. Give one, such as"):
            dataclasses.replace(config, adapters=adapters)
    with pytest.raises(UserError, match="rank=0, alpha=16.0: not positive"):
        LoRA(rank=0)
