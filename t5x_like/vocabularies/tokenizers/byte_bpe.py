"""Byte-level BPE: GPT-2, RoBERTa, Longformer, BART and DeBERTa."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from t5x_like.vocabularies.tokenizers.base import BPE_IDS, BPE_MERGES, DEBERTA, TOKENIZER, TokenizerClass

if TYPE_CHECKING:
    from t5x_like.vocabularies.base import Vocabulary
    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


_ROBERTA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}


def build(files: "TokenizerFiles", defaults: Mapping[str, str] | None = None) -> "Vocabulary":
    """Returns a vocabulary of byte-level BPE.

    Args:
      files: The files of a directory.
      defaults: Its special tokens if the files name none; None for those of its class.
    """
    from t5x_like.vocabularies import from_tokenizer_json
    from t5x_like.vocabularies.byte_bpe import ByteBPEVocabulary

    split, prefix_space = from_tokenizer_json.byte_level_split(files)
    tokens = files.special_tokens(defaults)
    added = files.added_tokens(tokens)
    if tokens.get("unk") == tokens.get("eos"):
        tokens.pop("unk", None)  # bytes encode any text, and ids outside the vocabulary are not the end of a text
    names = (TOKENIZER, TOKENIZER) if files.tokenizer else (BPE_IDS, BPE_MERGES)
    vocabulary = ByteBPEVocabulary(
        *(files.path(name) for name in names),
        special_tokens=tokens,
        added_tokens=added,
        split=split,
        add_prefix_space=files.setting("add_prefix_space", prefix_space, False),
        keep_whole_words=files.tokenizer.get("model", {}).get("ignore_merges", False),
    )
    _ = vocabulary.pieces  # reads the files
    return vocabulary


TOKENIZERS = tuple(
    TokenizerClass(
        name=name,
        files=(BPE_IDS, BPE_MERGES),
        special_tokens=special_tokens,
        model_types=(model_type,),
        build=build,
    )
    for name, model_type, special_tokens in (
        ("GPT2Tokenizer", "gpt2", dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")),
        ("RobertaTokenizer", "roberta", _ROBERTA),
        ("LongformerTokenizer", "longformer", _ROBERTA),
        ("BartTokenizer", "bart", _ROBERTA),
        ("DebertaTokenizer", "deberta", DEBERTA),
    )
)
