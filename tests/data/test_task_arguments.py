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
        ("another", {"path": "x"}, "another has no argument 'path'. Remove it"),
    ],
)
def test_invalid_argument_raises_and_changes_nothing(declared, task, values, message):
    task_arguments.update(["a_task"], {"count": 4})
    with pytest.raises(UserError, match=message):
        task_arguments.update([task], values)
    assert dict(declared) == {"path": None, "fraction": 0.5, "count": 4}


def test_names_of_declared_arguments(declared):
    assert task_arguments.names("a_task") == ("path", "fraction", "count")
    assert task_arguments.names("another") == ()
