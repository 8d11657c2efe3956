"""Compares Qwen, Gemma, OLMo, SmolLM 3, Phi 3 and Ettin's decoders with transformers 4.57: random weights, float32.

All parameters are drawn from a normal distribution with standard deviation 0.3, norms included. Rows are longer than
the windows, have padding on both sides and arbitrary first positions. numerics.py defines the tolerance.
"""

import dataclasses

import jax
import numpy as np
import pytest
from decoder_parity import LENGTH, Pair, check_logits_loss_and_gradients, draw, random_rows, reference_outputs

from t5x_like import interop, parameters
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

VOCABULARY, NEW = 61, 12
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=24,
    intermediate_size=37,
    num_attention_heads=4,
    max_position_embeddings=60,
    pad_token_id=VOCABULARY - 1,  # no row has it
    bos_token_id=0,
    eos_token_id=1,
    attn_implementation="eager",
)
GROUPED = dict(num_key_value_heads=2, rms_norm_eps=1e-5)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
GEMMA = dict(head_dim=6, query_pre_attn_scalar=7, sliding_window=5)
# Family -> class of the configuration, and its arguments beside `SIZES`. Five layers and a pattern of three or four
# leave an incomplete repetition.
CASES = {
    "qwen2": ("Qwen2Config", GROUPED | dict(num_hidden_layers=2, rope_theta=1e4)),
    "qwen2_windows": (
        "Qwen2Config",
        GROUPED | dict(num_hidden_layers=3, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    ),
    "qwen3": ("Qwen3Config", GROUPED | dict(head_dim=8, num_hidden_layers=2, tie_word_embeddings=True)),
    "gemma1": ("GemmaConfig", GROUPED | dict(head_dim=6, num_hidden_layers=2)),
    "gemma2": (
        "Gemma2Config",
        GROUPED | GEMMA | dict(num_hidden_layers=3, attn_logit_softcapping=3.0, final_logit_softcapping=7.0),
    ),
    "gemma3": (
        "Gemma3TextConfig",
        GROUPED
        | GEMMA
        | dict(num_hidden_layers=5, sliding_window_pattern=3, rope_local_base_freq=100.0, rope_theta=500.0)
        | dict(layer_types=["sliding_attention"] * 2 + ["full_attention"] + ["sliding_attention"] * 2)
        | dict(rope_scaling={"rope_type": "linear", "factor": 8.0}),
    ),
    "olmo2": ("Olmo2Config", GROUPED | dict(num_hidden_layers=2, rope_theta=5e5)),
    "olmo3": ("Olmo3Config", GROUPED | dict(num_hidden_layers=5, rope_theta=5e5, sliding_window=5, rope_scaling=YARN)),
    "smollm3": ("SmolLM3Config", GROUPED | dict(num_hidden_layers=5, rope_theta=2e6)),
    "phi3": ("Phi3Config", dict(num_hidden_layers=2, sliding_window=5)),
    "modernbert_decoder": (
        "ModernBertDecoderConfig",
        # transformers 4.57 rotates by the global base in all layers, whatever the local one is.
        dict(num_hidden_layers=5, local_attention=10, global_rope_theta=1000.0, local_rope_theta=1000.0),
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    directory, (name, sizes) = str(tmp_path_factory.mktemp("decoder")), CASES[request.param]
    hf_config = getattr(transformers, name)(**SIZES | sizes)
    reference = transformers.AutoModelForCausalLM.from_config(hf_config, attn_implementation="eager").eval()
    draw(reference)
    reference.save_pretrained(directory, safe_serialization=True)
    config, model = interop.from_huggingface(directory)
    tokens, valid, positions = random_rows(np.random.default_rng(0), config)
    return Pair(reference, config, model, tokens % (VOCABULARY - 1), valid, positions)


def test_hidden_states_and_attention(case, assert_parity):
    with torch.no_grad():
        reference = reference_outputs(case)
    wanted = ("decoder/embedding", "decoder/layers/hidden", "decoder/layers/attention/probabilities")
    outputs = jax.jit(lambda model: model(case.batch, capture=wanted))(case.model)
    states = [outputs.captured[wanted[0]], *outputs.captured[wanted[1]][:-1], outputs.hidden]
    assert_parity(
        {number: state[case.valid] for number, state in enumerate(states)},
        {number: state.numpy()[case.valid] for number, state in enumerate(reference.hidden_states)},
        "states",
    )
    assert_parity(
        {number: np.swapaxes(each, 1, 2)[case.valid] for number, each in enumerate(outputs.captured[wanted[2]])},
        {number: np.swapaxes(each.numpy(), 1, 2)[case.valid] for number, each in enumerate(reference.attentions)},
        "attention",
    )


def test_logits_loss_and_gradients(case, assert_parity):
    check_logits_loss_and_gradients(case, assert_parity)


def test_packed_rows_equal_rows_alone(case, assert_parity):
    first, second = case.tokens[:1, :9], case.tokens[1:2, :LENGTH]
    segments = np.repeat([[1, 2]], [9, LENGTH], axis=1).astype(np.int32)
    positions = np.concatenate([np.arange(9), np.arange(LENGTH)])[None].astype(np.int32)
    packed = {
        "decoder_input_tokens": np.concatenate([first, second], axis=1),
        "decoder_segment_ids": segments,
        "decoder_positions": positions,
    }
    states = jax.jit(lambda model, batch: model(batch).hidden)
    found = states(case.model, packed)
    for each, part in ((first, found[:, :9]), (second, found[:, 9:])):
        assert_parity({"packed": part}, {"packed": states(case.model, {"decoder_input_tokens": each})}, "packed")


@pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
def test_greedy_generation(case, scanned):
    """Continuations are longer than the windows, and prompts are longer and shorter."""
    lengths = np.array([LENGTH, 1, 9])
    valid = np.arange(LENGTH) < lengths[:, None]
    prompts = np.where(valid, np.maximum(case.tokens, 2), 0)
    batch = {"decoder_input_tokens": prompts, "decoder_segment_ids": valid.astype(np.int32)}
    left = np.stack([np.roll(row, LENGTH - n) for row, n in zip(prompts, lengths, strict=True)])
    with torch.no_grad():
        generated = case.reference.generate(
            input_ids=torch.tensor(left).long(),
            attention_mask=torch.tensor(valid[:, ::-1].copy()).long(),
            max_new_tokens=NEW,
            do_sample=False,
            num_beams=1,
            pad_token_id=0,
        ).numpy()[:, LENGTH:]
    expected = np.zeros((len(prompts), NEW), np.int32)
    expected[:, : generated.shape[1]] = generated
    config = dataclasses.replace(case.config, scan_layers=scanned)
    like = jax.eval_shape(config.make, jax.random.key(0))
    model = parameters.unstack(parameters.stack(parameters.named_leaves(case.model)), like)
    decoding = Decoding(max_length=NEW, eos_ids=(1,), bos_id=0)
    found = jax.jit(lambda model: generate(model, batch, decoding).tokens[:, 0])(model)
    np.testing.assert_array_equal(found, expected)


def test_transformers_reads_exported_model(case, tmp_path):
    interop.to_huggingface({"model": case.model}, case.config, str(tmp_path))
    reference, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(reference) is type(case.reference)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    hf_config, original = reference.config.to_dict(), case.reference.config.to_dict()
    # Keys without effect: those of `layer_types` are read before them.
    ignored = {"torch_dtype", "dtype", "_name_or_path", "transformers_version", "max_window_layers", "rope_scaling"}
    ignored |= {"sliding_window_pattern", "_sliding_window_pattern"}
    differ = {name for name in original if name in hf_config and hf_config[name] != original[name]} - ignored
    assert not differ, {name: (hf_config[name], original[name]) for name in differ}
    for name, tensor in case.reference.state_dict().items():
        assert torch.equal(reference.state_dict()[name], tensor), name
    assert hf_config.get("rope_scaling", {}) is None or (
        hf_config.get("rope_scaling", {}).items() >= (original.get("rope_scaling") or {}).items()
    )
    assert interop.config_from_huggingface(str(tmp_path)) == case.config
