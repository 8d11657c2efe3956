"""Byte-level BPE: GPT-2, RoBERTa, Longformer, BART, DeBERTa and Qwen 2 and 3."""

from typing import TYPE_CHECKING

from t5x_like.vocabularies.tokenizers.base import BPE_IDS, BPE_MERGES, DEBERTA, GPT2, TokenizerClass

if TYPE_CHECKING:
    import tokenizers

    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


_ROBERTA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}
_QWEN = dict.fromkeys(("eos", "unk", "pad"), "<|endoftext|>")


def add_prefix_space(files: "TokenizerFiles") -> bool:
    """Returns whether a space is added before texts that do not begin with one.

    Raises:
      UserError: tokenizer_config.json and tokenizer.json contradict each other.
    """
    step = files.tokenizer.get("pre_tokenizer") or {}
    in_file = step.get("add_prefix_space", True) if step.get("type") == "ByteLevel" else None
    return files.setting("add_prefix_space", in_file, False)


def convert(files: "TokenizerFiles") -> "tokenizers.Tokenizer":
    """Returns GPT-2's tokenizer, without special tokens around texts."""
    from t5x_like.vocabularies import converters, vocabulary_files

    merges = files.path(BPE_MERGES)
    ids = vocabulary_files.read_ids(files.path(BPE_IDS))
    is_qwen = files.known.name == "Qwen2Tokenizer"
    return converters.byte_level(
        ids,
        vocabulary_files.read_merges(merges, ids),
        add_prefix_space=add_prefix_space(files),
        split=converters.QWEN_2_SPLIT if is_qwen else None,
        compose=is_qwen,
    )


def convert_roberta(files: "TokenizerFiles") -> "tokenizers.Tokenizer":
    """Returns the tokenizer of RoBERTa and BART: `<s> a </s>` and `<s> a </s></s> b </s>`."""
    from tokenizers import processors

    from t5x_like.vocabularies import converters

    made, tokens = convert(files), files.special_tokens()
    ids = converters.special_ids(made, (tokens["sep"], tokens["cls"]), files.path(BPE_IDS))
    pairs = {role: (tokens[role], ids[tokens[role]]) for role in ("sep", "cls")}
    made.post_processor = processors.RobertaProcessing(
        **pairs, trim_offsets=True, add_prefix_space=add_prefix_space(files)
    )
    return made


def convert_deberta(files: "TokenizerFiles") -> "tokenizers.Tokenizer":
    """Returns DeBERTa's tokenizer, with the template of BERT."""
    from t5x_like.vocabularies import converters

    made, tokens = convert(files), files.special_tokens()
    converters.surround_by_roles(made, converters.BERT_TEMPLATE, tokens, files.path(BPE_IDS))
    return made


TOKENIZERS = tuple(
    TokenizerClass(
        name=name,
        files=(BPE_IDS, BPE_MERGES),
        special_tokens=special_tokens,
        model_types=model_types,
        has_token_types=name == "DebertaTokenizer",
        convert=convert_class,
        check=add_prefix_space,
    )
    for name, model_types, special_tokens, convert_class in (
        ("GPT2Tokenizer", ("gpt2",), GPT2, convert),
        ("RobertaTokenizer", ("roberta",), _ROBERTA, convert_roberta),
        ("LongformerTokenizer", ("longformer",), _ROBERTA, convert_roberta),
        ("BartTokenizer", ("bart",), _ROBERTA, convert_roberta),
        ("DebertaTokenizer", ("deberta",), DEBERTA, convert_deberta),
        ("Qwen2Tokenizer", ("qwen2", "qwen3"), _QWEN, convert),
    )
)
