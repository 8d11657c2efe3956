"""Functions of attention that take the fields of a `Scoring` as keywords, for tests that vary some of them."""

import dataclasses
import functools

from t5x_like.kernels import attention as dispatcher
from t5x_like.kernels import reference_attention
from t5x_like.kernels.scoring import Scoring

_FIELDS = {field.name for field in dataclasses.fields(Scoring)}


def by_keywords(function):
    """Returns a function that passes the keywords of a `Scoring` as one, after its arrays."""

    @functools.wraps(function)
    def call(*arrays, **options):
        scoring = Scoring(**{name: value for name, value in options.items() if name in _FIELDS})
        return function(*arrays, scoring, **{name: value for name, value in options.items() if name not in _FIELDS})

    return call


attention = by_keywords(dispatcher.attention)
backend_for = by_keywords(dispatcher.backend_for)
reference = by_keywords(reference_attention.reference)
