"""SentencePiece of ALBERT."""

from typing import TYPE_CHECKING

from t5x_like.vocabularies import text_rules
from t5x_like.vocabularies.tokenizers.base import ALBERT, PUNCTUATION, Layout, TokenizerClass

if TYPE_CHECKING:
    import tokenizers

    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


def convert(files: "TokenizerFiles") -> "tokenizers.Tokenizer":
    """Returns a SentencePiece tokenizer of texts in lower case."""
    from t5x_like.vocabularies import converters

    path, tokens = files.path("spiece.model"), files.special_tokens()
    made = converters.albert(
        converters.read_sentencepiece(path),
        path,
        lower_case=files.config.get("do_lower_case", True),
        keep_accents=files.config.get("keep_accents", False),
    )
    converters.surround_by_roles(made, converters.BERT_TEMPLATE, tokens, path)
    return made


TOKENIZERS = (
    TokenizerClass(
        name="AlbertTokenizer",
        files=("spiece.model",),
        special_tokens=ALBERT,
        model_types=("albert",),
        convert=convert,
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
