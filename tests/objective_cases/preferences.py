"""Preference objectives: a reward model, pairs with and without a reference, and single completions."""

from objective_case import Case

from t5x_like.objectives import preference_losses
from t5x_like.objectives.kto import KTO
from t5x_like.objectives.preferences import Preferences
from t5x_like.objectives.reward_model import RewardModel

CASES = {
    "reward_model": Case(RewardModel(centering=0.1), "llama"),
    "dpo": Case(Preferences(preference_losses.DPO(beta=0.5), nll=0.5), "llama"),
    "orpo": Case(Preferences(preference_losses.ORPO(), nll=1.0, nll_tokens="all"), "llama"),
    "kto": Case(KTO(), "llama"),
}
