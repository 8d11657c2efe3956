"""Compares LongT5 with transformers: local and transient global attention, padded rows, orphan tokens.

Random weights, small configurations with odd sizes, float32; rows that are longer than their windows and end within a
block. numerics.py defines the tolerance.
"""

import dataclasses

import jax
import numpy as np
import pytest
from decoder_parity import draw

from t5x_like import interop, parameters
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.kernels.cross_entropy import cross_entropy
from t5x_like.models.longt5 import block_slots

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

LENGTHS = (35, 22, 3)  # whole blocks of 4 tokens: 8, 5, none
TARGETS = 11
KINDS = {"local": "LocalSelfAttention", "transient-global": "TransientGlobalSelfAttention"}


@dataclasses.dataclass
class Case:
    reference: object
    config: object
    model: object
    inputs: np.ndarray
    targets: np.ndarray

    @property
    def batch(self):
        shifted = np.pad(self.targets, ((0, 0), (1, 0)))[:, :-1]
        return {"encoder_input_tokens": self.inputs, "decoder_input_tokens": shifted}

    def outputs(self):
        return self.reference(
            input_ids=torch.tensor(self.inputs).long(),
            attention_mask=torch.tensor(self.inputs != 0).long(),
            labels=torch.tensor(self.targets).long(),
            output_hidden_states=True,
            output_attentions=True,
        )


@pytest.fixture(scope="module", params=KINDS)
def case(request, tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("longt5"))
    is_local = request.param == "local"
    config = transformers.LongT5Config(
        vocab_size=71,
        d_model=22,
        d_kv=5,
        d_ff=37,
        num_heads=3,
        num_layers=2,
        num_decoder_layers=3,
        local_radius=4,
        global_block_size=4,
        encoder_attention_type=request.param,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        feed_forward_proj="relu" if is_local else "gated-gelu",
        tie_word_embeddings=is_local,
        decoder_start_token_id=0,
        dropout_rate=0.1,
        attn_implementation="eager",
    )
    reference = transformers.LongT5ForConditionalGeneration(config).eval()
    draw(reference)
    reference.save_pretrained(directory, safe_serialization=True)
    config, model = interop.from_huggingface(directory)
    rng = np.random.default_rng(0)
    inputs = rng.integers(1, config.vocab_size, (3, max(LENGTHS)))
    inputs = np.where(np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None], inputs, 0).astype(np.int32)
    targets = rng.integers(1, config.vocab_size, (3, TARGETS)).astype(np.int32)
    return Case(reference, config, model, inputs, targets)


@pytest.mark.parametrize("captured", [True, False], ids=["dense", "by blocks"])
def test_hidden_states_and_logits(case, captured, assert_parity):
    with torch.no_grad():
        reference = case.outputs()
    wanted = ("encoder/layers/attention/scores",) if captured else ()
    names = ("encoder/output", "encoder/layers/hidden", "decoder/layers/hidden")
    outputs = jax.jit(lambda model: model(case.batch, capture=(*names, *wanted)))(case.model)
    valid = case.inputs != 0
    found = [*outputs.captured[names[1]][:-1], outputs.captured[names[0]]]
    assert_parity(
        {number: np.asarray(state)[valid] for number, state in enumerate(found)},
        {number: state.numpy()[valid] for number, state in enumerate(reference.encoder_hidden_states[1:])},
        "encoder states",
    )
    found = [*outputs.captured[names[2]][:-1], outputs.hidden]
    assert_parity(dict(enumerate(found)), dict(enumerate(reference.decoder_hidden_states[1:])), "decoder states")
    assert_parity({"logits": case.model.unembed(outputs.hidden)}, {"logits": reference.logits}, "logits")


@pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
def test_loss_and_gradients(case, scanned, assert_parity):
    reference = case.outputs()
    reference.loss.backward()
    like = jax.eval_shape(dataclasses.replace(case.config, scan_layers=scanned).make, jax.random.key(0))
    model = parameters.unstack(parameters.stack(parameters.named_leaves(case.model)), like)

    def loss(model):
        entropy = cross_entropy(model(case.batch).hidden, model.unembed, case.targets, np.ones(case.targets.shape))
        return entropy.total / entropy.weight

    value, gradient = jax.jit(jax.value_and_grad(loss))(model)
    assert_parity({"loss": value}, {"loss": reference.loss.detach()}, "loss")
    expected = {name: parameter.grad for name, parameter in case.reference.named_parameters()}
    assert_parity(interop.tensors_to_huggingface({"model": gradient}, case.config), expected, "gradients")
    case.reference.zero_grad()


def test_packed_rows_equal_rows_alone(case, assert_parity):
    ends = np.cumsum(LENGTHS)
    texts = [row[:length] for row, length in zip(case.inputs, LENGTHS, strict=True)]
    packed = {
        "encoder_input_tokens": np.concatenate([*texts, np.zeros(4, np.int32)])[None],
        "encoder_segment_ids": np.repeat([[1, 2, 3, 0]], [*LENGTHS, 4], axis=1).astype(np.int32),
        "decoder_input_tokens": case.batch["decoder_input_tokens"].reshape(1, -1),
        "decoder_segment_ids": np.repeat([[1, 2, 3]], TARGETS, axis=1).astype(np.int32),
    }
    run = jax.jit(lambda model, batch: model(batch, capture=("encoder/output",)))
    found, alone = run(case.model, packed), run(case.model, case.batch)
    for row, (text, end) in enumerate(zip(texts, ends, strict=True)):
        part = found.captured["encoder/output"][0, end - len(text) : end]
        assert_parity({"encoder": part}, {"encoder": alone.captured["encoder/output"][row, : len(text)]}, "packed")
    assert_parity({"decoder": found.hidden.reshape(alone.hidden.shape)}, {"decoder": alone.hidden}, "packed")


def test_slots_are_those_of_whole_blocks():
    segments = np.array([[1] * 9 + [2] * 3 + [3] * 4 + [0] * 3, [1] * 19])
    found = block_slots(jax.numpy.asarray(segments), 4)
    first = [0] * 4 + [1] * 5 + [-1] * 3 + [2] * 4 + [-1] * 3
    assert found.tolist() == [first, [0] * 4 + [1] * 4 + [2] * 4 + [3] * 7]


def test_greedy_generation(case):
    steps = 9
    with torch.no_grad():
        generated = case.reference.generate(
            input_ids=torch.tensor(case.inputs).long(),
            attention_mask=torch.tensor(case.inputs != 0).long(),
            max_new_tokens=steps,
            do_sample=False,
            num_beams=1,
            use_cache=False,
        ).numpy()[:, 1:]
    expected = np.zeros((len(case.inputs), steps), np.int32)
    expected[:, : generated.shape[1]] = generated
    batch, decoding = {"encoder_input_tokens": case.inputs}, Decoding(max_length=steps, eos_ids=(1,), bos_id=0)
    found = jax.jit(lambda model: generate(model, batch, decoding).tokens[:, 0])(case.model)
    np.testing.assert_array_equal(found, expected)


def test_transformers_reads_exported_model(case, tmp_path):
    interop.to_huggingface({"model": case.model}, case.config, str(tmp_path))
    loaded, report = type(case.reference).from_pretrained(tmp_path, output_loading_info=True)
    # As with its own files: they are the shared embeddings.
    assert set(report.pop("missing_keys")) <= {"decoder.embed_tokens.weight", "encoder.embed_tokens.weight"}
    assert not any(report.values()), report
    expected = case.reference.state_dict()
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in expected.items())
    written, original = loaded.config.to_dict(), case.reference.config.to_dict()
    names = ("encoder_attention_type", "local_radius", "tie_word_embeddings")
    assert [written[name] for name in names] == [original[name] for name in names]
    assert case.config.global_block_size in (None, written["global_block_size"])
    assert interop.config_from_huggingface(str(tmp_path)) == case.config
