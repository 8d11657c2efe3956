"""Encoder-decoders of two rotary decoders: lengths, padding, and what the stacks have in common."""

import dataclasses

import numpy as np
import pytest
from families import FAMILIES, example_batch, random_model, tokens

from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.models.rotary_encoder_decoder import RotaryEncoderDecoderConfig
from t5x_like.models.t5gemma import T5GemmaConfig

FAMILY = FAMILIES["qwen2_encoder_decoder"]
STACK = FAMILY.config.decoder


def test_texts_longer_than_the_decoder_raise():
    short = dataclasses.replace(FAMILY.config, decoder=dataclasses.replace(STACK, max_length=5))
    model, batch = random_model(short), {"encoder_input_tokens": tokens(1, 9)}
    options = {"bos_id": 0, "eos_ids": ()}
    assert generate(model, batch, Decoding(max_length=5, **options)).lengths.tolist() == [[5]]
    with pytest.raises(UserError, match=r"rows of 6 tokens: longer than .* \(Qwen2Config.max_length=5\). Lower"):
        generate(model, batch, Decoding(max_length=6, **options))


def test_rows_without_segment_ids_need_a_padding_id():
    model = random_model(dataclasses.replace(FAMILY.config, padding_id=None))
    batch = example_batch(FAMILY)
    for run in (model, model.encode):
        with pytest.raises(UserError, match="no encoder_segment_ids, and no token of RotaryEncoderDecoderConfig is"):
            run(batch)
    # With them, token 0 is read like any other.
    batch["encoder_input_tokens"][:, 3] = 0
    segmented = batch | {
        f"{stack}_segment_ids": np.ones_like(batch[f"{stack}_input_tokens"]) for stack in ("encoder", "decoder")
    }
    masked, read = random_model(FAMILY.config)(batch).hidden, model(segmented).hidden
    other = random_model(dataclasses.replace(FAMILY.config, padding_id=STACK.vocab_size))(batch).hidden
    np.testing.assert_allclose(read, other, atol=2e-5)
    assert np.abs(read - masked).max() > 1e-3
    assert model.encode(segmented).valid.all()
    with pytest.raises(UserError, match="padding_id=-1: must be a non-negative integer"):
        dataclasses.replace(FAMILY.config, padding_id=-1)


def test_both_stacks_have_the_common_settings_of_the_model():
    for kind, stack in ((RotaryEncoderDecoderConfig, STACK), (T5GemmaConfig, FAMILIES["t5gemma"].config.decoder)):
        set_values = {"remat": "full", "dtype": "bfloat16", "dropout_rate": 0.1, "attention_dropout_rate": 0.2}
        own = dataclasses.replace(stack, **set_values)
        found = kind(encoder=own, decoder=own)
        assert {name: getattr(found, name) for name in set_values} == set_values
        for name, value in set_values.items():
            with pytest.raises(UserError, match=rf"{kind.__name__}: {name} is .*, but both have one value. Give"):
                kind(encoder=stack, decoder=dataclasses.replace(stack, **{name: value}))
            given = {name: getattr(own, name)}
            mixed = kind(encoder=stack, decoder=dataclasses.replace(stack, **given), **given)
            assert getattr(mixed.encoder, name) == getattr(mixed.decoder, name) == value
    with pytest.raises(UserError, match="vocab_size is 7 in the encoder and"):
        RotaryEncoderDecoderConfig(encoder=dataclasses.replace(STACK, vocab_size=7), decoder=STACK)
