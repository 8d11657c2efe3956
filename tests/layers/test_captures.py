"""Parsing of capture names and selection of arrays."""

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.layers.captures import of_tokens, parse

STACKS = {"encoder": (2, ("hidden", "attention/scores"))}


def test_names_select_stacks_and_layers():
    names = ["encoder/layers/hidden", "encoder/layers/1/hidden", "encoder/layers/1/attention/scores", "encoder/output"]
    captures = parse(names, STACKS)["encoder"]
    assert captures.requested == {"hidden", "attention/scores"}
    assert captures.within("attention") == {"capture": {"scores"}}
    assert captures.kept == {"hidden": (0, 1), "attention/scores": (1,)}
    assert captures.state("output", 5) == (5, {"encoder/output": 5}) and captures.state("embedding", 5) == (5, {})
    for kept in (
        {"hidden": jnp.array([1, 2]), "attention/scores": jnp.array([4])},
        {"hidden": [1, 2], "attention/scores": [4]},
    ):
        named = captures.named(kept)
        np.testing.assert_array_equal(named["encoder/layers/hidden"], [1, 2])
        assert named["encoder/layers/1/hidden"] == 2 and named["encoder/layers/1/attention/scores"] == 4


def test_attention_is_the_self_attention_of_a_decoder():
    stacks = {"decoder": (2, ("self_attention/scores", "cross_attention/scores"))}
    names = ["decoder/layers/1/attention/scores", "decoder/layers/0/cross_attention/scores"]
    captures = parse(names, stacks)["decoder"]
    assert captures.requests == {names[0]: (1, "self_attention/scores"), names[1]: (0, "cross_attention/scores")}


def test_collect_returns_only_requested_arrays():
    captures = parse(["encoder/layers/attention/scores"], STACKS)["encoder"]
    assert captures.collect(hidden=1, attention={"scores": 2}) == {"attention/scores": 2}


def test_arrays_of_tokens_lack_the_positions_before_them():
    states, heads, matrix = jnp.arange(10).reshape(1, 5, 2), jnp.zeros((4, 1, 5, 3, 2)), jnp.arange(30).reshape(5, 6)
    np.testing.assert_array_equal(of_tokens("encoder/layers/0/hidden", states, 3), states[:, 2:])
    assert of_tokens("encoder/layers/attention/query", heads, 3).shape == (4, 1, 3, 3, 2)
    np.testing.assert_array_equal(of_tokens("encoder/layers/0/attention/scores", matrix, 5), matrix[:, 1:])
    np.testing.assert_array_equal(of_tokens("decoder/layers/0/cross_attention/scores", matrix, 3, 4), matrix[2:, 2:])


@pytest.mark.parametrize(
    "name",
    [
        "encoder/layers/2/hidden",
        "encoder/hidden",
        "encoder/layers/scores",
        "decoder/layers/hidden",
        "decoder/output",
        "",
    ],
)
def test_unknown_names_raise(name):
    with pytest.raises(
        ValueError,
        match=r"Valid names are encoder/embedding, .*encoder/layers/\[INDEX/\]hidden, .*encoder has 2 layers",
    ):
        parse([name], STACKS)
