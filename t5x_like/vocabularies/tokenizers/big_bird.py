"""SentencePiece of BigBird."""

from typing import TYPE_CHECKING

from t5x_like.vocabularies.tokenizers.base import ALBERT, Layout, TokenizerClass

if TYPE_CHECKING:
    import tokenizers

    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


_SPECIAL = {65: "[CLS]", 66: "[SEP]", 67: "[MASK]"}
_UNKNOWN = 100


def convert(files: "TokenizerFiles") -> "tokenizers.Tokenizer":
    """Returns a SentencePiece tokenizer with the template of BERT."""
    from t5x_like.vocabularies import converters

    path, tokens = files.path("spiece.model"), files.special_tokens()
    made = converters.big_bird(converters.read_sentencepiece(path), path)
    converters.surround_by_roles(made, converters.BERT_TEMPLATE, tokens, path)
    return made


TOKENIZERS = (
    TokenizerClass(
        name="BigBirdTokenizer",
        files=("spiece.model",),
        special_tokens={**ALBERT, "bos": "<s>", "eos": "</s>"},
        model_types=("big_bird",),
        convert=convert,
    ),
)
# google-research/bigbird.
LAYOUTS = {
    "bigbird": Layout(
        ids={"pad": 0, "eos": 1, "bos": 2, "unk": _UNKNOWN},
        control=tuple(_SPECIAL.get(index, f"<unused_{index}>") for index in range(3, _UNKNOWN)),
        tokenizer={"tokenizer_class": "BigBirdTokenizer"},
    ),
}
