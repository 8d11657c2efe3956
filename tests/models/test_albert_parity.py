"""Compares ALBERT with transformers: random weights, small odd sizes, one layer and groups of layers, float32.

numerics.py defines the tolerance.
"""

import dataclasses

import jax
import numpy as np
import pytest
from exported_weights import check_export
from objective_cases import terms_of

from t5x_like import interop, parameters
from t5x_like.interop import tables
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.passes import total_weights
from t5x_like.objectives.sentence_order import SentenceOrder

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

LENGTHS, COUNTS = np.array([19, 15, 8]), np.array([5, 1, 3])
ROWS, LENGTH, PREDICTIONS = 3, 19, 5
OBJECTIVE = Joint([MaskedLM(), SentenceOrder()])
# (layers, stored layers, activation)
VARIANTS = [(4, 1, "gelu_new"), (3, 3, "gelu"), (4, 2, "relu"), (1, 1, "gelu_new")]


def reduced_config(number):
    rng = np.random.default_rng(3000 + number)
    heads, (layers, groups, activation) = int(rng.integers(2, 6)), VARIANTS[number]
    return transformers.AlbertConfig(
        vocab_size=int(rng.integers(41, 131)),
        embedding_size=5,
        hidden_size=heads * int(rng.integers(3, 12)),
        intermediate_size=int(rng.integers(11, 70)),
        num_attention_heads=heads,
        num_hidden_layers=layers,
        num_hidden_groups=groups,
        hidden_act=activation,
        type_vocab_size=int(rng.integers(2, 5)),
        max_position_embeddings=int(rng.integers(LENGTH + 1, 40)),
        attn_implementation="eager",
    )


def make_batch(rng, hf_config):
    valid = np.arange(LENGTH) < LENGTHS[:, None]
    positions = np.zeros((ROWS, PREDICTIONS), np.int64)
    for row in range(ROWS):
        positions[row, : COUNTS[row]] = np.sort(rng.choice(LENGTHS[row], COUNTS[row], replace=False))
    weights = np.arange(PREDICTIONS) < COUNTS[:, None]
    batch = {
        "encoder_input_tokens": rng.integers(1, hf_config.vocab_size, (ROWS, LENGTH)) * valid,
        "encoder_segment_ids": valid,
        "masked_positions": positions,
        "masked_targets": rng.integers(0, hf_config.vocab_size, (ROWS, PREDICTIONS)) * weights,
        "masked_weights": weights,
        "token_types": rng.integers(0, hf_config.type_vocab_size, (ROWS, LENGTH)) * valid,
        "next_sentence_label": np.array([[0], [1], [1]]),
    }
    return {name: array.astype(np.int32) for name, array in batch.items()}


def reference_outputs(reference, batch):
    labels = np.full((ROWS, LENGTH), -100)
    for row in range(ROWS):
        labels[row, batch["masked_positions"][row, : COUNTS[row]]] = batch["masked_targets"][row, : COUNTS[row]]
    given = {
        "input_ids": batch["encoder_input_tokens"],
        "attention_mask": batch["encoder_segment_ids"],
        "token_type_ids": batch["token_types"],
        "labels": labels,
        "sentence_order_label": batch["next_sentence_label"],
    }
    return reference(**{name: torch.tensor(array).long() for name, array in given.items()}, output_hidden_states=True)


@pytest.fixture(scope="module", params=range(len(VARIANTS)))
def original(request, tmp_path_factory):
    """Returns a model of transformers with random weights, and its directory."""
    torch.manual_seed(request.param)
    reference = transformers.AlbertForPreTraining(reduced_config(request.param)).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # move norms and biases away from 1 and 0
            parameter += 0.1 * torch.randn_like(parameter)
    directory = str(tmp_path_factory.mktemp("albert"))
    reference.save_pretrained(directory, safe_serialization=True)
    return reference, directory


def read(directory, scan):
    config, model = interop.from_huggingface(directory, scan_layers=scan)
    like = jax.eval_shape(OBJECTIVE.init, jax.random.key(0), model)
    stored = {
        name.removeprefix(tables.OBJECTIVE): leaf
        for name, leaf in interop.read(directory, config).items()
        if name.startswith(tables.OBJECTIVE)
    }
    return config, {"model": model, "objective": parameters.rebuild(like, stored)}


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_hidden_states_logits_loss_and_gradients(original, scan, assert_parity):
    reference, directory = original
    config, params = read(directory, scan)
    batch = make_batch(np.random.default_rng(0), reference.config)
    expected = reference_outputs(reference, batch)
    expected.loss.backward()
    valid = batch["encoder_segment_ids"] == 1

    def loss(params):
        terms, weights = terms_of(OBJECTIVE, params, batch), total_weights(OBJECTIVE, batch)
        return sum(OBJECTIVE.coefficients[name] * terms.sums[name] / weights[name] for name in terms.sums)

    def run(params):
        outputs = params["model"](batch, capture=("encoder/layers/hidden",))
        heads = params["objective"]
        tokens = heads["masked_lm"].logits(params["model"], heads["masked_lm"](outputs.hidden))
        layers = outputs.captured["encoder/layers/hidden"]
        return layers, tokens, heads["next_sentence"](outputs.hidden)[:, 0], jax.value_and_grad(loss)(params)

    layers, tokens, order, (value, gradient) = jax.jit(run)(params)
    assert len(layers) == config.num_layers
    for number, (ours, theirs) in enumerate(zip(layers, expected.hidden_states[1:], strict=True)):
        theirs = theirs.detach().numpy()[valid]
        assert_parity({number: np.asarray(ours)[valid]}, {number: theirs}, "hidden states")
    theirs = expected.prediction_logits.detach().numpy()[valid]
    assert_parity({"tokens": np.asarray(tokens)[valid]}, {"tokens": theirs}, "logits of tokens")
    assert_parity({"order": order}, {"order": expected.sop_logits.detach()}, "logits of pairs")
    assert_parity({"loss": value}, {"loss": expected.loss.detach()}, "loss")
    assert_parity(
        interop.tensors_to_huggingface(gradient, config),
        {name: parameter.grad for name, parameter in reference.named_parameters()},
        "gradients",
    )
    reference.zero_grad()


def test_transformers_reads_exported_model(original, tmp_path):
    reference, directory = original
    config, params = read(directory, scan=False)
    same = ("num_hidden_groups", "embedding_size", "hidden_act", "type_vocab_size", "architectures")
    check_export(params, config, reference, tmp_path, same=same)
    without_head = params | {"objective": {}}
    interop.to_huggingface(without_head, dataclasses.replace(config), str(tmp_path / "bare"))
    _, report = transformers.AlbertModel.from_pretrained(
        tmp_path / "bare", add_pooling_layer=False, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
