"""`t5x_like.vocabularies` by its earlier name, which task modules of users import."""

import importlib
import pkgutil
import sys

from t5x_like import vocabularies
from t5x_like.vocabularies.shipped import (  # noqa: F401 (the names of the earlier package)
    PASS_THROUGH,
    PYTHON_DOCS_MODEL,
    SENTINELS,
    LateSentencePieceVocabulary,
    byte_level,
    python_docs,
)

# Earlier name of a module -> its name.
_RENAMED = {"word_counts": "word_vocabularies"}

for _name in (module.name for module in pkgutil.iter_modules(vocabularies.__path__)):
    sys.modules[f"{__name__}.{_name}"] = importlib.import_module(f"{vocabularies.__name__}.{_name}")
for _old, _name in _RENAMED.items():
    sys.modules[f"{__name__}.{_old}"] = sys.modules[f"{__name__}.{_name}"]
