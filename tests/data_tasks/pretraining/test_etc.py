"""Tests of ETC's data: whole sentences with the position of each, and their positions in packed rows."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from data_tasks import shipped_tasks  # noqa: F401 (registers the tasks)
from data_tasks.pretraining.sentence_blocks import marked_sentences
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.objectives.sentence_masked_lm import SentenceMaskedLM
from t5x_like.vocabularies import shipped
from t5x_like.vocabularies.special_tokens import SpecialTokens

CLS, SEP, MASK = 1, 2, 3


def examples(documents, length, most):
    """Returns the rows of documents, given as the lengths of their sentences with tokens 10, 11, …."""
    count = sum(map(sum, documents))
    tokens = tf.RaggedTensor.from_row_lengths(tf.range(10, 10 + count), [sum(each) for each in documents])
    ds = tf.data.Dataset.from_tensor_slices(
        {
            "tokens": tokens,
            "sentence_lengths": tf.ragged.constant(documents, dtype=tf.int32),
            "document": tf.range(len(documents), dtype=tf.int64),
        }
    )
    features = {"inputs": seqio.Feature(shipped.PASS_THROUGH, add_eos=False)}
    lengths = {"inputs": length, "global_positions": most}
    rows = marked_sentences(ds, lengths, features, special=SpecialTokens(CLS, SEP, MASK)).as_numpy_iterator()
    return [(row["inputs"].tolist(), row["global_positions"].tolist()) for row in rows]


def test_rows_have_whole_sentences_and_the_position_of_each():
    found = examples([[2, 3, 4], [9, 1, 1, 1]], length=8, most=3)
    assert found == [
        ([CLS, 10, 11, 12, 13, 14, SEP, 0], [1, 3, 0]),
        ([CLS, 15, 16, 17, 18, SEP, 0, 0], [1, 0, 0]),
        ([CLS, 28, 29, 30, SEP, 0, 0, 0], [1, 2, 3]),
    ]


def test_sentences_beyond_the_number_of_global_tokens_belong_to_the_last_one():
    assert examples([[1, 1, 1, 1]], length=8, most=2) == [([CLS, 10, 11, 12, 13, SEP, 0, 0], [1, 2])]


@pytest.mark.full
def test_packed_rows_shift_the_positions_of_sentences():
    source = SeqIOSource(
        mixture_or_task_name="python_docs_etc",
        task_feature_lengths={"inputs": 256, "targets": 40, "global_positions": 48},
        batch_size=4,
        pack=True,
    )
    batch = next(iter(source.host_iterator(SentenceMaskedLM().features)))
    segments, positions = batch["encoder_segment_ids"], batch["global_positions"]
    assert segments.max() > 1
    is_sentence = batch["global_segment_ids"] != 0
    at = np.take_along_axis(segments, positions, axis=1)
    np.testing.assert_array_equal(at[is_sentence], batch["global_segment_ids"][is_sentence])
    assert all((np.diff(row[real]) > 0).all() for row, real in zip(positions, is_sentence, strict=True))
