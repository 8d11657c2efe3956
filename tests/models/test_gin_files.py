"""The shipped model files have the published number of parameters, which their headers state."""

import dataclasses
import re
from pathlib import Path

import gin
import jax
import pytest
from families import PARAMETERS
from family_cases.albert import ALBERT
from family_cases.bert import BERT, COMPACT, ROBERTA
from family_cases.bigbird import BIGBIRD
from family_cases.deberta import DEBERTA, DEBERTA_V3
from family_cases.distilbert import DISTILBERT
from family_cases.electra import ELECTRA
from family_cases.ernie import ERNIE
from family_cases.etc import ETC
from family_cases.mobilebert import MOBILEBERT
from family_cases.spanbert import SPANBERT
from family_cases.unilm import UNILM

from t5x_like import parameters
from t5x_like.layers import rope_scaling
from t5x_like.models import build
from t5x_like.objectives.decoupled_replaced_tokens import DecoupledReplacedTokens
from t5x_like.objectives.enhanced_masked_lm import EnhancedMaskedLM
from t5x_like.objectives.entity_alignment import EntityAlignment
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.replaced_tokens import GENERATOR, ReplacedTokenDetection
from t5x_like.objectives.span_boundary import SpanBoundary

MODELS = Path(__file__).resolve().parents[2] / "gin_configs" / "models"


@pytest.fixture
def load():
    """Returns a function that reads a model file and bindings, and returns the configuration."""
    gin.add_config_file_search_path(str(MODELS.parent))

    def read(name, *bindings):
        gin.clear_config()
        gin.parse_config_files_and_bindings([f"models/{name}.gin"], bindings)
        return gin.query_parameter("MODEL/gin.macro.value").scoped_configurable_fn()

    yield read
    gin.clear_config()


def header(name):
    return (MODELS / f"{name}.gin").read_text().splitlines()[0]


def abstract(config):
    """Returns the shapes of the model. Layers are scanned, because tracing 96 layers one by one takes seconds."""
    return jax.eval_shape(dataclasses.replace(config, scan_layers=True).make, jax.random.key(0))


def heads(objective, model):
    return jax.eval_shape(lambda: objective.init(jax.random.key(0), model))


def test_every_model_file_has_expected_counts():
    """Files named `family` or `sizes` are included by the files of the sizes."""
    files = {f"{path.parent.name}/{path.stem}" for path in MODELS.glob("*/*.gin")}
    shared = {name for name in files if name.endswith(("/family", "/sizes"))}
    assert files - shared == {*PARAMETERS}


# The tests below count the parameters of these with their heads.
WITH_HEADS = BERT | ALBERT | UNILM | BIGBIRD | ERNIE | ROBERTA | DISTILBERT | ETC | SPANBERT
WITH_HEADS |= DEBERTA | DEBERTA_V3 | ELECTRA | MOBILEBERT


@pytest.mark.parametrize("name", sorted(PARAMETERS.keys() - WITH_HEADS))
def test_model_file_has_published_parameter_count(load, name):
    assert parameters.count(abstract(load(name))) == PARAMETERS[name]
    assert f"{PARAMETERS[name]:,} parameters" in header(name)


@pytest.mark.parametrize("name", sorted(BERT | ALBERT | UNILM | BIGBIRD))
def test_bert_file_has_published_parameter_counts(load, name):
    model, expected = abstract(load(name)), (BERT | ALBERT | UNILM | BIGBIRD)[name]
    next_sentence = heads(NextSentence(), model)
    with_pooler = parameters.count(model) + parameters.count(next_sentence["next_sentence"].pooler)
    with_heads = sum(map(parameters.count, (model, heads(MaskedLM(), model), next_sentence)))
    assert (parameters.count(model), with_pooler, with_heads) == expected
    assert "{:,} parameters; {:,} with the pooler, {:,} with both heads.".format(*expected) in header(name)


