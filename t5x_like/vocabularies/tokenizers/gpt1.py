"""BPE within words: GPT-1."""

from typing import TYPE_CHECKING

from t5x_like.vocabularies.tokenizers.base import BPE_IDS, BPE_MERGES, CONFIG, TOKENIZER, TokenizerClass

if TYPE_CHECKING:
    from t5x_like.vocabularies.base import Vocabulary
    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


def build(files: "TokenizerFiles") -> "Vocabulary":
    """Returns a vocabulary of BPE within words."""
    from t5x_like.vocabularies import from_tokenizer_json
    from t5x_like.vocabularies.word_bpe import WordBPEVocabulary

    if not files.config.get("do_lower_case", True):
        raise files.unsupported(CONFIG, "do_lower_case", False, "true")
    tokens = files.special_tokens()
    if "unk" not in tokens:
        raise files.unsupported(CONFIG, "unk_token", None, 'a token such as "<unk>"')
    from_tokenizer_json.check_word_bpe(files, tokens["unk"])
    names = (TOKENIZER, TOKENIZER) if files.tokenizer else (BPE_IDS, BPE_MERGES)
    vocabulary = WordBPEVocabulary(*(files.path(name) for name in names), special_tokens=tokens)
    files.require_pieces(tokens, vocabulary.pieces)
    return vocabulary


TOKENIZERS = (
    TokenizerClass(
        name="OpenAIGPTTokenizer",
        files=(BPE_IDS, BPE_MERGES),
        special_tokens={"unk": "<unk>"},
        model_types=("openai-gpt",),
        build=build,
    ),
)
