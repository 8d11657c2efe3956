"""VOCABULARY_PATH sets the vocabulary of the tasks that can use any."""

import dataclasses

import pytest
import seqio

from t5x_like.data import task_arguments
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL, python_docs


@pytest.fixture(scope="module")
def values():
    """Registers a task `any_vocabulary` with the argument `vocabulary_path`, and `own_vocabulary` without it."""
    values = task_arguments.declare("any_vocabulary", vocabulary_path=None)
    features = {"targets": seqio.Feature(seqio.ByteVocabulary())}
    names = ("any_vocabulary", "own_vocabulary")
    for name in names:
        source = seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: None, splits=("train",))
        seqio.TaskRegistry.add(name, source=source, preprocessors=[], output_features=features)
    seqio.MixtureRegistry.add("both_vocabularies", names, default_rate=1.0)
    yield values
    for name in names:
        seqio.TaskRegistry.remove(name)
    seqio.MixtureRegistry.remove("both_vocabularies")


def source(name):
    return SeqIOSource(mixture_or_task_name=name, task_feature_lengths={}, batch_size=1, vocabulary_path="here")


def test_task_with_the_argument_gets_the_path(values):
    assert source("any_vocabulary").provider.name == "any_vocabulary"
    assert values["vocabulary_path"] == "here"


def test_vocabulary_path_suffices_without_a_task():
    data = dataclasses.replace(source(""), vocabulary_path=str(PYTHON_DOCS_MODEL))
    assert data.vocabularies()["targets"].encode("a list") == python_docs().encode("a list")


def test_task_arguments_take_precedence(values):
    given = dataclasses.replace(source("any_vocabulary"), task_arguments={"vocabulary_path": "there"})
    assert given.provider.name == "any_vocabulary"
    assert values["vocabulary_path"] == "there"


def test_task_with_its_own_vocabulary_is_named_once(values, caplog):
    values.reset()
    for _ in range(2):
        assert source("both_vocabularies").provider.name == "both_vocabularies"
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "task own_vocabulary has its own vocabulary" in warning
    assert "ByteVocabulary" in warning and "VOCABULARY_PATH=here" in warning
    assert values["vocabulary_path"] == "here"
