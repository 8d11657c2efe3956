"""StructBERT's objectives."""

from objective_case import Case

from t5x_like.objectives.joint import Joint
from t5x_like.objectives.sentence_structure import SentenceStructure
from t5x_like.objectives.word_structure import WordStructure

CASES = {"structbert": Case(Joint([WordStructure(), SentenceStructure()]), "bert")}
