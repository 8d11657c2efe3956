"""The labels of a classification task, as the vocabulary of its `targets`."""

from collections.abc import Callable, Sequence

from t5x_like.vocabularies.base import PassThroughVocabulary

UNKNOWN = -1
"""The label of an example without one, such as in a test split. Its weight in losses and metrics is 0."""


class LabelVocabulary(PassThroughVocabulary):
    """The names of labels in the order of their indices. The targets of a task are indices, not text.

    Args:
      names: the name of each label, or a function that returns them at each use, for a task whose arguments determine
        its labels. For regression, whose targets are real numbers, the names of several scores, or none.
    """

    def __init__(self, names: Sequence[str] | Callable[[], Sequence[str]]):
        self._names = names if callable(names) else tuple(names)
        super().__init__(size=0)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each label, in the order of their indices."""
        return tuple(self._names() if callable(self._names) else self._names)

    @property
    def _base_vocab_size(self) -> int:
        return len(self.names)

    @property
    def bos_id(self) -> None:
        """None: targets are not a sequence."""

    @property
    def pad_id(self) -> None:
        """None: each index is a label, also 0."""

    def __eq__(self, other) -> bool:
        return isinstance(other, LabelVocabulary) and self.names == other.names

    __hash__ = None

    def __str__(self) -> str:
        return f"LabelVocabulary({', '.join(self.names)})"
