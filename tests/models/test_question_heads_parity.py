"""Compares span extraction, multiple choice and GPT-1's fine-tuning with transformers: random weights, padded rows.

numerics.py defines the tolerance. transformers includes the states of padding in the softmax over positions, and
averages the language model over tokens, so these losses are computed from its logits.
"""

import dataclasses
import re
from typing import Any

import jax
import numpy as np
import pytest
from exported_weights import check_export
from families import others_are_slow
from numerics import TOLERANCE
from objective_cases import terms_of

from t5x_like import interop, parameters
from t5x_like.data import batches
from t5x_like.interop import tables
from t5x_like.objectives.gpt1_finetuning import AuxiliaryLM
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.multiple_choice import MultipleChoice
from t5x_like.objectives.passes import forward, total_weights
from t5x_like.objectives.span_extraction import SpanExtraction

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

ROWS, CHOICES, LENGTH, VOCABULARY = 4, 3, 11, 47
LENGTHS = np.array([LENGTH, LENGTH - 3, LENGTH - 7, LENGTH - 1])
SPANS = np.array([[2, 5], [0, 0], [3, 3], [1, 9]])
LABELS = np.array([[2], [0], [1], [1]])
_SIZES = dict(vocab_size=VOCABULARY, attn_implementation="eager")
_ENCODER = _SIZES | dict(
    hidden_size=15, intermediate_size=22, num_attention_heads=3, num_hidden_layers=1, max_position_embeddings=20
)
_ROBERTA = _ENCODER | {"type_vocab_size": 1, "pad_token_id": 1}
_LONGFORMER = _ROBERTA | {"attention_window": 4}
_DISTILBERT = _SIZES | dict(dim=15, hidden_dim=22, n_heads=3, n_layers=1, max_position_embeddings=20)
_MOBILEBERT = _ENCODER | dict(
    embedding_size=7,
    intra_bottleneck_size=12,
    num_feedforward_networks=2,
    normalization_type="layer_norm",
    layer_norm_eps=1e-5,
)
_DEBERTA = {name: value for name, value in _ENCODER.items() if name != "attn_implementation"} | dict(
    relative_attention=True, position_biased_input=False, pos_att_type="c2p|p2c"
)
_DEBERTA_V2 = _DEBERTA | dict(
    position_buckets=4, max_relative_positions=8, share_att_key=True, norm_rel_ebd="layer_norm", type_vocab_size=0
)
_BIGBIRD = {name: value for name, value in _ENCODER.items() if name != "attn_implementation"} | {"type_vocab_size": 2}
_BART = dict(d_model=15, encoder_ffn_dim=22, decoder_ffn_dim=22, max_position_embeddings=20) | {
    f"{stack}_{name}": value
    for stack in ("encoder", "decoder")
    for name, value in (("layers", 1), ("attention_heads", 3))
}
_T5 = dict(d_model=14, d_ff=22, d_kv=5, num_layers=1, num_heads=3, decoder_start_token_id=0, pad_token_id=0)
_GPT = dict(n_embd=15, n_head=3, n_layer=1, n_positions=20, pad_token_id=0)
_LLAMA = _ENCODER | dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=6, pad_token_id=0)
_XLNET = dict(vocab_size=VOCABULARY, d_model=14, d_inner=22, n_head=7, n_layer=1, pad_token_id=0)
CASES = {
    "XLNetForQuestionAnsweringSimple": _XLNET,
    "XLNetForMultipleChoice": _XLNET | {"summary_last_dropout": 0.2},
    "BertForQuestionAnswering": _ENCODER | {"type_vocab_size": 2},
    "RobertaForQuestionAnswering": _ROBERTA,
    "LongformerForQuestionAnswering": _LONGFORMER,
    "BigBirdForQuestionAnswering": _BIGBIRD | {"hidden_act": "relu"},
    "DebertaForQuestionAnswering": _DEBERTA,
    "DebertaV2ForMultipleChoice": _DEBERTA_V2 | {"cls_dropout": 0.2},
    "ElectraForQuestionAnswering": _ENCODER | {"embedding_size": 7},
    "DistilBertForQuestionAnswering": _DISTILBERT | {"qa_dropout": 0.3},
    "BartForQuestionAnswering": _SIZES | _BART,
    "T5ForQuestionAnswering": _SIZES | _T5,
    "GPT2ForQuestionAnswering": _SIZES | _GPT,
    "LlamaForQuestionAnswering": _LLAMA,
    "MistralForQuestionAnswering": _LLAMA | {"sliding_window": 5},
    "BertForMultipleChoice": _ENCODER | {"type_vocab_size": 2, "classifier_dropout": 0.3},
    "RobertaForMultipleChoice": _ROBERTA,
    "LongformerForMultipleChoice": _LONGFORMER,
    "BigBirdForMultipleChoice": _BIGBIRD | {"classifier_dropout": 0.3},
    "DistilBertForMultipleChoice": _DISTILBERT,
    "ElectraForMultipleChoice": _ENCODER | {"embedding_size": 7, "summary_last_dropout": 0.2},
    "MobileBertForQuestionAnswering": _MOBILEBERT,
    "MobileBertForMultipleChoice": _MOBILEBERT | {"classifier_activation": True, "classifier_dropout": 0.2},
    "OpenAIGPTDoubleHeadsModel": _SIZES | _GPT | {"summary_first_dropout": 0.2},
    "GPT2DoubleHeadsModel": _SIZES | _GPT,
}
# The same heads on other models, which test_*_parity.py compare.
AS_OTHERS = {f"{name}ForQuestionAnswering" for name in "Deberta DistilBert Electra Llama Mistral T5".split()}
AS_OTHERS |= {
    f"{name}For{kind}" for name in ("Roberta", "Longformer") for kind in ("QuestionAnswering", "MultipleChoice")
}
# The bias of a classifier adds a constant to all logits of a softmax: its gradient is 0 up to rounding.
CLASSIFIER_BIAS = r"\b(qa_outputs|classifier|(?<!sequence_summary\.)summary|logits_proj)\.bias"
# So does the bias of the last norm of a model in span extraction, whose logits are linear in it.
_LAST_NORMS = (
    r"ln_f",
    r"(?<!mobilebert\.encoder\.)layer\.0\.output\.LayerNorm",
    r"layer\.0\.output\.bottleneck\.LayerNorm",
    r"layer\.0\.output_layer_norm",
    r"decoder\.layers\.0\.final_layer_norm",
    r"layer\.0\.ff\.layer_norm",
)
LAST_NORM_BIAS = rf"({'|'.join(_LAST_NORMS)})\.bias"
# The head has a norm of its own.
_OWN_NORM_BIAS = r"qa_classifier\.output\.LayerNorm\.bias"


