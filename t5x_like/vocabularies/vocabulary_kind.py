"""What a run stores of its vocabulary beside a digest of the pieces, to rebuild it without the task."""

import hashlib
from typing import Any, NamedTuple

_DIGEST_BYTES = 8
# Case, accents, contractions, numbers, whitespace, ideographs and special tokens, which settings treat otherwise.
_PROBE = " It's WE'RE don'T 1234567 Étude naïve ΑΣ  two\n\t spaces 北京 ½ <s> [MASK] <extra_id_0> x"


class VocabularyKind(NamedTuple):
    """The kind of a vocabulary.

    Attributes:
      name: the name of its class.
      ids: its number of ids, sentinels included.
      probe: a digest of the ids of a fixed text, which depend on settings that files may lack; None if not known.
    """

    name: str
    ids: int
    probe: str | None = None


def of_vocabulary(vocabulary: Any) -> VocabularyKind:
    """Returns the kind of a vocabulary.

    Args:
      vocabulary: a SeqIO vocabulary, or one whose attribute `vocabulary` is the current one.
    """
    vocabulary = getattr(vocabulary, "vocabulary", vocabulary)
    try:
        ids = [int(index) for index in vocabulary.encode(_PROBE)]
    except (NotImplementedError, TypeError, ValueError):  # it does not encode texts
        probe = None
    else:
        probe = hashlib.blake2b(repr(ids).encode(), digest_size=_DIGEST_BYTES).hexdigest()
    return VocabularyKind(type(vocabulary).__name__, vocabulary.vocab_size, probe)


def label_names(vocabulary: Any) -> tuple[str, ...]:
    """Returns the names of the labels of a classification task; empty if the vocabulary is not one of labels.

    Args:
      vocabulary: a SeqIO vocabulary. Vocabularies that are looked up later have attributes of any name, so only a
        property `names` of the class counts.
    """
    return tuple(vocabulary.names) if hasattr(type(vocabulary), "names") else ()
