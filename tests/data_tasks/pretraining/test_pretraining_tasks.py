"""Tests of the shipped pretraining tasks: positions can be saved, and examples depend only on the seed."""

import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from t5x_like.data.seqio_feed import SeqIOSource

pytestmark = pytest.mark.full

TASKS = {
    "python_docs_causal_lm": {"targets": 48},
    "python_docs_prefix_lm": {"inputs": 48, "targets": 48},
    "python_docs_iid_denoising": {"inputs": 48, "targets": 48},
    "python_docs_bart": {"inputs": 48, "targets": 48},
    "python_docs_gap_sentences": {"inputs": 96, "targets": 64},
    "python_docs_ul2": {"inputs": 48, "targets": 48},
}


convert = api._convert_actual


def dataset(task, seed=0):
    source = SeqIOSource(
        mixture_or_task_name=task, task_feature_lengths=TASKS[task], batch_size=2, split="validation", seed=seed
    )
    return source.task_dataset(shuffle=True, num_epochs=None)


def take(iterator, count):
    return [{name: array.numpy().tolist() for name, array in next(iterator).items()} for _ in range(count)]


@pytest.mark.parametrize("task", TASKS)
def test_restored_position_resumes_with_same_examples(task, tmp_path, monkeypatch):
    converted = []
    monkeypatch.setattr(
        api, "_convert_actual", lambda entity, context: converted.append(entity) or convert(entity, context)
    )
    iterator = iter(dataset(task))
    first = take(iterator, 3)
    tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "position"))
    following = take(iterator, 3)
    resumed = iter(dataset(task))
    tf.train.Checkpoint(iterator=resumed).read(str(tmp_path / "position"))
    assert take(resumed, 3) == following
    assert take(iter(dataset(task, seed=1)), 3) != first
    # AutoGraph takes seconds at each start. Only vocabularies, which users may write, are converted.
    ours = {entity.__qualname__ for entity in converted if entity.__module__.startswith(("data_tasks", "t5x_like"))}
    assert ours <= {"tokenize.<locals>.<lambda>"}
