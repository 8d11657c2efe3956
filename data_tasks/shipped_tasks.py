"""Registers the tasks of this package in SeqIO. Importing this module reads no data.

The tasks are those of all modules in `corpora`, `pretraining` and `downstream`.
"""

import importlib
import pkgutil

import t5x_like.data.seqio_feed.seqio_interface  # noqa: F401 (makes the vocabularies SeqIO's)
from data_tasks import corpora, downstream, pretraining

for _package in (corpora, pretraining, downstream):
    for _module in pkgutil.iter_modules(_package.__path__, f"{_package.__name__}."):
        importlib.import_module(_module.name)
