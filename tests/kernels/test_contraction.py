"""Products with kernels: values and gradients on CPU, and a plain `dot_general` on other platforms."""

import re

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import partitioning
from t5x_like.kernels import gathered_attention, sampled_softmax
from t5x_like.kernels.contraction import contract, project
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.relative_scores import DistanceScores
from t5x_like.kernels.scoring import Scoring
from t5x_like.layers import initializers
from t5x_like.layers.projections import Projection

SHAPES = pytest.mark.parametrize(
    ("x_shape", "kernel_shape", "num_inputs"),
    [((2, 3, 4), (4, 5), 1), ((2, 3, 4), (4, 5, 6), 1), ((2, 3, 5, 6), (5, 6, 4), 2)],
)


def make_inputs(x_shape, kernel_shape):
    rng = np.random.default_rng(0)
    return rng.normal(size=x_shape).astype(np.float32), rng.normal(size=kernel_shape).astype(np.float32)


def value_and_gradients(product, x, kernel):
    return jax.value_and_grad(lambda x, kernel: jnp.sum(jnp.sin(product(x, kernel))), argnums=(0, 1))(x, kernel)


def primitives(jaxpr):
    """Returns the names of the primitives of a jaxpr and of its inner jaxprs, except those inside a custom VJP."""
    names = []
    for equation in jaxpr.eqns:
        names.append(equation.primitive.name)
        if not equation.primitive.name.startswith("custom_vjp"):
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                names += primitives(inner)
    return names


@SHAPES
@pytest.mark.parametrize("platform", ["cpu", "tpu", None])
def test_equals_tensordot(x_shape, kernel_shape, num_inputs, platform):
    x, kernel = make_inputs(x_shape, kernel_shape)
    found = value_and_gradients(lambda x, kernel: contract(x, kernel, num_inputs, platform=platform), x, kernel)
    expected = value_and_gradients(lambda x, kernel: jnp.tensordot(x, kernel, axes=num_inputs), x, kernel)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@SHAPES
def test_cpu_result_is_bit_equal_to_products_of_matrices(x_shape, kernel_shape, num_inputs):
    inputs = int(np.prod(kernel_shape[:num_inputs]))

    @jax.jit
    def found(x, kernel):
        y, pullback = jax.vjp(lambda x, kernel: contract(x, kernel, num_inputs, platform="cpu"), x, kernel)
        return y, *pullback(y)

    @jax.jit
    def expected(x, kernel):
        flat_x, flat_kernel = x.reshape(-1, inputs), kernel.reshape(inputs, -1)
        y = flat_x @ flat_kernel
        dx = jax.lax.dot_general(y, flat_kernel, (((1,), (1,)), ((), ())))
        return y, dx, jax.lax.dot_general(flat_x, y, (((0,), (0,)), ((), ())))

    arrays = make_inputs(x_shape, kernel_shape)
    for ours, theirs in zip(found(*arrays), expected(*arrays), strict=True):
        np.testing.assert_array_equal(ours.ravel(), theirs.ravel())


@SHAPES
def test_no_operand_is_transposed_in_memory_on_cpu(x_shape, kernel_shape, num_inputs):
    """XLA transposes the operands of a product over several dimensions, which are activations."""

    def gradients(x, kernel):
        return value_and_gradients(lambda x, kernel: contract(x, kernel, num_inputs, platform="cpu"), x, kernel)

    program = jax.jit(gradients).lower(*make_inputs(x_shape, kernel_shape)).compile().as_text()
    assert " dot(" in program and " transpose(" not in program


def partitioners():
    yield "one TPU", partitioning.Partitioner(devices=jax.devices()[:1])
    yield "fsdp", partitioning.Partitioner(ici={"fsdp": -1})
    yield "tensor", partitioning.Partitioner(ici={"fsdp": 4, "tensor": 2}, rules="fsdp_tp")
    yield "positions", partitioning.Partitioner(ici={"sequence": 2, "data": 4}, rules="fsdp_tp_sp")


