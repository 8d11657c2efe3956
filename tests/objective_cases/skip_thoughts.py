"""Skip-thoughts."""

from objective_case import Case

from t5x_like.objectives.skip_thoughts import SkipThoughts

CASES = {"skip-thoughts": Case(SkipThoughts(conditioning="every_step"), "bidirectional_gru")}
