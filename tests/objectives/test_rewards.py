"""Sums of the reward functions of a user, and what is refused."""

import re

import pytest
import two_tokenizers

from t5x_like.errors import UserError
from t5x_like.objectives import rewards
from t5x_like.objectives.rewards import Rewards


def test_no_completions_need_no_call():
    """A device whose rows are all padding has none, and a function may expect at least one."""
    assert Rewards({"counting_rewards.fail": 1.0})([], [], []) == []


NOT_FINITE = r"returned {} for the completion \[.*\]. Return a number that is finite in float32, also times its weight "
PLACE = r"\(counting_rewards.py, line \d+\). Correct the function"
# A function, its weight, and the message.
FAULTY = (
    ("fail", 1.0, "raised KeyError: 'no entry' " + PLACE),
    ("leave", 1.0, "raised SystemExit: 3 " + PLACE),
    ("too_few", 1.0, "returned 1 rewards for 2 completions. Return one per completion"),
    ("unordered", 1.0, "raised TypeError: the result is a dict, not a list. Correct the function"),
    ("nan", 1.0, NOT_FINITE.format("nan")),
    ("huge", 1.0, NOT_FINITE.format("1000+")),  # an integer that no float can hold
    ("count", 1e39, NOT_FINITE.format("0.5") + re.escape("1e+39")),
)


@pytest.mark.parametrize(("name", "weight", "message"), FAULTY)
def test_faulty_rewards_raise(name, weight, message):
    with pytest.raises(UserError, match=f"REWARDS: 'counting_rewards.{name}' {message}"):
        Rewards({"counting_rewards.count": 1.0, f"counting_rewards.{name}": weight})(
            [[3], [3]], [[7, 5], [7]], [[], []]
        )


def test_a_function_may_change_its_lists():
    functions = {"counting_rewards.change": 1.0, "counting_rewards.count": 1.0}
    assert Rewards(functions)([[3], [3]], [[7, 5], [7]], [[], []]) == [0.5, 1.0]


def test_a_module_that_cannot_be_imported_raises_with_its_line(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "failing_module.py").write_text("\nnumber = 1 / 0\n")
    message = r"importing 'failing_module' raised ZeroDivisionError: division by zero \(failing_module.py, line 2\)"
    with pytest.raises(UserError, match=f"REWARDS: {message}. Correct the module"):
        Rewards({"failing_module.number": 1.0}).load()


def test_rewards_are_weighted_sums():
    twice = Rewards({"counting_rewards.count": 2.0})
    assert twice([[3], [3]], [[7, 5], [7]], [[], []]) == [1.0, 2.0]


def test_functions_get_texts_without_special_tokens(monkeypatch):
    """EOS also ends the earlier turns of a prompt, whose later turns are part of the text."""
    vocabulary, found = two_tokenizers.student().vocabulary, []
    monkeypatch.setattr(rewards, "from_folder", lambda path: vocabulary)
    monkeypatch.setattr(rewards, "_load", lambda name: lambda **texts: found.append(texts) or [0.0])
    cat, eos = vocabulary.encode("cat"), vocabulary.eos_id
    Rewards({"m.f": 1.0}, "made")([[*cat, eos, *cat]], [[*cat, eos]], [[]])
    assert found == [{"prompts": ["catcat"], "completions": ["cat"], "answers": [""]}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rewards({}), "REWARDS={}: not a dictionary of functions"),
        (lambda: Rewards({1: 1.0}), "REWARDS: 1 is not a name. Give a function as 'MODULE.FUNCTION'"),
        (lambda: Rewards({"m.f": "1.0"}), "REWARDS: the weight '1.0' of 'm.f' is not a finite number. Give such as"),
        (lambda: Rewards({"no_module.f": 1.0}).load(), "REWARDS: 'no_module.f' not found .*Give a function as"),
        (
            lambda: Rewards({"counting_rewards.TOKEN": 1.0}).load(),
            "REWARDS: 'counting_rewards.TOKEN' is not a function",
        ),
    ],
)
def test_invalid_settings_raise(make, message):
    with pytest.raises(UserError, match=message):
        make()
