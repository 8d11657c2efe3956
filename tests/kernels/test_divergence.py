"""Divergences against NumPy, their gradients, their chunks, and cached teachers."""

import functools
import math
import re

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.kernels import cross_entropy, divergence
from t5x_like.kernels.chunks import Readout, sum_over_positions, weighted_sum_over_positions
from t5x_like.kernels.top_k import TopK
from t5x_like.layers import embeddings
from t5x_like.partitioning import Partitioner
from t5x_like.training.flops import jaxpr_flops

BATCH, LENGTH, VOCAB = 3, 7, 23
DIVERGENCES = {
    "forward_kl": divergence.forward_kl,
    "reverse_kl": divergence.reverse_kl,
    "jensen_shannon": functools.partial(divergence.jensen_shannon, beta=0.3),
    "cross_entropy": divergence.cross_entropy,
}


def in_numpy(name, p, q):
    """Computes a divergence in float64 NumPy from probabilities `[…, outcomes]`."""
    kl = lambda a, b: np.sum(a * np.log(a / b), axis=-1)  # noqa: E731
    m = 0.3 * p + 0.7 * q
    return {
        "forward_kl": lambda: kl(p, q),
        "reverse_kl": lambda: kl(q, p),
        "jensen_shannon": lambda: 0.3 * kl(p, m) + 0.7 * kl(q, m),
        "cross_entropy": lambda: -np.sum(p * np.log(q), axis=-1),
    }[name]()


def softmax(logits):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def make_inputs(batch=BATCH, length=LENGTH, vocab=VOCAB, widths=(6, 9), seed=0):
    """Makes hidden states and kernels of a student and a teacher, and weights."""
    rng = np.random.default_rng(seed)
    hidden = [rng.normal(size=(batch, length, width)).astype(np.float32) for width in widths]
    kernels = [rng.normal(size=(width, vocab)).astype(np.float32) for width in widths]
    weights = rng.choice([0.0, 1.0, 0.5], (batch, length)).astype(np.float32)
    return hidden, kernels, weights


def readouts(hidden, kernels):
    return [Readout(h, lambda h, kernel=kernel: h @ kernel) for h, kernel in zip(hidden, kernels, strict=True)]


def top_k(logits, k, temperature=1.0):
    ids = np.argsort(-logits, axis=-1)[..., :k]
    rest = np.exp(logits.astype(np.float64) / temperature)
    np.put_along_axis(rest, ids, 0.0, axis=-1)
    with np.errstate(divide="ignore"):
        tail = np.log(rest.sum(-1))
    return TopK(np.take_along_axis(logits, ids, -1), ids, tail.astype(np.float32), temperature)


def total(student, loss, budget=2**30):
    return sum_over_positions(student, loss, budget_bytes=budget)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_equals_numpy(name, temperature):
    hidden, kernels, weights = make_inputs()
    student, teacher = readouts(hidden, kernels)
    s, t = (h.astype(np.float64) @ kernel for h, kernel in zip(hidden, kernels, strict=True))
    expected = temperature**2 * in_numpy(name, softmax(t / temperature), softmax(s / temperature))
    loss = divergence.from_teacher(DIVERGENCES[name], teacher, weights, temperature=temperature)
    np.testing.assert_allclose(total(student, loss), np.sum(expected * weights), rtol=2e-6)


def test_values_of_two_classes():
    # P = (1/4, 3/4), Q = (1/2, 1/2).
    log_p, log_q = jnp.log(jnp.array([[[0.25, 0.75]]])), jnp.log(jnp.array([[[0.5, 0.5]]]))
    forward = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    np.testing.assert_allclose(divergence.forward_kl(log_p, log_q)[0, 0], forward, rtol=1e-6)
    np.testing.assert_allclose(divergence.reverse_kl(log_p, log_q)[0, 0], 0.5 * math.log(4 / 3), rtol=1e-6)
    np.testing.assert_allclose(divergence.cross_entropy(log_p, log_q)[0, 0], math.log(2), rtol=1e-6)
    # M = (3/8, 5/8).
    half = 0.5 * (0.25 * math.log(2 / 3) + 0.75 * math.log(6 / 5) + 0.5 * math.log(4 / 3) + 0.5 * math.log(4 / 5))
    np.testing.assert_allclose(divergence.jensen_shannon(log_p, log_q, beta=0.5)[0, 0], half, rtol=1e-6)


