"""Data sources and host iterators implement their protocols."""

import inspect

import pytest

from t5x_like.data.cached import CachedIterator, CachedSource
from t5x_like.data.feed import HostIterator, SeekableIterator
from t5x_like.data.numbered import NumberedSource
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.source import DataSource, TaskSource

pytestmark = pytest.mark.notf

SOURCES = [
    (SeqIOSource(mixture_or_task_name="a_task", task_feature_lengths={"targets": 8}, batch_size=2), "a_task"),
    (CachedSource(cache_dir="/caches/a", batch_size=2, mixture_or_task_name="a_task"), "a_task"),
    (CachedSource(cache_dir="/caches/a", batch_size=2), "the cache /caches/a/train"),
]


def methods(protocol):
    return {name: value for name, value in vars(protocol).items() if inspect.isfunction(value) and name[0] != "_"}


@pytest.mark.parametrize(("source", "name"), SOURCES)
def test_sources_satisfy_the_protocol(source, name):
    assert isinstance(source, DataSource)
    assert source.name == name


@pytest.mark.parametrize("source_class", [SeqIOSource, CachedSource, NumberedSource])
def test_methods_of_sources_have_the_parameters_of_the_protocol(source_class):
    assert len(methods(DataSource)) > 5, "too few methods found"
    for name, method in methods(DataSource).items():
        expected, found = inspect.signature(method), inspect.signature(getattr(source_class, name))
        assert found.parameters == expected.parameters, name


def test_only_seqio_source_is_a_task_source():
    names = {name for name in vars(TaskSource) if name[0] != "_"} | set(TaskSource.__annotations__)
    assert {"tasks", "split"} <= names
    assert all(hasattr(SeqIOSource, name) for name in names)
    assert not hasattr(CachedSource, "tasks")


def test_cached_iterator_is_seekable():
    iterator = CachedIterator(lambda batch: {}, identity={}, batches_without_repeating=1, threads=0)
    assert isinstance(iterator, HostIterator)
    assert isinstance(iterator, SeekableIterator)


def test_seqio_iterator_satisfies_the_protocol():
    pytest.importorskip("seqio")
    from t5x_like.data.seqio_feed import SeqIOIterator

    assert issubclass(SeqIOIterator, HostIterator)
    assert not issubclass(SeqIOIterator, SeekableIterator)
