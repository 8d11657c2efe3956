"""Compares NeoBERT with an implementation of its paper in torch: random weights, float32, padded and packed rows.

The class is published with the weights, not in transformers. The names of its tensors and the order of their rows are
those of github.com/chandar-lab/NeoBERT (commit ed75b68).
"""

import json

import jax
import numpy as np
import pytest
from decoder_parity import draw
from encoder_parity import LENGTH, make_batch
from objective_cases import terms_of

from t5x_like import interop, parameters
from t5x_like.errors import UserError
from t5x_like.interop import tables
from t5x_like.models.neobert import NeoBertConfig
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.passes import total_weights

torch = pytest.importorskip("torch", reason="compares with torch (extra `parity`)")
safetensors = pytest.importorskip("safetensors.torch")

pytestmark = pytest.mark.parity

KEYS = dict(
    model_type="neobert",
    architectures=["NeoBERTLMHead"],
    vocab_size=61,
    hidden_size=36,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=47,  # 31 and then 32 within a block
    norm_eps=1e-5,
    max_length=40,
    pad_token_id=3,
)


class Sizes:
    def __init__(self, keys):
        vars(self).update(keys)


class Reference(torch.nn.Module):
    """The masked-LM model, whose state dictionary has the published names."""

    def __init__(self):
        super().__init__()
        size, linear = KEYS["hidden_size"], lambda *sizes: torch.nn.Linear(*sizes, bias=False)
        norm = lambda: torch.nn.RMSNorm(size, KEYS["norm_eps"])  # noqa: E731
        self.model = torch.nn.Module()
        self.model.encoder = torch.nn.Embedding(KEYS["vocab_size"], size)
        self.model.transformer_encoder = torch.nn.ModuleList()
        for _ in range(KEYS["num_hidden_layers"]):
            layer = torch.nn.Module()
            layer.qkv, layer.wo, layer.ffn = linear(size, 3 * size), linear(size, size), torch.nn.Module()
            layer.ffn.w12, layer.ffn.w3 = linear(size, 64), linear(32, size)
            layer.attention_norm, layer.ffn_norm = norm(), norm()
            self.model.transformer_encoder.append(layer)
        self.model.layer_norm = norm()
        self.decoder = torch.nn.Linear(size, KEYS["vocab_size"])

    def forward(self, tokens, valid):
        """Returns logits, the hidden states after the embeddings, each layer and the norm, and attention weights."""
        heads = KEYS["num_attention_heads"]
        entries = KEYS["hidden_size"] // heads
        angles = torch.arange(tokens.shape[1])[:, None] / 10000 ** (torch.arange(0, entries, 2) / entries)
        turns = torch.polar(torch.ones_like(angles), angles)[None, :, None]
        rotate = lambda x: torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(-2)  # noqa: E731
        hidden, weights = self.model.encoder(tokens), []
        states = [hidden]
        for layer in self.model.transformer_encoder:
            query, key, value = layer.qkv(layer.attention_norm(hidden)).unflatten(-1, (heads, 3, entries)).unbind(-2)
            scores = torch.einsum("bqhe,bkhe->bhqk", rotate(query.contiguous()), rotate(key.contiguous()))
            scores = (scores / entries**0.5).masked_fill(~valid[:, None, None], -torch.inf)
            weights.append(scores.softmax(-1))
            hidden = hidden + layer.wo(torch.einsum("bhqk,bkhe->bqhe", weights[-1], value).flatten(-2))
            gate, factor = layer.ffn.w12(layer.ffn_norm(hidden)).chunk(2, -1)
            hidden = hidden + layer.ffn.w3(torch.nn.functional.silu(gate) * factor)
            states.append(hidden)
        states[-1] = self.model.layer_norm(hidden)
        return self.decoder(states[-1]), states, weights


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Returns the reference, its directory, the configuration, the parameters, and a batch."""
    directory, reference = tmp_path_factory.mktemp("neobert"), Reference()
    draw(reference)
    safetensors.save_model(reference, str(directory / "model.safetensors"))
    (directory / "config.json").write_text(json.dumps(KEYS))
    config, model = interop.from_huggingface(str(directory))
    like, leaves = jax.eval_shape(MaskedLM().init, jax.random.key(0), model), interop.read(str(directory), config)
    heads = {name.removeprefix(tables.OBJECTIVE): leaf for name, leaf in leaves.items()}
    params = {"model": model, "objective": parameters.rebuild(like, heads)}
    return reference, config, params, make_batch(np.random.default_rng(0), Sizes(KEYS))


def reference_outputs(reference, batch):
    tokens, valid = torch.tensor(batch["encoder_input_tokens"]).long(), torch.tensor(batch["encoder_segment_ids"] == 1)
    return reference(tokens, valid)


def test_hidden_states_attention_and_logits(case, assert_parity):
    reference, config, params, batch = case
    valid = batch["encoder_segment_ids"] == 1
    with torch.no_grad():
        logits, states, weights = reference_outputs(reference, batch)
    wanted = ("encoder/embedding", "encoder/layers/hidden", "encoder/layers/attention/probabilities")
    outputs = jax.jit(lambda model, batch: model(batch, capture=wanted))(params["model"], batch)
    captured = outputs.captured
    found = dict(enumerate([captured[wanted[0]], *captured[wanted[1]][:-1], outputs.hidden]))
    assert_parity(
        {number: np.asarray(each)[valid] for number, each in found.items()},
        {number: each.numpy()[valid] for number, each in enumerate(states)},
        "hidden states",
    )
    assert_parity(
        {number: np.moveaxis(np.asarray(each), 1, 2)[valid] for number, each in enumerate(captured[wanted[2]])},
        {number: each.numpy().transpose(0, 2, 1, 3)[valid] for number, each in enumerate(weights)},
        "attention",
    )
    head = params["objective"]["masked_lm"]
    found = head.logits(params["model"], head(outputs.hidden))[valid]
    assert_parity({"logits": found}, {"logits": logits.numpy()[valid]}, "logits")


def test_loss_and_gradients(case, assert_parity):
    reference, config, params, batch = case
    objective, weights = MaskedLM(), batch["masked_weights"] == 1
    logits, _, _ = reference_outputs(reference, batch)
    rows = np.broadcast_to(np.arange(len(weights))[:, None], weights.shape)[weights]
    chosen = logits[rows, batch["masked_positions"][weights]]
    expected = torch.nn.functional.cross_entropy(chosen, torch.tensor(batch["masked_targets"][weights]).long())
    expected.backward()

    def loss(params):
        return terms_of(objective, params, batch).sums["masked_lm"] / total_weights(objective, batch)["masked_lm"]

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    assert_parity({"loss": value}, {"loss": expected.detach()}, "loss")
    gradients = {name: parameter.grad for name, parameter in reference.named_parameters()}
    assert_parity(interop.tensors_to_huggingface(gradient, config), gradients, "gradients")
    reference.zero_grad()


def test_packed_rows_equal_rows_alone(case, assert_parity):
    _, _, params, batch = case
    tokens = batch["encoder_input_tokens"]
    rows, lengths = (tokens[:1, :9], tokens[1:2, : LENGTH - 4]), (9, LENGTH - 4)
    packed = {
        "encoder_input_tokens": np.concatenate(rows, axis=1),
        "encoder_segment_ids": np.repeat([[1, 2]], lengths, axis=1).astype(np.int32),
        "encoder_positions": np.concatenate([np.arange(length) for length in lengths])[None].astype(np.int32),
    }
    states = jax.jit(lambda model, batch: model(batch).hidden)
    found = np.split(states(params["model"], packed), [9], axis=1)
    for row, part in zip(rows, found, strict=True):
        alone = states(params["model"], {"encoder_input_tokens": row})
        assert_parity({"packed": part}, {"packed": alone}, "packed")


def test_exported_tensors_are_equal(case, tmp_path):
    reference, config, params, _ = case
    interop.to_huggingface(params, config, str(tmp_path))
    written = safetensors.load_file(str(tmp_path / "model.safetensors"))
    expected = reference.state_dict()
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in expected)
    keys = json.loads((tmp_path / "config.json").read_text())
    assert keys["architectures"] == ["NeoBERTLMHead"] and keys["intermediate_size"] == 48
    assert keys["auto_map"]["AutoModelForMaskedLM"] == "chandar-lab/NeoBERT--model.NeoBERTLMHead"
    assert interop.config_from_huggingface(str(tmp_path)) == config


def test_what_the_class_cannot_compute_is_refused(case, tmp_path):
    family = interop.family_of(NeoBertConfig())
    for keys, message in (
        ({"rms_norm": False}, "rms_norm False: not supported"),
        ({"rope": False}, "rope False: not supported"),
        ({"ngpt": True}, "ngpt True: not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ):
        with pytest.raises(UserError, match=message):
            family.config_from_json(KEYS | keys)
    for changes, message in (({"mlp_dim": 20}, "mlp_dim=20"), ({"rope_theta": 5.0}, "rope_theta=5.0: not supported")):
        with pytest.raises(UserError, match=message):
            family.config_to_json(NeoBertConfig(**changes), ())