@pytest.mark.parametrize(
    ("axes", "x_shape", "kernel_shape"),
    [(("embed", "heads", "kv"), (8, 4, 16), (16, 2, 3)), (("heads", "kv", "embed"), (8, 4, 2, 3), (2, 3, 16))],
)
@pytest.mark.parametrize(
    ("name", "partitioner", "biased"),
    [*((*each, True) for each in partitioners()), (*next(partitioners()), False)],
    ids=lambda value: value if type(value) in (str, bool) else "",
)
def test_projections_of_heads_equal_tensordot(name, partitioner, axes, x_shape, kernel_shape, biased, monkeypatch):
    num_inputs = len(x_shape) - 2
    x, kernel = make_inputs(x_shape, kernel_shape)
    bias = np.linspace(-1.0, 1.0, np.prod(kernel_shape[num_inputs:]), dtype=np.float32)
    bias = bias.reshape(kernel_shape[num_inputs:]) if biased else None

    def evaluate(function):
        return jax.value_and_grad(lambda *args: jnp.sum(jnp.sin(function(*args))), argnums=(0, 1, 2))

    expected = evaluate(lambda x, k, b: jnp.tensordot(x, k, num_inputs) + (0 if b is None else b))(x, kernel, bias)
    if name == "one TPU":
        monkeypatch.setattr(partitioning.Partitioner, "platform", "tpu")
    found = partitioner.jit(evaluate(lambda x, k, b: project(x, k, b, num_inputs, axes)))(x, kernel, bias)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("head_size", "rank"), [(64, 2), (128, 3)])
def test_gradients_of_one_tpu_are_matrices_unless_heads_fill_lanes(head_size, rank, monkeypatch):
    monkeypatch.setattr(partitioning.Partitioner, "platform", "tpu")
    x, kernel = make_inputs((8, 4, 16), (16, 2, head_size))

    def loss(x, kernel):
        return jnp.sum(jnp.sin(project(x, kernel, None, 1, ("embed", "heads", "kv"))))

    with partitioning.Partitioner(devices=jax.devices()[:1]).bound():
        jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=1))(x, kernel).jaxpr
    products = [each.outvars[0].aval for each in jaxpr.eqns if each.primitive.name == "dot_general"]
    assert [product.ndim for product in products if product.size == kernel.size] == [rank]


def test_gradients_of_head_projections_are_reduced_as_matrices(monkeypatch):
    partitioner = partitioning.Partitioner(ici={"fsdp": -1})
    monkeypatch.setattr(partitioning.Partitioner, "platform", "tpu")
    x, kernel = make_inputs((8, 4, 16), (16, 2, 3))

    def gradient(x, kernel):
        x = partitioning.shard(x, "batch", "length", "embed")
        loss = lambda kernel: jnp.sum(jnp.sin(project(x, kernel, None, 1, ("embed", "heads", "kv"))))  # noqa: E731
        return partitioning.shard(jax.grad(loss)(kernel), "embed", "heads", "kv")

    program = partitioner.jit(gradient).lower(x, kernel).compile().as_text()
    reduced = re.findall(r"f32\[([\d,]+)\]\S* (?:all-reduce|reduce-scatter)\(", program)
    assert reduced and all(len(shape.split(",")) == 2 for shape in reduced)


def test_sharded_positions_are_not_flattened():
    partitioner = partitioning.Partitioner(ici={"sequence": 2, "data": 4}, rules="fsdp_tp_sp")
    x, kernel = jnp.ones((4, 2, 3)), jnp.ones((3, 5))
    with partitioner.bound():
        names = primitives(jax.make_jaxpr(lambda x: contract(x, kernel, 1))(x).jaxpr)
    assert names == ["dot_general"]


def test_bound_devices_choose_the_implementation(monkeypatch):
    projection = Projection((4,), (5,), axes=("embed", "mlp"), key=jax.random.key(0), init=initializers.fan_in())
    partitioner = partitioning.Partitioner(devices=jax.devices()[:1])

    def traced():
        return primitives(jax.make_jaxpr(lambda x: projection(x))(jnp.ones((1, 2, 4))).jaxpr)

    assert "dot_general" in traced() and "custom_vjp_call" not in traced()
    with partitioner.bound():
        assert "dot_general" not in traced() and "custom_vjp_call" in traced()
        monkeypatch.setattr(partitioning.Partitioner, "platform", "tpu")
        assert "dot_general" in traced() and "custom_vjp_call" not in traced()


@SHAPES
def test_forward_mode_works_off_cpu(x_shape, kernel_shape, num_inputs):
    x, kernel = make_inputs(x_shape, kernel_shape)
    dx, dkernel = np.ones_like(x), np.full_like(kernel, 2.0)
    _, tangent = jax.jvp(lambda *args: contract(*args, num_inputs, platform="tpu"), (x, kernel), (dx, dkernel))
    expected = jnp.tensordot(dx, kernel, axes=num_inputs) + jnp.tensordot(x, dkernel, axes=num_inputs)
    np.testing.assert_allclose(tangent, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("policy", "recomputed"), [("dots_with_no_batch_dims_saveable", 0), ("nothing_saveable", 2)])
