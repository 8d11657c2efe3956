"""Quantization: integer arithmetic by hand, stored and rounded weights, layouts and devices, and bases of LoRA."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import CONFIGS, FAMILIES, eight_rows, example_batch, loss, scanned, tokens
from flax import nnx
from lanes import others_are_full

from t5x_like import optimizers, parameters
from t5x_like.adapters import ranges
from t5x_like.adapters.base import dense_parameters
from t5x_like.adapters.layer_drop import LayerDrop
from t5x_like.adapters.lora import LoRA
from t5x_like.adapters.pruned import MagnitudePruning
from t5x_like.adapters.quantization import FakeQuantized, Quantized
from t5x_like.decoding.parameters import in_compute_dtype
from t5x_like.errors import UserError
from t5x_like.interop import quantized
from t5x_like.kernels import quantization as numerics
from t5x_like.layers.embeddings import Embedder
from t5x_like.layers.initializers import normal
from t5x_like.layers.projections import Projection
from t5x_like.models import construct
from t5x_like.partitioning import Partitioner

pytest.importorskip("qwix", reason="needs the extra `quantization`")
LORA = LoRA(rank=2, pattern="/layers/")
# All forms of quantization.
FORMS = {
    "int8": Quantized(),
    "int4": Quantized(dtype="int4"),
    "float16": Quantized(dtype="float16"),
    "int8_tensor": Quantized(scales="tensor"),
    "int8_dynamic": Quantized(activations="dynamic"),
    "int8_static": Quantized(activations="static"),
    "trained": FakeQuantized(),
    "trained_int4": FakeQuantized(dtype="int4", activations=None),
}


def projection(settings, x_range=None):
    made = Projection((6,), (2, 4), axes=("embed", "heads", "kv"), key=jax.random.key(0), init=normal(1.0), bias=True)
    made.bias.set_value(jax.random.normal(jax.random.key(1), (2, 4)))
    dense = np.asarray(made.kernel[...]), np.asarray(made.bias[...])
    made.quantization = nnx.data(settings.make(made, name="query"))
    if x_range is not None:
        made.quantization.range.set_value(jnp.array([x_range, 1.0]))
    return made, *dense


def by_hand(kernel, axes, levels):
    """Returns integers and scales, in the order of the published code: scale, round, clamp."""
    scale = np.abs(kernel).max(axis=axes, keepdims=True) / np.float32(levels)
    return np.clip(np.rint(kernel / scale), -levels, levels).astype(np.int32), scale


X = np.random.default_rng(0).normal(size=(2, 3, 6)).astype(np.float32)


@pytest.mark.parametrize("activations", ["dynamic", "static"])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("scales", ["channel", "tensor"])
def test_product_of_integers_by_hand(dtype, activations, scales):
    settings = Quantized(dtype=dtype, activations=activations, scales=scales)
    made, kernel, bias = projection(settings, 1.5 if activations == "static" else None)
    q, scale = by_hand(kernel, (0,) if scales == "channel" else (0, 1, 2), {"int8": 127, "int4": 7}[dtype])
    x_scale = np.float32(1.5) / 127 if activations == "static" else np.abs(X).max(-1, keepdims=True) / np.float32(127)
    x = np.clip(np.rint(X / x_scale), -127, 127).astype(np.int32)
    product = np.einsum("bli,ihk->blhk", x, q)  # exact, in integers
    if activations == "static":
        of_product = x_scale * scale[0]
        expected = (product + np.rint(bias / of_product).astype(np.int32)) * of_product
        assert np.abs(x).max() == 127  # clamped
    else:
        expected = product * x_scale[..., None] * scale[0] + bias
    np.testing.assert_allclose(made(X), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(made(X, copies=2)[:, :, ::2], made(X))
    np.testing.assert_allclose(made.dense_kernel, q * scale, rtol=1e-6)


def test_dynamic_ranges_of_a_position_do_not_depend_on_others():
    made, *_ = projection(Quantized(activations="dynamic"))
    np.testing.assert_array_equal(made(X)[:1, :2], made(X[:1, :2]))


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_table_by_hand(dtype):
    embedder = Embedder(5, 4, key=jax.random.key(0))
    table = np.asarray(embedder.embedding[...])
    q, scale = by_hand(table, (1,), {"int8": 127, "int4": 7}[dtype])
    embedder.quantization = nnx.data(Quantized(dtype=dtype).make(embedder, name="token_embedder"))
    np.testing.assert_allclose(embedder(jnp.array([[4, 0]])), (q * scale)[[[4, 0]]], rtol=1e-6)
    np.testing.assert_allclose(embedder.attend(X[..., :4]), X[..., :4] @ (q * scale).T, rtol=1e-5, atol=1e-6)
    assert np.all(np.isnan(embedder(jnp.array([[5, -1]]))))


def test_pairs_of_four_bits_take_one_byte():
    integers = jnp.arange(-8, 8, dtype=jnp.int8).reshape(4, 4)
    packed = numerics.pack(integers)
    assert packed.shape == (4, 2) and packed.dtype == jnp.uint8
    assert packed[2, 0] == 0 | (1 << 4)  # integers 0 and 1
    np.testing.assert_array_equal(numerics.unpack(packed), integers)


@pytest.mark.parametrize("form", FORMS)
def test_parameters_are_counted_as_before_quantization(form):
    dense = FAMILIES["bert"].config
    settings = dataclasses.replace(FORMS[form], pattern="mlp|_embedder$" if FORMS[form].dtype == "int4" else "")
    quantized_model = scanned(dense, adapters=(settings,))
    key = jax.random.key(0)
    found, expected = (
        jax.eval_shape(functools.partial(construct.make, each), key) for each in (quantized_model, dense)
    )
    assert parameters.count(found) == parameters.count(expected)


@pytest.mark.parametrize("form", others_are_full(FORMS, [*FORMS][::3]))
@pytest.mark.parametrize("family", ["bert"])
def test_merged_model_has_the_rounded_weights(family, form):
    """Where activations are floats, the outputs are equal; LoRA on top changes nothing about it."""
    settings = dataclasses.replace(FORMS[form], pattern="mlp|_embedder$" if FORMS[form].dtype == "int4" else "")
    config = dataclasses.replace(FAMILIES[family].config, adapters=(LORA, settings))
    model, batch = construct.make(config, jax.random.key(0)), example_batch(FAMILIES[family])
    merged = construct.merge(model)
    names = parameters.named_leaves(construct.without_adapters(config).make(jax.random.key(0)))
    assert parameters.named_leaves(merged).keys() == names.keys()
    tolerance = 0.05 if settings.activations in ("dynamic",) else 1e-5
    if form != "int8_static":  # its ranges are not known yet
        np.testing.assert_allclose(model(batch).hidden, merged(batch).hidden, atol=tolerance, rtol=tolerance)


@pytest.mark.full
def test_every_family_can_be_quantized():
    """Modules have no kernels and tables any more, so that a family that reads them without `product` fails."""
    for name, family in CONFIGS.items():
        config = scanned(family, adapters=(FORMS["int8_static"],))
        batch = {f"{stack}_input_tokens": tokens(2, 5) for stack in config.stacks}

        def hidden(key, config=config, batch=batch):
            return construct.make(config, key)(batch).hidden

        assert jax.eval_shape(hidden, jax.random.key(0)), name


@pytest.mark.full
@pytest.mark.parametrize("form", ["int8_dynamic", "trained"])
def test_layouts_and_devices_are_equal(form):
    config = dataclasses.replace(FAMILIES["bert"].config, adapters=(FORMS[form],))
    batch = eight_rows(FAMILIES["bert"])
    unrolled, stacked = (construct.make(each, jax.random.key(0)) for each in (config, scanned(config)))
    found = parameters.stack(parameters.named_leaves(unrolled))
    for name, leaf in parameters.named_leaves(stacked).items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)
    expected = jax.jit(lambda model: model(batch).hidden)(unrolled)
    np.testing.assert_allclose(jax.jit(lambda model: model(batch).hidden)(stacked), expected, rtol=1e-4, atol=1e-5)
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"fsdp": 2, "sequence": 2, "tensor": 2})
    shardings = partitioner.shardings(stacked)
    values = parameters.named_leaves(shardings)
    if form == "int8_dynamic":
        of_query = values["encoder/layers/attention/query/quantization/values"].spec
        of_scale = values["encoder/layers/attention/query/quantization/scale"].spec
        assert tuple(of_scale)[1] is None and tuple(of_scale)[2:] == tuple(of_query)[2:]
    placed = jax.device_put(stacked, shardings)
    on_devices = partitioner.jit(lambda model: model(batch).hidden)(placed)
    np.testing.assert_allclose(on_devices, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_gradients_of_lora_equal_those_over_the_dequantized_base():
    family = FAMILIES["t5_1_1"]
    config = dataclasses.replace(family.config, adapters=(Quantized(), LORA))
    model, batch = construct.make(config, jax.random.key(0)), example_batch(family)
    rng = np.random.default_rng(0)
    model = parameters.map_named(
        lambda name, leaf: jnp.asarray(rng.normal(size=leaf.shape) / 10, leaf.dtype) if "/adapter/" in name else leaf,
        model,
    )
    dense = dataclasses.replace(config, adapters=(LORA,))
    leaves = parameters.named_leaves(model) | dense_parameters(model)
    over_dense = construct.make(dense, jax.random.key(0))
    over_dense = parameters.rebuild(over_dense, {n: leaves[n] for n in parameters.named_leaves(over_dense)})
    groups = (optimizers.ParameterGroup("^model/(?!.*/adapter/)", freeze=True),)

    def gradient(model):
        trainable, frozen = optimizers.split({"model": model}, groups)

        def total(trainable):
            return loss(optimizers.merge(trainable, frozen)["model"], batch)

        return parameters.named_leaves(jax.jit(jax.grad(total))(trainable))

    found, expected = gradient(model), gradient(over_dense)
    assert found.keys() == expected.keys() and all(np.any(leaf) for leaf in found.values())
    for name, leaf in found.items():
        np.testing.assert_allclose(leaf, expected[name], rtol=1e-4, atol=1e-4 * np.abs(expected[name]).max())


@pytest.mark.full
def test_decoding_rounds_weights_of_float32():
    config = dataclasses.replace(FAMILIES["llama"].config, adapters=(FakeQuantized(),), dtype="bfloat16")
    batch = example_batch(FAMILIES["llama"])
    model = construct.make(config, jax.random.key(0))
    np.testing.assert_array_equal(in_compute_dtype(model, ("kernel",))(batch).hidden, model(batch).hidden)


def test_integers_must_be_frozen():
    config = dataclasses.replace(FAMILIES["bert"].config, adapters=(Quantized(),))
    with pytest.raises(UserError, match="quantization/values is int8: stored integers cannot be trained. Freeze them"):
        optimizers.split({"model": construct.make(config, jax.random.key(0))}, ())


@pytest.mark.parametrize(
    "others", [(), (MagnitudePruning(pattern="mlp", total_steps=10), LayerDrop())], ids=["alone", "pruned"]
)
def test_trained_model_becomes_integers_with_the_same_output(others):
    family = FAMILIES["bert"]
    config = dataclasses.replace(family.config, adapters=(*others, FakeQuantized()))
    model, batch = construct.make(scanned(config), jax.random.key(0)), example_batch(family)
    seen = jnp.array([4.0, 1.0])
    model = parameters.map_named(
        lambda name, leaf: jnp.broadcast_to(seen, leaf.shape) if ranges.is_range(name) else leaf, model
    )
    # Half of the elements of a kernel of uniform numbers are pruned.
    model = parameters.map_named(lambda name, leaf: leaf + 0.02 if name.endswith("/threshold") else leaf, model)
    leaves = {f"model/{name}": leaf for name, leaf in parameters.named_leaves(model).items()}
    stored, integers = quantized.quantize(scanned(config), leaves, "int8")
    assert stored.adapters == (Quantized(activations="static"),)
    made = parameters.rebuild(
        construct.make(stored, jax.random.key(0)), {n.removeprefix("model/"): leaf for n, leaf in integers.items()}
    )
    kernels = [leaf for name, leaf in integers.items() if name.endswith("/values")]
    assert all(leaf.dtype == np.int8 for leaf in kernels) and not any(n.endswith("/kernel") for n in integers)
    expected = jax.jit(lambda model: model(batch).hidden)(model)
    np.testing.assert_allclose(jax.jit(lambda m: m(batch).hidden)(made), expected, rtol=1e-4, atol=1e-4)

    unseen = {name: 0 * leaf if ranges.is_range(name) else leaf for name, leaf in leaves.items()}
    with pytest.raises(UserError, match=r"ranges of activations have seen no batch, such as .*compression/calibrate"):
        quantized.quantize(scanned(config), unseen, "int8")
    with pytest.raises(UserError, match="QUANTIZATION='int4': the model was trained for int8"):
        quantized.quantize(scanned(config), leaves, "int4")
    with pytest.raises(UserError, match="quantized already"):
        quantized.quantize(stored, integers, "int8")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"dtype": "int3"}, "Quantized.dtype='int3' is unknown. Give one of 'int8', 'int4', 'bfloat16', 'float16'"),
        ({"scales": "row"}, "Quantized.scales='row' is unknown"),
        ({"dtype": "float16", "activations": "dynamic"}, "weights in float16 are not integers"),
        ({"pattern": "("}, "Quantized.pattern='\\(' is not a regular expression"),
    ],
)
def test_invalid_settings_raise(settings, message):
    with pytest.raises(UserError, match=message):
        Quantized(**settings)


def test_pattern_without_a_module_raises():
    config = dataclasses.replace(FAMILIES["bert"].config, adapters=(Quantized(pattern="^nothing$"),))
    with pytest.raises(UserError, match=re.escape("Quantized.pattern='^nothing$' matches no other projection")):
        construct.make(config, jax.random.key(0))


def test_missing_library_raises(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "qwix", None)
    with pytest.raises(UserError, match=r"quantization needs qwix, which is not installed. Run `pip install -e"):
        Quantized()
