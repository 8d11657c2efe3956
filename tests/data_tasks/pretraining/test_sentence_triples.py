"""Triples of sentences, and the words of sentences."""

import numpy as np
import seqio

from data_tasks.pretraining import sentence_triples
from t5x_like.data import task_arguments
from t5x_like.vocabularies.word_vocabularies import WordSequenceVocabulary

WORDS = "it was a dark night . the rain fell in torrents U.S. and wind".split()


def write_vocabulary(path):
    path.write_text("".join(f"{word} 9\n" for word in WORDS))
    return WordSequenceVocabulary(str(path))


def test_unknown_words_are_split_then_lower_cased_then_unknown(tmp_path):
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    texts = ["It was a DARK, dark night.", "the U.S. (and) naïve u.s.", "", "the <unk> </s> <pad> rain"]
    expected = [
        ["it", "was", "a", "dark", "<unk>", "dark", "night", "."],
        ["the", "U.S.", "<unk>", "and", "<unk>", "<unk>", "<unk>", ".", "<unk>", "."],
        [],
        # WikiText has <unk> as a word. <pad> is not padding in a text.
        ["the", "<unk>", "</s>", "<unk>", "<unk>", "<unk>", "rain"],
    ]
    ids = [[vocabulary.pieces.index(word) for word in words] for words in expected]
    assert [vocabulary.encode(text) for text in texts] == ids
    assert vocabulary.encode_tf(texts).to_list() == ids
    assert vocabulary.encode_tf(texts[1]).numpy().tolist() == ids[1]


def test_examples_are_sentences_with_two_neighbors_of_their_document(tmp_path):
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    lines = ["it was a night .", "the rain fell", "and", "wind in the night .", "it was a dark dark dark night"]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n\nthe rain\nfell\n\nit\nwas\na\n")
    arguments = {
        "pattern": str(tmp_path / "text.txt"),
        "validation_fraction": 0.0,
        "vocabulary_path": str(tmp_path / "vocab.txt"),
    }
    task_arguments.update([sentence_triples.TASK], arguments)
    task = seqio.get_mixture_or_task(sentence_triples.TASK)
    found = list(task.get_dataset({"inputs": 6}, "train", shuffle=False).as_numpy_iterator())
    texts = [[vocabulary.decode(each[name].tolist()) for name in sentence_triples.FEATURES] for each in found]
    # The sentence of seven words is longer than five and EOS.
    ends = [f"{line} </s>" for line in lines]
    assert texts == [ends[:3], ends[1:4], ["it </s>", "was </s>", "a </s>"]]
    assert all(each["inputs"].dtype == np.int32 for each in found)
