"""Compares DistilBERT with transformers: random weights, small odd sizes, float32, padded rows.

numerics.py defines the tolerance. test_heads_parity.py and test_question_heads_parity.py compare the classes of
downstream tasks.
"""

import json

import jax
import numpy as np
import pytest
from objective_cases import read_terms

from t5x_like import interop, parameters
from t5x_like.interop import tables
from t5x_like.models.distilbert import sinusoids
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.passes import total_weights

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

ROWS, LENGTH, PREDICTIONS = 3, 13, 4
LENGTHS = np.array([LENGTH, LENGTH - 3, LENGTH - 8])
VALID = np.arange(LENGTH) < LENGTHS[:, None]
CONFIGS = {
    "learned": dict(dim=15, n_heads=3, hidden_dim=22, n_layers=3, activation="gelu"),
    "sinusoidal": dict(dim=14, n_heads=2, hidden_dim=11, n_layers=1, activation="relu", sinusoidal_pos_embds=True),
    "padding": dict(dim=21, n_heads=7, hidden_dim=40, n_layers=2, activation="gelu_new", pad_token_id=3),
}
CAPTURED = ("encoder/embedding", "encoder/layers/hidden", "encoder/layers/attention/probabilities")


@pytest.fixture(scope="module", params=CONFIGS)
def example(request, tmp_path_factory):
    """Returns the model of transformers, its configuration and parameters here, and a batch."""
    directory = str(tmp_path_factory.mktemp("distilbert"))
    torch.manual_seed(0)
    hf_config = transformers.DistilBertConfig(
        vocab_size=53, max_position_embeddings=19, attn_implementation="eager", **CONFIGS[request.param]
    )
    reference = transformers.DistilBertForMaskedLM(hf_config).eval()
    if hf_config.sinusoidal_pos_embds:
        positions = reference.distilbert.embeddings.position_embeddings.weight
        np.testing.assert_array_equal(sinusoids(19, hf_config.dim), positions.detach().numpy())
    with torch.no_grad():
        for parameter in reference.parameters():  # move norms and biases away from 1 and 0
            parameter += 0.1 * torch.randn_like(parameter)
    reference.save_pretrained(directory, safe_serialization=True)
    config, model = interop.from_huggingface(directory)
    like = jax.eval_shape(MaskedLM().init, jax.random.key(0), model)
    stored = interop.read(directory, config)
    heads = {name.removeprefix(tables.OBJECTIVE): leaf for name, leaf in stored.items() if "objective/" in name}
    params = {"model": model, "objective": parameters.rebuild(like, heads)}
    rng = np.random.default_rng(0)
    tokens = rng.integers(hf_config.pad_token_id + 1, 53, (ROWS, LENGTH))
    batch = {
        "encoder_input_tokens": np.where(VALID, tokens, hf_config.pad_token_id).astype(np.int32),
        "encoder_segment_ids": VALID.astype(np.int32),
        "masked_positions": np.array([[0, 3, 5, 12], [1, 9, 0, 0], [4, 0, 0, 0]], np.int32),
        "masked_targets": rng.integers(0, 53, (ROWS, PREDICTIONS)).astype(np.int32),
        "masked_weights": (np.arange(PREDICTIONS) < np.array([4, 2, 1])[:, None]).astype(np.int32),
    }
    return reference, config, params, batch


def outputs(reference, batch):
    labels = np.full((ROWS, LENGTH), -100)
    for row, column in np.argwhere(batch["masked_weights"]):
        labels[row, batch["masked_positions"][row, column]] = batch["masked_targets"][row, column]
    given = {"input_ids": batch["encoder_input_tokens"], "attention_mask": VALID, "labels": labels}
    given = {name: torch.tensor(array).long() for name, array in given.items()}
    return reference(**given, output_hidden_states=True, output_attentions=True)


def test_states_attention_logits_loss_and_gradients(example, assert_parity):
    reference, config, params, batch = example
    expected = outputs(reference, batch)
    expected.loss.backward()

    # Without segment ids, the padding token alone determines the mask.
    rows = {name: array for name, array in batch.items() if name != "encoder_segment_ids"}

    def loss(params):
        found = params["model"](rows, capture=CAPTURED)
        terms = read_terms(MaskedLM(), params, found, batch)
        head = params["objective"]["masked_lm"]
        logits = params["model"].unembed(head(found.hidden)) + head.bias[...]
        return terms.sums["masked_lm"] / total_weights(MaskedLM(), batch)["masked_lm"], (found.captured, logits)

    (value, (captured, logits)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

    def valid(arrays):
        return {number: np.asarray(array)[VALID] for number, array in enumerate(arrays)}

    states = [captured["encoder/embedding"], *captured["encoder/layers/hidden"]]
    assert_parity(valid(states), valid(state.detach() for state in expected.hidden_states), "hidden states")
    probabilities = [np.moveaxis(np.asarray(layer), 1, 2) for layer in captured[CAPTURED[-1]]]
    attentions = [layer.detach().numpy().transpose(0, 2, 1, 3) for layer in expected.attentions]
    assert_parity(valid(probabilities), valid(attentions), "attention")
    assert_parity(valid([logits]), valid([expected.logits.detach()]), "logits")
    assert_parity({"loss": value}, {"loss": expected.loss.detach()}, "loss")
    found = interop.tensors_to_huggingface(gradient, config)
    gradients = {name: parameter.grad for name, parameter in reference.named_parameters()}
    frozen = [name for name, array in gradients.items() if array is None]  # sinusoidal positions in transformers
    assert frozen == ["distilbert.embeddings.position_embeddings.weight"] * config.sinusoidal_positions
    for name in frozen:
        del found[name], gradients[name]
    assert_parity(found, gradients, "gradients")


def test_transformers_reads_exported_model(example, tmp_path):
    reference, config, params, _ = example
    interop.to_huggingface(params, config, str(tmp_path / "masked_lm"))
    interop.to_huggingface(params | {"objective": {}}, config, str(tmp_path / "bare"))
    for name, auto in (("masked_lm", transformers.AutoModelForMaskedLM), ("bare", transformers.AutoModel)):
        loaded, report = auto.from_pretrained(tmp_path / name, output_loading_info=True)
        assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
        assert loaded.config.architectures == [type(loaded).__name__]
        expected = reference if name == "masked_lm" else reference.distilbert
        for key, tensor in expected.state_dict().items():
            assert torch.equal(loaded.state_dict()[key], tensor), key
    stored = json.loads((tmp_path / "bare" / "config.json").read_text())
    for key in (*CONFIGS["sinusoidal"], "pad_token_id", "max_position_embeddings"):
        assert stored[key] == getattr(reference.config, key), key
