"""Preprocessors that are made of functions which cut documents into rows."""

import inspect

import pytest
import tensorflow as tf

from data_tasks.pretraining import bigbird_masking, masked_lm_inputs, segment_examples, sentence_blocks
from data_tasks.pretraining.row_maker import makes_rows
from t5x_like.errors import UserError
from t5x_like.vocabularies.special_tokens import SpecialTokens

SPECIAL = SpecialTokens(cls=101, sep=102, mask=103)
PREPROCESSORS = [
    masked_lm_inputs.single_documents,
    masked_lm_inputs.unclosed_documents,
    masked_lm_inputs.full_sentences,
    masked_lm_inputs.concatenated,
    sentence_blocks.sentence_blocks,
    sentence_blocks.marked_sentences,
    bigbird_masking.random_spans,
    segment_examples.segment_examples,
]


@pytest.mark.parametrize("preprocessor", PREPROCESSORS, ids=lambda each: each.__name__)
def test_preprocessor_has_the_arguments_that_seqio_passes(preprocessor):
    assert list(inspect.signature(preprocessor).parameters)[:3] == ["ds", "sequence_length", "output_features"]
    with pytest.raises(UserError, match=r"TASK_FEATURE_LENGTHS=\{'targets': 9\}: .* needs 'inputs'"):
        preprocessor(tf.data.Dataset.range(1), {"targets": 9}, {}, special=SPECIAL)


def test_rows_of_a_batch_have_their_special_tokens():
    @makes_rows(documents_per_batch=2)
    def whole(maker, batch):
        assert (maker.length, maker.text_length) == (5, 3)
        return {"inputs": maker.enclose(batch["targets"])}

    documents = tf.data.Dataset.from_generator(
        lambda: ({"targets": ids} for ids in ([1, 2, 3], [4], [])),
        output_signature={"targets": tf.TensorSpec([None], tf.int32)},
    )
    rows = [row["inputs"].tolist() for row in whole(documents, {"inputs": 5}, {}, special=SPECIAL).as_numpy_iterator()]
    assert rows == [[101, 1, 2, 3, 102], [101, 4, 102, 0, 0], [101, 102, 0, 0, 0]]


def test_rows_without_sep_have_one_more_token_of_the_text():
    documents = tf.data.Dataset.from_generator(
        lambda: ({"targets": ids} for ids in ([1, 2, 3, 4, 5, 6], [7])),
        output_signature={"targets": tf.TensorSpec([None], tf.int32)},
    )
    lengths = {"inputs": 5}
    rows = masked_lm_inputs.unclosed_documents(documents, lengths, {}, special=SPECIAL).as_numpy_iterator()
    assert [row["inputs"].tolist() for row in rows] == [[101, 1, 2, 3, 4], [101, 5, 6, 0, 0], [101, 7, 0, 0, 0]]
