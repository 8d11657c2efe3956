"""StableAdamW, scaled Adam, NorMuon, SOAP, GPT-BERT's LAMB and schedule-free AdamW equal their formulas in numpy.

Each is computed per layer: a stack of layers and unrolled layers give the same result.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from optax import contrib

from t5x_like import optimizers, parameters
from t5x_like.errors import UserError
from t5x_like.optimizers import from_optax, normuon, scaled_adam, schedule_free_adamw, soap, stable_adamw
from t5x_like.optimizers.lamb import gpt_bert_lamb

LAYERS, STEPS, RATE = 2, 7, 0.05
SHAPES = {"kernel": (5, 3), "square": (3, 3), "wide": (3, 7), "bias": (4,)}
# Sizes with a preconditioner in SOAP: with larger ones, the first gradient determines some eigenvectors only.
SOAP_SIZE = 3


class Layer(nnx.Module):
    def __init__(self, arrays):
        for name, array in arrays.items():
            setattr(self, name, nnx.Param(jnp.asarray(array), axes=("embed", "mlp")[: len(SHAPES[name])]))


def start():
    rng = np.random.default_rng(0)
    return [{name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()} for _ in range(LAYERS)]


def tree(stacked):
    layers = start()
    if not stacked:
        return {"model": {"layers": nnx.List([Layer(layer) for layer in layers])}}
    return {"model": {"layers": Layer({name: np.stack([layer[name] for layer in layers]) for name in SHAPES})}}


def gradient(array, step):
    """A gradient that changes in size, so that limits apply in some steps."""
    return np.sin(3 * np.asarray(array, np.float64) + step) * (10.0 if step == 4 else 1.0)


def trained(optimizer, stacked):
    params = tree(stacked)
    state, found = optimizer.init(params), []
    update = jax.jit(lambda gradients, state, params, step: optimizer.update(gradients, state, params, step=step))
    for step in range(STEPS):
        gradients = jax.tree.map(lambda x, step=step: jnp.asarray(gradient(x, step), jnp.float32), params)
        updates, state = update(gradients, state, params, jnp.int32(step))
        params = optax.apply_updates(params, updates)
        found.append(params if optimizer.averages is None else optimizer.averages(params, state))
    return [parameters.stack(parameters.named_leaves(each)) for each in found]


def adam(m, v, g, b1, b2, step):
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
    return m, v, m / (1 - b1 ** (step + 1)), v / (1 - b2 ** (step + 1))


class StableAdamW:
    ours = staticmethod(lambda: stable_adamw(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.1))

    def __init__(self, p):
        self.m = self.v = np.zeros_like(p)

    def update(self, p, g, step):
        debiased = [(b ** (step + 1) - b) / (b ** (step + 1) - 1) for b in (0.9, 0.98)]
        self.m = debiased[0] * self.m + (1 - debiased[0]) * g
        self.v = debiased[1] * self.v + (1 - debiased[1]) * g**2
        rms = np.sqrt(np.mean(g**2 / np.maximum(self.v, 1e-12)))
        rate = RATE / max(1.0, rms)
        decayed = p * (1 - rate * 0.1) if p.ndim > 1 else p
        return decayed - rate * self.m / (np.sqrt(self.v) + 1e-6)


class ScaledAdam:
    ours = staticmethod(lambda: scaled_adam(b2=0.95))

    def __init__(self, p):
        self.m = self.v = np.zeros_like(p)

    def update(self, p, g, step):
        self.m, self.v, m, v = adam(self.m, self.v, g, 0.9, 0.95, step)
        return p - RATE * max(1e-3, np.sqrt(np.mean(p**2))) * m / (np.sqrt(v) + 1e-6)


class GptBertLamb:
    ours = staticmethod(lambda: gpt_bert_lamb(weight_decay=0.1))

    def __init__(self, p):
        self.m = self.v = np.zeros_like(p)

    def update(self, p, g, step):
        self.m, self.v, m, v = adam(self.m, self.v, g, 0.9, 0.98, step)
        direction = m / (np.sqrt(v) + 1e-8)
        if p.ndim == 1:
            return p - RATE * direction
        direction += 0.1 * p
        return p - RATE * np.linalg.norm(p) / np.linalg.norm(direction) * direction


class NorMuon:
    ours = staticmethod(lambda: normuon(beta=0.95, b2=0.9, rms=None))

    def __init__(self, p):
        self.m = self.v = np.zeros_like(p)
        self.square = 0.0

    def update(self, p, g, step):
        if p.ndim == 1:
            self.m, self.v, m, v = adam(self.m, self.v, g, 0.9, 0.95, step)
            return p - RATE * m / (np.sqrt(v) + 1e-8)
        self.m = 0.95 * self.m + 0.05 * g
        momentum = 0.95 * self.m / (1 - 0.95 ** (step + 2)) + 0.05 * g / (1 - 0.95 ** (step + 1))
        x = momentum.T if p.shape[0] > p.shape[1] else momentum
        x = x / (np.linalg.norm(x) + 1e-8)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        x = x.T if p.shape[0] > p.shape[1] else x
        self.square = 0.9 * self.square + 0.1 * np.mean(x**2, axis=0, keepdims=True)
        normalized = x / np.sqrt(self.square)
        normalized *= np.linalg.norm(x) / np.linalg.norm(normalized)
        return p - RATE * normalized * max(1, p.shape[1] / p.shape[0]) ** 0.5


class Soap:
    ours = staticmethod(lambda: soap(b1=0.9, b2=0.8, precondition_every=3, max_size=SOAP_SIZE))

    def __init__(self, p):
        self.m = self.v = np.zeros_like(p)
        self.moments = [np.zeros((size, size)) for size in p.shape] if p.ndim > 1 else []
        self.bases = [np.eye(size) for size in p.shape] if p.ndim > 1 else []

    def rotated(self, x):
        return x if x.ndim == 1 else self.bases[0].T @ x @ self.bases[1]

    def update(self, p, g, step):
        updated = p
        if step:
            self.m = 0.9 * self.m + 0.1 * g
            self.v = 0.8 * self.v + 0.2 * self.rotated(g) ** 2
            direction = self.rotated(self.m) / (np.sqrt(self.v) + 1e-8)
            direction = direction if p.ndim == 1 else self.bases[0] @ direction @ self.bases[1].T
            updated = p - RATE * np.sqrt(1 - 0.8**step) / (1 - 0.9**step) * direction
        for axis, product in enumerate((g @ g.T, g.T @ g) if p.ndim > 1 else ()):
            self.moments[axis] = 0.8 * self.moments[axis] + 0.2 * product
            if p.shape[axis] > SOAP_SIZE:
                continue
            if step == 0:
                self.bases[axis] = np.linalg.eigh(self.moments[axis])[1][:, ::-1]
            elif step % 3 == 0:
                values = np.diag(self.bases[axis].T @ self.moments[axis] @ self.bases[axis])
                order = np.argsort(-values)
                self.v = np.take(self.v, order, axis)
                self.bases[axis] = np.linalg.qr(self.moments[axis] @ self.bases[axis][:, order])[0]
        return updated


class ScheduleFree:
    """Two sequences: z of the steps, and their weighted average x; gradients are computed between them."""

    def __init__(self, p):
        self.z = self.x = p
        self.v, self.weights = np.zeros_like(p), 0.0

    def update(self, y, g, step):
        rate = RATE * min(1.0, (step + 1) / 3)
        self.v = 0.99 * self.v + 0.01 * g**2
        direction = g / (np.sqrt(self.v / (1 - 0.99 ** (step + 1))) + 1e-8) + (0.1 * y if y.ndim > 1 else 0.0)
        self.z = self.z - rate * direction
        self.weights += rate**2
        share = rate**2 / self.weights
        self.x = (1 - share) * self.x + share * self.z
        return 0.1 * self.z + 0.9 * self.x


def expected(reference):
    layers, found = [{name: array.astype(np.float64) for name, array in layer.items()} for layer in start()], []
    states = [{name: reference(array) for name, array in layer.items()} for layer in layers]
    for step in range(STEPS):
        layers = [
            {name: of[name].update(p, gradient(p, step), step) for name, p in layer.items()}
            for layer, of in zip(layers, states, strict=True)
        ]
        pairs = list(zip(layers, states, strict=True))
        shown = [{name: getattr(of[name], "x", p) for name, p in layer.items()} for layer, of in pairs]
        found.append({f"model/layers/{name}": np.stack([layer[name] for layer in shown]) for name in SHAPES})
    return found


@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "unrolled"])
@pytest.mark.parametrize("reference", [StableAdamW, ScaledAdam, GptBertLamb, NorMuon, Soap])
def test_updates_equal_the_formula(reference, stacked):
    found = trained(from_optax(reference.ours(), learning_rate=RATE), stacked)
    for step, (ours, theirs) in enumerate(zip(found, expected(reference), strict=True)):
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-4, atol=2e-5, err_msg=f"{name}, step {step}")


@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "unrolled"])
def test_averages_of_schedule_free_adamw_equal_the_formula(stacked):
    warmup = lambda step: jnp.float32(RATE) * jnp.minimum(1.0, (step + 1) / 3)  # noqa: E731
    found = trained(schedule_free_adamw(learning_rate=warmup, b2=0.99, weight_decay=0.1), stacked)
    for ours, theirs in zip(found, expected(ScheduleFree), strict=True):
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-5)


def test_prodigy_estimates_one_rate_for_all_layers():
    found = trained(optimizers.jointly(contrib.prodigy(estim_lr0=1e-2)), stacked=True)[-1]
    params = parameters.named_leaves(tree(stacked=False))
    transform = contrib.prodigy(estim_lr0=1e-2)
    state = transform.init(params)
    for step in range(STEPS):
        gradients = {name: jnp.asarray(gradient(p, step), jnp.float32) for name, p in params.items()}
        updates, state = transform.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
    for name, array in parameters.stack(params).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


def test_updates_of_normuon_have_the_chosen_size():
    (after,) = trained(from_optax(normuon(rms=0.2), learning_rate=RATE), stacked=True)[:1]
    before = parameters.stack(parameters.named_leaves(tree(stacked=True)))
    for name in ("model/layers/kernel", "model/layers/wide"):
        rms = np.sqrt(np.mean((np.asarray(after[name]) - before[name]) ** 2, axis=(1, 2)))
        np.testing.assert_allclose(rms, 0.2 * RATE, rtol=1e-4)


def test_decay_of_the_peak():
    assert optimizers.decay_of_peak(1e-5, peak=8e-4) == pytest.approx(0.0125)
    with pytest.raises(UserError, match="peak=0.0 of decay_of_peak is not positive"):
        optimizers.decay_of_peak(1e-5, peak=0.0)
    with pytest.raises(UserError, match="precondition_every=0 of soap is not positive"):
        soap(precondition_every=0)
    with pytest.raises(UserError, match="b1=1.0 of schedule_free_adamw is not between 0 and 1"):
        schedule_free_adamw(learning_rate=0.1, b1=1.0)


def test_soap_decomposes_one_layer_at_a_time_on_cpu():
    """Decompositions of several layers at once may wait for each other's threads forever."""
    transform = soap()
    gradient = {"kernel": jnp.zeros((3, 16, 8))}

    def update(gradient, state):
        return jax.vmap(lambda gradient, state: transform.update(gradient, state, step=jnp.int32(0)))(gradient, state)

    text = jax.jit(update).lower(gradient, jax.vmap(transform.init)(gradient)).as_text()
    found = re.findall(r"@lapack_(sgeqrf|ssyevd)_ffi\(.*?: \(tensor<(\w+)xf32>", text)
    assert sorted(found) == [("sgeqrf", "16x16"), ("sgeqrf", "8x8"), ("ssyevd", "16x16"), ("ssyevd", "8x8")]
