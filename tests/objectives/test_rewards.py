"""Sums of the reward functions of a user, and what is refused."""

import pytest
import two_tokenizers

from t5x_like.errors import UserError
from t5x_like.objectives import rewards
from t5x_like.objectives.rewards import Rewards


def test_no_completions_need_no_call():
    """A device whose rows are all padding has none, and a function may expect at least one."""
    assert Rewards({"counting_rewards.fail": 1.0})([], [], []) == []


def test_a_number_that_no_float_can_hold_raises():
    with pytest.raises(UserError, match="'counting_rewards.huge' returned 1000+.* for the completion .* a finite num"):
        Rewards({"counting_rewards.huge": 1.0})([[3]], [[4]], [[]])


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
