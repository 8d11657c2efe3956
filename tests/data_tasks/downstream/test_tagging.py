"""Tests of tagging: CoNLL files, alignment as in transformers, both forms, and metrics as in conlleval."""

import re

import gold_predictions
import numpy as np
import pytest
import tensorflow as tf
from tokenizer_directories import save_bert, save_gpt2, save_llama, save_roberta, save_t5_fast

from data_tasks.corpora.conll_files import ConllTable
from data_tasks.downstream import tagging
from data_tasks.downstream.tagging_tasks import CONLL2003_TAGS, WNUT17_TAGS
from data_tasks.metrics.tagging import entities_of_tags, entity_f1, entity_text_f1
from t5x_like.errors import UserError
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL

CONLL2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC
call NN I-NP O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
 \t
-DOCSTART- -X- O O

Hi UH O O
"""


def read(task, split, data_dir, *, number=10_000, length=64, vocabulary=PYTHON_DOCS_MODEL):
    arguments = {"vocabulary_path": str(vocabulary), "data_dir": str(data_dir)}
    lengths = {"inputs": length, "targets": 64}
    return gold_predictions.read(task, split, number, task_feature_lengths=lengths, task_arguments=arguments)


# ---- files -----------------------------------------------------------------------------------------------------------


def sentences(path, tags=CONLL2003_TAGS):
    rows = ConllTable(tags).read(str(path))
    words = [[word.decode() for word in each] for each in rows.features["tokens"].to_list()]
    return list(zip(words, rows.features["ner"].to_list(), strict=True))


def test_sentences_end_at_blank_lines_and_documents(tmp_path):
    (tmp_path / "train.txt").write_text(CONLL2003)
    expected = [(["EU", "rejects", "German", "call"], [3, 0, 7, 0]), (["Peter", "Blackburn"], [1, 2]), (["Hi"], [0])]
    assert sentences(tmp_path / "train.txt") == expected
    (tmp_path / "b.txt").write_bytes(CONLL2003.rstrip("\n").replace("\n", "\r\n").encode())
    assert sentences(tmp_path / "b.txt") == expected
    (tmp_path / "words.txt").write_text("a\nb\n\nc\n")
    assert sentences(tmp_path / "words.txt") == [(["a", "b"], [-1, -1]), (["c"], [-1])]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("EU B-ORG\nis O\nin B-LC\n", r"a.txt:3: the tag 'B-LC' is not a label. Did you mean 'B-LOC'\?"),
        ("EU B-ORG\n\nis\n", r"a.txt:3: 'is' has 1 columns, but the first word of the file has 2. Write a word and"),
        ("EU X B-ORG\nis O\n", r"a.txt:2: 'is O' has 2 columns, but the first word of the file has 3"),
        ("EU\tB-ORG\n\tO\n", r"a.txt:2: '\\tO' has 2 columns"),
        ("\n\n-DOCSTART- O\n", r"a.txt: the file has no sentences"),
        ("", r"a.txt: the file has no sentences"),
        ("EU B-ORG\nZürich B-LOC\n".encode("latin-1"), r"a.txt:2: byte 2 of the line, 0xfc, is not UTF-8"),
    ],
)
def test_invalid_files_raise(tmp_path, contents, message):
    (tmp_path / "a.txt").write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    with pytest.raises(UserError, match=message):
        sentences(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("split", "file", "number", "entities"),
    [
        ("train", "wnut17train.conll", 3394, 1975),
        ("validation", "emerging.dev.conll", 1009, 836),
        ("test", "emerging.test.annotated", 1287, 1079),
    ],
)
def test_real_files_have_the_published_numbers_of_sentences_and_entities(test_data, split, file, number, entities):
    """Derczynski et al. 2017, table 2; each line with only a tab ends a sentence."""
    found = sentences(test_data / "ner_wnut17" / file, WNUT17_TAGS)
    assert len(found) == number
    assert sum(WNUT17_TAGS[tag].startswith("B-") for _, tags in found for tag in tags) == entities


# ---- alignment -------------------------------------------------------------------------------------------------------


TOKENIZERS = {
    "bert": lambda data, path: save_bert(data, path, "cased"),
    "roberta": lambda data, path: save_roberta(data, path, add_prefix_space=True),
    "gpt2": lambda data, path: save_gpt2(data, path, add_prefix_space=True),
    "t5": save_t5_fast,
    "llama": save_llama,
}


@pytest.mark.parity
@pytest.mark.parametrize("name", TOKENIZERS)
def test_first_pieces_are_those_of_transformers(name, test_data, tmp_path):
    """As `run_ner.py` aligns labels: `word_ids()` of words that are already split."""
    reference = TOKENIZERS[name](test_data, tmp_path)
    length = 24
    examples = read("wnut17_tagging", "validation", test_data / "ner_wnut17", length=length, vocabulary=tmp_path)
    rows = sentences(test_data / "ner_wnut17/emerging.dev.conll", WNUT17_TAGS)
    words = [words for words, _ in rows]
    found = reference(words, is_split_into_words=True, truncation=True, max_length=length)
    for number, (row, (words, tags)) in enumerate(zip(examples, rows, strict=True)):
        if name == "t5" and re.search(r"(\w)\1\1", " ".join(words)):
            continue  # segmentations of the same letter, such as "x xx" and "xx x", have equal scores
        assert row["inputs"].tolist() == found["input_ids"][number]
        ids = found.word_ids(number)
        first = [at > 0 and ids[at - 1] == word for at, word in enumerate(ids)]
        expected = [-1 if word is None or first[at] else tags[word] for at, word in enumerate(ids)]
        assert row["targets"].tolist() == expected


def test_byte_vocabularies_raise():
    import seqio

    with pytest.raises(UserError, match="ByteVocabulary cannot encode several words at once"):
        tagging.encode_words(seqio.ByteVocabulary(), tf.constant(["a", "b"]))


# ---- tasks -----------------------------------------------------------------------------------------------------------

PERFECT = {"precision": 100, "recall": 100, "f1": 100}


def test_perfect_predictions_score_100_on_real_files(test_data):
    directory = test_data / "ner_wnut17"
    examples = read("wnut17_tagging", "test", directory, number=200, length=512)
    assert gold_predictions.evaluate("wnut17_tagging", examples) == pytest.approx(PERFECT)
    # The texts have characters that the shipped vocabulary cannot decode, so the targets themselves are compared.
    texts = read("wnut17_text_to_text", "test", directory, number=200, length=512)
    entities = [tagging.entities_of_text(row["targets_pretokenized"].decode()) for row in texts]
    tags = [[WNUT17_TAGS[tag] for tag in row["ner"]] for row in examples]
    assert [len(each) for each in entities] == [sum(tag.startswith("B-") for tag in each) for each in tags]
    assert entity_text_f1(entities, entities) == PERFECT


def test_words_that_are_cut_off_are_missing_entities(tmp_path):
    (tmp_path / "valid.txt").write_text("EU B-ORG\nrejects O\nGerman B-MISC\n")
    whole = read("conll2003_tagging", "validation", tmp_path)[0]
    end = int(whole["first_pieces"][2])
    cut = read("conll2003_tagging", "validation", tmp_path, length=end + 1)
    assert cut[0]["first_pieces"].tolist()[2] == -1
    scores = gold_predictions.evaluate("conll2003_tagging", cut)
    assert scores == pytest.approx({"precision": 100, "recall": 50, "f1": 100 * 2 / 3})


def test_text_names_the_entities_in_order(tmp_path):
    (tmp_path / "eng.testa").write_text(CONLL2003)
    rows = read("conll2003_text_to_text", "validation", tmp_path)
    assert [row["inputs_pretokenized"].decode() for row in rows] == [
        "conll2003: EU rejects German call",
        "conll2003: Peter Blackburn",
        "conll2003: Hi",
    ]
    targets = ["ORG: EU; MISC: German", "PER: Peter Blackburn", "none"]
    assert [row["targets_pretokenized"].decode() for row in rows] == targets
    assert gold_predictions.evaluate("conll2003_text_to_text", rows) == PERFECT
    assert tagging.entities_of_text("ORG: EU; ; x") == [("ORG", "EU"), ("", ""), ("x", "")]


def test_json_lines_and_unlabeled_sentences(tmp_path):
    lines = ['{"tokens": ["EU", "rejects"], "ner": ["B-ORG", 0]}', '{"tokens": ["Hi"], "ner": [0]}']
    (tmp_path / "validation.jsonl").write_text("\n".join(lines))
    (first, _) = read("conll2003_tagging", "validation", tmp_path)
    assert first["ner"].tolist() == [3, 0]
    (tmp_path / "test.jsonl").write_text('{"tokens": ["EU", "rejects"]}\n')
    (row,) = read("conll2003_tagging", "test", tmp_path)
    assert row["ner"].tolist() == [-1, -1] and set(row["targets"].tolist()) == {-1}
    assert gold_predictions.evaluate("conll2003_tagging", [row]) == {}
    (row,) = read("conll2003_text_to_text", "test", tmp_path)
    assert row["targets_pretokenized"] == b"<unk>"
    assert gold_predictions.evaluate("conll2003_text_to_text", [row]) == {}
    (tmp_path / "train.jsonl").write_text('{"tokens": ["EU", "rejects"], "ner": [0]}\n')
    with pytest.raises(UserError, match="an example has different numbers of words and tags"):
        read("conll2003_tagging", "train", tmp_path)


def test_iob1_becomes_iob2(tmp_path):
    words = ["I-ORG", "O", "I-PER", "I-PER", "B-PER", "I-ORG", "I-LOC"]
    (tmp_path / "eng.testa").write_text("".join(f"w {tag}\n" for tag in words))
    (row,) = read("conll2003_tagging", "validation", tmp_path)
    tags = [CONLL2003_TAGS[tag] for tag in row["ner"]]
    assert tags == ["B-ORG", "O", "B-PER", "I-PER", "B-PER", "B-ORG", "B-LOC"]


def test_tfds_has_conll2003_with_the_same_tags():
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.dataset_builders.conll.conll_dataset_builder_utils import NER_TAGS

    assert NER_TAGS == CONLL2003_TAGS
    arguments = {"vocabulary_path": str(PYTHON_DOCS_MODEL)}
    options = {"task_feature_lengths": {"inputs": 64, "targets": 64}, "task_arguments": arguments}
    with tfds.testing.mock_data(num_examples=2):  # the mock has different numbers of words and tags
        with pytest.raises(UserError, match="an example has different numbers of words and tags"):
            gold_predictions.read("conll2003_tagging", "validation", 2, **options)
    with pytest.raises(UserError, match="wnut17_tagging: TFDS does not have this dataset. Set TASK_ARGUMENTS"):
        gold_predictions.read("wnut17_tagging", "validation", 2, **options)


# ---- metrics ---------------------------------------------------------------------------------------------------------


def test_entities_are_scored_as_conlleval_does():
    targets = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "O"], []]
    predictions = [["B-PER", "I-PER", "O", "I-LOC"], ["B-ORG", "I-ORG"], []]
    # PER is right; I-LOC begins an entity and is right; the ORG is too long
    scores = entity_f1(targets, predictions)
    assert scores == pytest.approx({"precision": 200 / 3, "recall": 200 / 3, "f1": 200 / 3})


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        ("O O", set()),
        ("", set()),
        ("B-A", {("A", 0, 1)}),
        ("I-A I-A O", {("A", 0, 2)}),  # an entity may begin with I
        ("B-A B-A", {("A", 0, 1), ("A", 1, 2)}),
        ("B-A I-B I-B", {("A", 0, 1), ("B", 1, 3)}),  # another type begins an entity
        ("B-A O I-A", {("A", 0, 1), ("A", 2, 3)}),
        ("O B-A-B I-A-B", {("A-B", 1, 3)}),  # a type may contain a hyphen
    ],
)
def test_entities_of_tags(tags, entities):
    assert entities_of_tags(tags.split()) == entities


def test_entities_of_different_sentences_are_different():
    scores = entity_f1([["B-A"], ["O"], ["B-B"]], [["O"], ["B-A"], ["B-B"]])
    assert scores == pytest.approx({"precision": 50, "recall": 50, "f1": 50})
    assert entity_f1([["O"]], [["O"]]) == {"precision": 0, "recall": 0, "f1": 0}
    assert entity_f1([[]], [["B-A"]]) == {}


def test_entities_of_text_are_a_multiset():
    targets = [[("PER", "Ann"), ("PER", "Ann")], [], None]
    scores = entity_text_f1(targets, [[("PER", "Ann")], [("LOC", "Rome")], [("PER", "x")]])
    assert scores == pytest.approx({"precision": 50, "recall": 50, "f1": 50})
    assert np.isclose(entity_text_f1([[]], [[]])["f1"], 0)
