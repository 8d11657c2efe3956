"""LSTM language models over characters: ELMo's number of parameters, initial values, FLOPs, invalid configurations."""

import dataclasses

import jax
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.models.character_lstm import CHARACTERS, CharacterLSTMConfig
from t5x_like.models.lstm import LSTMConfig
from t5x_like.objectives.character_lm import CharacterLM
from t5x_like.objectives.recurrent_lm import RecurrentLM
from t5x_like.training.flops import jaxpr_flops
from t5x_like.training.program import check_inputs

SMALL = CharacterLSTMConfig(vocab_size=23, embed_dim=6, embedding_dim=5, filters=[(1, 4), (3, 7)], character_dim=3)


def test_character_encoder_has_the_parameters_of_elmo():
    """ELMo has 93,600,864 without its softmax: the encoder, and four layers of 4,096 cells projected to 512."""
    model = jax.eval_shape(CharacterLSTMConfig().make, jax.random.key(0))
    cells = 4 * (1024 * 4 * 4096 + 4 * 4096 + 4096 * 512)
    assert parameters.count(model.character_encoder) == 93_600_864 - cells


def test_gates_keep_their_input_at_first():
    highway = SMALL.make(jax.random.key(0)).character_encoder.highway.layer_0
    np.testing.assert_array_equal(highway.gate.bias[...], -2.0)
    np.testing.assert_array_equal(highway.transform.bias[...], 0.0)


def test_flops_are_those_of_the_program():
    config = dataclasses.replace(SMALL, embed_dim=64, embedding_dim=32, filters=((2, 30), (3, 50)), character_dim=8)
    batch = {"decoder_input_tokens": np.ones((2, 6), np.int32), CHARACTERS: np.ones((2, 6, 9), np.int32)}

    def loss(model):
        return model.unembed(model(batch).hidden).sum()

    found = jaxpr_flops(jax.make_jaxpr(jax.grad(loss))(jax.eval_shape(config.make, jax.random.key(0))).jaxpr)
    shapes = {name: array.shape for name, array in batch.items()} | {"decoder_target_tokens": (2, 6)}
    assert found == pytest.approx(config.train_flops(shapes), rel=0.03)


@pytest.mark.parametrize(
    ("filters", "problem"), [((), "pairs of positive"), ([(2, 0)], "pairs of"), ([(2, 3), (2, 4)], "each width once")]
)
def test_invalid_filters_raise(filters, problem):
    with pytest.raises(UserError, match=rf"CharacterLSTMConfig.filters=.*: must .*{problem}"):
        dataclasses.replace(SMALL, filters=filters)


def test_initial_range_of_token_embeddings_raises():
    with pytest.raises(UserError, match="embedding_initializer_range=0.5: a model that reads characters has no token"):
        dataclasses.replace(SMALL, embedding_initializer_range=0.5)


def test_words_shorter_than_a_filter_raise():
    with pytest.raises(UserError, match="a filter reads 3 characters, but words have 2. Give narrower filters"):
        SMALL.make(jax.random.key(0)).embed({CHARACTERS: np.ones((1, 4, 2), np.int32)})


def test_model_and_objective_that_do_not_match_raise():
    words, characters = RecurrentLM(), CharacterLM(max_characters=9)
    shapes = {name: (2, *shape) for name, shape in characters.features.row_shapes({"targets": 4}).items()}
    check_inputs(SMALL, characters, shapes)
    with pytest.raises(
        UserError, match="CharacterLSTMConfig does not fit RecurrentLM.*needs 'decoder_input_characters'"
    ):
        check_inputs(SMALL, words, shapes)
    with pytest.raises(
        UserError, match="LSTMConfig does not fit CharacterLM.*does not read 'decoder_input_characters'"
    ):
        check_inputs(LSTMConfig(), characters, shapes)
    with pytest.raises(UserError, match="max_characters=0 is not a positive integer"):
        CharacterLM(max_characters=0)
