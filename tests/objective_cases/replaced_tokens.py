"""Replaced token detection."""

from objective_case import Case

from t5x_like.objectives.discriminators import MaskedReplacedTokens
from t5x_like.objectives.replaced_mlm import AllTokensMLM, ReplaceMLM
from t5x_like.objectives.replaced_tokens import ReplacedTokenDetection

CASES = {
    "replaced_tokens": Case(ReplacedTokenDetection(generator_size=1 / 3), "bert"),
    "replaced_tokens_of_one_segment": Case(ReplacedTokenDetection(generator_size=1 / 3, token_types=False), "bert"),
    **{
        name: Case(ReplacedTokenDetection(generator_size=1 / 3, discriminator=each), "bert")
        for name, each in {
            "electra_15": MaskedReplacedTokens(),
            "replace_mlm": ReplaceMLM(),
            "all_tokens_mlm": AllTokensMLM(),
        }.items()
    },
}
