"""Tests of sentence splitting."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from data_tasks.corpora import text_files
from data_tasks.pretraining import sentence_tasks, sentences
from t5x_like.vocabularies import shipped


def split(function, text):
    return [sentence.decode() for sentence in function(tf.constant(text)).numpy()]


def test_split_lines():
    assert split(sentences.split_lines, "One. Two.\n\n  three \r\n\t\nfour") == ["One. Two.", "three", "four"]
    assert split(sentences.split_lines, " \n ") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "The cat sat. It\nslept!  Did it? Yes (it did.) So there.",
            ["The cat sat.", "It\nslept!", "Did it?", "Yes (it did.)", "So there."],
        ),
        ("A heading\n\nsome text\nof two lines. More", ["A heading", "some text\nof two lines.", "More"]),
        ("Mr. Smith met J. S. Bach, e.g. in 1.5 h. at home.", ["Mr. Smith met J. S. Bach, e.g. in 1.5 h. at home."]),
        ('He said "go." "Why?" she asked. 3 of them', ['He said "go."', '"Why?" she asked.', "3 of them"]),
        ("我来了。你呢？好！", ["我来了。", "你呢？", "好！"]),
        ("Der Bär brummt. Über uns", ["Der Bär brummt.", "Über uns"]),
        ("", []),
    ],
)
def test_split_prose_at_punctuation_and_paragraphs(text, expected):
    assert split(sentences.split_prose, text) == expected


def test_tokenize_sentences():
    vocabulary = shipped.python_docs()
    features = {"inputs": seqio.Feature(vocabulary, add_eos=False)}
    texts = ["One line.\nAnother, longer line.", " \n ", "third"]
    ds = tf.data.Dataset.from_tensor_slices({"targets": texts})
    found = list(sentences.tokenize_sentences(ds, features, split=sentences.split_lines).as_numpy_iterator())
    assert len(found) == 2 and found[0]["document"] != found[1]["document"]
    cut = np.split(found[0]["tokens"], np.cumsum(found[0]["sentence_lengths"])[:-1])
    assert [vocabulary.decode(ids.tolist()) for ids in cut] == ["One line.", "Another, longer line."]


def test_blank_lines_separate_documents(tmp_path):
    (tmp_path / "a.txt").write_text("\n \nOne.\nTwo.\n\n\nThree.\r\n \t\r\nFour.\n")
    (tmp_path / "b.txt").write_text("".join(f"Document {number}.\n\n" for number in range(400)))

    def read(split, **values):
        source = text_files.source(sentence_tasks.TEXT_FILES_ARGUMENTS | values, between_blank_lines=lambda: True)
        return [example["text"] for example in source.get_dataset(split, shuffle=False).as_numpy_iterator()]

    assert read("train", pattern=f"{tmp_path}/a.txt", validation_fraction=0.0) == [b"One.\nTwo.", b"Three.", b"Four."]
    both = {"pattern": f"{tmp_path}/*.txt"}
    held_out = both | {"validation_pattern": f"{tmp_path}/a.txt"}
    assert [len(read(split, **held_out)) for split in ("train", "validation")] == [400, 3]
    # Without validation files, single documents are held out, not whole files.
    train, validation = (read(split, **both, validation_fraction=0.1) for split in ("train", "validation"))
    assert len(train) + len(validation) == 403 and 20 < len(validation) < 64
