"""Progressive training: factors per layer and phase, in both layouts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from families import FAMILIES, random_model, scanned

from t5x_like import optimizers, parameters
from t5x_like.errors import UserError
from t5x_like.optimizers import ParameterGroup, ProgressiveLayers

CONFIG = dataclasses.replace(FAMILIES["mobilebert"].config, num_layers=3)
KERNEL = "encoder/layers/mlp/wi/kernel"


@pytest.mark.full
@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_one_layer_trains_per_phase_and_earlier_layers_slowly(scan):
    model = random_model(scanned(CONFIG) if scan else CONFIG)
    factor = ProgressiveLayers(num_layers=3, steps_per_layer=2)
    groups = (ParameterGroup(axis="layers", learning_rate_factor=factor), ParameterGroup(freeze=True))
    optimizer = optimizers.from_optax(optax.sgd(1.0), learning_rate=0.5, groups=groups)
    trainable, frozen = optimizers.split(model, groups)
    assert {name.partition("/")[0] for name in parameters.named_leaves(trainable)} == {"encoder"}
    assert "token_embedder/embedding" in parameters.named_leaves(frozen)
    state, gradients = optimizer.init(trainable), jax.tree.map(jnp.ones_like, trainable)
    for step, expected in enumerate([(1, 0, 0), (1, 0, 0), (0.1, 1, 0), (0.1, 1, 0), (0.1, 0.1, 1)]):
        updates, state = optimizer.update(gradients, state, trainable, step=jnp.int32(step))
        kernel = np.asarray(parameters.stack(parameters.named_leaves(updates))[KERNEL])
        wanted = np.broadcast_to(-0.5 * np.float32(expected)[:, None, None], kernel.shape)
        np.testing.assert_allclose(kernel, wanted, rtol=1e-6)


@pytest.mark.parametrize("changes", [{"num_layers": 0}, {"steps_per_layer": 0}, {"after": 1.5}])
def test_invalid_phases_raise(changes):
    with pytest.raises(UserError, match=next(iter(changes))):
        ProgressiveLayers(**{"num_layers": 3, "steps_per_layer": 2} | changes)


def test_another_number_of_layers_raises():
    groups = [ParameterGroup(learning_rate_factor=ProgressiveLayers(num_layers=24, steps_per_layer=2))]
    with pytest.raises(UserError, match="num_layers=24 of progressive training: the model has 3 layers. Give 3"):
        optimizers.split(random_model(CONFIG), groups)
