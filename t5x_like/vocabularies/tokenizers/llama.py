"""SentencePiece of Llama, Mistral and Gemma."""

from typing import TYPE_CHECKING

from t5x_like.vocabularies.tokenizers.base import TokenizerClass

if TYPE_CHECKING:
    import tokenizers

    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


_LLAMA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
_GEMMA = {"bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "pad": "<pad>"}


def convert(files: "TokenizerFiles") -> "tokenizers.Tokenizer":
    """Returns a SentencePiece tokenizer with BOS before each text."""
    from t5x_like.vocabularies import converters

    # With `legacy`, the default, transformers 4 adds a space before each text; without it, before texts without one.
    prefix = "always" if files.config.get("legacy") in (None, True) else "first"
    if files.known.name == "GemmaTokenizer" or files.config.get("add_prefix_space") is False:
        prefix = "never"
    path, tokens = files.path("tokenizer.model"), files.special_tokens()
    made = converters.llama(converters.read_sentencepiece(path), path, prefix)
    before = [tokens["bos"]] if "bos" in tokens and files.config.get("add_bos_token", True) else []
    after = [tokens["eos"]] if "eos" in tokens and files.config.get("add_eos_token", False) else []
    single = " ".join([*before, "$A", *after])
    pair = " ".join([single, *(f"{token}:1" for token in before), "$B:1", *(f"{token}:1" for token in after)])
    converters.surround(made, single, pair, (*before, *after), path)
    return made


TOKENIZERS = tuple(
    TokenizerClass(
        name=name,
        files=("tokenizer.model",),
        special_tokens=special_tokens,
        model_types=model_types,
        has_token_types=False,
        convert=convert,
    )
    for name, model_types, special_tokens in (
        ("LlamaTokenizer", ("llama", "mistral"), _LLAMA),
        ("GemmaTokenizer", ("gemma", "gemma2"), _GEMMA),
    )
)
