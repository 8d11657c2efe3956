"""SeqIO vocabularies from the tokenizer files of a Hugging Face model directory, in TensorFlow operations alone.

Neither transformers nor tokenizers is needed. A vocabulary encodes text as the tokenizer that `AutoTokenizer` returns
does (the "fast" one), with two differences. It adds no special tokens, since SeqIO's preprocessors do. Special tokens
in a text, such as `[MASK]`, are encoded as characters.
"""

import os

from t5x_like.vocabularies.base import Vocabulary
from t5x_like.vocabularies.tokenizer_classes import CLASSES, CONFIG
from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


def from_folder(path: str | os.PathLike) -> Vocabulary:
    """Returns the vocabulary of a Hugging Face model directory.

    Supported are WordPiece (BERT, DistilBERT, ELECTRA, MobileBERT), byte-level BPE (GPT-2, RoBERTa, Longformer, BART,
    DeBERTa, Llama 3), BPE of words (GPT-1), bytes (ByT5) and SentencePiece (T5, Llama 1 and 2, Mistral, ALBERT, XLNet,
    BigBird, DeBERTa v2 and v3).

    Args:
      path: the directory, with at least the vocabulary (`vocab.txt`; `vocab.json` and `merges.txt`; `spiece.model`,
        `tokenizer.model` or `spm.model`; or `tokenizer.json`), and `tokenizer_config.json` or `config.json`.

    Returns:
      The vocabulary. Its attributes `bos_id`, `eos_id`, `pad_id`, `unk_id` and, where the tokenizer has such tokens,
      `cls_id`, `sep_id` and `mask_id` are the special ids of the tokenizer, or None.

    Raises:
      UserError: a file is missing or invalid, or a setting cannot be reproduced exactly. The message names file and
        key.
    """
    files = TokenizerFiles(path)
    known = CLASSES.get(files.tokenizer_class)
    if known is None:
        raise files.unsupported(CONFIG, "tokenizer_class", files.tokenizer_class, ", ".join(CLASSES))
    return known.build(files)


def is_readable(tokenizer_class: str) -> bool:
    """Returns whether `from_folder` reads directories with a class of tokenizers."""
    return tokenizer_class in CLASSES