@pytest.mark.parametrize("name", sorted(ERNIE))
def test_ernie_file_has_expected_parameter_counts(load, name):
    model, expected = abstract(load(name)), ERNIE[name]
    with_heads = heads(EntityAlignment([MaskedLM(), NextSentence()]), model)
    assert parameters.count(model) + parameters.count(with_heads["next_sentence"].pooler) == expected[1]
    assert parameters.count(model) + sum(map(parameters.count, with_heads.values())) == expected[2]
    assert "{:,} parameters; {:,} with the pooler, {:,} with all heads.".format(*expected) in header(name)


@pytest.mark.parametrize("name", sorted(ROBERTA | DISTILBERT | ETC))
def test_masked_lm_file_has_published_parameter_counts(load, name):
    model, expected = abstract(load(name)), (ROBERTA | DISTILBERT | ETC)[name]
    assert (parameters.count(model), parameters.count((model, heads(MaskedLM(), model)))) == expected
    assert "{:,} parameters; {:,} with the masked-LM head.".format(*expected) in header(name)


@pytest.mark.parametrize("name", sorted(SPANBERT))
def test_spanbert_file_has_expected_parameter_counts(load, name):
    model = abstract(load(name))
    masked_lm, boundary = (parameters.count(heads(each, model)) for each in (MaskedLM(), SpanBoundary()))
    counts = parameters.count(model), parameters.count(model) + masked_lm
    assert (*counts, counts[1] + boundary) == SPANBERT[name]
    assert "{:,} parameters; {:,} with the masked-LM head, {:,} with both heads.".format(*SPANBERT[name]) in header(
        name
    )


@pytest.mark.parametrize("name", sorted(DEBERTA))
def test_deberta_file_has_published_parameter_counts(load, name):
    model, expected = abstract(load(name)), DEBERTA[name]
    assert (parameters.count(model), parameters.count((model, heads(EnhancedMaskedLM(), model)))) == expected
    assert "{:,} parameters; {:,} with the masked-LM head and its positions.".format(*expected) in header(name)


@pytest.mark.parametrize("name", sorted(DEBERTA_V3))
def test_deberta_v3_file_has_published_parameter_counts(load, name):
    config, objective = dataclasses.replace(load(name), scan_layers=True), DecoupledReplacedTokens()
    params = build.params_shapes(config, objective)
    discriminator = parameters.count((params["model"], params["objective"]["replaced_tokens"]))
    generator = parameters.count((params["objective"][GENERATOR], params["objective"]["masked_lm"]))
    assert (parameters.count(params["model"]), discriminator, generator) == DEBERTA_V3[name]
    stated = "{:,} parameters; {:,} with the head of replaced tokens, and a generator of {:,}."
    assert stated.format(*DEBERTA_V3[name]) in header(name)


@pytest.mark.parametrize("name", sorted(ELECTRA))
def test_electra_file_has_published_parameter_counts(load, name):
    config = dataclasses.replace(load(name), scan_layers=True)
    objective = ReplacedTokenDetection(generator_size=gin.query_parameter("PUBLISHED_GENERATOR_SIZE/gin.macro.value"))
    params = build.params_shapes(config, objective)
    discriminator = parameters.count((params["model"], params["objective"]["replaced_tokens"]))
    of_generator = build.params_shapes(objective.networks(config)[GENERATOR].config, MaskedLM())
    assert (parameters.count(params["model"]), discriminator, parameters.count(of_generator)) == ELECTRA[name]
    stated = "{:,} parameters; {:,} with the head of replaced tokens, and a generator of {:,}.".format(*ELECTRA[name])
    assert stated in header(name)


@pytest.mark.parametrize("layers", COMPACT)
def test_compact_models_have_published_parameter_counts(load, layers):
    for embed_dim, expected in zip((128, 256, 512, 768), COMPACT[layers], strict=True):
        model = abstract(load("bert/compact", f"LAYERS = {layers}", f"EMBED_DIM = {embed_dim}"))
        pooler = heads(NextSentence(), model)["next_sentence"].pooler
        assert parameters.count(model) + parameters.count(pooler) == expected
        assert model.config.num_heads == embed_dim // 64


