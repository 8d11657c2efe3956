"""Runs are exported as classes of transformers that compute what the run computes, or not at all."""

import json

import jax
import pytest

from t5x_like import interop, parameters
from t5x_like.config import description
from t5x_like.config.derived import derive
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.errors import UserError
from t5x_like.interop import exports, registry
from t5x_like.models.bert import BertConfig
from t5x_like.models.bigbird import BigBirdConfig
from t5x_like.models.deberta import DebertaConfig
from t5x_like.models.electra import ElectraConfig
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.longformer import FirstToken, LongformerConfig
from t5x_like.models.lstm import LSTMConfig
from t5x_like.models.t5 import T5Config
from t5x_like.models.unilm import UnilmConfig
from t5x_like.models.xlnet import XLNetConfig
from t5x_like.objectives import heads
from t5x_like.objectives.conditional_spans import ConditionalSpanExtraction
from t5x_like.objectives.enhanced_masked_lm import EnhancedMaskedLM
from t5x_like.objectives.heads import question_heads
from t5x_like.objectives.heads.bigbird_heads import ActivatedFirstToken
from t5x_like.objectives.multi_label_classification import MultiLabelClassification
from t5x_like.objectives.multiple_choice import MultipleChoice
from t5x_like.objectives.prefix_lm import PrefixLM
from t5x_like.objectives.score_distribution import ScoreDistribution
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.sequence_regression import SequenceRegression
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.stored.network_weights import RunModel
from t5x_like.training.runs import weights_run

SIZES = dict(vocab_size=31, embed_dim=8, mlp_dim=12, num_heads=2, head_dim=4)
ENCODER = SIZES | dict(num_layers=2, max_length=16)
BERT = BertConfig(**ENCODER)
ROBERTA = BertConfig(**ENCODER, position_offset=2, padding_id=1, num_token_types=1)
T5 = T5Config(**SIZES, encoder_layers=1, decoder_layers=1)
LABELS = ("a", "b", "c")


def write_run(directory, config, objective):
    """Writes a run with random weights, and returns its path."""
    model = config.make(jax.random.key(0))
    params = {"model": model, "objective": objective.init(jax.random.key(1), model)}
    leaves = parameters.stack(parameters.named_leaves(params))
    text, unknown = derive("t5x_like.stored.network_weights.run_model", {"model": config, "objective": objective})
    assert not unknown
    weights_run.write(str(directory), leaves, text, about={}, tokenizer={})
    return str(directory)


def export(tmp_path, config, objective):
    """Writes a run, exports it from Python without its model, and returns config.json."""
    run = write_run(tmp_path / "run", config, objective)
    convert(Source(run), Target(str(tmp_path / "exported")))
    return json.loads((tmp_path / "exported/config.json").read_text())


def classifier(head):
    return SequenceClassification(LABELS, head=head)


