"""SentencePiece of DeBERTa v2 and v3."""

from typing import TYPE_CHECKING

from t5x_like.vocabularies.tokenizers.base import DEBERTA, TokenizerClass

if TYPE_CHECKING:
    import tokenizers

    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


def convert(files: "TokenizerFiles") -> "tokenizers.Tokenizer":
    """Returns a SentencePiece tokenizer, with a [MASK] after its pieces if it is not one of them."""
    from t5x_like.vocabularies import converters

    path, tokens = files.path("spm.model"), files.special_tokens()
    made = converters.deberta_v2(
        converters.read_sentencepiece(path),
        path,
        lower_case=files.config.get("do_lower_case", False),
        split_punctuation=files.config.get("split_by_punct", False),
    )
    converters.surround_by_roles(made, converters.BERT_TEMPLATE, tokens, path)
    made.add_special_tokens([tokens["mask"]])
    return made


TOKENIZERS = (
    TokenizerClass(
        name="DebertaV2Tokenizer",
        files=("spm.model",),
        special_tokens=DEBERTA,
        model_types=("deberta-v2",),
        convert=convert,
    ),
)
