"""The tokenizer classes of transformers: the files that each one reads, and its special tokens.

All code that reads, copies, compares or writes the files of a tokenizer uses this table, so that a file which one place
reads is not left out by another.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from t5x_like.vocabularies import tokenizers
from t5x_like.vocabularies.tokenizers.base import (  # noqa: F401 (names of files, for the users of this module)
    ADDED_TOKENS,
    BPE_IDS,
    BPE_MERGES,
    CHAT_TEMPLATE,
    CONFIG,
    GENERIC,
    MODEL_CONFIG,
    SPECIAL_TOKENS_MAP,
    TOKENIZER,
    WORDPIECE,
    TokenizerClass,
)

_MODULES = [
    importlib.import_module(f"{tokenizers.__name__}.{module.name}")
    for module in pkgutil.iter_modules(tokenizers.__path__)
]

CLASSES: Mapping[str, TokenizerClass] = {
    each.name: each for module in _MODULES for each in getattr(module, "TOKENIZERS", ())
}
"""Class, without the suffix "Fast" -> what it reads: the constants `TOKENIZERS` of `vocabularies.tokenizers`."""

OF_MODEL_TYPE: Mapping[str, str] = {
    model_type: each.name for each in CLASSES.values() for model_type in each.model_types
}
"""`model_type` in config.json -> the class of directories whose tokenizer_config.json names none."""

LAYOUTS = {kind: layout for module in _MODULES for kind, layout in getattr(module, "LAYOUTS", {}).items()}
"""Kind of vocabulary -> layout of its special pieces: the constants `LAYOUTS` of `vocabularies.tokenizers`."""

GENERIC_CLASS = "PreTrainedTokenizerFast"
"""The class that reads everything from tokenizer.json, as transformers 4 names it and transformers 5 reads it."""
_GENERIC_NAMES = (GENERIC_CLASS, "TokenizersBackend")

VOCABULARIES = tuple(dict.fromkeys((TOKENIZER, *(each.files[0] for each in CLASSES.values() if each.files))))
"""The files from which a tokenizer can be built, together with the files beside it."""

SENTENCEPIECE = tuple(name for name in VOCABULARIES if name.endswith(".model"))
"""The names of SentencePiece models."""

FILES = frozenset(
    {*VOCABULARIES, *(file for each in CLASSES.values() for file in each.files)}
    | {CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS, CHAT_TEMPLATE}
)
"""All files of tokenizers."""


def find_class(config: Mapping[str, Any], model_config: Mapping[str, Any], *, has_tokenizer: bool) -> str | None:
    """Returns the class of a tokenizer, without the suffix "Fast", as `AutoTokenizer` chooses it.

    Args:
      config: The contents of tokenizer_config.json, {} if it does not exist.
      model_config: The contents of config.json, {} if it does not exist.
      has_tokenizer: Whether the directory has a tokenizer.json.

    Returns:
      The class, which `CLASSES` may lack; None if no file implies one.
    """
    if named := config.get("tokenizer_class"):
        return GENERIC if named in _GENERIC_NAMES else named.removesuffix("Fast")
    if isinstance(named := model_config.get("tokenizer_class"), str):
        return named.removesuffix("Fast")
    return OF_MODEL_TYPE.get(model_config.get("model_type"), GENERIC if has_tokenizer else None)
