"""The vocabulary of a run is made from its directory."""

import json
import shutil
import types

import pytest

from data_tasks import vocabularies
from data_tasks.vocabularies.late import sentencepiece_model
from t5x_like.data import vocabulary_digest
from t5x_like.runtime import run_files
from t5x_like.training import run_vocabulary

pytestmark = pytest.mark.notf


@pytest.fixture
def run(tmp_path):
    """Returns a function that stores a vocabulary, and its model if it has one, in the directory of a run."""

    def store(vocabulary, model=None):
        about = {"digest": vocabulary_digest.of_vocabulary(vocabulary)}
        (tmp_path / run_files.VOCABULARY).write_text(json.dumps(about))
        (tmp_path / run_files.CONFIG).write_text("")
        run_vocabulary.store(str(tmp_path), (type(vocabulary).__name__, vocabulary.vocab_size))
        if model is not None:
            (tmp_path / run_files.TOKENIZER).mkdir()
            shutil.copy(model, tmp_path / run_files.TOKENIZER / "own.model")
        return str(tmp_path)

    return store


@pytest.mark.parametrize(
    ("vocabulary", "model"),
    [
        (vocabularies.byte_level(), None),
        (vocabularies.ByteVocabulary(), None),
        (vocabularies.python_docs(), None),
        (sentencepiece_model(str(vocabularies.PYTHON_DOCS_MODEL), 7), vocabularies.PYTHON_DOCS_MODEL),
    ],
    ids=["bytes", "bytes without sentinels", "shipped", "model with 7 sentinels"],
)
def test_vocabulary_of_a_run_has_its_ids(run, vocabulary, model):
    made = run_vocabulary.load(run(vocabulary, model))
    assert made.vocab_size == vocabulary.vocab_size
    assert list(made.encode("def main():")) == list(vocabulary.encode("def main():"))


def test_vocabulary_that_only_the_task_knows_is_not_made(run, tmp_path):
    assert run_vocabulary.load(run(sentencepiece_model(str(vocabularies.PYTHON_DOCS_MODEL), 7))) is None
    (tmp_path / run_files.TOKENIZER).mkdir()
    (tmp_path / run_files.TOKENIZER / "vocab.txt").write_text("[PAD]\n")  # the task knows whether it is lower-cased
    assert run_vocabulary.load(str(tmp_path)) is None
    path = tmp_path / run_files.VOCABULARY
    path.write_text(json.dumps({**json.loads(path.read_text()), "kind": "ByteVocabulary"}))
    assert run_vocabulary.load(str(tmp_path)) is None  # the digest is another one
    path.write_text("{}")
    assert run_vocabulary.load(str(tmp_path)) is None  # a run of an earlier version


def test_text_has_the_vocabulary_of_the_run_unless_the_user_names_another(run):
    directory, model = run(vocabularies.python_docs()), str(vocabularies.PYTHON_DOCS_MODEL)

    def of_text(**given):
        return run_vocabulary.of_text(directory, types.SimpleNamespace(**given))

    assert of_text().vocab_size == of_text(vocabulary_path=model).vocab_size == 1024
    assert of_text(task_arguments={"vocabulary_path": model}) is not None
    assert of_text(vocabulary_path="other.model") is None
