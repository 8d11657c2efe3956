"""StableAdamW equals torch-optimi, in both meanings of weight decay."""

import jax
import jax.numpy as jnp
import numerics
import numpy as np
import optax
import pytest
from flax import nnx

from t5x_like import optimizers
from t5x_like.optimizers import from_optax, schedules, stable_adamw

torch = pytest.importorskip("torch", reason="compares with torch-optimi (extra `parity`)")
optimi = pytest.importorskip("optimi", reason="compares with torch-optimi (extra `parity`)")

pytestmark = pytest.mark.parity

SHAPES = {"kernel": (33, 16), "wide": (5, 70), "deep": (4, 128), "bias": (19,)}
STEPS, PEAK, DECAY = 20, 1e-2, 0.1


class Weights(nnx.Module):
    def __init__(self, arrays):
        for name, array in arrays.items():
            setattr(self, name, nnx.Param(jnp.asarray(array), axes=("embed", "mlp")[: array.ndim]))


def gradients(step):
    """Gradients that grow by 30 in some steps, so that the step is limited there."""
    rng = np.random.default_rng(100 + step)
    return {n: rng.normal(size=s).astype(np.float32) * (0.3 if step % 6 == 5 else 0.01) for n, s in SHAPES.items()}


def start():
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def published(schedule, decouple_lr):
    params = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in start().items()}
    groups = [
        {"params": [p for p in params.values() if p.ndim > 1], "weight_decay": DECAY},
        {"params": [params["bias"]], "weight_decay": 0.0},
    ]
    rates = {"lr": PEAK, "decouple_lr": decouple_lr, "max_lr": PEAK if decouple_lr else None}
    optimizer = optimi.StableAdamW(groups, betas=(0.9, 0.98), eps=1e-6, **rates)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = float(schedule(step))
        for name, gradient in gradients(step).items():
            params[name].grad = torch.tensor(gradient)
        optimizer.step()
        yield {name: p.detach().numpy().copy() for name, p in params.items()}


@pytest.mark.parametrize("decouple_lr", [False, True])
def test_equals_torch_optimi(decouple_lr):
    schedule = schedules.wsd(PEAK, total_steps=STEPS, decay_steps=5, warmup_steps=5)
    decay = optimizers.decay_of_peak(DECAY, peak=PEAK) if decouple_lr else DECAY
    transform = stable_adamw(b1=0.9, b2=0.98, eps=1e-6, weight_decay=decay)
    optimizer = from_optax(transform, learning_rate=schedule)
    params = {"model": Weights(start())}
    state = optimizer.init(params)
    update = jax.jit(lambda gradients, state, params, step: optimizer.update(gradients, state, params, step=step))
    for step, expected in enumerate(published(schedule, decouple_lr)):
        updates, state = update({"model": Weights(gradients(step))}, state, params, jnp.int32(step))
        params = optax.apply_updates(params, updates)
        numerics.assert_close({name: getattr(params["model"], name)[...] for name in SHAPES}, expected)
