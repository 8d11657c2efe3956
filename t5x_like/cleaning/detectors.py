"""Libraries that detect the language of a text, behind one interface."""

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from t5x_like.cleaning.packages import require
from t5x_like.errors import UserError

# None of the libraries says that it may be called from several threads.
_LOCK = threading.Lock()
# The numbers with which C4 calls CLD3.
_CLD3_BYTES = {"min_num_bytes": 100, "max_num_bytes": 10_000}


class Detected(NamedTuple):
    """What a detector finds.

    Attributes:
      language: a BCP 47 code, or None if it finds none.
      probability: the probability of the language.
      failure: why there is no language: the name of a counter.
    """

    language: str | None
    probability: float = 0.0
    failure: str = ""


Detector = Callable[[str], Detected]


def _langdetect(module: str) -> Detector:
    library = require(module, f"the detector {module!r}")

    def detect(text: str) -> Detected:
        with _LOCK:
            library.DetectorFactory.seed = 0  # without a seed, the predictions are random
            try:
                found = library.detect_langs(text)
            except library.LangDetectException:
                return Detected(None, failure="langdetect_exception")
        return Detected(found[0].lang, found[0].prob) if found else Detected(None, failure="no_predictions")

    return detect


def _cld3() -> Detector:
    if "tensorflow" in sys.modules and "gcld3" not in sys.modules:
        # Both contain a protobuf library, and the process would crash.
        raise UserError(
            "detector='cld3' cannot be loaded in a process that has imported TensorFlow. Use another detector, or "
            "import gcld3 first."
        )
    library = require("gcld3", "the detector 'cld3'")
    identifier: Any = library.NNetLanguageIdentifier(**_CLD3_BYTES)

    def detect(text: str) -> Detected:
        with _LOCK:
            found = identifier.FindLanguage(text)
        if not found.is_reliable:
            return Detected(None, failure="no_predictions")
        return Detected(found.language, found.probability)

    return detect


_DETECTORS: dict[str, Callable[[], Detector]] = {
    "langdetect": functools.partial(_langdetect, "langdetect"),
    "langdetect_rs": functools.partial(_langdetect, "langdetect_rs"),
    "cld3": _cld3,
}
NAMES = tuple(_DETECTORS)
"""`langdetect` (C4), `langdetect_rs` (the same results, faster), `cld3` (mC4)."""


@functools.cache
def detector(name: str) -> Detector:
    """Returns a detector.

    Args:
      name: one of `NAMES`.

    Raises:
      UserError: the name is unknown, or the package is not installed.
    """
    if name not in _DETECTORS:
        raise UserError(f"detector={name!r}: unknown detector of languages. Give one of {', '.join(NAMES)}.")
    return _DETECTORS[name]()
