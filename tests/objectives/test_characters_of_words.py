"""ELMo under other objectives: each text of a row is read by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.models import build
from t5x_like.models.elmo import CHARACTERS, ElmoConfig
from t5x_like.objectives import passes
from t5x_like.objectives.characters_of_words import CharactersOfWords
from t5x_like.objectives.feature_based import FeatureBased
from t5x_like.objectives.heads.pair_attention import Concatenation
from t5x_like.objectives.heads.text_vectors_head import TextVectors
from t5x_like.objectives.layer_mix import ScalarMix
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.training.program import check_inputs
from t5x_like.vocabularies import word_characters

CONFIG = ElmoConfig(
    vocab_size=23, filters=((1, 4), (3, 5)), character_dim=3, cell_dim=6, projection_dim=4, highway_layers=1
)
WORDS = ["a", "play", "naïve", "xyz"]  # ids 3 to 6
HEAD = TextVectors(texts_per_row=2, attention=Concatenation(), size=5, classifier_size=7)
# "a play </s> naïve <unk> a", and "play" alone.
TOKENS = np.array([[3, 4, 1, 5, 2, 3, 0], [4, 0, 0, 0, 0, 0, 0]])
SEGMENTS = (TOKENS != 0).astype(np.int32)


@pytest.fixture(scope="module")
def objective(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    path.write_text("".join(f"{word} {9 - number}\n" for number, word in enumerate(WORDS)))
    inner = FeatureBased(SequenceClassification(labels=("no", "yes"), head=HEAD), features=ScalarMix())
    return CharactersOfWords(inner, vocabulary_path=str(path), texts_per_row=2, max_characters=9)


@pytest.fixture(scope="module")
def params(objective):
    rng, like = np.random.default_rng(0), build.params_shapes(CONFIG, objective)
    return parameters.map_named(lambda _, leaf: jnp.asarray(rng.normal(size=leaf.shape) / 2, jnp.float32), like)


def alone(model, words):
    """Returns the states of a text `[layers + 1, words, embed]`."""
    batch = {CHARACTERS: word_characters.of_words(words, 9)[None]}
    found = model(batch, capture=("encoder/embedding", "encoder/layers/hidden")).captured
    return jnp.concatenate([found["encoder/embedding"], found["encoder/layers/hidden"][:, 0]])


@pytest.mark.full
def test_texts_of_a_row_are_read_by_themselves(objective, params):
    rows = {"encoder_input_tokens": TOKENS, "encoder_segment_ids": SEGMENTS, "label": np.array([[1], [0]])}
    found = passes.forward(objective, params, rows).outputs.hidden
    mix = params["objective"]["layer_mix"]
    shares = mix.scale[...] * jax.nn.softmax(mix.weights[...])
    expected = np.zeros(found.shape, np.float32)
    for row, at, words in ((0, 0, ["a", "play"]), (0, 3, ["naïve", "<unk>", "a"]), (1, 0, ["play"])):
        states = alone(params["model"], words)
        expected[row, at : at + len(words)] = jnp.einsum("l,lwd->wd", shares, states)
    assert_close({"states": found * (SEGMENTS != 0)[..., None]}, {"states": expected})


def test_the_model_reads_what_the_objective_computes(objective):
    shapes = {"encoder_input_tokens": (2, 7), "encoder_segment_ids": (2, 7), "label": (2, 1)}
    check_inputs(CONFIG, objective, shapes)
    with pytest.raises(UserError, match="the model needs 'encoder_input_characters'"):
        check_inputs(CONFIG, objective.objective, shapes)
    with pytest.raises(UserError, match="texts_per_row=3 of CharactersOfWords"):
        CharactersOfWords(objective.objective, vocabulary_path=None, texts_per_row=3)
