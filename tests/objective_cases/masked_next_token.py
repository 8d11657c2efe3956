"""Masked next-token prediction beside causal language modeling."""

from objective_case import Case

from t5x_like.objectives.masked_next_token import MaskedNextToken

CASES = {"masked_next_token": Case(MaskedNextToken(mask_id=3, special_ids=(0, 1, 2), of_rows=4), "gptbert")}
