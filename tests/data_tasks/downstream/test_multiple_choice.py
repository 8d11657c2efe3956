"""Tests of SWAG and RACE: official files, rows of TFDS, both forms, and invalid files."""

import csv
import json

import gold_predictions
import pytest
import seqio
import tensorflow as tf

from data_tasks.downstream import race
from t5x_like.errors import UserError

WORDS = "she he opens a door window runs away the cat sat on mat ? who _ . race question : b c d article".split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
ENDINGS = ["a door .", "a window .", "away .", "the mat ."]
ARTICLE = {
    "id": "high1.txt",
    "article": "the cat sat on a mat .",
    "questions": ["who sat ?", "the _ sat on _ ."],
    "options": [["she", "he", "the cat", "a door"], ["mat", "cat", "door", "window"]],
    "answers": ["C", "B"],
}
LENGTHS = {"inputs": 32, "targets": 8}


@pytest.fixture
def vocabulary(tmp_path):
    """A directory with a WordPiece vocabulary, as Hugging Face stores it."""
    directory = tmp_path / "bert"
    directory.mkdir()
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    )
    return directory


def read(task, vocabulary, directory, split="validation"):
    arguments = {"vocabulary_path": str(vocabulary), "data_dir": str(directory)}
    return gold_predictions.read(task, split, task_feature_lengths=LENGTHS, task_arguments=arguments)


def choices(example):
    """Returns the pieces of each choice."""
    return [" ".join(PIECES[index] for index in example[f"inputs_{number}"]) for number in range(4)]


# ---- SWAG ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def swag(tmp_path):
    """The official files, with the columns and the quotes of SWAG."""
    columns = ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source"]
    columns += [f"ending{number}" for number in range(4)]
    row = ["0", "v1", "1", "she opens a door , he", "she opens a door .", "he", "gold", *ENDINGS]
    for split, label in (("train", ["3"]), ("val", ["1"]), ("test", [])):
        with open(tmp_path / f"{split}.csv", "w", newline="") as file:
            csv.writer(file).writerows([[*columns, *(["label"] if label else [])], [*row, *label]])
    return tmp_path


def test_swag_pairs_the_sentence_with_each_ending(vocabulary, swag):
    (example,) = examples = read("swag_multiple_choice", vocabulary, swag)
    assert choices(example) == [f"[CLS] she opens a door . [SEP] he {ending} [SEP]" for ending in ENDINGS]
    assert example["token_types_2"].tolist() == [0] * 7 + [1] * 4
    assert example["targets"].tolist() == [1]
    assert gold_predictions.evaluate("swag_multiple_choice", examples) == {"accuracy": 100}
    (example,) = examples = read("swag_multiple_choice", vocabulary, swag, "test")
    assert example["targets"].tolist() == [-1]
    assert gold_predictions.evaluate("swag_multiple_choice", examples) == {}


def test_long_choices_are_truncated(vocabulary, swag):
    arguments = {"vocabulary_path": str(vocabulary), "data_dir": str(swag)}
    options = {"task_feature_lengths": {"inputs": 9}, "task_arguments": arguments}
    (example,) = gold_predictions.read("swag_multiple_choice", "train", **options)
    assert choices(example)[0] == "[CLS] she opens a [SEP] he a door [SEP]"
    assert choices(example)[2] == "[CLS] she opens a [SEP] he away . [SEP]"


def test_swag_as_text(test_data, swag):
    model = test_data / "vocab/t5_32k/cc_all.32000.sentencepiece.model"
    (example,) = examples = read("swag", model, swag)
    endings = " ".join(f"ending{number}: {ending}" for number, ending in enumerate(ENDINGS))
    assert example["inputs_pretokenized"].decode() == f"swag sent1: she opens a door . sent2: he {endings}"
    assert example["targets_pretokenized"] == b"ending1"
    assert gold_predictions.evaluate("swag", examples) == {"accuracy": 100}


def test_swag_needs_a_directory(vocabulary):
    options = {"task_feature_lengths": LENGTHS, "task_arguments": {"vocabulary_path": str(vocabulary)}}
    with pytest.raises(UserError, match="swag_multiple_choice: TFDS does not have this dataset.*train.csv"):
        gold_predictions.read("swag_multiple_choice", "train", **options)


