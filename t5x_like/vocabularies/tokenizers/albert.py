"""SentencePiece of ALBERT."""

from typing import TYPE_CHECKING

from t5x_like.vocabularies import text_rules
from t5x_like.vocabularies.tokenizers.base import ALBERT, PUNCTUATION, Layout, TokenizerClass

if TYPE_CHECKING:
    from t5x_like.vocabularies.base import Vocabulary
    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


def build(files: "TokenizerFiles") -> "Vocabulary":
    """Returns a SentencePiece vocabulary of texts in lower case."""
    from t5x_like.vocabularies import sentencepiece_files
    from t5x_like.vocabularies.hugging_face_sentencepiece import AlbertVocabulary

    if files.tokenizer:
        return sentencepiece_files.vocabulary(files)
    lower_case, accents = files.config.get("do_lower_case", True), files.config.get("keep_accents", False)
    tokens, (model, _) = files.special_tokens(), sentencepiece_files.model_of(files)
    return AlbertVocabulary(model, text_rules.albert(lower_case, keep_accents=accents), tokens)


TOKENIZERS = (
    TokenizerClass(
        name="AlbertTokenizer",
        files=("spiece.model",),
        special_tokens=ALBERT,
        model_types=("albert",),
        build=build,
    ),
)
# google-research/albert.
LAYOUTS = {
    "albert": Layout(
        ids={"pad": 0, "unk": 1, "bos": -1, "eos": -1},
        control=("[CLS]", "[SEP]", "[MASK]"),
        user_defined=PUNCTUATION,
        rules=text_rules.albert,
        lower_case=True,
        tokenizer={"tokenizer_class": "AlbertTokenizer"},
    ),
}