def test_jensen_shannon_tends_to_both_kl():
    rng = np.random.default_rng(1)
    log_p, log_q = (jax.nn.log_softmax(jnp.asarray(rng.normal(size=(1, 1, 5)), jnp.float32)) for _ in range(2))
    small = divergence.jensen_shannon(log_p, log_q, beta=1e-3) / 1e-3
    large = divergence.jensen_shannon(log_p, log_q, beta=1 - 1e-3) / 1e-3
    np.testing.assert_allclose(small, divergence.forward_kl(log_p, log_q), rtol=1e-2)
    np.testing.assert_allclose(large, divergence.reverse_kl(log_p, log_q), rtol=1e-2)


@pytest.mark.parametrize("name", ["forward_kl", "cross_entropy"])
def test_gradient_is_the_difference_of_probabilities(name):
    hidden, kernels, weights = make_inputs()
    teacher = readouts(hidden, kernels)[1]

    def loss(logits, teacher_hidden):
        teacher_loss = divergence.from_teacher(
            DIVERGENCES[name], Readout(teacher_hidden, teacher.logits), weights, temperature=2.0
        )
        return total(Readout(logits, lambda logits: logits), teacher_loss)

    logits = hidden[0] @ kernels[0]
    of_student, of_teacher = jax.grad(loss, argnums=(0, 1))(logits, hidden[1])
    expected = 2.0 * (softmax(logits / 2) - softmax(hidden[1] @ kernels[1] / 2)) * weights[..., None]
    np.testing.assert_allclose(of_student, expected, atol=1e-6)
    assert not np.asarray(of_teacher).any()


def test_mean_squared_error_of_logits():
    hidden, kernels, weights = make_inputs()
    student, teacher = readouts(hidden, kernels)
    s, t = (h @ kernel for h, kernel in zip(hidden, kernels, strict=True))
    expected = np.sum(np.mean(np.square(s - t), axis=-1) * weights)
    np.testing.assert_allclose(total(student, divergence.mean_squared_error(teacher, weights)), expected, rtol=2e-6)
    stored = divergence.mean_squared_error(top_k(t, VOCAB), weights)
    np.testing.assert_allclose(total(student, stored), expected, rtol=2e-6)
    with pytest.raises(UserError, match="k=5 cached logits: the mean squared error of logits needs all 23 classes"):
        total(student, divergence.mean_squared_error(top_k(t, 5), weights))


@pytest.mark.parametrize("name", DIVERGENCES)
def test_cached_logits_of_all_classes_equal_the_network(name):
    hidden, kernels, weights = make_inputs()
    student, teacher = readouts(hidden, kernels)

    def loss(student_hidden, teacher):
        teacher_loss = divergence.from_teacher(DIVERGENCES[name], teacher, weights, temperature=2.0)
        return total(Readout(student_hidden, student.logits), teacher_loss)

    online, gradient = jax.value_and_grad(loss)(hidden[0], teacher)
    stored, stored_gradient = jax.value_and_grad(loss)(hidden[0], top_k(hidden[1] @ kernels[1], VOCAB))
    np.testing.assert_allclose(stored, online, rtol=2e-6)
    np.testing.assert_allclose(stored_gradient, gradient, atol=2e-5)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_stored_top_k_compares_k_classes_and_the_tail(name):
    hidden, kernels, weights = make_inputs()
    student = readouts(hidden, kernels)[0]
    s, t = (h.astype(np.float64) @ kernel for h, kernel in zip(hidden, kernels, strict=True))
    stored, outcomes = top_k(t.astype(np.float32), 4), []
    for logits in (t, s):
        top = np.take_along_axis(softmax(logits), stored.ids, -1)
        outcomes.append(np.concatenate([top, 1 - top.sum(-1, keepdims=True)], axis=-1))
    expected = np.sum(in_numpy(name, *outcomes) * weights)
    found = total(student, divergence.from_teacher(DIVERGENCES[name], stored, weights))
    np.testing.assert_allclose(found, expected, rtol=5e-6)
    assert found < np.sum(in_numpy(name, softmax(t), softmax(s)) * weights)
    # Log-probabilities and logits of the same distribution are equivalent.
    shifted = stored.replace(values=stored.values + 3.0, log_tail=stored.log_tail + 3.0)
    np.testing.assert_allclose(
        total(student, divergence.from_teacher(DIVERGENCES[name], shifted, weights)), found, rtol=5e-6
    )


