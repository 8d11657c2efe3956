"""SentencePiece of XLNet."""

from typing import TYPE_CHECKING

from t5x_like.vocabularies import text_rules
from t5x_like.vocabularies.tokenizers.base import PUNCTUATION, XLNET, Layout, TokenizerClass

if TYPE_CHECKING:
    import tokenizers

    from t5x_like.vocabularies.base import Vocabulary
    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


def convert(files: "TokenizerFiles") -> "tokenizers.Tokenizer":
    """Returns a SentencePiece tokenizer with special tokens after texts."""
    from t5x_like.vocabularies import converters

    path, tokens = files.path("spiece.model"), files.special_tokens()
    made = converters.albert(
        converters.read_sentencepiece(path),
        path,
        lower_case=files.config.get("do_lower_case", False),
        keep_accents=files.config.get("keep_accents", False),
    )
    converters.surround_by_roles(made, converters.XLNET_TEMPLATE, tokens, path)
    return made


def build(files: "TokenizerFiles") -> "Vocabulary":
    """Returns the vocabulary, in which documents end with <eod>; </s> does not occur in XLNet's data."""
    from t5x_like.vocabularies import from_folder

    return from_folder.build(files, {"eos": "<eod>"})


TOKENIZERS = (
    TokenizerClass(
        name="XLNetTokenizer",
        files=("spiece.model",),
        special_tokens=XLNET,
        model_types=("xlnet",),
        convert=convert,
        build=build,
    ),
)
# zihangdai/xlnet.
LAYOUTS = {
    "xlnet": Layout(
        ids={"unk": 0, "bos": 1, "eos": 2, "pad": -1},
        control=("<cls>", "<sep>", "<pad>", "<mask>", "<eod>"),
        user_defined=("<eop>", *PUNCTUATION),
        rules=text_rules.albert,  # XLNet changes text in the same way
        lower_case=False,
        tokenizer={"tokenizer_class": "XLNetTokenizer"},
    ),
}