# ---- RACE ------------------------------------------------------------------------------------------------------------

EXPECTED = [
    [f"[CLS] the cat sat on a mat . [SEP] who sat ? {option} [SEP]" for option in ARTICLE["options"][0]],
    [f"[CLS] the cat sat on a mat . [SEP] the {option} sat on {option} . [SEP]" for option in ARTICLE["options"][1]],
]


def rows_of(article):
    columns = zip(*(article[name] for name in ("questions", "options", "answers")), strict=True)
    return [
        {"article": article["article"], "question": question, "options": options, "answer": answer}
        for question, options, answer in columns
    ]


@pytest.fixture
def write_race():
    """Returns a function that writes one article in a layout."""

    def write(directory, layout):
        if layout == "official":
            for split in ("train", "dev", "test"):
                for level in race.LEVELS:
                    (directory / split / level).mkdir(parents=True)
                    (directory / split / level / "1.txt").write_text(json.dumps(ARTICLE))
        else:
            rows = [ARTICLE] if layout == "articles" else rows_of(ARTICLE)
            (directory / "high").mkdir()
            (directory / "high/validation.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return directory

    return write


@pytest.mark.parametrize("layout", ["official", "articles", "questions"])
def test_race_pairs_the_article_with_each_answer(vocabulary, write_race, tmp_path, layout):
    examples = read("race_high_multiple_choice", vocabulary, write_race(tmp_path, layout))
    assert [choices(example) for example in examples] == EXPECTED
    assert [example["targets"].tolist() for example in examples] == [[2], [1]]
    assert gold_predictions.evaluate("race_high_multiple_choice", examples) == {"accuracy": 100}


def test_race_of_tfds(vocabulary):
    """The features that TFDS declares, in an example made by hand."""
    import tensorflow_datasets as tfds

    declared = tfds.builder("race/high:2.0.0", data_dir="/nonexistent").info.features
    assert set(declared) == {"article", "questions", "answers", "options", "example_id"}
    columns = {"article": [ARTICLE["article"]], "questions": tf.ragged.constant([ARTICLE["questions"]])}
    columns |= {name: tf.ragged.constant([ARTICLE[name]]) for name in ("answers", "options")}
    ds = race.questions(tf.data.Dataset.from_tensor_slices(columns))
    rows = list(race.answer_question(ds).as_numpy_iterator())
    assert [row["label"] for row in rows] == [2, 1]
    seconds = [[row[option].decode() for option in race.OPTIONS] for row in rows]
    assert seconds == [[choice[:-6].split(" [SEP] ")[1] for choice in expected] for expected in EXPECTED]


def test_race_as_text(test_data, write_race, tmp_path):
    model = test_data / "vocab/t5_32k/cc_all.32000.sentencepiece.model"
    examples = read("race_middle", model, write_race(tmp_path, "official"), "train")
    assert examples[1]["inputs_pretokenized"].decode() == (
        "race question: the _ sat on _ . A: mat B: cat C: door D: window article: the cat sat on a mat ."
    )
    assert [example["targets_pretokenized"] for example in examples] == [b"C", b"B"]
    assert gold_predictions.evaluate("race_middle", examples) == {"accuracy": 100}


def test_mixture_reads_both_levels(vocabulary, write_race, tmp_path):
    examples = read("race_multiple_choice", vocabulary, write_race(tmp_path, "official"), "test")
    assert [task.name for task in seqio.get_subtasks(seqio.get_mixture_or_task("race_multiple_choice"))] == [
        "race_high_multiple_choice",
        "race_middle_multiple_choice",
    ]
    assert all(choices(example) in EXPECTED for example in examples)


def test_invalid_articles_name_their_file(vocabulary, write_race, tmp_path):
    directory = write_race(tmp_path, "official")
    file = directory / "dev/high/1.txt"
    file.write_text(json.dumps({**ARTICLE, "options": [["she"], ["mat"]]}))
    with pytest.raises(UserError, match=r"dev/high/1\.txt:1: unexpected contents \(a question has 1 options, not 4\)"):
        read("race_high_multiple_choice", vocabulary, directory)