def test_a_tail_of_another_temperature_raises():
    hidden, kernels, weights = make_inputs()
    student, logits = readouts(hidden, kernels)[0], hidden[1] @ kernels[1]
    message = "temperature=2.0: the tail of the k=4 cached logits of 23 classes was summed at temperature 1.0"
    with pytest.raises(UserError, match=message):
        total(student, divergence.from_teacher(divergence.forward_kl, top_k(logits, 4), weights, temperature=2.0))
    total(student, divergence.from_teacher(divergence.forward_kl, top_k(logits, 4, 2.0), weights, temperature=2.0))


def both_losses(hidden, kernels, targets, weights, teacher=None, budget=2**30):
    """Sums the cross-entropy of the targets and a divergence in one pass."""
    student, online = readouts(hidden, kernels)
    losses = {
        "targets": cross_entropy.position_loss(targets, weights, z_loss=0.01),
        ("kl", "teacher"): divergence.from_teacher(
            divergence.forward_kl, online if teacher is None else teacher, weights, temperature=2.0
        ),
    }
    factors = {"targets": 1.0, ("kl", "teacher"): jnp.float32(5.0)}
    return weighted_sum_over_positions(student, losses, factors, budget_bytes=budget)[0]


@pytest.mark.parametrize("stored", [False, True])
def test_one_pass_in_chunks_equals_separate_losses(stored):
    hidden, kernels, weights = make_inputs()
    targets = np.random.default_rng(2).integers(0, VOCAB, weights.shape).astype(np.int32)
    teacher = top_k(hidden[1] @ kernels[1], 4, 2.0) if stored else None

    def chunked(student_hidden, student_kernel):
        arrays = ([student_hidden, hidden[1]], [student_kernel, kernels[1]], targets, weights)
        return both_losses(*arrays, teacher, budget=4 * VOCAB * BATCH * 4)

    def separate(student_hidden, student_kernel):
        student, online = readouts([student_hidden, hidden[1]], [student_kernel, kernels[1]])
        entropy = cross_entropy.cross_entropy(student_hidden, student.logits, targets, weights, z_loss=0.01)
        loss = divergence.from_teacher(divergence.forward_kl, teacher or online, weights, temperature=2.0)
        return entropy.total + 5.0 * total(student, loss)

    found, expected = (
        jax.value_and_grad(function, argnums=(0, 1))(hidden[0], kernels[0]) for function in (chunked, separate)
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-6)
    for ours, theirs in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def arrays_of(jaxpr):
    """Returns the results of all operations of a program and its inner programs, as (operation, shape)."""
    for equation in jaxpr.eqns:
        yield from ((equation.primitive.name, tuple(variable.aval.shape)) for variable in equation.outvars)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from arrays_of(inner)


def test_no_array_holds_all_logits_and_each_network_is_computed_once_per_chunk():
    hidden, kernels, weights = make_inputs(length=16)
    targets = np.zeros(weights.shape, np.int32)
    chunk = 4

    def loss(student_hidden, student_kernel):
        arrays = ([student_hidden, hidden[1]], [student_kernel, kernels[1]], targets, weights)
        return both_losses(*arrays, budget=2 * 4 * VOCAB * BATCH * chunk)

    program = jax.make_jaxpr(jax.value_and_grad(loss, argnums=(0, 1)))(hidden[0], kernels[0])
    arrays = list(arrays_of(program.jaxpr))
    largest = max(math.prod(shape) for _, shape in arrays if VOCAB in shape)
    assert largest == BATCH * chunk * VOCAB
    logits = [shape for name, shape in arrays if name == "dot_general" and shape == (BATCH, chunk, VOCAB)]
    assert len(logits) == 2  # one per network, in the forward and the backward pass together


