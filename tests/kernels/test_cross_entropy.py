"""Cross-entropy against NumPy, its chunks, and its FLOPs per device on eight fake CPU devices."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like.kernels import chunks
from t5x_like.kernels.chunks import Chunks, Readout
from t5x_like.kernels.cross_entropy import cross_entropy, from_logits
from t5x_like.layers import embeddings
from t5x_like.partitioning import Partitioner
from t5x_like.training.flops import jaxpr_flops

VOCAB, EMBED = 23, 6


def make_inputs(batch=3, length=7, vocab=VOCAB, embed=EMBED, seed=0):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(batch, length, embed)).astype(np.float32)
    kernel = rng.normal(size=(embed, vocab)).astype(np.float32)
    targets = rng.integers(0, vocab, (batch, length)).astype(np.int32)
    weights = rng.choice([0.0, 1.0, 0.5], (batch, length)).astype(np.float32)
    return hidden, kernel, targets, weights


def dense(hidden, kernel, targets, weights, z_loss=0.0, label_smoothing=0.0):
    """Computes the loss in float64 NumPy, position by position."""
    total = nll = z = correct = 0.0
    for position in np.ndindex(targets.shape):
        logits = np.asarray(hidden[position], np.float64) @ np.asarray(kernel, np.float64)
        log_z = np.log(np.exp(logits).sum())
        log_p = logits - log_z
        smoothed = np.full(len(logits), label_smoothing / (len(logits) - 1))
        smoothed[targets[position]] = 1 - label_smoothing
        entropy = -sum(p * np.log(p) for p in smoothed if p)
        weight = weights[position]
        nll += -log_p[targets[position]] * weight
        z += z_loss * log_z**2 * weight
        total += (-(smoothed * log_p).sum() - entropy + z_loss * log_z**2) * weight
        correct += (logits.argmax() == targets[position]) * weight
    return {"total": total, "nll": nll, "z_loss": z, "correct": correct, "weight": weights.sum()}


@pytest.mark.parametrize(("z_loss", "label_smoothing"), [(0.0, 0.0), (0.01, 0.0), (0.0, 0.1), (0.02, 0.3)])
@pytest.mark.parametrize("positions_per_chunk", [100, 3, 1])
def test_equals_numpy(z_loss, label_smoothing, positions_per_chunk):
    hidden, kernel, targets, weights = make_inputs()
    entropy = cross_entropy(
        hidden,
        lambda hidden: hidden @ kernel,
        targets,
        weights,
        z_loss=z_loss,
        label_smoothing=label_smoothing,
        budget_bytes=4 * VOCAB * len(hidden) * positions_per_chunk,
    )
    for name, expected in dense(hidden, kernel, targets, weights, z_loss, label_smoothing).items():
        np.testing.assert_allclose(getattr(entropy, name), expected, rtol=2e-6, err_msg=name)


@pytest.mark.parametrize("length", [1, 5, 8])
def test_chunked_gradient_equals_unchunked_gradient(length):
    hidden, kernel, targets, weights = make_inputs(length=length)

    def total(hidden, kernel, budget):
        return cross_entropy(
            hidden, lambda h: h @ kernel, targets, weights, z_loss=0.01, label_smoothing=0.1, budget_bytes=budget
        ).total

    whole = jax.grad(total, argnums=(0, 1))(hidden, kernel, 2**30)
    chunked = jax.grad(total, argnums=(0, 1))(hidden, kernel, 4 * VOCAB * 3 * 2)
    for ours, theirs in zip(chunked, whole, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_chunks_compute_each_product_once():
    batch, length, vocab, embed = 2, 32, 64, 8
    hidden, kernel, targets, weights = make_inputs(batch, length, vocab, embed)

    def flops(budget):
        def total(hidden, kernel):
            return cross_entropy(hidden, lambda h: h @ kernel, targets, weights, budget_bytes=budget).total

        return jaxpr_flops(jax.make_jaxpr(jax.grad(total, argnums=(0, 1)))(hidden, kernel).jaxpr)

    # Logits, and the gradients of hidden states and kernel.
    assert flops(2**30) == flops(4 * vocab * batch * length // 4) == 3 * 2 * batch * length * vocab * embed


@pytest.mark.parametrize("positions_per_chunk", [100, 3])
def test_metrics_have_no_gradient(positions_per_chunk):
    hidden, kernel, targets, weights = make_inputs()
    budget = 4 * VOCAB * len(hidden) * positions_per_chunk

    def nll(hidden):
        return cross_entropy(hidden, lambda h: h @ kernel, targets, weights, budget_bytes=budget).nll

    np.testing.assert_array_equal(jax.grad(nll)(hidden), np.zeros_like(hidden))


def test_values_of_two_tokens():
    # Logits (0, log 3): Z = 4, probabilities 1/4 and 3/4.
    logits = jnp.array([[[0.0, math.log(3)], [0.0, math.log(3)]]])
    entropy = from_logits(logits, jnp.array([[1, 0]]), jnp.array([[1.0, 2.0]]), z_loss=0.5)
    np.testing.assert_allclose(entropy.nll, math.log(4 / 3) + 2 * math.log(4), rtol=1e-6)
    np.testing.assert_allclose(entropy.z_loss, 3 * 0.5 * math.log(4) ** 2, rtol=1e-6)
    np.testing.assert_allclose(entropy.total, entropy.nll + entropy.z_loss, rtol=1e-6)
    assert (float(entropy.correct), float(entropy.weight)) == (1.0, 3.0)


def test_gradient_of_z_loss():
    hidden, kernel, targets, _ = make_inputs(batch=1, length=1)
    logits, z_loss = hidden @ kernel, 0.03
    gradient = jax.grad(lambda x: from_logits(x, targets, jnp.ones((1, 1)), z_loss=z_loss).total)(logits)
    log_z = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    expected = (1 + 2 * z_loss * log_z) * jax.nn.softmax(logits) - jax.nn.one_hot(targets, VOCAB)
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_smoothed_loss_is_zero_at_its_minimum():
    smoothing, target = 0.2, 4
    smoothed = np.full(VOCAB, smoothing / (VOCAB - 1))
    smoothed[target] = 1 - smoothing
    entropy = from_logits(
        jnp.log(smoothed)[None, None] + 5.0, jnp.array([[target]]), jnp.ones((1, 1)), label_smoothing=smoothing
    )
    assert abs(float(entropy.total)) < 1e-5
    assert float(entropy.nll) == pytest.approx(-math.log(1 - smoothing), rel=1e-5)


def test_positions_of_zero_weight_have_no_effect():
    hidden, kernel, targets, _ = make_inputs()
    weights = np.ones(targets.shape, np.float32)
    weights[:, 4:] = 0

    def total(hidden):
        return cross_entropy(hidden, lambda h: h @ kernel, targets, weights, z_loss=0.1).total

    value, gradient = jax.value_and_grad(total)(hidden)
    assert (np.asarray(gradient)[:, 4:] == 0).all()
    changed = hidden.copy()
    changed[:, 4:] += 1
    assert total(changed) == value


def test_ties_predict_the_first_token():
    entropy = from_logits(jnp.zeros((1, 2, 5)), jnp.array([[0, 1]]), jnp.ones((1, 2)))
    assert float(entropy.correct) == 1.0


@pytest.mark.parametrize("vocab", [VOCAB, 128, 135])
@pytest.mark.parametrize("case", ["random", "ties", "outside of the vocabulary"])
def test_cross_entropy_is_the_same_with_the_forms_for_cpu(case, vocab):
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(2, 9, vocab)).astype(np.float32), rng.integers(0, vocab, (2, 9))
    weights = np.ones(targets.shape, np.float32)
    if case == "ties":
        logits = np.round(logits)
    elif case == "outside of the vocabulary":
        targets[0, 0], weights[0, 0] = vocab, 0.0

    def loss(logits):
        entropy = from_logits(logits, targets, weights, z_loss=0.01, label_smoothing=0.1)
        return entropy.total, entropy

    by_sum = jax.value_and_grad(loss, has_aux=True)(logits)
    with Partitioner(devices=jax.devices()[:1]).bound():
        compiled = jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(logits).compile()
    assert "gather" in compiled.as_text()
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), compiled(logits), by_sum)


def test_gradient_on_cpu_writes_no_array_of_the_size_of_the_logits_besides_its_result():
    logits, targets = jnp.zeros((4, 64, 2048)), jnp.zeros((4, 64), jnp.int32)
    with Partitioner(devices=jax.devices()[:1]).bound():
        gradient = jax.grad(lambda logits: from_logits(logits, targets, jnp.ones((4, 64)), z_loss=1e-4).total)
        compiled = jax.jit(gradient).lower(logits).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < logits.nbytes / 2


def test_integer_weights_are_accepted():
    hidden, kernel, targets, _ = make_inputs()
    entropy = cross_entropy(hidden, lambda h: h @ kernel, targets, np.ones(targets.shape, np.int32))
    assert entropy.weight.dtype == jnp.float32 and float(entropy.weight) == targets.size


def test_inconsistent_shapes_raise():
    hidden, kernel, targets, weights = make_inputs()
    with pytest.raises(
        ValueError, match=r"targets \(3, 6\) .* do not match hidden states \(3, 7, 6\): expected \(3, 7\)"
    ):
        cross_entropy(hidden, lambda h: h @ kernel, targets[:, 1:], weights)


def test_chunks_reduce_memory():
    hidden, kernel, targets, weights = make_inputs(batch=4, length=64, vocab=2048, embed=16)

    def temporaries(budget):
        def total(hidden, kernel):
            return cross_entropy(hidden, lambda h: h @ kernel, targets, weights, budget_bytes=budget).total

        compiled = jax.jit(jax.grad(total, argnums=(0, 1))).lower(hidden, kernel).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    logits = 4 * 4 * 64 * 2048
    assert temporaries(logits) > logits
    assert temporaries(logits // 8) < logits / 2


# Number of chunks, on one device and on eight.
CHUNKS = 4
RULES = {
    "data": ("dp", {"data": 8}),
    "fsdp": ("fsdp", {"fsdp": 8}),
    "length": ("fsdp_tp_sp", {"fsdp": 2, "sequence": 4}),
    "vocabulary": ("fsdp_tp_sp", {"fsdp": 2, "sequence": 2, "tensor": 2}),
}


@pytest.mark.parametrize("chunks", [1, CHUNKS])
@pytest.mark.parametrize("sharding", RULES)
def test_eight_devices_split_flops_evenly_and_agree_with_one(sharding, chunks):
    hidden, kernel, targets, weights = make_inputs(batch=8, length=32, vocab=512, embed=64)
    logits_bytes = 4 * 8 * 32 * 512

    def compiled(partitioner, budget):
        def total(head, hidden, targets, weights):
            def unembed(hidden):
                return embeddings.logits(hidden, head["kernel"][...])

            return cross_entropy(
                hidden, unembed, targets, weights, z_loss=0.01, label_smoothing=0.1, budget_bytes=budget
            ).total

        head = {"kernel": nnx.Param(jnp.asarray(kernel), axes=("embed", "vocab"))}
        head = jax.device_put(head, partitioner.shardings(head))
        batch = partitioner.put_batch({"targets": targets, "weights": weights})
        spec = partitioner.spec(("batch", "length", "embed"), hidden.shape)
        states = jax.device_put(hidden, jax.sharding.NamedSharding(partitioner.mesh, spec))
        arguments = (head, states, batch["targets"], batch["weights"])
        out = (partitioner.replicated, (partitioner.shardings(head), states.sharding))
        step = partitioner.jit(jax.value_and_grad(total, argnums=(0, 1)), out_shardings=out)
        program = step.lower(*arguments).compile()
        value, gradients = jax.device_get(program(*arguments))
        np.testing.assert_allclose(partitioner.jit(total)(*arguments), value, rtol=1e-6)
        if partitioner.mesh.size > 1 and chunks > 1 and not partitioner.axes_within_rows:
            others, entry = program.as_text().split("ENTRY")
            assert not re.search(r" (all-reduce|all-gather|reduce-scatter)", others), "collectives in the loop"
            assert " all-reduce(" in entry
        return program.cost_analysis()["flops"], (value, gradients)

    rules, mesh = RULES[sharding]
    one = Partitioner(rules="dp", devices=jax.devices()[:1])
    flops_on_one, expected = compiled(one, logits_bytes // chunks)
    flops, found = compiled(Partitioner(rules=rules, ici=mesh), logits_bytes // 8 // chunks)
    assert flops == pytest.approx(flops_on_one / 8, rel=0.1)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("vocab", "chunks"), [(32_128, 4), (128_256, 8)])
def test_chunks_have_1024_positions_of_a_large_vocabulary(vocab, chunks):
    hidden = jax.ShapeDtypeStruct((16, 4096, 8), jnp.float32)
    readout = Readout(hidden, lambda hidden: jnp.zeros((*hidden.shape[:2], vocab)))
    # Two rows per device: 256 MiB of logits, or 1,024 positions.
    with Partitioner(rules="fsdp", ici={"fsdp": 8}).bound():
        assert Chunks.of([readout], None).number == chunks


def test_chunks_on_gpus_cast_the_kernel_once_and_sum_its_gradient_in_float32(monkeypatch):
    hidden, kernel, targets, weights = make_inputs()
    hidden = jnp.asarray(hidden, jnp.bfloat16)

    def loss(kernel, hidden):  # transposed and cast, as the table of tied embeddings
        def unembed(hidden):
            return embeddings.logits(hidden, kernel.T)

        return cross_entropy(hidden, unembed, targets, weights, budget_bytes=4 * VOCAB * len(hidden)).total

    def compute(platform):
        monkeypatch.setattr(Partitioner, "platform", platform)
        with Partitioner(devices=jax.devices()[:1]).bound():
            jaxpr = str(jax.make_jaxpr(jax.grad(loss))(kernel.T, hidden))
            return jax.value_and_grad(loss)(kernel.T, hidden), jaxpr

    (value, gradient), cast_once = compute("gpu")
    (expected, expected_gradient), cast_per_chunk = compute("tpu")
    assert value == expected
    assert gradient.dtype == jnp.float32
    np.testing.assert_allclose(gradient, expected_gradient, rtol=0.02, atol=0.02)  # of logits' gradients in bfloat16
    table = f"bf16[{VOCAB},{EMBED}] = convert_element_type"
    assert cast_once.index(table) < cast_once.index("scan[")
    assert table not in cast_per_chunk  # which casts the transposed table


def test_function_that_computes_with_the_kernel_itself_gets_it_as_it_is():
    hidden, kernel, *_ = make_inputs()
    chunk = jax.ShapeDtypeStruct(hidden.shape, jnp.bfloat16)

    def dtype_of(unembed):
        jaxpr = jax.make_jaxpr(unembed)(chunk, kernel).jaxpr
        return chunks._dtype_of_use(jaxpr, jaxpr.invars[-1])

    assert dtype_of(lambda hidden, kernel: hidden @ kernel.astype(hidden.dtype)) == jnp.bfloat16
    assert dtype_of(lambda hidden, kernel: hidden @ kernel.astype(hidden.dtype) + jnp.sum(kernel)) is None
