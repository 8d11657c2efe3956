"""Compares DeBERTa v1 and v2 with transformers: random weights, small odd sizes, rows with padding, float32.

numerics.py defines the tolerance.
"""

import jax
import numpy as np
import pytest

from t5x_like import interop, parameters
from t5x_like.interop import tables
from t5x_like.objectives.masked_lm import MaskedLM

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

ROWS, LENGTH = 3, 23
LENGTHS = np.array([23, 17, 9])
SIZES = dict(
    vocab_size=67,
    hidden_size=21,
    intermediate_size=29,
    num_attention_heads=3,
    num_hidden_layers=3,
    max_position_embeddings=25,
    relative_attention=True,
    position_biased_input=False,
    pos_att_type="p2c|c2p",
)
V2 = dict(position_buckets=8, share_att_key=True, norm_rel_ebd="layer_norm", type_vocab_size=0)
# Name -> (class of transformers, settings).
VARIANTS = {
    "v1": ("DebertaForMaskedLM", dict(max_relative_positions=7, type_vocab_size=2)),
    "v2": ("DebertaV2ForMaskedLM", V2 | dict(max_relative_positions=12, conv_kernel_size=3, conv_act="gelu")),
}


@pytest.fixture(scope="module", params=VARIANTS)
def original(request, tmp_path_factory):
    """Returns a model of transformers with random weights, and its directory."""
    name, settings = VARIANTS[request.param]
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    reference = kind(kind.config_class(**SIZES, **settings)).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # move norms and biases away from 1 and 0
            parameter += 0.2 * torch.randn_like(parameter)
    directory = str(tmp_path_factory.mktemp(request.param))
    reference.save_pretrained(directory, safe_serialization=True)
    return reference, directory


def read(directory, scan):
    config, model = interop.from_huggingface(directory, scan_layers=scan)
    stored = {
        name.removeprefix(tables.OBJECTIVE): leaf
        for name, leaf in interop.read(directory, config).items()
        if name.startswith(tables.OBJECTIVE)
    }
    heads = jax.eval_shape(MaskedLM().init, jax.random.key(0), model)
    return config, {"model": model, "objective": parameters.rebuild(heads, stored)}


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_hidden_states_logits_loss_and_gradients(original, scan, assert_parity):
    reference, directory = original
    config, params = read(directory, scan)
    rng, valid = np.random.default_rng(0), np.arange(LENGTH) < LENGTHS[:, None]
    tokens = (rng.integers(1, config.vocab_size, (ROWS, LENGTH)) * valid).astype(np.int32)
    types = (rng.integers(0, config.num_token_types or 1, (ROWS, LENGTH)) * valid).astype(np.int32)
    targets = rng.integers(0, config.vocab_size, (ROWS, LENGTH))
    expected = reference(
        input_ids=torch.tensor(tokens).long(),
        attention_mask=torch.tensor(valid).long(),
        token_type_ids=torch.tensor(types).long(),
        labels=torch.tensor(np.where(valid, targets, -100)).long(),
        output_hidden_states=True,
    )
    reference.zero_grad()
    expected.loss.backward()
    batch = {"encoder_input_tokens": tokens, "encoder_segment_ids": valid.astype(np.int32), "token_types": types}

    def loss(params):
        outputs, head = params["model"](batch, capture=("encoder/layers/hidden",)), params["objective"]["masked_lm"]
        logits = head.logits(params["model"], head(outputs.hidden))
        losses = -jax.nn.log_softmax(logits)[np.arange(ROWS)[:, None], np.arange(LENGTH), targets]
        return (losses * valid).sum() / valid.sum(), (outputs.captured["encoder/layers/hidden"], logits)

    (value, (layers, logits)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    for number, (ours, theirs) in enumerate(zip(layers, expected.hidden_states[1:], strict=True)):
        theirs = theirs.detach().numpy()[valid]
        assert_parity({number: np.asarray(ours)[valid]}, {number: theirs}, "hidden states")
    theirs = expected.logits.detach().numpy()[valid]
    assert_parity({"logits": np.asarray(logits)[valid]}, {"logits": theirs}, "logits")
    assert_parity({"loss": value}, {"loss": expected.loss.detach()}, "loss")
    wanted = {name: parameter.grad for name, parameter in reference.named_parameters()}
    assert_parity(interop.tensors_to_huggingface(gradient, config), wanted, "gradients")


def test_exported_model_equals_the_original(original, tmp_path):
    reference, directory = original
    config, params = read(directory, scan=False)
    interop.to_huggingface(params, config, str(tmp_path))
    loaded, report = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokens = torch.arange(1, 20)[None]
    torch.testing.assert_close(loaded(tokens).logits, reference(tokens).logits, rtol=0, atol=1e-6)
    for name in SIZES.keys() - {"pos_att_type"}:
        assert getattr(loaded.config, name) == getattr(reference.config, name), name