def test_one_pass_computes_the_products_of_one_loss_and_those_of_the_teacher():
    hidden, kernels, weights = make_inputs(length=16)
    targets = np.zeros(weights.shape, np.int32)

    def loss(student_hidden, student_kernel):
        arrays = ([student_hidden, hidden[1]], [student_kernel, kernels[1]], targets, weights)
        return both_losses(*arrays, budget=2 * 4 * VOCAB * BATCH * 4)

    program = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(hidden[0], kernels[0])
    # Of the student: the logits, the gradients of the hidden states and of the kernel.
    widths = 3 * hidden[0].shape[-1] + hidden[1].shape[-1]
    assert jaxpr_flops(program.jaxpr) == 2 * weights.size * VOCAB * widths


SHARDINGS = {
    "rows": ("fsdp", {"fsdp": 8}),
    "vocabulary": ("fsdp_tp_sp", {"fsdp": 2, "sequence": 2, "tensor": 2}),
}


@pytest.mark.full
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_eight_devices_split_flops_evenly_and_agree_with_one(sharding, stored):
    hidden, kernels, weights = make_inputs(batch=8, length=32, vocab=512, widths=(64, 48))
    targets = np.random.default_rng(2).integers(0, 512, weights.shape).astype(np.int32)
    cached_logits = top_k(hidden[1] @ kernels[1], 16, 2.0) if stored else None

    def compiled(partitioner, budget):
        def loss(heads, states, batch):
            student, teacher = (
                Readout(h, functools.partial(lambda h, head: embeddings.logits(h, head["kernel"][...]), head=head))
                for h, head in zip(states, (heads[0], jax.lax.stop_gradient(heads[1])), strict=True)
            )
            losses = {
                "targets": cross_entropy.position_loss(batch["targets"], batch["weights"]),
                "teacher": divergence.from_teacher(
                    divergence.forward_kl, cached_logits or teacher, batch["weights"], temperature=2.0
                ),
            }
            return weighted_sum_over_positions(student, losses, dict.fromkeys(losses, 1.0), budget_bytes=budget)[0]

        heads = [{"kernel": nnx.Param(jnp.asarray(kernel), axes=("embed", "vocab"))} for kernel in kernels]
        heads = jax.device_put(heads, partitioner.shardings(heads))
        batch = partitioner.put_batch({"targets": targets, "weights": weights})
        spec = partitioner.spec(("batch", "length", "embed"), hidden[0].shape)
        states = jax.device_put(hidden, jax.sharding.NamedSharding(partitioner.mesh, spec))
        out = (partitioner.replicated, partitioner.shardings(heads))
        step = partitioner.jit(jax.value_and_grad(loss), out_shardings=out)
        program = step.lower(heads, states, batch).compile()
        if partitioner.mesh.size > 1 and not partitioner.axes_within_rows:
            loops, entry = program.as_text().split("ENTRY")
            assert not re.search(r" (all-reduce|all-gather|reduce-scatter)", loops), "collectives in the loop"
            assert " all-gather(" in entry
        return program.cost_analysis()["flops"], jax.device_get(program(heads, states, batch))

    budget = 2 * 4 * 8 * 32 * 512 // 4
    flops_on_one, expected = compiled(Partitioner(rules="dp", devices=jax.devices()[:1]), budget)
    rules, mesh = SHARDINGS[sharding]
    flops, found = compiled(Partitioner(rules=rules, ici=mesh), budget // 8)
    assert flops == pytest.approx(flops_on_one / 8, rel=0.15)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=5e-5, atol=5e-5)