@dataclasses.dataclass
class Example:
    """The same model and head in transformers and here, a batch, and the features that transformers reads."""

    reference: Any
    directory: str
    config: Any
    objective: Any
    params: dict
    batch: dict
    given: dict

    def losses(self):
        """Returns logits of transformers by name, and the loss of each term."""
        outputs, valid = self.reference(**self.given), torch.tensor(np.arange(LENGTH) < LENGTHS[:, None])
        loss = torch.nn.functional.cross_entropy
        if hasattr(outputs, "start_logits"):
            logits = {name: getattr(outputs, name) for name in ("start_logits", "end_logits")}
            if self.reference.config.model_type == "xlnet":
                shifts = [n - LENGTH for n in LENGTHS]
                logits = {
                    name: torch.stack([torch.roll(row, n) for row, n in zip(x, shifts, strict=True)])
                    for name, x in logits.items()
                }
            terms = {
                f"span_{name}": loss(logits[f"{name}_logits"].masked_fill(~valid, -1e9), torch.tensor(SPANS[:, index]))
                for index, name in enumerate(("start", "end"))
            }
            return logits, terms
        if not hasattr(outputs, "mc_logits"):
            return {"logits": outputs.logits}, {"multiple_choice": loss(outputs.logits, torch.tensor(LABELS[:, 0]))}
        ids, valid = self.given["input_ids"][:, :, 1:], valid[:, None, 1:]
        per_token = loss(outputs.logits[:, :, :-1].flatten(0, 2), ids.flatten(), reduction="none").view(ids.shape)
        per_sequence = (per_token * valid).sum(-1) / valid.sum(-1)
        return {"logits": outputs.mc_logits}, {"multiple_choice": outputs.mc_loss, "auxiliary_lm": per_sequence.mean()}


def padded_left(rows):
    """Returns rows whose last tokens are at the end."""
    return np.stack([np.roll(x, LENGTH - n, axis=-1) for x, n in zip(rows, LENGTHS, strict=True)])


def make_objective(head):
    if head.name == "span_extraction":
        return SpanExtraction(head=head.form)
    choice = MultipleChoice(CHOICES, head=head.form)
    return Joint([choice, AuxiliaryLM(num_sequences=CHOICES)]) if hasattr(head.form, "orders") else choice


