"""BPE within words: GPT-1."""

from typing import TYPE_CHECKING

from t5x_like.vocabularies.tokenizers.base import BPE_IDS, BPE_MERGES, CONFIG, TokenizerClass

if TYPE_CHECKING:
    import tokenizers

    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


def convert(files: "TokenizerFiles") -> "tokenizers.Tokenizer":
    """Returns a tokenizer with BPE within lower-cased words."""
    from t5x_like.vocabularies import converters, vocabulary_files

    tokens = files.special_tokens()
    if "unk" not in tokens:
        raise files.unsupported(CONFIG, "unk_token", None, 'a token such as "<unk>"')
    merges = files.path(BPE_MERGES)
    ids = vocabulary_files.read_ids(files.path(BPE_IDS))
    return converters.word_bpe(ids, vocabulary_files.read_merges(merges, ids), tokens["unk"])


TOKENIZERS = (
    TokenizerClass(
        name="OpenAIGPTTokenizer",
        files=(BPE_IDS, BPE_MERGES),
        special_tokens={"unk": "<unk>"},
        model_types=("openai-gpt",),
        has_token_types=False,
        convert=convert,
    ),
)
