"""SentencePiece of BigBird."""

from typing import TYPE_CHECKING

from t5x_like.vocabularies.tokenizers.base import ALBERT, Layout, TokenizerClass

if TYPE_CHECKING:
    from t5x_like.vocabularies.base import Vocabulary
    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


_SPECIAL = {65: "[CLS]", 66: "[SEP]", 67: "[MASK]"}
_UNKNOWN = 100


def build(files: "TokenizerFiles") -> "Vocabulary":
    """Returns a SentencePiece vocabulary, with token types if the model reads them."""
    from t5x_like.vocabularies import sentencepiece_files

    inputs = files.config.get("model_input_names")
    return sentencepiece_files.vocabulary(files, has_token_types=inputs is None or "token_type_ids" in inputs)


TOKENIZERS = (
    TokenizerClass(
        name="BigBirdTokenizer",
        files=("spiece.model",),
        special_tokens={**ALBERT, "bos": "<s>", "eos": "</s>"},
        model_types=("big_bird",),
        build=build,
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
