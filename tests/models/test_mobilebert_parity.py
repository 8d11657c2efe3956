"""Compares MobileBERT with transformers: random weights, small odd sizes, float32, padded rows.

transformers does not run layers whose queries and keys are computed from the hidden states (table 1 of the paper, and
IB-BERT), because it makes their projections for the size of the bottleneck. The reference is its model with projections
of the right size in their place. numerics.py defines the tolerance.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from exported_weights import check_export
from objective_cases import read_terms

from t5x_like import interop, parameters
from t5x_like.interop import mobilebert as mapping
from t5x_like.interop import tables
from t5x_like.models.mobilebert import MobileBertConfig
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.passes import total_weights

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

ROWS, LENGTH, PREDICTIONS, VOCABULARY = 3, 11, 3, 53
LENGTHS, COUNTS = np.array([LENGTH, LENGTH - 4, LENGTH - 7]), np.array([PREDICTIONS, 1, 2])
HIDDEN = {"use_bottleneck_attention": False, "key_query_shared_bottleneck": False}
# Attention input -> differences from the released configuration. transformers normalizes some LayerNorms with torch's
# default epsilon of 1e-5 whatever `layer_norm_eps` is.
VARIANTS = {
    "shared_bottleneck": {"classifier_activation": False},
    "bottleneck": {
        "use_bottleneck_attention": True,
        "key_query_shared_bottleneck": False,
        "num_feedforward_networks": 2,
        "classifier_activation": True,
    },
    "hidden": HIDDEN | {"classifier_activation": False},
    "ib_bert": HIDDEN
    | {
        "num_feedforward_networks": 1,
        "intra_bottleneck_size": 24,
        "hidden_act": "gelu_new",
        "normalization_type": "layer_norm",
        "layer_norm_eps": 1e-5,
        "classifier_activation": True,
    },
}


def reference_config(name):
    settings = dict(
        vocab_size=VOCABULARY,
        hidden_size=19,
        embedding_size=7,
        intra_bottleneck_size=15,
        intermediate_size=13,
        num_attention_heads=3,
        num_hidden_layers=2,
        max_position_embeddings=LENGTH + 3,
        num_feedforward_networks=3,
        attn_implementation="eager",
    )
    return transformers.MobileBertConfig(**settings | VARIANTS[name])


@dataclasses.dataclass
class Example:
    """The same model and heads in transformers and here, and a batch of padded rows."""

    reference: Any
    config: Any
    objective: Any
    params: dict
    batch: dict

    @property
    def valid(self):
        return self.batch["encoder_segment_ids"] == 1

    def outputs(self):
        labels, chosen = np.full((ROWS, LENGTH), -100), self.batch["masked_weights"] == 1
        rows = np.broadcast_to(np.arange(ROWS)[:, None], chosen.shape)
        labels[rows[chosen], self.batch["masked_positions"][chosen]] = self.batch["masked_targets"][chosen]
        given = {
            "input_ids": self.batch["encoder_input_tokens"],
            "attention_mask": self.valid,
            "token_type_ids": self.batch["token_types"],
            "labels": labels,
            "next_sentence_label": self.batch["next_sentence_label"],
        }
        given = {name: torch.tensor(array).long() for name, array in given.items()}
        return self.reference(**given, output_hidden_states=True, output_attentions=True)


def make_batch(rng):
    valid = np.arange(LENGTH) < LENGTHS[:, None]
    weights = np.arange(PREDICTIONS) < COUNTS[:, None]
    positions = np.stack([np.sort(rng.choice(length, PREDICTIONS, replace=False)) for length in LENGTHS]) * weights
    batch = {
        "encoder_input_tokens": rng.integers(1, VOCABULARY, (ROWS, LENGTH)) * valid,
        "encoder_segment_ids": valid,
        "token_types": rng.integers(0, 2, (ROWS, LENGTH)) * valid,
        "masked_positions": positions,
        "masked_targets": rng.integers(0, VOCABULARY, (ROWS, PREDICTIONS)) * weights,
        "masked_weights": weights,
        "next_sentence_label": np.array([[0], [1], [1]]),
    }
    return {name: array.astype(np.int32) for name, array in batch.items()}


def make_reference(name):
    """Returns a random model of transformers, with an embedding of padding of 0, as it initializes it."""
    torch.manual_seed(0)
    hf_config = reference_config(name)
    reference = transformers.MobileBertForPreTraining(hf_config).eval()
    if hf_config.use_bottleneck_attention == hf_config.key_query_shared_bottleneck:
        for layer in reference.mobilebert.encoder.layer:
            for attention, part in ((layer.attention.self, part) for part in ("query", "key")):
                setattr(attention, part, torch.nn.Linear(hf_config.hidden_size, attention.all_head_size))
    with torch.no_grad():
        for parameter in reference.parameters():  # move norms and biases away from 1 and 0
            parameter += 0.1 * torch.randn_like(parameter)
        reference.get_input_embeddings().weight[hf_config.pad_token_id] = 0
    return reference


def make_config(name, hf_config):
    if name in ("hidden", "ib_bert"):
        supported = {**hf_config.to_dict(), "key_query_shared_bottleneck": True}
        return dataclasses.replace(mapping.config_from_huggingface(supported), attention_input="hidden")
    return mapping.config_from_huggingface(hf_config.to_dict())


@pytest.fixture(scope="module", params=VARIANTS)
def example(request, tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("mobilebert"))
    reference = make_reference(request.param)
    reference.save_pretrained(directory, safe_serialization=True)
    config = make_config(request.param, reference.config)
    objective = Joint([MaskedLM(), NextSentence(pooler=reference.config.classifier_activation)])
    model = jax.eval_shape(config.make, jax.random.key(0))
    like = {"model": model, "objective": jax.eval_shape(objective.init, jax.random.key(0), model)}
    params = parameters.unstack(tables.read(directory, mapping.FAMILY, config), like)
    return Example(reference, config, objective, params, make_batch(np.random.default_rng(0)))


def test_hidden_states_and_attention(example, assert_parity):
    with torch.no_grad():
        reference = example.outputs()
    # Without segment ids, the padding token alone determines the mask and the trigrams.
    batch = {name: array for name, array in example.batch.items() if name != "encoder_segment_ids"}
    wanted = ("encoder/embedding", "encoder/layers/hidden", "encoder/layers/attention/probabilities")
    outputs = jax.jit(lambda model: model(batch, capture=wanted))(example.params["model"])
    states = [outputs.captured[wanted[0]], *outputs.captured[wanted[1]]]

    def without_padding(arrays):
        return {number: np.asarray(array)[example.valid] for number, array in enumerate(arrays)}

    assert_parity(without_padding(states), without_padding(reference.hidden_states), "hidden states")
    probabilities = [np.moveaxis(np.asarray(layer), 1, 2) for layer in outputs.captured[wanted[2]]]
    attentions = [layer.numpy().transpose(0, 2, 1, 3) for layer in reference.attentions]
    assert_parity(without_padding(probabilities), without_padding(attentions), "attention")


def test_logits_loss_and_gradients(example, assert_parity):
    reference = example.outputs()
    reference.loss.backward()

    def loss(params):
        outputs, heads = params["model"](example.batch), params["objective"]
        terms = read_terms(example.objective, params, outputs, example.batch)
        weights = total_weights(example.objective, example.batch)
        total = sum(terms.sums[name] / weights[name] for name in terms.sums)
        head = heads["masked_lm"]
        tokens = head.logits(params["model"], head(outputs.hidden))
        return total, (tokens, heads["next_sentence"](outputs.hidden)[:, 0])

    (value, (tokens, sentences)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(example.params)
    expected = reference.prediction_logits.detach().numpy()
    assert_parity({"tokens": tokens[example.valid]}, {"tokens": expected[example.valid]}, "logits of tokens")
    assert_parity({"pairs": sentences}, {"pairs": reference.seq_relationship_logits.detach()}, "logits of sentences")
    assert_parity({"loss": value}, {"loss": reference.loss.detach()}, "loss")
    leaves = parameters.stack(parameters.named_leaves(gradient))
    gradients = {name: parameter.grad for name, parameter in example.reference.named_parameters()}
    assert_parity(tables.write(mapping.FAMILY, example.config, leaves), gradients, "gradients")
    example.reference.zero_grad()


def test_transformers_reads_exported_model(example, tmp_path):
    if example.config.attention_input == "hidden":
        with pytest.raises(ValueError, match="attention_input='hidden': not supported by transformers' MobileBERT"):
            interop.to_huggingface(example.params, example.config, str(tmp_path))
        return
    loaded = check_export(example.params, example.config, example.reference, tmp_path)
    expected = example.reference.config.to_diff_dict()
    assert {**expected, **loaded.config.to_diff_dict()} == {**loaded.config.to_diff_dict(), **expected}


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        ((), "MobileBertModel"),
        (("masked_lm",), "MobileBertForMaskedLM"),
        (("next_sentence",), "MobileBertForNextSentencePrediction"),
    ],
)
def test_class_depends_on_exported_heads(heads, expected, tmp_path):
    config = MobileBertConfig(
        **dict(vocab_size=31, embed_dim=12, embedding_dim=5, bottleneck_dim=6, num_heads=2, head_dim=3),
        **dict(mlp_dim=7, num_mlps=2, num_layers=2, max_length=9),
    )
    model = config.make(jax.random.key(0))
    objective = Joint([MaskedLM(), NextSentence(pooler=False)])
    made = objective.init(jax.random.key(1), model)
    params = {"model": model, "objective": {name: made[name] for name in heads}}
    interop.to_huggingface(params, config, str(tmp_path))
    auto = transformers.AutoModel if not heads else getattr(transformers, expected)
    loaded, report = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded).__name__ == expected and loaded.config.architectures == [expected]
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert interop.config_from_huggingface(str(tmp_path)) == dataclasses.replace(
        config, special_tokens=interop.config_from_huggingface(str(tmp_path)).special_tokens
    )


def test_embedding_of_padding_does_not_matter(assert_parity):
    """transformers adds it to the trigram of a row's last token, but only if the row is padded."""
    reference = make_reference("shared_bottleneck")
    with torch.no_grad():
        reference.get_input_embeddings().weight[0] = 1.0
    config = make_config("shared_bottleneck", reference.config)
    hf_tensors = {name: tensor.numpy() for name, tensor in reference.mobilebert.state_dict().items()}
    like = jax.eval_shape(config.make, jax.random.key(0))
    leaves = {}
    for each in mapping.table(config):
        if not each.name.startswith("model/"):
            continue
        shape, layers = tables.shapes(config)[each.name]
        hf_name = each.hf_name.removeprefix("mobilebert.")
        arrays = [each.from_hf(hf_tensors[hf_name.format(i=i)], shape) for i in range(layers or 1)]
        leaves[each.name.removeprefix("model/")] = np.stack(arrays) if layers else arrays[0]
    model, batch = parameters.unstack(leaves, like), make_batch(np.random.default_rng(0))
    found = jax.jit(lambda model: model(batch).hidden)(model)
    for row, length in enumerate(LENGTHS):
        given = {
            "input_ids": torch.tensor(batch["encoder_input_tokens"][row : row + 1, :length]).long(),
            "token_type_ids": torch.tensor(batch["token_types"][row : row + 1, :length]).long(),
        }
        with torch.no_grad():
            expected = reference.mobilebert(**given).last_hidden_state[0].numpy()
        assert_parity({row: np.asarray(found)[row, :length]}, {row: expected}, "hidden states of rows")
