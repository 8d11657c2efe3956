"""SentencePiece with sentinels (T5, mT5), and bytes (ByT5)."""

from typing import TYPE_CHECKING

from t5x_like.errors import UserError
from t5x_like.vocabularies.tokenizers.base import Layout, TokenizerClass

if TYPE_CHECKING:
    from t5x_like.vocabularies.base import Vocabulary
    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


_SPECIAL_TOKENS = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
# The number of sentinels of T5Tokenizer if tokenizer_config.json has none.
_T5_EXTRA_IDS = 100
BYTE_SENTINELS = 125
"""The number of sentinels of ByT5Tokenizer if tokenizer_config.json has none."""
CONVENTION = "sentinels"
"""Key of tokenizer_config.json with the convention of the sentinels; see `byte_vocabularies.BYTE_VOCABULARIES`."""


def build(files: "TokenizerFiles") -> "Vocabulary":
    """Returns a SentencePiece vocabulary with sentinels after the pieces.

    A directory without a model, or with tokens of its own, has the vocabulary of its tokenizer.json.
    """
    from t5x_like.vocabularies import from_folder, hugging_face_sentencepiece

    sentinels = files.config.get("extra_ids", _T5_EXTRA_IDS)
    if files.has("spiece.model") and not (files.tokenizer and hugging_face_sentencepiece.other_token(files, sentinels)):
        return hugging_face_sentencepiece.read(files, sentinels)
    if not files.tokenizer:
        files.path("spiece.model")  # raises, and names this file
    return from_folder.build(files)


def build_bytes(files: "TokenizerFiles") -> "Vocabulary":
    """Returns the vocabulary of bytes. A directory that does not say which sentinels it has is a published one.

    Raises:
      UserError: The convention of the sentinels is unknown.
    """
    from t5x_like.vocabularies.byte_vocabularies import BYTE_VOCABULARIES

    chosen = files.config.get(CONVENTION, "released")
    if chosen not in BYTE_VOCABULARIES:
        raise UserError(
            f"{files.directory}: {CONVENTION} {chosen!r} of tokenizer_config.json is unknown. Give one of "
            f"{', '.join(BYTE_VOCABULARIES)}."
        )
    return BYTE_VOCABULARIES[chosen](extra_ids=files.config.get("extra_ids", BYTE_SENTINELS))


TOKENIZERS = (
    *(
        TokenizerClass(
            name=name,
            files=("spiece.model",),
            special_tokens=_SPECIAL_TOKENS,
            model_types=model_types,
            has_token_types=False,
            build=build,
        )
        for name, model_types in (("T5Tokenizer", ("t5", "umt5")), ("MT5Tokenizer", ("mt5",)))
    ),
    TokenizerClass(name="ByT5Tokenizer", special_tokens=_SPECIAL_TOKENS, build=build_bytes),
)
# mT5: Xue et al. 2021, section 3.2.
LAYOUTS = {
    "mt5": Layout(
        ids={"pad": 0, "eos": 1, "unk": 2, "bos": -1},
        coverage=0.99999,
        byte_fallback=True,
        tokenizer={"tokenizer_class": "T5Tokenizer", "extra_ids": 100},
    ),
}
