"""The shipped model files of BERT and RoBERTa: each parses and gives the published numbers of parameters."""

from pathlib import Path

import gin
import jax
import pytest

from t5x_like import parameters
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence

GIN_CONFIGS = Path(__file__).resolve().parents[2] / "gin_configs"

# The network alone, with the pooler, with both pretraining heads. Totals of transformers' BertModel without and with
# its pooler and of BertForPreTraining; of the compact ones the second is that of Turc et al.'s release.
BERT = {
    "bert/tiny": (4_369_408, 4_385_920, 4_433_468),
    "bert/mini": (11_104_768, 11_170_560, 11_267_900),
    "bert/small": (28_500_992, 28_763_648, 29_058_876),
    "bert/medium": (41_110_528, 41_373_184, 41_668_412),
    "bert/base": (108_891_648, 109_482_240, 110_106_428),
    "bert/large": (334_092_288, 335_141_888, 336_226_108),
    "bert/base_cased": (107_719_680, 108_310_272, 108_932_934),
    "bert/large_cased": (332_529_664, 333_579_264, 334_661_958),
}
# The network alone, with the masked-LM head (RobertaForMaskedLM).
ROBERTA = {
    "roberta/base": (124_055_040, 124_697_433),
    "roberta/large": (354_310_144, 355_412_057),
}


@pytest.fixture
def load():
    """Reads a model file, with bindings after it, and returns its configuration."""
    gin.add_config_file_search_path(str(GIN_CONFIGS))

    def read(name, *bindings):
        gin.clear_config()
        gin.parse_config_files_and_bindings([f"models/{name}.gin"], bindings)
        return gin.query_parameter("MODEL/gin.macro.value").scoped_configurable_fn()

    yield read
    gin.clear_config()


def counts(config):
    key = jax.random.key(0)
    model = jax.eval_shape(config.make, key)
    masked_lm = jax.eval_shape(lambda: MaskedLM().init(key, model))
    next_sentence = jax.eval_shape(lambda: NextSentence().init(key, model))
    return [parameters.count(tree) for tree in (model, next_sentence["next_sentence"].pooler, masked_lm, next_sentence)]


def header(name):
    return (GIN_CONFIGS / "models" / f"{name}.gin").read_text().splitlines()[0]


def test_every_file_is_tested():
    files = {f"{path.parent.name}/{path.stem}" for path in (GIN_CONFIGS / "models").glob("*bert*/*.gin")}
    assert files - {"bert/family", "roberta/family"} == set(BERT) | set(ROBERTA)


@pytest.mark.parametrize("name", sorted(BERT))
def test_a_file_of_bert_gives_the_exact_numbers_of_parameters(load, name):
    model, pooler, masked_lm, next_sentence = counts(load(name))
    assert (model, model + pooler, model + masked_lm + next_sentence) == BERT[name]
    bare, with_pooler, with_heads = BERT[name]
    assert f"{bare:,} parameters; {with_pooler:,} with the pooler, {with_heads:,} with both heads." in header(name)


@pytest.mark.parametrize("name", sorted(ROBERTA))
def test_a_file_of_roberta_gives_the_exact_numbers_of_parameters(load, name):
    model, _, masked_lm, _ = counts(load(name))
    assert (model, model + masked_lm) == ROBERTA[name]
    bare, with_head = ROBERTA[name]
    assert f"{bare:,} parameters; {with_head:,} with the masked-LM head." in header(name)


def test_what_tells_the_two_apart(load):
    bert, roberta = load("bert/base"), load("roberta/base")
    assert (bert.activations, bert.position_offset, bert.num_token_types, bert.norm_epsilon) == (("gelu",), 0, 2, 1e-12)
    assert (roberta.activations, roberta.position_offset, roberta.num_token_types, roberta.norm_epsilon) == (
        ("gelu_exact",),
        2,
        1,
        1e-5,
    )
    positions = jax.eval_shape(roberta.make, jax.random.key(0)).position_embedder.embedding
    assert positions.shape == (514, 768)


def test_macros(load):
    config = load("bert/tiny", "DROPOUT_RATE = 0.25", "ACTIVATIONS = ('gelu_exact',)")
    assert (config.dropout_rate, config.attention_dropout_rate, config.activations) == (0.25, 0.25, ("gelu_exact",))
    assert load("roberta/base", "DROPOUT_RATE = 0.0").attention_dropout_rate == 0.0
