"""Replaced token detection."""

from objective_case import Case

from t5x_like.objectives.replaced_mlm import AllTokensMLM
from t5x_like.objectives.replaced_tokens import ReplacedTokenDetection

CASES = {
    "replaced_tokens": Case(ReplacedTokenDetection(generator_size=1 / 3), "bert"),
    "replaced_tokens_of_one_segment": Case(ReplacedTokenDetection(generator_size=1 / 3, token_types=False), "bert"),
    "all_tokens_mlm": Case(ReplacedTokenDetection(generator_size=1 / 3, discriminator=AllTokensMLM()), "bert"),
}
