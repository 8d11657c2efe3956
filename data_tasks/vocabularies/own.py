"""A vocabulary of one's own, learnt from text: the files that the vocabularies of `text_files_*` tasks read.

SentencePiece's model is for T5 and everything that takes one, WordPiece's list for BERT, byte-level BPE for GPT-2.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from types import ModuleType

from data_tasks.vocabularies import SENTINELS, byte_bpe, train, wordpiece
from t5x_like.errors import UserError

MERGES_HEADER = "#version: 0.2\n"
# A merge or a piece that occurs once in the whole text says nothing about language.
_MIN_FREQUENCY = 2
# Each character of an alphabet is two pieces of WordPiece, `x` and `##x`. Of a large one, such as that of Chinese, the
# characters that are too rare for a third of the vocabulary are unknown.
_SMALL_ALPHABET, _ALPHABET_SHARE = 1000, 1 / 3
_SPECIAL = [wordpiece.PAD, wordpiece.UNKNOWN, wordpiece.CLS, wordpiece.SEP, wordpiece.MASK]

Files = dict[str, bytes]


def sentencepiece(documents: Sequence[str], size: int, lower_case: bool = False) -> Files:
    """A unigram model with pad 0, EOS 1 and unknown 2; the tasks add T5's sentinels behind its pieces.

    Args:
      documents: text to learn from.
      size: pieces, special ones and the 256 bytes included.
      lower_case: not supported, since a model of T5 keeps text as it is.

    Returns:
      `sentencepiece.model`.

    Raises:
      UserError: the text does not give so many or so few pieces.
    """
    if lower_case:
        raise UserError("lower_case=True: a SentencePiece vocabulary keeps the case. Use kind=wordpiece, or remove it.")
    try:
        model = train.train(documents, size, threads=os.cpu_count() or 1)
    except RuntimeError as error:
        if match := re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", str(error)):
            raise too_large(size, int(match[1])) from error
        if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            raise too_small(size, int(match[1])) from error
        raise
    return {"sentencepiece.model": model}


def word_pieces(documents: Sequence[str], size: int, lower_case: bool = True) -> Files:
    """A list of pieces that begins with [PAD], [UNK], [CLS], [SEP] and [MASK].

    Args:
      documents: text to learn from.
      size: pieces, special ones included.
      lower_case: whether case and accents are removed first, as `lower_case` of the task does.

    Returns:
      `vocab.txt`, the same for the same text.

    Raises:
      UserError: the text does not give so many or so few pieces.
    """
    library = _tokenizers()

    def learn(most: int, first: list[str]) -> list[str]:
        tokenizer = library.Tokenizer(library.models.WordPiece(unk_token=wordpiece.UNKNOWN))
        tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=lower_case, strip_accents=lower_case)
        tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        trainer = library.trainers.WordPieceTrainer(
            vocab_size=most,
            min_frequency=_MIN_FREQUENCY,
            special_tokens=first,
            limit_alphabet=characters,
            show_progress=False,
        )
        tokenizer.train_from_iterator(documents, trainer)
        ids = tokenizer.get_vocab()
        return sorted(ids, key=ids.get)

    characters = max(_SMALL_ALPHABET, int(size * _ALPHABET_SHARE))
    # The library numbers the characters that continue a word in the order of a hash table, and breaks ties between
    # merges by number. Given first and sorted, they are the same each time.
    alphabet = learn(0, _SPECIAL)
    if len(alphabet) > size:
        raise too_small(size, len(alphabet))
    continuing = sorted(piece for piece in alphabet if piece.startswith(wordpiece.CONTINUATION))
    pieces = learn(size, [*_SPECIAL, *continuing])
    if len(pieces) < size:
        raise too_large(size, len(pieces))
    return {"vocab.txt": "".join(f"{piece}\n" for piece in pieces).encode()}


def byte_pairs(documents: Sequence[str], size: int, lower_case: bool = False) -> Files:
    """Byte-level BPE as GPT-2's: the 256 bytes, merges, and <|endoftext|> as the last id.

    Args:
      documents: text to learn from.
      size: pieces, <|endoftext|> and the 256 bytes included.
      lower_case: not supported, since bytes are kept as they are.

    Returns:
      `vocab.json` and `merges.txt`, the same for the same text.

    Raises:
      UserError: the text does not give so many pieces, or they are fewer than the bytes.
    """
    if lower_case:
        raise UserError("lower_case=True: byte-level BPE keeps the case. Use kind=wordpiece, or remove it.")
    library = _tokenizers()
    if size < 257:
        raise too_small(size, 257)
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = library.trainers.BpeTrainer(
        vocab_size=size - 1,
        min_frequency=_MIN_FREQUENCY,
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    ids: dict[str, int] = model["vocab"]
    if len(ids) + 1 < size:
        raise too_large(size, len(ids) + 1)
    ids[byte_bpe.END_OF_TEXT] = len(ids)
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    return {
        byte_bpe.VOCAB_FILE: json.dumps(ids, ensure_ascii=False).encode(),
        byte_bpe.MERGES_FILE: (MERGES_HEADER + merges).encode(),
    }


KINDS: dict[str, Callable[..., Files]] = {
    "sentencepiece": sentencepiece,
    "wordpiece": word_pieces,
    "byte_bpe": byte_pairs,
}


def too_large(size: int, most: int) -> UserError:
    return UserError(f"SIZE={size}: too large for this text. It gives {most} pieces at most; use less, or more text.")


def too_small(size: int, least: int) -> UserError:
    return UserError(f"SIZE={size}: too small. The characters of this text need {least} pieces at least.")


def models_for(kind: str, size: int) -> str:
    """What a model's configuration needs for a vocabulary of this kind and size, in words."""
    if kind == "sentencepiece":
        return f"vocab_size = {size + SENTINELS} or more: {size} pieces and the {SENTINELS} sentinels that tasks add"
    if kind == "byte_bpe":
        return f"vocab_size = {size} or more, and BOS_ID = {size - 1} ({byte_bpe.END_OF_TEXT})"
    return f"vocab_size = {size} or more"


def _tokenizers() -> ModuleType:
    try:
        import tokenizers
        import tokenizers.models
        import tokenizers.normalizers
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ModuleNotFoundError as error:
        raise UserError(
            "the package tokenizers is not installed, which learns WordPiece and byte-level BPE. "
            "Install it: pip install 't5x_like[vocabulary]'"
        ) from error
    return tokenizers