def make_batch(objective, reference, name):
    """Returns the batch here and the features of transformers."""
    rng, hf_config = np.random.default_rng(1), reference.config
    has_choices = "QuestionAnswering" not in name
    shape = (ROWS, CHOICES, LENGTH) if has_choices else (ROWS, LENGTH)
    valid = np.broadcast_to(np.arange(LENGTH) < (LENGTHS[:, None, None] if has_choices else LENGTHS[:, None]), shape)
    inputs = rng.integers(3, VOCABULARY, shape)
    if hf_config.model_type == "longformer":  # of which transformers requires three separators per row
        inputs[..., 1:3] = hf_config.sep_token_id
        inputs[np.arange(ROWS), ..., LENGTHS - 1] = hf_config.sep_token_id
    types = rng.integers(0, getattr(hf_config, "type_vocab_size", 1) or 1, shape) * valid
    arrays, counts = {"targets": LABELS if has_choices else SPANS}, {}
    for index in range(CHOICES) if has_choices else [None]:
        part, suffix = (slice(None),) if index is None else (slice(None), index), "" if index is None else f"_{index}"
        arrays |= {f"inputs{suffix}": (inputs * valid)[part], f"token_types{suffix}": types[part]}
        counts[f"inputs{suffix}"] = LENGTHS
    given = {"input_ids": np.where(valid, inputs, hf_config.pad_token_id), "attention_mask": valid}
    has_types = "token_types" in {feature.name for feature in objective.features.features}
    if has_types and hasattr(hf_config, "type_vocab_size"):
        given["token_type_ids"] = types
    if hf_config.model_type == "xlnet":  # which is padded on the left
        given = {key: padded_left(x) for key, x in given.items()}
    if "DoubleHeads" in name:
        del given["attention_mask"]  # OpenAIGPTDoubleHeadsModel does not support it, and padding is at the end
        given["mc_token_ids"] = np.broadcast_to(LENGTHS[:, None] - 1, (ROWS, CHOICES)).copy()
        given["mc_labels"] = LABELS[:, 0]
    read = {key: arrays[key] for key in objective.features.task_features}
    return batches.from_arrays(objective.features, read, counts=counts), {
        key: torch.tensor(array).long().contiguous() for key, array in given.items()
    }


@pytest.fixture(scope="module", params=others_are_slow(CASES, CASES.keys() - AS_OTHERS))
def example(request, tmp_path_factory):
    name = request.param
    directory = str(tmp_path_factory.mktemp("head"))
    torch.manual_seed(0)
    reference_class = getattr(transformers, name)
    reference = reference_class(reference_class.config_class(**CASES[name])).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # move norms and biases away from 1 and 0
            parameter += 0.1 * torch.randn_like(parameter)
        if reference.config.model_type == "mobilebert":  # trigrams of padded rows include it
            reference.get_input_embeddings().weight[reference.config.pad_token_id] = 0
    reference.save_pretrained(directory, safe_serialization=True)
    objective = make_objective(interop.task_head(directory))
    config, model = interop.from_huggingface(directory)
    like = jax.eval_shape(objective.init, jax.random.key(0), model)
    stored = interop.read(directory, config)
    leaves = {key.removeprefix(tables.OBJECTIVE): leaf for key, leaf in stored.items() if "objective/" in key}
    params = {"model": model, "objective": parameters.rebuild(like, leaves)}
    return Example(reference, directory, config, objective, params, *make_batch(objective, reference, name))


def test_logits_losses_and_gradients(example, assert_parity):
    expected_logits, expected = example.losses()
    weights = total_weights(example.objective, example.batch)
    sum(example.objective.coefficients[term] * value for term, value in expected.items()).backward()

    def loss(params):
        sums = terms_of(example.objective, params, example.batch).sums
        terms = {name: sums[name] / weights[name] for name in sums}
        return sum(example.objective.coefficients[name] * term for name, term in terms.items()), terms

    (_, terms), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(example.params)
    assert_parity(terms, {name: term.detach() for name, term in expected.items()}, "losses")
    main = getattr(example.objective, "objectives", [example.objective])[0]
    predicted = forward(main, example.params, example.batch).predictions.values()
    logits = np.concatenate([each.hidden for each in predicted], axis=1)
    if not isinstance(main, SpanExtraction):
        logits = logits[:, 0]
    if len(expected_logits) == 2:
        valid = np.arange(LENGTH) < LENGTHS[:, None]
        logits = {name: logits[:, index][valid] for index, name in enumerate(expected_logits)}
        expected_logits = {name: value.detach().numpy()[valid] for name, value in expected_logits.items()}
    else:
        logits, expected_logits = {"logits": logits}, {"logits": expected_logits["logits"].detach()}
    assert_parity(logits, expected_logits, "logits")
    found = interop.tensors_to_huggingface(gradient, example.config)
    gradients = {
        name: np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
        for name, parameter in example.reference.named_parameters()
    }
    is_span = isinstance(example.objective, SpanExtraction)
    norm_bias = _OWN_NORM_BIAS if hasattr(example.reference, "qa_classifier") else LAST_NORM_BIAS
    without_effect = f"{CLASSIFIER_BIAS}|{norm_bias}" if is_span else CLASSIFIER_BIAS
    zero = [name for name in found if re.search(without_effect, name)]
    assert zero
    for either in (found, gradients):
        largest = max(np.abs(gradient).max() for gradient in either.values())
        assert all(np.abs(either.pop(name)).max() <= TOLERANCE * largest for name in zero)
    assert_parity(found, gradients, "gradients")


def test_transformers_reads_exported_head(example, tmp_path):
    rate = next(iter(example.params["objective"].values())).dropout.rate
    same = ("architectures", "num_labels")
    check_export(example.params, example.config, example.reference, tmp_path, same=same, dropout_rate=rate)
    assert interop.task_head(str(tmp_path)) == interop.task_head(example.directory)
