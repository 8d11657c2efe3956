"""Compares ELECTRA with transformers: random weights, small odd sizes, float32.

The embeddings have the size of the hidden states, or another one. numerics.py defines the tolerance.
"""

import jax
import numpy as np
import pytest
from exported_weights import check_export
from objective_cases import terms_of

from t5x_like import interop, parameters
from t5x_like.interop import tables
from t5x_like.objectives.discriminators import ReplacedTokenHead
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.passes import total_weights

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

ROWS, LENGTH, PREDICTIONS = 3, 19, 5
LENGTHS, COUNTS = np.array([19, 15, 8]), np.array([5, 1, 3])
# (class, size of the embeddings relative to the hidden states, activation)
VARIANTS = [
    ("ElectraForPreTraining", 1, "gelu"),
    ("ElectraForPreTraining", 2, "gelu_new"),
    ("ElectraForMaskedLM", 1, "gelu"),
    ("ElectraForMaskedLM", 2, "gelu"),
]


@pytest.fixture(scope="module", params=range(len(VARIANTS)))
def original(request, tmp_path_factory):
    """Returns a model of transformers with random weights, and its directory."""
    rng, (name, factor, activation) = np.random.default_rng(4000 + request.param), VARIANTS[request.param]
    heads = int(rng.integers(2, 6))
    hidden = heads * int(rng.integers(3, 12))
    config = transformers.ElectraConfig(
        vocab_size=int(rng.integers(41, 131)),
        embedding_size=hidden if factor == 1 else factor * hidden + 1,
        hidden_size=hidden,
        intermediate_size=int(rng.integers(11, 70)),
        num_attention_heads=heads,
        num_hidden_layers=int(rng.integers(1, 4)),
        hidden_act=activation,
        type_vocab_size=int(rng.integers(2, 5)),
        max_position_embeddings=int(rng.integers(LENGTH + 1, 40)),
        attn_implementation="eager",
    )
    torch.manual_seed(request.param)
    reference = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # move norms and biases away from 1 and 0
            parameter += 0.1 * torch.randn_like(parameter)
    directory = str(tmp_path_factory.mktemp("electra"))
    reference.save_pretrained(directory, safe_serialization=True)
    return reference, directory


def make_batch(config):
    rng = np.random.default_rng(0)
    valid = np.arange(LENGTH) < LENGTHS[:, None]
    positions = np.zeros((ROWS, PREDICTIONS), np.int64)
    for row in range(ROWS):
        positions[row, : COUNTS[row]] = np.sort(rng.choice(LENGTHS[row], COUNTS[row], replace=False))
    weights = np.arange(PREDICTIONS) < COUNTS[:, None]
    batch = {
        "encoder_input_tokens": rng.integers(1, config.vocab_size, (ROWS, LENGTH)) * valid,
        "encoder_segment_ids": valid,
        "masked_positions": positions,
        "masked_targets": rng.integers(0, config.vocab_size, (ROWS, PREDICTIONS)) * weights,
        "masked_weights": weights,
        "token_types": rng.integers(0, config.type_vocab_size, (ROWS, LENGTH)) * valid,
    }
    return {name: array.astype(np.int32) for name, array in batch.items()}


def labels_of(reference, batch):
    if isinstance(reference, transformers.ElectraForPreTraining):
        return np.random.default_rng(1).integers(0, 2, (ROWS, LENGTH))
    labels = np.full((ROWS, LENGTH), -100)
    for row in range(ROWS):
        labels[row, batch["masked_positions"][row, : COUNTS[row]]] = batch["masked_targets"][row, : COUNTS[row]]
    return labels


def read(directory, scan):
    config, model = interop.from_huggingface(directory, scan_layers=scan)
    key = jax.random.key(0)
    made = {
        "replaced_tokens": lambda: ReplacedTokenHead(config, config.activations[0], key=key),
        "masked_lm": lambda: MaskedLM().init(key, model)["masked_lm"],
    }
    stored = {
        name.removeprefix(tables.OBJECTIVE): leaf
        for name, leaf in interop.read(directory, config).items()
        if name.startswith(tables.OBJECTIVE)
    }
    heads = {name: jax.eval_shape(make) for name, make in made.items() if any(n.startswith(name) for n in stored)}
    return config, {"model": model, "objective": parameters.rebuild(heads, stored)}


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_hidden_states_logits_loss_and_gradients(original, scan, assert_parity):
    reference, directory = original
    config, params = read(directory, scan)
    batch = make_batch(reference.config)
    labels, valid = labels_of(reference, batch), batch["encoder_segment_ids"] == 1
    expected = reference(
        input_ids=torch.tensor(batch["encoder_input_tokens"]).long(),
        attention_mask=torch.tensor(batch["encoder_segment_ids"]),
        token_type_ids=torch.tensor(batch["token_types"]).long(),
        labels=torch.tensor(labels).long(),
        output_hidden_states=True,
    )
    reference.zero_grad()
    expected.loss.backward()

    def logits(params):
        outputs = params["model"](batch, capture=("encoder/layers/hidden",))
        if "replaced_tokens" in params["objective"]:
            return outputs, params["objective"]["replaced_tokens"](outputs.hidden)[..., 0]
        head = params["objective"]["masked_lm"]
        return outputs, head.logits(params["model"], head(outputs.hidden))

    def loss(params):
        if "replaced_tokens" in params["objective"]:
            x, replaced = logits(params)[1], labels == 1
            losses = jax.nn.softplus(jax.numpy.where(replaced, -x, x))
            return (losses * valid).sum() / valid.sum()
        return terms_of(MaskedLM(), params, batch).sums["masked_lm"] / total_weights(MaskedLM(), batch)["masked_lm"]

    def run(params):
        outputs, found = logits(params)
        return outputs.captured["encoder/layers/hidden"], found, jax.value_and_grad(loss)(params)

    layers, found, (value, gradient) = jax.jit(run)(params)
    assert len(layers) == config.num_layers
    for number, (ours, theirs) in enumerate(zip(layers, expected.hidden_states[1:], strict=True)):
        theirs = theirs.detach().numpy()[valid]
        assert_parity({number: np.asarray(ours)[valid]}, {number: theirs}, "hidden states")
    theirs = expected.logits.detach().numpy()[valid]
    assert_parity({"logits": np.asarray(found)[valid]}, {"logits": theirs}, "logits")
    assert_parity({"loss": value}, {"loss": expected.loss.detach()}, "loss")
    assert_parity(
        interop.tensors_to_huggingface(gradient, config),
        {name: parameter.grad for name, parameter in reference.named_parameters()},
        "gradients",
    )


def test_exported_model_equals_the_original(original, tmp_path):
    reference, directory = original
    config, params = read(directory, scan=False)
    same = ("hidden_act", "embedding_size", "type_vocab_size", "max_position_embeddings")
    check_export(params, config, reference, tmp_path, same=same)
