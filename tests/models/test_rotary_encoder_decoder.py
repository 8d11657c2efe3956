"""Encoder-decoders of two rotary decoders: lengths, padding, and what the stacks have in common."""

import dataclasses

import pytest
from families import FAMILIES, random_model, tokens

from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError

FAMILY = FAMILIES["qwen2_encoder_decoder"]
STACK = FAMILY.config.decoder


def test_texts_longer_than_the_decoder_raise():
    short = dataclasses.replace(FAMILY.config, decoder=dataclasses.replace(STACK, max_length=5))
    model, batch = random_model(short), {"encoder_input_tokens": tokens(1, 9)}
    options = {"bos_id": 0, "eos_ids": ()}
    assert generate(model, batch, Decoding(max_length=5, **options)).lengths.tolist() == [[5]]
    with pytest.raises(UserError, match=r"rows of 6 tokens: longer than .* \(Qwen2Config.max_length=5\). Lower"):
        generate(model, batch, Decoding(max_length=6, **options))
