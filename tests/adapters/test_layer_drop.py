"""LayerDrop: which layers are dropped, in all layouts, and never in evaluation."""

import dataclasses

import jax
import numpy as np
import pytest
from families import FAMILIES, example_batch, scanned

from t5x_like import parameters
from t5x_like.adapters.layer_drop import LayerDrop
from t5x_like.errors import UserError
from t5x_like.models import construct


def model(family, rate, scan=False):
    config = dataclasses.replace(FAMILIES[family].config, adapters=(LayerDrop(rate=rate),))
    return construct.make(scanned(config) if scan else config, jax.random.key(1))


@pytest.mark.parametrize("family", ["bert", "t5_1_1"])
def test_a_dropped_layer_returns_its_input(family):
    batch, names = example_batch(FAMILIES[family]), ("encoder/embedding", "encoder/layers/hidden")
    found, kept = [], 0
    for seed in range(8):
        of_seed = []
        for scan in (False, True):
            captured = model(family, 0.5, scan)(batch, dropout_key=jax.random.key(seed), capture=names).captured
            states = [captured[names[0]], *captured[names[1]]]
            of_seed.append([bool((a == b).all()) for a, b in zip(states, states[1:], strict=False)])
        assert of_seed[0] == of_seed[1]
        found += of_seed[0]
    kept = found.count(False)
    assert 0 < kept < len(found)


def test_evaluation_and_merged_models_have_all_layers():
    batch, dropped = example_batch(FAMILIES["bert"]), model("bert", 0.9)
    plain = FAMILIES["bert"].config.make(jax.random.key(1))
    assert parameters.named_leaves(dropped).keys() == parameters.named_leaves(plain).keys()
    for each in (dropped, construct.merge(dropped)):
        np.testing.assert_array_equal(each(batch).hidden, plain(batch).hidden)


def test_invalid_rate_raises():
    with pytest.raises(UserError, match=r"LayerDrop.rate=1.0: not in \[0, 1\)"):
        LayerDrop(rate=1.0)
