"""Rows of token ids rendered as text."""

import numpy as np
import pytest
import seqio

from t5x_like.data import batches, specs
from t5x_like.data.token_text import rows_as_text, show_tokens

WORDS = "<pad> </s> <unk> the man went to store buy a gallon of milk dog".split()
NAMES = {20: "[CLS]", 21: "[SEP]", 22: "[MASK]"}


class Words(seqio.PassThroughVocabulary):
    """Vocabulary whose ids are words."""

    pad_id, eos_id, unk_id = 0, 1, 2

    def _decode(self, ids):
        return " ".join(WORDS[index] for index in ids)


VOCABULARY = Words(size=len(WORDS))


def ids(text):
    special = {name: index for index, name in NAMES.items()}
    return [special[word] if word in special else WORDS.index(word) for word in text.split()]


def byte_id(character):
    return ord(character) + 3


def test_sentinels_special_tokens_and_segments_are_visible():
    vocabulary = seqio.ByteVocabulary(extra_ids=10)
    row = np.array([*(byte_id(character) for character in "a\nb"), 268, 1, 267, byte_id("c"), 1, 0, 0])
    shown = show_tokens(row, np.array([1, 1, 1, 1, 1, 2, 2, 2, 0, 0]), vocabulary)
    assert shown.plain == "a↵b <extra_id_0>  </s>  ┃  <extra_id_1> c </s>  [padding × 2]"


def test_special_tokens_that_are_not_decoded_have_names():
    vocabulary = Words(size=len(WORDS))
    vocabulary.special_names = {0: "<pad>", 4: "<s>"}
    shown = show_tokens(np.array([4, 3, 1]), np.ones(3, np.int32), vocabulary)
    assert shown.plain == " <s> the </s> "


@pytest.fixture
def pair():
    inputs = "[CLS] the man went to the [MASK] [SEP] to buy a [MASK] of dog [SEP]"
    arrays = {
        "inputs": [ids(inputs) + [0]],
        "targets": [ids("store gallon milk") + [0]],
        "masked_positions": [[6, 11, 13, 0]],
        "token_types": [[0] * 8 + [1] * 7 + [0]],
        "next_sentence_label": [[0]],
    }
    return batches.from_arrays(specs.SENTENCE_PAIRS, {name: np.array(array) for name, array in arrays.items()})


def test_masked_positions_show_the_original_token(pair):
    rows = dict(rows_as_text(specs.SENTENCE_PAIRS, pair, {"inputs": VOCABULARY, "targets": VOCABULARY}, NAMES))
    assert {title: text.plain for title, text in rows.items()} == {
        "inputs → encoder_input_tokens": " [CLS] the man went to the [MASK]→store  [SEP] to buy a [MASK]→gallon of"
        " dog→milk  [SEP]  [padding × 1]",
        "token_types → token_types": "0 × 8, 1 × 7",
        "next_sentence_label → next_sentence_label": "0",
    }


def test_joined_features_are_shown_as_one_row():
    arrays = {"inputs": np.array([ids("the man") + [0]]), "targets": np.array([ids("went </s>")])}
    batch = batches.from_arrays(specs.PREFIX_LM, arrays)
    ((title, shown),) = rows_as_text(specs.PREFIX_LM, batch, {"inputs": VOCABULARY, "targets": VOCABULARY}, {})
    assert title == "inputs + targets → decoder_target_tokens"
    assert shown.plain == "the man went </s>  [padding × 1]"
