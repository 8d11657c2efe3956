"""Parsing of capture names and selection of arrays."""

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.layers.captures import parse

STACKS = {"encoder": (2, ("hidden", "attention/scores"))}


def test_names_select_stacks_and_layers():
    captures = parse(["encoder/layers/hidden", "encoder/layers/1/attention/scores", "whole"], STACKS, ["whole"])[
        "encoder"
    ]
    assert captures.requested == {"hidden", "attention/scores"}
    assert captures.within("attention") == {"scores"}
    layers = {"hidden": jnp.array([1, 2]), "attention/scores": jnp.array([3, 4])}
    named = captures.named(layers)
    np.testing.assert_array_equal(named["encoder/layers/hidden"], [1, 2])
    assert named["encoder/layers/1/attention/scores"] == 4


def test_collect_returns_only_requested_arrays():
    captures = parse(["encoder/layers/attention/scores"], STACKS)["encoder"]
    assert captures.collect(hidden=1, attention={"scores": 2}) == {"attention/scores": 2}


@pytest.mark.parametrize(
    "name", ["encoder/layers/2/hidden", "encoder/hidden", "encoder/layers/scores", "decoder/layers/hidden", ""]
)
def test_unknown_names_raise(name):
    with pytest.raises(
        ValueError, match=r"Valid names are whole, encoder/layers/\[INDEX/\]hidden, .*encoder has 2 layers"
    ):
        parse([name], STACKS, ["whole"])
