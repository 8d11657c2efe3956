"""Token ids outside of a vocabulary or a model raise on the host."""

import dataclasses

import numpy as np
import pytest

from t5x_like.data import batches, specs, token_ids
from t5x_like.errors import UserError
from t5x_like.models.elmo import BACKWARD_CHARACTERS, CHARACTERS
from t5x_like.objectives import bidirectional_lm


def test_id_limits_of_vocabularies_and_bos():
    spec = dataclasses.replace(specs.PREFIX_LM, bos_id=99)
    limits = spec.id_limits({"inputs": 20, "targets": 30})
    assert limits == {"decoder_input_tokens": 100, "decoder_target_tokens": 30}
    assert spec.id_limits({"inputs": 20, "targets": 0}) == {}
    masked = specs.SENTENCE_PAIRS.id_limits(dict.fromkeys(specs.SENTENCE_PAIRS.task_features, 30))
    assert masked == {"encoder_input_tokens": 30, "masked_targets": 30}


@pytest.mark.parametrize("wrong", [-1, 30])
def test_token_id_out_of_range_raises(wrong):
    batch = batches.from_arrays(specs.CAUSAL_LM, {"targets": np.array([[5, 6], [7, wrong]])})
    limits = token_ids.model_limits(specs.CAUSAL_LM, 30)
    with pytest.raises(UserError, match=f"capitals: token id {wrong} in 'decoder_target_tokens' .row 1, position 1"):
        token_ids.check_ids(batch, limits, data="capitals", holder="the model")


def test_bos_outside_the_vocabulary_raises():
    spec = dataclasses.replace(specs.CAUSAL_LM, bos_id=50256)
    with pytest.raises(UserError, match="BOS_ID=50256: the model only has the token ids 0 … 40477"):
        token_ids.model_limits(spec, 40478)
    assert token_ids.model_limits(dataclasses.replace(specs.NEXT_TOKEN, bos_id=50256), 40478)


def test_characters_are_not_limited_by_the_words_of_a_model():
    spec = specs.with_characters(specs.NEXT_TOKEN, 50)
    assert token_ids.model_limits(spec, 16) == {
        "decoder_input_tokens": 16,
        "decoder_target_tokens": 16,
        "decoder_input_characters": 262,
    }
    limits = token_ids.model_limits(bidirectional_lm.features(50), 16)
    assert {name for name, limit in limits.items() if limit == 262} == {CHARACTERS, BACKWARD_CHARACTERS}


def test_label_beyond_those_of_the_objective_raises():
    spec = specs.with_label(specs.DECODER_INPUTS, num_labels=3)
    assert spec.num_labels == {"label": 3} and specs.with_label(specs.DECODER_INPUTS).num_labels == {}
    batch = {"label": np.array([[-1], [2]])}
    token_ids.check_labels(batch, spec.num_labels, data="sst2")
    with pytest.raises(ValueError, match=r"sst2: label index 3 \(row 1 .* objective has 3 labels, .* 0 to 2"):
        token_ids.check_labels({"label": batch["label"] + 1}, spec.num_labels, data="sst2")
