"""DeBERTa's pretraining: the enhanced mask decoder, and the two stages of v3."""

from objective_case import Case

from t5x_like.objectives.decoupled_replaced_tokens import DecoupledReplacedTokens
from t5x_like.objectives.enhanced_masked_lm import EnhancedMaskedLM

CASES = {
    "enhanced_masked_lm": Case(EnhancedMaskedLM(), "deberta", layers=2),
    "decoupled_replaced_tokens": Case(DecoupledReplacedTokens(), "deberta_v2", without_effect="(?!)"),
}
