"""Compares heads of classification with transformers: random weights, small odd sizes, float32, padded rows.

numerics.py defines the tolerance.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest
from exported_weights import check_export

from t5x_like import interop, parameters
from t5x_like.data import batches
from t5x_like.interop import tables
from t5x_like.objectives import passes
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.sequence_regression import SequenceRegression
from t5x_like.objectives.token_classification import TokenClassification

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

ROWS, LENGTH, VOCABULARY = 4, 13, 47
FIRST_TEXT = 3  # smaller ids are special tokens
_SIZES = dict(vocab_size=VOCABULARY, attn_implementation="eager")
_ENCODER = _SIZES | dict(
    hidden_size=15, intermediate_size=22, num_attention_heads=3, num_hidden_layers=1, max_position_embeddings=20
)
_LONGFORMER = _ENCODER | {"type_vocab_size": 1, "pad_token_id": 1, "attention_window": 4}
_MOBILEBERT = _ENCODER | dict(
    embedding_size=7, intra_bottleneck_size=12, num_feedforward_networks=2, classifier_activation=False
)
_DEBERTA = {name: value for name, value in _ENCODER.items() if name != "attn_implementation"} | dict(
    relative_attention=True, position_biased_input=False, pos_att_type=["c2p", "p2c"]
)
_BIGBIRD = {name: value for name, value in _ENCODER.items() if name != "attn_implementation"} | {"type_vocab_size": 2}
_DEBERTA_V2 = _DEBERTA | dict(
    position_buckets=4, max_relative_positions=8, share_att_key=True, norm_rel_ebd="layer_norm", type_vocab_size=0
)
_BART = dict(d_model=15, encoder_ffn_dim=22, decoder_ffn_dim=22, max_position_embeddings=20) | {
    f"{stack}_{name}": value
    for stack in ("encoder", "decoder")
    for name, value in (("layers", 1), ("attention_heads", 3))
}
_T5 = dict(d_model=14, d_ff=22, d_kv=5, num_layers=1, num_heads=3, decoder_start_token_id=0, pad_token_id=0)
_T5_1_1 = _T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
_GPT = dict(n_embd=15, n_head=3, n_layer=1, n_positions=20, pad_token_id=0)
_LLAMA = _ENCODER | dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=6, pad_token_id=0)
_DISTILBERT = _SIZES | dict(dim=15, hidden_dim=22, n_heads=3, n_layers=1, max_position_embeddings=20)
_XLNET = dict(vocab_size=VOCABULARY, d_model=14, d_inner=22, n_head=7, n_layer=1, pad_token_id=0)
_SCORES, _LABEL = {"problem_type": "regression"}, {"problem_type": "single_label_classification"}
# Class of transformers, its configuration, and the number of labels or scores; 1 is regression.
CASES = [
    ("BertForSequenceClassification", _ENCODER | {"type_vocab_size": 2}, 3),
    ("BertForSequenceClassification", _ENCODER | {"type_vocab_size": 2, "hidden_act": "gelu_new"}, 1),
    ("BertForSequenceClassification", _ENCODER | {"type_vocab_size": 2} | _SCORES, 3),
    ("BertForTokenClassification", _ENCODER | {"type_vocab_size": 2}, 5),
    ("RobertaForSequenceClassification", _ENCODER | {"type_vocab_size": 1, "pad_token_id": 1}, 2),
    ("RobertaForTokenClassification", _ENCODER | {"type_vocab_size": 1, "pad_token_id": 1}, 3),
    ("LongformerForSequenceClassification", _LONGFORMER, 3),
    ("LongformerForTokenClassification", _LONGFORMER, 4),
    ("DistilBertForSequenceClassification", _DISTILBERT | {"seq_classif_dropout": 0.3}, 3),
    ("DistilBertForTokenClassification", _DISTILBERT | {"dropout": 0.25, "activation": "relu"}, 4),
    ("MobileBertForSequenceClassification", _MOBILEBERT | {"classifier_dropout": 0.2}, 3),
    ("MobileBertForSequenceClassification", _MOBILEBERT | {"classifier_activation": True}, 1),
    ("MobileBertForTokenClassification", _MOBILEBERT, 4),
    ("ElectraForSequenceClassification", _ENCODER | {"embedding_size": 7, "classifier_dropout": 0.2}, 3),
    ("ElectraForTokenClassification", _ENCODER | {"embedding_size": 15}, 4),
    ("BigBirdForSequenceClassification", _BIGBIRD | {"classifier_dropout": 0.2}, 3),
    ("BigBirdForSequenceClassification", _BIGBIRD | {"hidden_act": "relu"}, 1),
    ("BigBirdForTokenClassification", _BIGBIRD, 4),
    ("DebertaForSequenceClassification", _DEBERTA | _LABEL | {"cls_dropout": 0.2, "pooler_dropout": 0.1}, 3),
    ("DebertaV2ForSequenceClassification", _DEBERTA_V2 | _SCORES, 1),
    ("DebertaForTokenClassification", _DEBERTA, 4),
    ("DebertaV2ForTokenClassification", _DEBERTA_V2 | {"conv_kernel_size": 3, "conv_act": "gelu"}, 4),
    ("XLNetForSequenceClassification", _XLNET | {"summary_last_dropout": 0.2}, 3),
    ("XLNetForTokenClassification", _XLNET | {"ff_activation": "relu"}, 4),
    ("BartForSequenceClassification", _SIZES | _BART | {"classifier_dropout": 0.25}, 3),
    ("BartForSequenceClassification", _SIZES | _BART, 1),
    ("T5ForSequenceClassification", _SIZES | _T5, 3),
    (
        "T5ForSequenceClassification",
        _SIZES | _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        2,
    ),
    ("GPT2ForSequenceClassification", _SIZES | _GPT, 3),
    ("GPT2ForTokenClassification", _SIZES | _GPT | {"classifier_dropout": 0.3}, 4),
    ("OpenAIGPTForSequenceClassification", _SIZES | _GPT, 1),
    ("LlamaForSequenceClassification", _LLAMA, 3),
    ("LlamaForSequenceClassification", _LLAMA | _SCORES, 2),
    ("LlamaForTokenClassification", _LLAMA | {"tie_word_embeddings": True}, 3),
    ("MistralForSequenceClassification", _LLAMA | {"sliding_window": 5}, 2),
    ("MistralForTokenClassification", _LLAMA | {"sliding_window": 5}, 2),
]
# The same heads on other models, which test_*_parity.py compare.
AS_OTHERS = {
    f"{name}ForTokenClassification" for name in "Roberta Longformer DistilBert MobileBert Electra BigBird".split()
}
AS_OTHERS |= {f"{name}ForTokenClassification" for name in "Deberta DebertaV2 XLNet Mistral".split()}
AS_OTHERS |= {"MistralForSequenceClassification"}


# The pooler of classes that do not use it.
UNUSED = {"bert.pooler.weight", "bert.pooler.bias"}


@dataclasses.dataclass
class Example:
    """The same model and head in transformers and here, and arrays of padded rows."""

    reference: Any
    directory: str
    config: Any
    objective: Any
    params: dict
    arrays: Mapping[str, np.ndarray]

    @property
    def batch(self):
        counts = {"inputs": self.arrays["lengths"]}
        arrays = {name: self.arrays[name] for name in self.objective.features.task_features}
        return batches.from_arrays(self.objective.features, arrays, counts=counts)

    @property
    def valid(self):
        return np.arange(LENGTH) < self.arrays["lengths"][:, None]

    def outputs(self):
        """Returns the outputs of transformers."""
        hf_config = self.reference.config
        targets = self.arrays["targets"]
        given = {
            "input_ids": np.where(self.valid, self.arrays["inputs"], hf_config.pad_token_id),
            "attention_mask": self.valid,
            "labels": np.where(targets < 0, -100, targets) if targets.shape[1] > 1 else targets[:, 0],
        }
        if "token_types" in self.objective.features.task_features and hasattr(hf_config, "type_vocab_size"):
            given["token_type_ids"] = self.arrays["token_types"]
        if hf_config.model_type == "xlnet":  # which is padded on the left
            given = {name: self.moved(x, LENGTH) if x.shape == (ROWS, LENGTH) else x for name, x in given.items()}
        given = {name: torch.tensor(array) for name, array in given.items()}
        return self.reference(**{name: x if x.is_floating_point() else x.long() for name, x in given.items()})

    def moved(self, rows, to):
        """Returns rows whose tokens, which end at their lengths, end at `to`; or the reverse for negative numbers."""
        shifts = (abs(to) - self.arrays["lengths"]) * np.sign(to)
        return np.stack([np.roll(row, shift, axis=0) for row, shift in zip(rows, shifts, strict=True)])


def make_arrays(rng, hf_config, outputs, head):
    """Returns rows of different lengths that end with EOS, and their targets."""
    lengths = np.array([LENGTH, LENGTH - 4, LENGTH - 11, LENGTH - 1])
    inputs = rng.integers(FIRST_TEXT, VOCABULARY, (ROWS, LENGTH))
    if hf_config.is_encoder_decoder:
        inputs[np.arange(ROWS), lengths - 1] = hf_config.eos_token_id
    valid = np.arange(LENGTH) < lengths[:, None]
    types = rng.integers(0, getattr(hf_config, "type_vocab_size", 1) or 1, (ROWS, LENGTH))
    targets = rng.integers(0, outputs, (ROWS, 1))
    if head.predicts == "scores":
        targets = rng.uniform(0, 5, (ROWS, outputs)).astype(np.float32)
    if head.name == "token_classification":
        targets = np.where(valid, rng.integers(-1, outputs, (ROWS, LENGTH)), -1)
    return {"inputs": inputs * valid, "token_types": types * valid, "targets": targets, "lengths": lengths}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(each, marks=pytest.mark.slow if each[0] in AS_OTHERS else (), id=f"{each[0]}-{each[2]}")
        for each in CASES
    ],
)
def example(request, tmp_path_factory):
    name, settings, outputs = request.param
    number = CASES.index(request.param)
    directory = str(tmp_path_factory.mktemp("head"))
    torch.manual_seed(number)
    reference_class = getattr(transformers, name)
    hf_config = reference_class.config_class(**settings, id2label={i: f"label {i}" for i in range(outputs)})
    reference = reference_class(hf_config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # move norms and biases away from 1 and 0
            parameter += 0.1 * torch.randn_like(parameter)
        if hf_config.model_type == "mobilebert":  # trigrams of padded rows include it
            reference.get_input_embeddings().weight[hf_config.pad_token_id] = 0
    reference.save_pretrained(directory, safe_serialization=True)
    head = interop.task_head(directory)
    assert (head.predicts == "scores") == (outputs == 1 or settings.get("problem_type") == "regression")
    if head.name == "token_classification":
        objective = TokenClassification(head.labels, head=head.form)
    elif head.predicts == "scores":
        objective = SequenceRegression(labels=head.labels, head=head.form)
    else:
        objective = SequenceClassification(head.labels, head=head.form)
    config, model = interop.from_huggingface(directory)
    like = jax.eval_shape(objective.init, jax.random.key(0), model)
    stored = interop.read(directory, config)
    leaves = {name.removeprefix(tables.OBJECTIVE): leaf for name, leaf in stored.items() if "objective/" in name}
    assert leaves.keys() == parameters.named_leaves(like).keys()
    arrays = make_arrays(np.random.default_rng(number), hf_config, outputs, head)
    params = {"model": model, "objective": parameters.rebuild(like, leaves)}
    return Example(reference, directory, config, objective, params, arrays)


def test_head_is_read_from_config_json(example):
    hf_config, head = example.reference.config, interop.task_head(example.directory)
    assert head.labels == tuple(hf_config.id2label.values())
    assert head.form == interop.head_form(example.directory, head.name)
    dropouts = [
        module.p
        for name, module in example.reference.named_modules()
        if name in ("dropout", "classification_head.dropout", "classifier.dropout", "sequence_summary.last_dropout")
    ]
    (module,) = example.params["objective"].values()
    assert [module.dropout.rate] == (dropouts or [0.0])


def test_logits_loss_and_gradients(example, assert_parity):
    reference = example.outputs()
    reference.loss.backward()
    (term,) = example.objective.coefficients

    def loss(params):
        found = passes.forward(example.objective, params, example.batch)
        total, _ = passes.loss(found, {term: 1 / passes.total_weights(example.objective, example.batch)[term]})
        return total, found.predictions[term].hidden

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(example.params)
    expected = reference.logits.detach().numpy()
    if expected.ndim == 2:
        logits = logits.reshape(ROWS, -1)
    else:
        if example.config.__class__.__name__ == "XLNetConfig":
            expected = example.moved(expected, -LENGTH)
        logits, expected = logits[example.valid], expected[example.valid]
    assert_parity({"logits": logits}, {"logits": expected}, "logits")
    assert_parity({"loss": value}, {"loss": reference.loss.detach()}, "loss")
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad  # none without effect
        for name, parameter in example.reference.named_parameters()
        if name not in UNUSED
    }
    assert_parity(interop.tensors_to_huggingface(gradient, example.config), gradients, "gradients")


# What the class of a text then computes as its loss, and its pipeline as its output.
PROBLEMS = {
    "label": "single_label_classification",
    "labels": "multi_label_classification",
    "scores": "regression",
}


def test_transformers_reads_exported_head(example, tmp_path):
    labels = example.objective.labels
    rate = next(iter(example.params["objective"].values())).dropout.rate
    options = {"labels": labels, "predicts": example.objective.predicts, "dropout_rate": rate}
    options |= {"same": ("architectures", "num_labels", "pad_token_id", "id2label"), "unused": UNUSED}
    loaded = check_export(example.params, example.config, example.reference, tmp_path, **options)
    assert interop.task_head(str(tmp_path)).labels == labels
    assert loaded.config.label2id == {label: index for index, label in enumerate(labels)}
    problem = PROBLEMS[example.objective.predicts] if "ForSequence" in type(loaded).__name__ else None
    assert loaded.config.problem_type == problem
