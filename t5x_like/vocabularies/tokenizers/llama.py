"""SentencePiece of Llama and Mistral."""

from typing import TYPE_CHECKING

from t5x_like.vocabularies.tokenizers import byte_bpe
from t5x_like.vocabularies.tokenizers.base import TokenizerClass

if TYPE_CHECKING:
    from t5x_like.vocabularies.base import Vocabulary
    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


def build(files: "TokenizerFiles") -> "Vocabulary":
    """Returns a SentencePiece vocabulary, or byte-level BPE for Llama 3."""
    from t5x_like.vocabularies import from_tokenizer_json, sentencepiece_files

    if from_tokenizer_json.is_byte_level(files):  # Llama 3, in files that do not name a class
        return byte_bpe.build(files, {})
    # With `legacy`, the default, transformers adds a space before each text; without it, before texts without one.
    is_legacy = files.config.get("legacy") in (None, True)
    spaces = from_tokenizer_json.Spaces(prefix="always" if is_legacy else "unless_present")
    return sentencepiece_files.vocabulary(
        files, spaces=None if files.config.get("add_prefix_space") is False else spaces
    )


TOKENIZERS = (
    TokenizerClass(
        name="LlamaTokenizer",
        files=("tokenizer.model",),
        special_tokens={"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
        model_types=("llama", "mistral"),
        build=build,
    ),
)
