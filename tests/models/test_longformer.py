"""Longformer: global tokens by policy and by task, limits, sharded rows, FLOPs, and invalid configurations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, random_model

from t5x_like.data import batches
from t5x_like.errors import UserError
from t5x_like.models.build import shapes
from t5x_like.models.longformer import AfterSeparators, BeforeSeparator, FirstToken, LongformerConfig
from t5x_like.objectives import heads
from t5x_like.objectives.heads.global_tokens import TaskGlobalTokens
from t5x_like.objectives.sequence_classification import SequenceClassification

CONFIG = FAMILIES["longformer"].config


def test_policies_choose_the_tokens_of_each_segment():
    # Two texts in a row: the second starts at position 6.
    tokens = jnp.array([[0, 7, 2, 2, 8, 2, 0, 8, 9, 2, 2, 7]])
    positions = jnp.array([[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]])
    chosen = lambda policy: policy.choose(tokens, positions)[0].astype(int).tolist()  # noqa: E731
    assert chosen(FirstToken()) == [1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert chosen(BeforeSeparator()) == [1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert chosen(AfterSeparators()) == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1]
    assert chosen(BeforeSeparator(separator_id=7)) == [1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0]


def influence(model, batch):
    """Returns which output positions depend on which input positions, `[output input]`."""
    embedded = model.embed(batch)
    jacobian = jax.jit(jax.jacobian(lambda x: model.trunk({"encoder": x}, batch).hidden[0]))(embedded["encoder"])
    return np.abs(jacobian[:, :, 0]).max(axis=(1, 3)) > 0


def test_tokens_see_their_window_and_global_tokens_see_everything():
    config = dataclasses.replace(CONFIG, num_layers=1, window=2, global_tokens=None)
    model, tokens = random_model(config), jnp.arange(2, 13)[None]
    distance = np.abs(np.arange(11)[:, None] - np.arange(11))
    batch = {"encoder_input_tokens": tokens}
    np.testing.assert_array_equal(influence(model, batch), distance <= 2)
    shared = jnp.zeros((1, 11), jnp.int32).at[0, jnp.array([4, 9])].set(1)
    expected = distance <= 2
    expected[[4, 9]], expected[:, [4, 9]] = True, True
    np.testing.assert_array_equal(influence(model, batch | {"encoder_global_tokens": shared}), expected)
    # A third global token exceeds the limit of 2, and padding is never global.
    for extra, row in ((10, tokens), (2, tokens.at[0, 2].set(config.padding_id))):
        more = {"encoder_input_tokens": row, "encoder_global_tokens": shared.at[0, extra].set(1)}
        visible = influence(model, more)
        assert visible[:, 4].sum() >= 10 and not visible[extra, 5 if extra == 10 else 8]


def test_task_chooses_global_tokens():
    objective = SequenceClassification(("no", "yes"), head=TaskGlobalTokens(form=heads.DenseFirstToken()))
    assert "global_tokens" in objective.features.task_features
    arrays = {
        "inputs": np.arange(2, 18).reshape(2, 8),
        "global_tokens": np.array([[1, 0, 0, 0, 0, 1, 0, 0], [0] * 8]),
        "targets": np.zeros((2, 1), int),
    }
    batch = batches.from_arrays(objective.features, arrays, counts={"inputs": np.array([8, 8])})
    np.testing.assert_array_equal(batch["encoder_global_tokens"], arrays["global_tokens"])
    head = TaskGlobalTokens(form=heads.EachToken(dropout_rate=0.3))
    assert head.each_token and head.dropout_rate == 0.3 and head.pretrained == {}


@pytest.mark.parametrize("global_tokens", [None, FirstToken()])
def test_flops_of_long_rows_are_those_of_visible_keys(global_tokens):
    sizes = dict(vocab_size=100, embed_dim=64, mlp_dim=64, num_heads=2, head_dim=32, num_layers=2, window=64)
    config = LongformerConfig(**sizes, max_length=4096, global_tokens=global_tokens, max_global_tokens=16)
    counted, formula = [], []
    for length in (1024, 4096):
        batch = {"encoder_input_tokens": jnp.ones((1, length), jnp.int32)}
        forward = jax.jit(lambda model, batch: model(batch).hidden)
        counted.append(forward.lower(shapes(config), batch).compile().cost_analysis()["flops"] / length)
        formula.append(config.train_flops({"encoder_input_tokens": (1, length)}) / 3 / length)
    assert formula[1] < 1.01 * formula[0] and counted[1] < 1.1 * counted[0]
    assert 1 < counted[1] / formula[1] < 1.6  # of each block of keys, a part is outside of the window


@pytest.mark.parametrize(
    ("changes", "message"), [({"window": 0}, "window=0"), ({"max_global_tokens": -1}, "max_global_tokens=-1")]
)
def test_invalid_configurations_raise(changes, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **changes)
