"""The tokenizer classes of transformers: the files that each one reads, and its special tokens.

All code that reads, copies, compares or writes the files of a tokenizer uses this table, so that a file which one place
reads is not left out by another.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

CONFIG, TOKENIZER, SPECIAL_TOKENS_MAP = "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json"
ADDED_TOKENS, MODEL_CONFIG, CHAT_TEMPLATE = "added_tokens.json", "config.json", "chat_template.jinja"
WORDPIECE, BPE_IDS, BPE_MERGES = "vocab.txt", "vocab.json", "merges.txt"

GENERIC = "PreTrainedTokenizer"
"""The class of a tokenizer that its tokenizer.json defines alone."""

_END_OF_TEXT = "<|endoftext|>"
_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ROBERTA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}
_DEBERTA = {**_BERT, "bos": "[CLS]", "eos": "[SEP]"}
_ALBERT = {**_DEBERTA, "unk": "<unk>", "pad": "<pad>"}
_XLNET = {role: f"<{role}>" for role in ("unk", "sep", "pad", "cls", "mask")} | {"bos": "<s>", "eos": "</s>"}


class TokenizerClass(NamedTuple):
    """What a class of transformers reads.

    Attributes:
      files: The files that define its vocabulary. A tokenizer.json takes their place.
      special_tokens: Role -> the special token that it has if the files name none.
    """

    files: tuple[str, ...]
    special_tokens: Mapping[str, str]


def _word_pieces(*names: str) -> dict[str, TokenizerClass]:
    return dict.fromkeys(names, TokenizerClass((WORDPIECE,), _BERT))


def _bpe(special_tokens: Mapping[str, str], *names: str) -> dict[str, TokenizerClass]:
    return dict.fromkeys(names, TokenizerClass((BPE_IDS, BPE_MERGES), special_tokens))


CLASSES: Mapping[str, TokenizerClass] = {
    **_word_pieces("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"),
    **_bpe(dict.fromkeys(("bos", "eos", "unk"), _END_OF_TEXT), "GPT2Tokenizer"),
    **_bpe(_ROBERTA, "RobertaTokenizer", "LongformerTokenizer", "BartTokenizer"),
    **_bpe(_DEBERTA, "DebertaTokenizer"),
    **_bpe({"unk": "<unk>"}, "OpenAIGPTTokenizer"),
    "T5Tokenizer": TokenizerClass(("spiece.model",), {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}),
    "ByT5Tokenizer": TokenizerClass((), {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}),
    "LlamaTokenizer": TokenizerClass(("tokenizer.model",), {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}),
    "AlbertTokenizer": TokenizerClass(("spiece.model",), _ALBERT),
    "XLNetTokenizer": TokenizerClass(("spiece.model",), _XLNET),
    "BigBirdTokenizer": TokenizerClass(("spiece.model",), {**_ALBERT, "bos": "<s>", "eos": "</s>"}),
    "DebertaV2Tokenizer": TokenizerClass(("spm.model",), _DEBERTA),
    GENERIC: TokenizerClass((), {}),
}
"""Class, without the suffix "Fast" -> what it reads."""

OF_MODEL_TYPE: Mapping[str, str] = {
    "bert": "BertTokenizer",
    "distilbert": "DistilBertTokenizer",
    "electra": "ElectraTokenizer",
    "mobilebert": "MobileBertTokenizer",
    "gpt2": "GPT2Tokenizer",
    "roberta": "RobertaTokenizer",
    "longformer": "LongformerTokenizer",
    "bart": "BartTokenizer",
    "t5": "T5Tokenizer",
    "llama": "LlamaTokenizer",
    "mistral": "LlamaTokenizer",
    "albert": "AlbertTokenizer",
    "xlnet": "XLNetTokenizer",
    "big_bird": "BigBirdTokenizer",
    "deberta": "DebertaTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "openai-gpt": "OpenAIGPTTokenizer",
}
"""`model_type` in config.json -> the class of directories whose tokenizer_config.json names none."""

GENERIC_CLASS = "PreTrainedTokenizerFast"
"""The class that reads everything from tokenizer.json, as transformers 4 names it and transformers 5 reads it."""
_GENERIC_NAMES = (GENERIC_CLASS, "TokenizersBackend")

VOCABULARIES = tuple(dict.fromkeys((TOKENIZER, *(each.files[0] for each in CLASSES.values() if each.files))))
"""The files from which a tokenizer can be built, together with the files beside it."""

SENTENCEPIECE = tuple(name for name in VOCABULARIES if name.endswith(".model"))
"""The names of SentencePiece models."""

FILES = frozenset(
    {*VOCABULARIES, *(file for each in CLASSES.values() for file in each.files)}
    | {CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS, CHAT_TEMPLATE}
)
"""All files of tokenizers."""


def find_class(config: Mapping[str, Any], model_config: Mapping[str, Any], *, has_tokenizer: bool) -> str | None:
    """Returns the class of a tokenizer, without the suffix "Fast", as `AutoTokenizer` chooses it.

    Args:
      config: The contents of tokenizer_config.json, {} if it does not exist.
      model_config: The contents of config.json, {} if it does not exist.
      has_tokenizer: Whether the directory has a tokenizer.json.

    Returns:
      The class, which `CLASSES` may lack; None if no file implies one.
    """
    if named := config.get("tokenizer_class"):
        return GENERIC if named in _GENERIC_NAMES else named.removesuffix("Fast")
    return OF_MODEL_TYPE.get(model_config.get("model_type"), GENERIC if has_tokenizer else None)
