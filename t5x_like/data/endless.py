"""Lets shuffled sources repeat their data themselves, so that a restored position has the same later epochs.

SeqIO repeats a source after the preprocessors that precede a cache. If one of them reads ahead to the end of an epoch,
tf.data does not save the seed of the next epochs, which are then shuffled in another order after a run resumes.
"""

import contextlib
import contextvars
from collections.abc import Iterator

_IS_ENDLESS = contextvars.ContextVar("is_endless", default=False)


@contextlib.contextmanager
def sources(are_endless: bool) -> Iterator[None]:
    """Sets whether sources whose shuffled data is requested in this context repeat it forever."""
    token = _IS_ENDLESS.set(are_endless)
    try:
        yield
    finally:
        _IS_ENDLESS.reset(token)


def is_endless() -> bool:
    """Returns whether a source repeats its shuffled data forever."""
    return _IS_ENDLESS.get()
