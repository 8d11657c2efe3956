"""Compares generated tokens with `generate` of transformers, for small models with random weights.

Several tokens are EOS, so that rows end at different steps.
"""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest

from t5x_like import interop, parameters
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

VOCAB, BOS, EOS = 29, 2, (1, 5, 9)
LENGTHS = np.array([6, 3, 1, 4])
VALID = np.arange(6) < LENGTHS[:, None]
TOKENS = np.where(VALID, np.random.default_rng(0).integers(10, VOCAB, VALID.shape), 0).astype(np.int32)

SPECIAL = dict(vocab_size=VOCAB, pad_token_id=0, bos_token_id=BOS, eos_token_id=EOS[0])
MODELS = {
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            **SPECIAL, d_model=16, d_kv=4, d_ff=24, num_heads=3, num_layers=2, decoder_start_token_id=BOS
        )
    ),
    "bart": lambda: transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            **SPECIAL,
            d_model=16,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            max_position_embeddings=32,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
        )
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**SPECIAL, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **SPECIAL,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32,
        )
    ),
}
ENCODER_DECODERS, SCANNED = ("t5", "bart"), ("bart", "gpt2")

RULES = dict(min_length=3, repetition_penalty=1.5, forced_eos_id=5)
SETTINGS = {
    "greedy": dict(no_repeat_ngram_size=2, **RULES),
    "beams_2": dict(beams=2, samples=2),
    "beams_3_early": dict(beams=3, early_stopping=True, alpha=2.0),
    "beams_4_never": dict(beams=4, early_stopping="never", alpha=0.6, samples=2),
    "beams_5_rules": dict(beams=5, alpha=0.0, no_repeat_ngram_size=3, samples=5, **RULES),
}


# Every search and rule with an encoder, and with a prompt; each other cache with beams.
CASES = [("t5", settings) for settings in SETTINGS]
CASES += [("llama", "greedy"), ("llama", "beams_5_rules"), ("bart", "beams_3_early"), ("gpt2", "beams_4_never")]
CASES += [
    pytest.param(*case, marks=pytest.mark.slow) for case in itertools.product(MODELS, SETTINGS) if case not in CASES
]


@functools.cache
def models(name, directory):
    """Returns the same model in transformers and here."""
    torch.manual_seed(3)
    reference = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    reference.save_pretrained(directory)
    config, model = interop.from_huggingface(str(directory))
    # Test the caches of unrolled and of scanned stacks.
    config = dataclasses.replace(config, scan_layers=name in SCANNED)
    like = jax.eval_shape(config.make, jax.random.key(0))
    return reference, parameters.unstack(parameters.stack(parameters.named_leaves(model)), like)


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def reference_texts(name, reference, decoding):
    """Returns the tokens of transformers, 0 after EOS, and the scores of beam search."""
    options = dict(
        max_new_tokens=decoding.max_length,
        do_sample=False,
        num_beams=decoding.beams,
        num_return_sequences=decoding.samples,
        eos_token_id=list(decoding.eos_ids),
        min_new_tokens=decoding.min_length,
        no_repeat_ngram_size=decoding.no_repeat_ngram_size,
        repetition_penalty=decoding.repetition_penalty,
        forced_bos_token_id=decoding.forced_bos_id,
        forced_eos_token_id=decoding.forced_eos_id,
        return_dict_in_generate=True,
        output_scores=True,
    )
    if decoding.beams > 1:
        options |= dict(length_penalty=decoding.alpha, early_stopping=decoding.early_stopping)
    texts = np.zeros((len(TOKENS), decoding.samples, decoding.max_length), np.int32)
    scores = np.zeros(texts.shape[:2])
    for row, length in enumerate(LENGTHS):
        # One row at a time: the rules of transformers count padding as tokens.
        prompt = torch.tensor(TOKENS[row : row + 1, :length]).long()
        with torch.no_grad():
            found = reference.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), **options)
        first = 1 if name in ENCODER_DECODERS else length
        texts[row, :, : found.sequences.shape[1] - first] = found.sequences[:, first:].numpy()
        if decoding.beams > 1:
            scores[row] = found.sequences_scores.numpy()
    ended = np.cumsum(np.isin(texts, decoding.eos_ids), axis=-1) - np.isin(texts, decoding.eos_ids) > 0
    return np.where(ended, 0, texts), scores


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_generated_tokens_equal_those_of_transformers(name, settings, directories):
    reference, model = models(name, directories / name)
    forced = {"forced_bos_id": 7} if name in ENCODER_DECODERS and "early" in settings else {}
    decoding = Decoding(max_length=10, eos_ids=EOS, bos_id=BOS, **SETTINGS[settings], **forced)
    side = "encoder" if name in ENCODER_DECODERS else "decoder"
    batch = {f"{side}_input_tokens": TOKENS, f"{side}_segment_ids": VALID.astype(np.int32)}
    found = jax.jit(lambda model: generate(model, batch, decoding))(model)
    texts, scores = reference_texts(name, reference, decoding)
    np.testing.assert_array_equal(found.tokens, texts)
    if decoding.beams > 1:
        np.testing.assert_allclose(found.score, scores, rtol=1e-4)
