"""UniLM's objective, with ranks that differ between rows."""

from objective_case import Case

from t5x_like.objectives.joint import Joint
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.unified_lm import UnifiedLM

CASES = {"unified_lm": Case(Joint([UnifiedLM(), NextSentence()]), "unilm")}