@pytest.mark.parametrize("name", sorted(MOBILEBERT))
def test_mobilebert_file_has_expected_parameter_counts(load, name):
    model = abstract(load(name))
    objectives = (MaskedLM(), NextSentence(pooler=False))
    with_heads = parameters.count(model) + sum(parameters.count(heads(each, model)) for each in objectives)
    assert (parameters.count(model), with_heads) == MOBILEBERT[name]
    assert "{:,} parameters; {:,} with both heads.".format(*MOBILEBERT[name]) in header(name)


def test_mobilebert_kernels_have_published_sizes(load):
    """The paper's 15.1 and 293 million parameters count the kernels and the token embeddings alone."""
    others = re.compile(r"norm|bias|position_embedder|token_type_embedder")
    for name, expected in {"paper": 24_943_872, "tiny": 15_113_472, "ib_bert": 293_510_400}.items():
        leaves = parameters.named_leaves(abstract(load(f"mobilebert/{name}")))
        assert parameters.count({key: leaf for key, leaf in leaves.items() if not others.search(key)}) == expected


def test_variants_have_published_hyperparameters(load):
    bert, roberta = load("bert/base"), load("roberta/base")
    assert (bert.activations, bert.position_offset, bert.num_token_types, bert.norm_epsilon) == (("gelu",), 0, 2, 1e-12)
    expected = (("gelu_exact",), 2, 1, 1e-5)
    assert (roberta.activations, roberta.position_offset, roberta.num_token_types, roberta.norm_epsilon) == expected
    assert abstract(roberta).embeddings.position_embedder.embedding.shape == (514, 768)
    gpt1, gpt2, gpt3 = load("gpt1/tiny"), load("gpt2/tiny"), load("gpt3/tiny")
    assert (gpt1.norm_position, gpt2.norm_position, gpt3.norm_position) == ("post", "pre", "pre")
    assert (gpt1.max_length, gpt2.max_length, gpt3.max_length) == (512, 1024, 2048)
    assert gpt3.attention_windows == (None, 256)
    assert load("llama3_1/70b").rope_scaling == rope_scaling.Llama3(8.0, 1.0, 4.0, 8192)
    assert load("llama3_2/1b").rope_scaling == rope_scaling.Llama3(32.0, 1.0, 4.0, 8192)
    assert load("llama3_2/3b").max_length == load("llama3_1/8b").max_length == 131_072
    assert load("llama3_2/3b").tied_embeddings and not load("llama3_1/8b").tied_embeddings
    assert load("llama3/8b").rope_scaling is None
    assert load("llama3/8b").rope_theta == 500_000 and load("llama3/8b").num_kv_heads == 8
    assert load("llama2/7b").num_kv_heads == 32
    assert load("llama1/33b").norm_epsilon == 1e-6 and load("llama1/65b").norm_epsilon == 1e-5
    assert load("mistral/7b").attention_windows == (4096,)


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("bart/base", 0.1),
        ("t5_1_0/tiny", 0.1),
        ("t5_1_1/tiny", 0.0),
        ("gpt2/tiny", 0.1),
        ("gpt3/tiny", 0.0),
        ("llama2/tiny", 0.0),
    ],
)
def test_dropout_rate_defaults_to_pretraining(load, name, rate):
    assert load(name).dropout_rate == rate
    changed = load(name, "DROPOUT_RATE = 0.25")
    assert changed.dropout_rate == 0.25


def test_macros_set_fields(load):
    config = load("bert/tiny", "DROPOUT_RATE = 0.25", "ACTIVATIONS = ('gelu_exact',)")
    assert (config.dropout_rate, config.attention_dropout_rate, config.activations) == (0.25, 0.25, ("gelu_exact",))
    assert load("roberta/base", "DROPOUT_RATE = 0.0").attention_dropout_rate == 0.0
    assert load("bart/base").attention_dropout_rate == 0.0
    assert load("gpt3/tiny", "ATTENTION_WINDOW = 64").attention_windows == (None, 64)