@pytest.mark.parametrize(
    ("config", "objective", "message"),
    [
        (
            ElectraConfig(**ENCODER),
            classifier(heads.FirstToken()),
            r"@heads.FirstToken\(\): transformers' electra has ElectraForSequenceClassification HEAD=@heads.GeluFirst",
        ),
        # The following heads have the parameters of transformers' class, but compute something else.
        (DebertaConfig(**ENCODER), classifier(heads.PooledFirstToken()), "DebertaForSeq.*@heads.GeluPooledFirstToken"),
        (BERT, classifier(heads.PooledLastToken()), "BertForSequenceClassification HEAD=@heads.PooledFirstToken"),
        (ROBERTA, classifier(heads.GeluFirstToken()), "RobertaForSequenceClassification HEAD=@heads.DenseFirstToken"),
        (
            XLNetConfig(**SIZES, num_layers=2),
            classifier(heads.PooledFirstToken()),
            "XLNetForSeq.* HEAD=@heads.SummaryLastToken",
        ),
        (BERT, ScoreDistribution(head=heads.PooledFirstToken()), "no class of transformers predicts the mean score"),
        (
            LongformerConfig(**ENCODER, window=2, activations=("gelu_exact",)),
            classifier(heads.DenseFirstToken()),
            r"GLOBAL_TOKENS=None: transformers' LongformerForSequenceClassification has the global tokens FirstToken",
        ),
        (DebertaConfig(**ENCODER), EnhancedMaskedLM(), "transformers' DebertaModel does not compute it"),
        (GPTConfig(**ENCODER), PrefixLM(bos_id=0), "does not compute bidirectional attention over the inputs"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_transformers_does_not_compute_raises_unless_it_is_left_out(config, objective, message, tmp_path):
    with pytest.raises(UserError, match=f"{message}.*HEADS='supported'"):
        export(tmp_path, config, objective)
    assert not (tmp_path / "exported").exists()
    convert(Source(str(tmp_path / "run")), Target(str(tmp_path / "exported"), heads="supported"))
    (architecture,) = json.loads((tmp_path / "exported/config.json").read_text())["architectures"]
    assert not architecture.endswith("Classification")


@pytest.mark.parametrize(
    ("config", "objective", "architecture"),
    [
        (ElectraConfig(**ENCODER), classifier(heads.GeluFirstToken()), "ElectraForSequenceClassification"),
        (BERT, classifier(heads.PooledFirstToken(dropout_rate=0.3)), "BertForSequenceClassification"),
        (T5, classifier(heads.DecoderLastToken(bos_id=3)), "T5ForSequenceClassification"),
        (GPTConfig(**ENCODER), PrefixLM(bos_id=0, causal_inputs=True), "GPT2LMHeadModel"),
        (
            LongformerConfig(**ENCODER, window=2, global_tokens=FirstToken()),
            classifier(heads.DenseFirstToken()),
            "LongformerForSequenceClassification",
        ),
        (BigBirdConfig(**ENCODER, block_size=2), classifier(ActivatedFirstToken()), "BigBirdForSequenceClassification"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_head_of_transformers_is_exported_with_its_settings(config, objective, architecture, tmp_path):
    stored = export(tmp_path, config, objective)
    assert stored["architectures"] == [architecture]
    if objective.labels:
        assert stored["id2label"] == {str(index): label for index, label in enumerate(LABELS)}
    if type(config) is BertConfig:
        assert stored["classifier_dropout"] == 0.3
    if isinstance(config, T5Config):
        assert stored["decoder_start_token_id"] == 3


@pytest.mark.parametrize("bos_id", [0, 5])
def test_decoder_starts_with_the_token_of_training(bos_id, tmp_path):
    assert export(tmp_path, T5, SequenceToSequence(bos_id=bos_id))["decoder_start_token_id"] == bos_id


def test_any_number_of_labels_comes_back_as_such(tmp_path):
    objective = MultiLabelClassification(LABELS, head=heads.PooledFirstToken())
    stored = export(tmp_path, BERT, objective)
    assert stored["problem_type"] == "multi_label_classification"
    back = convert(Source(str(tmp_path / "exported")), Target(str(tmp_path / "back")))
    found = RunModel.read(back).objective
    assert type(found) is MultiLabelClassification and found.labels == LABELS


def test_scores_of_a_run_are_exported_as_a_regression(tmp_path):
    objective = SequenceRegression(head=heads.PooledFirstToken(), labels=("joy", "fear"))
    stored = export(tmp_path, BERT, objective)
    assert stored["problem_type"] == "regression" and stored["id2label"] == {"0": "joy", "1": "fear"}


@pytest.mark.parametrize(
    ("config", "objective"),
    [
        (BERT, MultipleChoice(3, head=heads.PooledFirstToken())),
        (XLNetConfig(**SIZES, num_layers=2), ConditionalSpanExtraction(head=question_heads.XLNetQuestion())),
    ],
    ids=["multiple choice", "conditional spans"],
)
def test_directory_becomes_a_run_that_is_exported_again(config, objective, tmp_path, run_command):
    stored = export(tmp_path, config, objective)
    for source, output in (("exported", "back"), ("back", "again")):
        code, text = run_command(["convert", f"--input={tmp_path / source}", f"--output={tmp_path / output}"])
        assert code == 0, text
    assert json.loads((tmp_path / "again/config.json").read_text()) == stored
    assert type(RunModel.read(str(tmp_path / "back")).objective) is type(objective)


def test_family_without_a_class_of_transformers_raises():
    with pytest.raises(UserError, match=r"LSTMConfig: not supported by transformers\. Read the run with t5x_like\."):
        registry.family_of(LSTMConfig(vocab_size=31))


def test_bare_unilm_is_read_as_a_run(tmp_path):
    interop.to_huggingface({"model": BERT.make(jax.random.key(0))}, BERT, str(tmp_path / "bert"))
    file = tmp_path / "bert/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "unilm"}))
    run = convert(Source(str(tmp_path / "bert")), Target(str(tmp_path / "run")))
    assert type(RunModel.read(run).model) is UnilmConfig
    with pytest.raises(UserError, match="UnilmConfig: not supported by transformers"):
        convert(Source(run), Target(str(tmp_path / "exported")))


@pytest.mark.parity
@pytest.mark.parametrize(
    "objective",
    [classifier(ActivatedFirstToken()), None],
    ids=["sequence classification", "masked LM"],
)
def test_classes_of_bigbird_have_all_their_parameters(objective, tmp_path):
    import transformers

    from t5x_like.objectives.masked_lm import MaskedLM

    config = BigBirdConfig(**ENCODER, block_size=2)
    stored = export(tmp_path, config, objective or MaskedLM())
    cls = getattr(transformers, stored["architectures"][0])
    _, info = cls.from_pretrained(tmp_path / "exported", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]


def test_description_names_the_class_and_what_it_leaves_out():
    objective = classifier(heads.FirstToken())
    config = ElectraConfig(**ENCODER)
    model = config.make(jax.random.key(0))
    params = {"model": model, "objective": objective.init(jax.random.key(1), model)}
    found = exports.describe(config, list(parameters.named_leaves(params)), objective)
    assert (found.architecture, found.left_out) == ("ElectraModel", ("sequence_classification",))
    assert description.architecture_kind(config) == "encoder"