def test_remat_policies_see_products_off_cpu(policy, recomputed):
    def layer(x, kernel):
        return jnp.sum(jnp.sin(contract(jnp.sin(contract(x, kernel, 1, platform="tpu")), kernel, 1, platform="tpu")))

    layer = jax.checkpoint(layer, policy=getattr(jax.checkpoint_policies, policy))
    jaxpr = jax.make_jaxpr(jax.grad(layer, argnums=1))(jnp.ones((2, 4)), jnp.ones((4, 4))).jaxpr
    # Two products in the forward pass, three in the backward pass: the gradient of the input is not needed.
    assert primitives(jaxpr).count("dot_general") == 5 + recomputed


@pytest.mark.parametrize("platform", ["cpu", "tpu", "gpu"])
def test_sums_in_the_dtype_of_the_result(platform):
    x, kernel = (jnp.asarray(array, jnp.bfloat16) for array in make_inputs((2, 3, 4), (4, 5)))
    y, pullback = jax.vjp(lambda *given: contract(*given, 1, result_dtype=jnp.float32, platform=platform), x, kernel)
    assert y.dtype == jnp.float32
    expected = np.tensordot(np.asarray(x, np.float32), np.asarray(kernel, np.float32), 1)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    assert [gradient.dtype for gradient in pullback(y)] == [jnp.bfloat16, jnp.bfloat16]


def dtypes_of_products(function, *arguments):
    """Returns the dtypes of the operands of all products of a jitted function."""
    text = function.lower(*arguments).as_text()
    operands = re.findall(r"dot_general[^\n]*\((tensor<[^>]*>), (tensor<[^>]*>)\)", text)
    return {tensor.rpartition("x")[2].strip(">") for pair in operands for tensor in pair}


@pytest.mark.parametrize(("platform", "dtypes"), [("gpu", {"bf16"}), ("tpu", {"bf16", "f32"})])
def test_gradients_of_wide_products_on_gpus_are_products_of_narrow_operands(platform, dtypes):
    x, kernel = (jnp.asarray(array, jnp.bfloat16) for array in make_inputs((2, 3, 4), (4, 5)))

    def loss(x, kernel):
        return jnp.sum(jnp.sin(contract(x, kernel, 1, result_dtype=jnp.float32, platform=platform)))

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
    assert dtypes_of_products(gradient, x, kernel) == dtypes
    # The gradient of the result is rounded to bfloat16 first, with 8 bits.
    y = jnp.cos(contract(x, kernel, 1, result_dtype=jnp.float32, platform="tpu"))
    expected = jnp.einsum("bln,kn->blk", y, kernel.astype(jnp.float32)), jnp.einsum("blk,bln->kn", x, y)
    for found, exact in zip(gradient(x, kernel), expected, strict=True):
        np.testing.assert_allclose(found.astype(jnp.float32), exact, rtol=0.02, atol=0.02)


def gathered(x, y):
    scoring = Scoring(Mask(window=5))
    return gathered_attention.attention(*(z.reshape(1, 60, 2, 8) for z in (x, y, x)), scoring)


def sampled(x, y):
    samples = sampled_softmax.draw(jax.random.key(0), 7, jnp.log(jnp.full(60, 1 / 60)))
    targets = jnp.zeros((1, 60), jnp.int32)
    return sampled_softmax.cross_entropy(x[None], y.astype(jnp.float32), jnp.zeros(60), targets, samples)


def distances(x, y):
    q, k = (z[None, :, None] for z in (x, y))
    scores = DistanceScores(jnp.concatenate([y, y[1:]])[:, None], jnp.zeros((119, 1)))
    positions = jnp.arange(60)[None]
    return scores.materialize(q, k, query_positions=positions, key_positions=positions)


@pytest.mark.parametrize("product", [gathered, sampled, distances])
@pytest.mark.parametrize(("platform", "dtypes"), [("gpu", {"bf16"}), ("tpu", {"bf16", "f32"})])
def test_all_wide_products_have_narrow_gradients_on_gpus(product, platform, dtypes, monkeypatch):
    monkeypatch.setattr(partitioning, "bound_platform", lambda: platform)
    x, y = (jnp.asarray(array, jnp.bfloat16) for array in make_inputs((60, 16), (60, 16)))
    gradient = jax.jit(jax.grad(lambda x, y: jnp.sum(jnp.sin(product(x, y).astype(jnp.float32))), argnums=(0, 1)))
    assert dtypes_of_products(gradient, x, y) == dtypes
