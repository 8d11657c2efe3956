"""What a manifest says of a vocabulary, whatever wrote the cache."""

import hashlib
from typing import Any

from t5x_like.vocabularies import vocabulary_digest, vocabulary_kind
from t5x_like.vocabularies.base import Vocabulary

_SAMPLED_IDS = 256


def describe(vocabulary: Vocabulary) -> dict[str, Any]:
    """Returns the kind, the number of ids and a hash of the text of some ids, independent of the file's path."""
    ids = vocabulary.vocab_size
    sample = hashlib.blake2b(digest_size=8)
    for number in range(0, ids, max(1, ids // _SAMPLED_IDS)):
        sample.update(repr(vocabulary.decode([number])).encode())
    names = vocabulary_kind.label_names(vocabulary)
    digest = vocabulary_digest.of_vocabulary(vocabulary)
    about = {"kind": type(vocabulary).__name__, "ids": ids, "sample": sample.hexdigest(), "digest": digest}
    return about | ({"names": [*names]} if names else {})
