"""DoRA, (IA)³, bottleneck adapters and prefixes: by hand, in all layouts, merged, trained on a frozen base."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from adapted_models import randomized_by_stored_name as randomized
from families import FAMILIES, assert_trees_close, eight_rows, example_batch, loss, scanned
from lanes import others_are_full
from numerics import assert_close

from t5x_like import optimizers, parameters
from t5x_like.adapters.bottleneck import BottleneckAdapter
from t5x_like.adapters.dora import DoRA
from t5x_like.adapters.ia3 import IA3
from t5x_like.adapters.pfeiffer import PfeifferAdapter
from t5x_like.adapters.prefix import Prefix
from t5x_like.errors import UserError
from t5x_like.models import construct
from t5x_like.partitioning import Partitioner

METHODS = {
    "dora": (DoRA(rank=3, alpha=6.0, pattern="."),),
    "ia3": (IA3(), IA3(pattern="mlp/wo$", of="inputs")),
    "adapters": (BottleneckAdapter(size=5),),
    "pfeiffer": (PfeifferAdapter(size=5, initializer_range=1e-3),),
}
PREFIXES = {"prefix": (Prefix(length=3),), "prefix_mlp": (Prefix(length=3, hidden_size=5),)}
LINEAR = ("dora", "ia3")
FROZEN = (optimizers.ParameterGroup("^model/(?!.*/adapter/)", freeze=True),)


def adapted(family, method, scan=False):
    config = dataclasses.replace(FAMILIES[family].config, adapters=(METHODS | PREFIXES)[method])
    return scanned(config) if scan else config


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", others_are_full(["t5_1_1", "bert", "llama"], ["bert"]))
def test_new_model_nearly_equals_its_base(family, method):
    batch, key = example_batch(FAMILIES[family]), jax.random.key(1)
    model, base = construct.make(adapted(family, method), key), FAMILIES[family].config.make(key)
    found, expected = model(batch).hidden, base(batch).hidden
    assert_close({"hidden": found}, {"hidden": expected}, 2e-6 if method in LINEAR else 2e-4)
    added = parameters.named_leaves(model).keys() - parameters.named_leaves(base).keys()
    assert added and all("/adapter/" in name for name in added)


@pytest.mark.parametrize("method", METHODS | PREFIXES)
@pytest.mark.parametrize("family", others_are_full(["t5_1_1", "gpt2"], ["gpt2"]))
def test_scanned_and_unrolled_layers_are_equal(family, method):
    batch = example_batch(FAMILIES[family])
    unrolled, stacked = (construct.make(adapted(family, method, scan), jax.random.key(1)) for scan in (False, True))
    found = parameters.stack(parameters.named_leaves(unrolled))
    for name, leaf in parameters.named_leaves(stacked).items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)
    one, other = (randomized(adapted(family, method, scan))(batch).hidden for scan in (False, True))
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("method", LINEAR)
@pytest.mark.parametrize("family", ["bert", "gpt3", "llama"])
def test_merged_model_has_the_same_outputs(family, method):
    batch = example_batch(FAMILIES[family])
    for scan in (False, True):
        model = randomized(adapted(family, method, scan))
        found, expected = (each.unembed(each(batch).hidden) for each in (construct.merge(model), model))
        assert_close({"logits": found}, {"logits": expected}, 5e-6)


def test_merging_blocks_that_are_not_linear_raises():
    for method in ("adapters", "pfeiffer"):
        with pytest.raises(UserError, match="its blocks are not linear, so they cannot be merged"):
            construct.merge(randomized(adapted("bert", method)))


@pytest.mark.parametrize("method", others_are_full(METHODS | PREFIXES, ("dora", "adapters", "prefix_mlp")))
def test_gradients_are_equal_on_devices_and_only_added_parameters_train(method):
    model, batch, key = randomized(adapted("bert", method)), eight_rows(FAMILIES["bert"]), jax.random.key(3)
    trainable, frozen = optimizers.split({"model": model, "objective": {}}, FROZEN)
    assert all("/adapter/" in name for name in parameters.named_leaves(trainable))

    def gradient(trainable, frozen):
        return jax.grad(lambda own: loss(optimizers.merge(own, frozen)["model"], batch, key))(trainable)

    expected = jax.jit(gradient)(trainable, frozen)
    assert all(np.abs(leaf).max() > 1e-7 for leaf in parameters.named_leaves(expected).values())
    partitioner = Partitioner(rules="fsdp_tp", ici={"fsdp": 4, "tensor": 2})
    placed = [jax.device_put(each, partitioner.shardings(each)) for each in (trainable, frozen)]
    assert_trees_close(partitioner.jit(gradient, out_shardings=partitioner.shardings(trainable))(*placed), expected)


def test_outputs_by_hand():
    x = np.random.default_rng(2).normal(size=(2, 3, FAMILIES["bert"].config.embed_dim)).astype(np.float32)

    def parts(method):
        layer = randomized(adapted("bert", method)).encoder.layers[0]
        return layer.attention.value, layer.attention.out, layer.mlp.wo

    value, _, wo = parts("ia3")
    plain = np.einsum("ble,ehd->blhd", x, value.kernel[...]) + value.bias[...]
    np.testing.assert_allclose(value(x), plain * value.adapter.scale[...], rtol=1e-5, atol=1e-5)
    wide = np.random.default_rng(3).normal(size=(2, 3, wo.kernel.shape[0])).astype(np.float32)
    rescaled = (wide * wo.adapter.scale[...]) @ wo.kernel[...] + wo.bias[...]
    np.testing.assert_allclose(wo(wide), rescaled, rtol=1e-5, atol=1e-4)

    value, _, _ = parts("dora")
    kernel, adapter = value.kernel[...], value.adapter
    updated = kernel + 6.0 / 3 * np.einsum("er,rhd->ehd", adapter.down[...], adapter.up[...])
    magnitude = np.sqrt((kernel**2).sum(0)) + adapter.magnitude_change[...]
    direction = magnitude * updated / np.sqrt((updated**2).sum(0))
    np.testing.assert_allclose(
        value(x), np.einsum("ble,ehd->blhd", x, direction) + value.bias[...], rtol=1e-4, atol=1e-5
    )

    _, _, wo = parts("adapters")
    y, adapter = wide @ wo.kernel[...] + wo.bias[...], wo.adapter
    low = jax.nn.gelu(y @ adapter.down[...] + adapter.down_bias[...], approximate=True)
    np.testing.assert_allclose(wo(wide), y + low @ adapter.up[...] + adapter.up_bias[...], rtol=1e-4, atol=1e-4)

    for family in ("bert", "t5_1_1"):  # norms after the sums, and before the blocks
        layer = randomized(adapted(family, "pfeiffer")).encoder.layers[0]
        adapter, norm = layer.adapter, layer.mlp_norm
        width = FAMILIES[family].config.embed_dim
        states, update = np.random.default_rng(4).normal(size=(2, 2, 3, width)).astype(np.float32)
        found, _ = layer.residual("mlp", lambda _, update=update: (update, None), states)
        total = states + update
        low = jax.nn.relu((norm(total) if family == "bert" else total) @ adapter.down[...] + adapter.down_bias[...])
        expected = total + low @ adapter.up[...] + adapter.up_bias[...]
        expected = norm(expected) if family == "bert" else expected
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS | PREFIXES)
def test_generation_has_the_added_parameters(method):
    model, batch = randomized(adapted("llama", method)), {"decoder_input_tokens": np.array([[3, 4, 5, 6]])}
    whole = model(batch).hidden[:, -1:]
    prompt = {"decoder_input_tokens": [[3, 4, 5]], "decoder_segment_ids": [[1, 1, 1]], "decoder_positions": [[0, 1, 2]]}
    _, cache = model.prefill({name: np.array(x, np.int32) for name, x in prompt.items()}, 4)
    step, _ = model.decode_step(jnp.array([[6]]), cache, jnp.asarray(3))
    np.testing.assert_allclose(step, whole, rtol=1e-4, atol=1e-5)


def test_invalid_settings_raise():
    with pytest.raises(UserError, match="IA3.of='output': neither"):
        IA3(of="output")
    with pytest.raises(UserError, match="BottleneckAdapter.size=0: not positive"):
        BottleneckAdapter(size=0)
    with pytest.raises(UserError, match="BottleneckAdapter.activation='swish': not one of"):
        BottleneckAdapter(activation="swish")
    with pytest.raises(UserError, match="PfeifferAdapter.pattern='layers.' matches no layer of .*The layers are none"):
        construct.make(adapted("mobilebert", "pfeiffer"), jax.random.key(0))
    config = dataclasses.replace(FAMILIES["bert"].config, adapters=(BottleneckAdapter(pattern="query$"),))
    with pytest.raises(UserError, match="pattern='query.' matches encoder/layers/attention/query, whose output"):
        construct.make(config, jax.random.key(0))
