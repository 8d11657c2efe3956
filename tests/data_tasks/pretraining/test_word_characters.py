"""Words and their characters: chunks of joined documents, and whole documents in continuous rows."""

import functools

import pytest
import seqio

from data_tasks.corpora.documents import Corpus, DocumentSource
from data_tasks.pretraining import word_characters_tasks
from data_tasks.pretraining.word_characters import add_word_characters_task
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.errors import UserError
from t5x_like.objectives.character_lm import CharacterLM
from t5x_like.vocabularies import words

NAME, TEXTS = "few_word_characters", [b"a bb, ccc", b"dd", b"a a a a a a"]
VOCABULARY = words.WordVocabulary(lambda: ["a", "bb", "dd"])
SPEC = CharacterLM(max_characters=6).features


def corpus():
    return Corpus(name=NAME, splits={"train": TEXTS, "validation": TEXTS}, origin="a test", skipped={})


@pytest.fixture(autouse=True)
def task():
    add_word_characters_task(NAME, DocumentSource(functools.cache(corpus)), VOCABULARY, max_characters=6)
    yield
    seqio.TaskRegistry.remove(NAME)


def rows(**changes):
    settings = {"mixture_or_task_name": NAME, "task_feature_lengths": {"targets": 4}, "batch_size": 1, "pack": False}
    return list(SeqIOSource(**settings | changes, shuffle=False).eval_batches(SPEC))


@pytest.mark.parametrize("continuous", [False, True])
def test_documents_follow_one_another(continuous):
    """ids: a 3, bb 4, dd 5; `,` and `ccc` are unknown words, whose characters are known."""
    found = rows(continuous=continuous)
    ids = [batch["decoder_input_tokens"][0].tolist() for batch in found]
    assert ids == [[3, 4, 2, 2], [1, 5, 1, 3], [3, 3, 3, 3], [3, 1, 0, 0]]
    shown = [
        [words.CharacterVocabulary().decode(word.tolist()) for word in batch["decoder_input_characters"][0]]
        for batch in found
    ]
    assert shown == [["a", "bb", ",", "ccc"], ["</S>", "dd", "</S>", "a"], ["a"] * 4, ["a", "</S>", "", ""]]


def test_missing_length_raises():
    with pytest.raises(UserError, match="'targets'"):
        rows(task_feature_lengths={"characters": 3})


def test_words_of_python_docs():
    found = word_characters_tasks.python_docs_words()
    assert len(found) == word_characters_tasks.NUMBER_OF_WORDS and {"the", ".", "__init__"} <= set(found[:300])
