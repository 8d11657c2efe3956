"""A source of four texts without SeqIO, in the vocabulary of the documentation of Python."""

import dataclasses

import numpy as np

from t5x_like.data import specs
from t5x_like.data.batches import from_arrays
from t5x_like.data.numbered import NumberedSource
from t5x_like.vocabularies.shipped import python_docs

TEXTS = ["Return the list of names.", "def f(x): return x", "The module é defines a class", "import os"]
LENGTH = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts(NumberedSource):
    """Texts in the vocabulary of the documentation of Python, one per row, with EOS."""

    batch_size: int = 8
    known: bool = True
    name = "texts"
    task_feature_lengths = {"targets": LENGTH}

    def vocabularies(self):
        return {"targets": python_docs()} if self.known else {}

    def batch_shapes(self, spec):
        return {name: (self.batch_size, *shape) for name, shape in spec.row_shapes({"targets": LENGTH}).items()}

    def batch(self, spec, number, rows):
        ids = [[*python_docs().encode(TEXTS[(row + number) % 4]), 1][:LENGTH] for row in rows]
        counts = {"targets": [len(row) for row in ids]}
        return from_arrays(
            dataclasses.replace(specs.CAUSAL_LM, attached=spec.attached, packable=False),
            {"targets": np.array([row + [0] * (LENGTH - len(row)) for row in ids])},
            counts=counts,
        )
