"""Words for ELMo: both streams of words and characters, in continuous rows and in separate ones."""

import numpy as np
import pytest
import seqio  # noqa: F401 (registers the vocabularies)
from lanes import others_are_full

from data_tasks.pretraining import bidirectional_words
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.errors import UserError
from t5x_like.objectives import bidirectional_lm
from t5x_like.vocabularies import words
from t5x_like.vocabularies.word_characters import BEGIN_OF_TEXT, END_OF_TEXT, boundary

SPEC = bidirectional_lm.features(50)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    directory = tmp_path_factory.mktemp("words")
    (directory / "text.txt").write_text("a bb ccc\n\n  dd  \na " + "x" * 60 + "\n")
    (directory / "vocab.txt").write_text("a 9\nbb 5\ndd 2\n")

    def make(**changes):
        settings = {
            "mixture_or_task_name": bidirectional_words.TASK,
            "data_files": str(directory / "text.txt"),
            "validation_files": str(directory / "text.txt"),
            "vocabulary_path": str(directory / "vocab.txt"),
            "task_feature_lengths": {"targets": 5},
            "batch_size": 1,
            "pack": False,
            "shuffle": False,
            "split": "validation",
        }
        return list(SeqIOSource(**settings | changes).eval_batches(SPEC))

    return make


def read(batches, name):
    return [word for batch in batches for word in batch[name][0].tolist()]


@pytest.mark.parametrize("continuous", others_are_full([False, True], [True]))
def test_both_streams(source, continuous):
    """ids: </s> 1, <unk> 2, a 3, bb 4, dd 5, and <s> is 0. The last row has 4 words and padding."""
    found = source(continuous=continuous)
    assert len(found) == 2
    assert read(found, "encoder_input_tokens") == [3, 4, 2, 1, 5, 1, 3, 2, 1, 0]
    assert read(found, "backward_targets") == [2, 4, 3, 0, 5, 0, 2, 3, 0, 0]
    assert read(found, "encoder_segment_ids") == [1] * 9 + [0]

    def decoded(name):
        return [words.CharacterVocabulary().decode(each) for each in read(found, name)]

    long = "x" * 48
    assert decoded("encoder_input_characters") == ["<S>", "a", "bb", "ccc", "<S>", "dd", "<S>", "a", long, ""]
    backward = ["</S>", "ccc", "bb", "a", "</S>", "dd", "</S>", long, "a", ""]
    assert decoded("backward_characters") == backward
    for name, special in (("encoder_input_characters", BEGIN_OF_TEXT), ("backward_characters", END_OF_TEXT)):
        np.testing.assert_array_equal(found[0][name][0, 0], boundary(special, 50))


def test_missing_length_raises(source):
    with pytest.raises(UserError, match="'targets'"):
        source(task_feature_lengths={"characters": 3})
