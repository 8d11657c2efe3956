"""Sentences of the rows of downstream tasks: the first piece of each, by hand and in the rows of SST-2 and SQuAD."""

import json

import gold_predictions
import pytest
import seqio
import tensorflow as tf

from data_tasks.downstream import global_sentences, span_extraction
from data_tasks.downstream.offsets import encode_with_offsets
from t5x_like.vocabularies import vocabulary_files

LETTERS = "a b c d e f g h i j".split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, ".", "?", "##k", "##."]
CLS, SEP = 2, 3


@pytest.fixture
def letters(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return vocabulary_files.word_pieces(str(tmp_path / "vocab.txt"))


def filled(vocabulary, texts, length, most):
    ds = tf.data.Dataset.from_tensors({f"text_{number}": text for number, text in enumerate(texts)})
    features, lengths = {"inputs": seqio.Feature(vocabulary)}, {"inputs": length, "global_positions": most}
    names = tuple(f"text_{number}" for number in range(len(texts)))
    (row,) = global_sentences.fill(ds, lengths, features, texts=names).as_numpy_iterator()
    return row["inputs"].tolist(), row["global_positions"].tolist()


def test_first_pieces_of_sentences(letters):
    text = "  Ab cd? E f.\n\nGk h! 1 i"  # [UNK], c, [UNK], ?; e, f, .; g, ##k, h, [UNK]; …
    encoded = encode_with_offsets(letters, tf.constant(text))
    firsts = global_sentences.sentence_positions(tf.constant(text), encoded).numpy()
    characters = [text[start:].split()[0] for start in encoded.starts.numpy()[firsts]]
    assert characters == ["Ab", "E", "Gk", "1"]


def test_sentences_that_are_truncated_are_not_marked(letters):
    text = "a b? C d? E f?"
    assert filled(letters, [text], 12, 8)[1] == [1, 4, 7]
    assert filled(letters, [text], 8, 8)[1] == [1, 4]  # [CLS] a b ? c d ? [SEP]
    assert filled(letters, [text], 12, 2)[1] == [1, 4]


def test_sentences_of_two_texts(letters):
    inputs, positions = filled(letters, ["a? B?", "c? D e?"], 32, 8)
    assert [inputs[position] for position in positions] == [5 + LETTERS.index(letter) for letter in "abcd"]
    inputs, positions = filled(letters, ["a? B?", "c? D e?"], 8, 8)
    assert [PIECES[index] for index in inputs] == ["[CLS]", "a", "?", "[SEP]", "c", "?", "d", "[SEP]"]
    assert positions == [1, 4, 6]


def test_windows_begin_with_the_question_and_the_rest_of_a_sentence(letters):
    context = "a b c d? E f g h? I j"
    row = {"id": "1", "question": "c ?", "context": context, "answers": {"text": ["f"], "answer_start": [11]}}
    ds = tf.data.Dataset.from_tensors(row)
    features, lengths = {"inputs": seqio.Feature(letters)}, {"inputs": 11, "global_positions": 4}
    options = {"stride": lambda: 6, "max_question_length": lambda: 2}
    windows = span_extraction.span_windows(ds, lengths, features, **options)
    found = list(global_sentences.mark_context(windows, lengths, features).as_numpy_iterator())
    spelled = [[PIECES[row["inputs"][position]] for position in row["global_positions"]] for row in found]
    assert spelled == [["c", "a", "e"], ["c", "f", "i"]]


QUESTION = {"id": "1", "question": "c ?", "context": "a b? E f", "answers": {"text": ["f"], "answer_start": [7]}}


@pytest.mark.parametrize(
    ("name", "files", "arguments", "pieces", "positions", "targets"),
    [
        (
            "glue_sst2_global_sentences",
            {"dev.tsv": "sentence\tlabel\na b? C d\t1\n"},
            {},
            "[CLS] a b ? c d [SEP]",
            [1, 4],
            [1],
        ),
        (
            "squad_v1_global_sentences",
            {"validation.jsonl": json.dumps(QUESTION)},
            {},
            "[CLS] c ? [SEP] a b ? e f [SEP]",
            [1, 4, 7],
            [8, 8],
        ),
        (
            "text_files_book_global_sentences",
            {"b.txt": "a b? C d e f? G h", "a.txt": "a b c d e f g h"},
            {"words": 4},
            "[CLS] e f ? g h [SEP]",
            [1, 4],
            [1],
        ),
    ],
)
def test_rows_of_tasks(name, files, arguments, pieces, positions, targets, tmp_path):
    for file, contents in files.items():
        (tmp_path / file).write_text(contents)
    (tmp_path / "vocabulary").mkdir()
    (tmp_path / "vocabulary" / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (tmp_path / "vocabulary" / "tokenizer_config.json").write_text(json.dumps(config))
    lengths = {"inputs": 80, "global_positions": 8}
    paths = {"data_dir": str(tmp_path)} if "words" not in arguments else {"pattern": f"{tmp_path}/*.txt"}
    arguments = {"vocabulary_path": str(tmp_path / "vocabulary"), **paths, **arguments}
    rows = gold_predictions.read(name, "validation", 10, task_feature_lengths=lengths, task_arguments=arguments)
    (row,) = [each for each in rows if each["targets"].tolist() == targets]
    assert " ".join(PIECES[index] for index in row["inputs"]) == pieces
    assert row["global_positions"].tolist() == positions
