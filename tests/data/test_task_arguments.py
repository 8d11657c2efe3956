"""Arguments that tasks declare."""

import pytest

from t5x_like.data import task_arguments
from t5x_like.errors import UserError


@pytest.fixture
def declared():
    return task_arguments.declare("a_task", path=None, fraction=0.5, count=3)


def test_update_sets_values_and_resets_the_others(declared):
    task_arguments.update(["a_task", "another"], {"path": "x", "fraction": 1})
    assert dict(declared) == {"path": "x", "fraction": 1, "count": 3}
    task_arguments.update(["a_task"], {"count": 4})
    assert dict(declared) == {"path": None, "fraction": 0.5, "count": 4}


@pytest.mark.parametrize(
    ("task", "values", "message"),
    [
        (
            "a_task",
            {"count": 9, "paht": "x"},
            r"no argument 'paht'. Did you mean 'path'\? Arguments of the task",
        ),
        ("a_task", {"count": "3"}, "count='3' has the type str. Give a value of type int"),
        ("a_task", {"fraction": "3"}, "fraction='3' has the type str. Give a value of type float"),
        ("another", {"path": "x"}, "another has no argument 'path'. Remove it"),
    ],
)
def test_invalid_argument_raises_and_changes_nothing(declared, task, values, message):
    task_arguments.update(["a_task"], {"count": 4})
    with pytest.raises(UserError, match=message):
        task_arguments.update([task], values)
    assert dict(declared) == {"path": None, "fraction": 0.5, "count": 4}


@pytest.fixture
def another_declared():
    return task_arguments.declare("another_task", path=None, size=1)


def test_mixture_sets_arguments_of_all_tasks_or_of_one(declared, another_declared):
    values = {"path": "all", "count": 4, "another_task": {"path": "own", "size": 2}}
    task_arguments.update(["a_task", "another_task", "without"], values)
    assert dict(declared) == {"path": "all", "fraction": 0.5, "count": 4}
    assert dict(another_declared) == {"path": "own", "size": 2}
    assert task_arguments.for_task("a_task", values) == {"path": "all", "count": 4}
    assert task_arguments.for_task("another_task", values) == {"path": "own", "size": 2}
    assert task_arguments.for_task("without", values) == {}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"another_tusk": {"path": "x"}}, "'another_tusk' is not one of the tasks. Did you mean 'another_task'"),
        ({"another_task": {"count": 3}}, "another_task has no argument 'count'. Arguments of the task: path, size"),
        ({"another_task": {"size": "x"}}, "size='x' has the type str"),
    ],
)
def test_invalid_argument_of_one_task_raises(declared, another_declared, values, message):
    with pytest.raises(UserError, match=message):
        task_arguments.update(["a_task", "another_task"], {"path": "x"} | values)
    assert declared["path"] is None


def test_default_can_be_set_again(declared):
    task_arguments.update(["a_task"], {"path": "x"})
    task_arguments.update(["a_task"], {"path": None})
    assert declared["path"] is None


def test_names_of_declared_arguments(declared):
    assert task_arguments.names("a_task") == ("path", "fraction", "count")
    assert task_arguments.names("another") == ()
