"""Trains vocabularies on text and returns the files that tasks read.

A SentencePiece model is for T5, a WordPiece list for BERT, byte-level BPE for GPT-2, and `sentencepiece_layouts` has
SentencePiece models for others. All but the first are the files of a Hugging Face directory.
"""

import contextlib
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import tokenizers
import tokenizers.models
import tokenizers.normalizers
import tokenizers.pre_tokenizers
import tokenizers.trainers

from data_tasks.vocabulary_training import train
from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.vocabularies import converters, sentencepiece_layouts, word_vocabularies
from t5x_like.vocabularies.shipped import SENTINELS
from t5x_like.vocabularies.tokenizer_classes import CLASSES, LAYOUTS
from t5x_like.vocabularies.tokenizers.base import BERT, BPE_IDS, BPE_MERGES, CONFIG, GPT2
from t5x_like.vocabularies.tokenizers.t5 import BYTE_SENTINELS, CONVENTION
from t5x_like.vocabularies.word_counts import FIRST_WORD_ID, to_bytes

MERGES_HEADER = "#version: 0.2\n"
_DEFAULT_SIZE = 32_000
# Merges and pieces that occur only once are not worth an id.
_MIN_FREQUENCY = 2
# WordPiece needs two pieces per character, `x` and `##x`. In text with many characters, such as Chinese, the alphabet
# is limited to the most frequent ones, a third of the vocabulary; rarer characters become [UNK].
_SMALL_ALPHABET, _ALPHABET_SHARE = 1000, 1 / 3
_SPECIAL = [BERT[role] for role in ("pad", "unk", "cls", "sep", "mask")]
_END_OF_TEXT = GPT2["eos"]

BYTES_SIZE = 259 + BYTE_SENTINELS
"""Ids of a vocabulary of bytes: padding, EOS, unknown, 256 bytes, and sentinels."""

WORDS = "words"
"""The kind of whole words with their counts."""

Files = dict[str, bytes]


def sentencepiece(
    documents: Sequence[str], size: int, lower_case: bool = False, *, model_type: str = "unigram"
) -> Files:
    """Trains a SentencePiece model with padding 0, EOS 1 and unknown 2; the tasks append T5's sentinels.

    Args:
      documents: text to train on.
      size: number of pieces, including special pieces and 256 bytes.
      lower_case: not supported, since T5 keeps text as it is.
      model_type: `unigram`, as in T5, or `bpe`, as in Llama 2.

    Returns:
      `sentencepiece.model`.

    Raises:
      UserError: the size is too large or too small for the text.
    """
    if lower_case:
        raise UserError("LOWER_CASE=True: not supported by SentencePiece. Remove it, or use KIND=wordpiece.")
    with _explain_size(size):
        threads = os.cpu_count() or 1
        return {"sentencepiece.model": train.train(documents, size, threads=threads, model_type=model_type)}


def with_layout(kind: str, documents: Sequence[str], size: int, lower_case: bool | None = None) -> Files:
    """Trains a unigram model with the special pieces of a published model.

    Args:
      kind: the name of a layout.
      documents: text to train on.
      size: number of pieces, including special pieces.
      lower_case: whether to lower-case the text; None for the default of the layout.

    Returns:
      The model and `tokenizer_config.json`.

    Raises:
      UserError: the size is too large or too small for the text, or the layout cannot be lower-cased.
    """
    layout = LAYOUTS[kind]
    if lower_case and layout.lower_case is None:
        raise UserError(f"LOWER_CASE=True: not supported by KIND={kind}. Remove it, or use KIND=albert.")
    with _explain_size(size):
        chosen = layout.lower_case if lower_case is None else lower_case
        return sentencepiece_layouts.train(documents, size, layout, bool(chosen), os.cpu_count() or 1)


def bytes_vocabulary(documents: Sequence[str], size: int = BYTES_SIZE, lower_case: bool = False) -> Files:
    """Returns the vocabulary of ByT5 (Xue et al. 2022): 3 special tokens, 256 bytes and 125 sentinels.

    Args:
      documents: not read, since a vocabulary of bytes is not trained.
      size: 384, the number of ids.
      lower_case: not supported.

    Returns:
      `tokenizer_config.json`, which makes a directory of transformers' ByT5Tokenizer.

    Raises:
      UserError: another size.
    """
    if size != BYTES_SIZE or lower_case:
        raise UserError(f"KIND=bytes has {BYTES_SIZE} ids and keeps case. Remove SIZE and LOWER_CASE.")
    return {CONFIG: _tokenizer_config("ByT5Tokenizer", extra_ids=BYTE_SENTINELS, **{CONVENTION: "t5"})}


def word_pieces(documents: Sequence[str], size: int, lower_case: bool = True) -> Files:
    """Trains a WordPiece vocabulary that begins with [PAD], [UNK], [CLS], [SEP] and [MASK].

    Args:
      documents: text to train on.
      size: number of pieces, including special pieces.
      lower_case: whether to lower-case and strip accents first, as `lower_case` of the task does.

    Returns:
      `vocab.txt`, which depends only on the text and the arguments, and `tokenizer_config.json`.

    Raises:
      UserError: the size is too large or too small for the text.
    """
    characters = max(_SMALL_ALPHABET, int(size * _ALPHABET_SHARE))

    def learn(most: int, first: list[str]) -> list[str]:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=BERT["unk"]))
        tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lower_case, strip_accents=lower_case)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        trainer = tokenizers.trainers.WordPieceTrainer(
            vocab_size=most,
            min_frequency=_MIN_FREQUENCY,
            special_tokens=first,
            limit_alphabet=characters,
            show_progress=False,
        )
        tokenizer.train_from_iterator(documents, trainer)
        ids = tokenizer.get_vocab()
        return sorted(ids, key=ids.get)

    # The library numbers the continuing characters in the order of a hash table, and breaks ties between merges by
    # number. Passing them sorted, as special tokens, makes the result deterministic.
    alphabet = learn(0, _SPECIAL)
    if len(alphabet) > size:
        raise too_small(size, len(alphabet))
    continuing = sorted(piece for piece in alphabet if piece.startswith(converters.CONTINUATION))
    pieces = learn(size, [*_SPECIAL, *continuing])
    if len(pieces) < size:
        raise too_large(size, len(pieces))
    return {
        "vocab.txt": "".join(f"{piece}\n" for piece in pieces).encode(),
        CONFIG: _tokenizer_config("BertTokenizer", do_lower_case=lower_case),
    }


def byte_pairs(documents: Sequence[str], size: int, lower_case: bool = False) -> Files:
    """Trains byte-level BPE as in GPT-2: 256 bytes, merges, and <|endoftext|> as the last id.

    Args:
      documents: text to train on.
      size: number of pieces, including <|endoftext|> and 256 bytes.
      lower_case: not supported, since byte-level BPE keeps text as it is.

    Returns:
      `vocab.json` and `merges.txt`, which depend only on the text and the arguments, and `tokenizer_config.json`.

    Raises:
      UserError: the size is too large for the text, or below 257.
    """
    if lower_case:
        raise UserError("LOWER_CASE=True: not supported by byte-level BPE. Remove it, or use KIND=wordpiece.")
    if size < 257:
        raise too_small(size, 257)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size - 1,
        min_frequency=_MIN_FREQUENCY,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    ids: dict[str, int] = model["vocab"]
    if len(ids) + 1 < size:
        raise too_large(size, len(ids) + 1)
    ids[_END_OF_TEXT] = len(ids)
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    return {
        BPE_IDS: json.dumps(ids, ensure_ascii=False).encode(),
        BPE_MERGES: (MERGES_HEADER + merges).encode(),
        CONFIG: _tokenizer_config("GPT2Tokenizer"),
    }


def whole_words(
    documents: Iterable[str], size: int | None, lower_case: bool = False, min_count: int = word_vocabularies.MIN_COUNT
) -> Files:
    """Counts the words that whitespace separates.

    Args:
      documents: text to count.
      size: number of ids, including 3 special ones; None for all words.
      lower_case: not supported, since word2vec and GloVe keep text as it is.
      min_count: rarer words are left out.

    Returns:
      `vocab.txt`, with a word and its count per line.

    Raises:
      UserError: no word is left.
    """
    if lower_case:
        raise UserError("LOWER_CASE=True: not supported by KIND=words. Lower-case the text itself.")
    if size is not None and size <= FIRST_WORD_ID:
        least = FIRST_WORD_ID + 1
        raise UserError(f"SIZE={size}: too small for {FIRST_WORD_ID} special ids and a word. Give at least {least}.")
    number = None if size is None else size - FIRST_WORD_ID
    return {"vocab.txt": to_bytes(word_vocabularies.count(documents, number, min_count))}


KINDS: dict[str, Callable[..., Files]] = {
    "sentencepiece": sentencepiece,
    "sentencepiece_bpe": functools.partial(sentencepiece, model_type="bpe"),
    "wordpiece": word_pieces,
    "byte_bpe": byte_pairs,
    "bytes": bytes_vocabulary,
    WORDS: whole_words,
    **{kind: functools.partial(with_layout, kind) for kind in LAYOUTS},
}


def _tokenizer_config(tokenizer_class: str, **settings: bool | int) -> bytes:
    """Returns the file that makes a directory one that Hugging Face's `AutoTokenizer` loads."""
    return (json.dumps({"tokenizer_class": tokenizer_class, **settings}, indent=2) + "\n").encode()


@contextlib.contextmanager
def _explain_size(size: int) -> Iterator[None]:
    """Explains errors of SentencePiece about the size of a vocabulary."""
    try:
        yield
    except RuntimeError as error:
        if match := re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", str(error)):
            raise too_large(size, int(match[1])) from error
        if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            raise too_small(size, int(match[1])) from error
        raise


def too_large(size: int, most: int) -> UserError:
    """Returns the error for a vocabulary size that the text cannot fill."""
    return UserError(f"SIZE={size}: too large for this text. Give at most {most}, or more text.")


def too_small(size: int, least: int) -> UserError:
    """Returns the error for a vocabulary size that cannot hold the alphabet."""
    return UserError(f"SIZE={size}: too small for the alphabet of this text. Give at least {least}.")


def default_size(kind: str) -> int | None:
    """Returns the number of pieces of a kind of vocabulary if the user gives none; None for all words."""
    if kind == WORDS:
        return None
    return BYTES_SIZE if kind == "bytes" else _DEFAULT_SIZE


def count_ids(files: Files) -> int:
    """Returns the number of ids of a vocabulary of words, special ones included."""
    return FIRST_WORD_ID + files["vocab.txt"].count(b"\n")


def check_settings(kind: str, *, min_count: int | None, beam: object, domains: object) -> None:
    """Checks that the settings of a kind of vocabulary have an effect.

    Raises:
      UserError: a setting has none.
    """
    if kind != WORDS and min_count is not None:
        raise UserError(f"MIN_COUNT={min_count}: not used by KIND={kind}. Remove it, or give KIND=words.")
    for name, value in (("BEAM", beam), ("DOMAINS", domains)):
        if kind == WORDS and value is not None:
            raise UserError(f"{name}: not supported by KIND=words, which counts all text in this process. Remove it.")


def path_of(directory: str, files: Files) -> str:
    """Returns the value for VOCABULARY_PATH: the directory if the tasks read it, otherwise its only model."""
    if CONFIG in files and json.loads(files[CONFIG])["tokenizer_class"] in CLASSES:
        return directory
    return paths.join(directory, next(name for name in files if name.endswith((".model", "vocab.txt"))))


def models_for(kind: str, size: int) -> str:
    """Describes the settings that a model needs for a vocabulary of this kind and size."""
    if kind in ("sentencepiece", "sentencepiece_bpe"):
        return f"vocab_size = {size + SENTINELS} or more: {size} pieces and the {SENTINELS} sentinels that tasks add"
    if kind == "byte_bpe":
        return f"vocab_size = {size} or more, and BOS_ID = {size - 1} ({_END_OF_TEXT})"
    if kind == "mt5":
        return f"vocab_size = {size + SENTINELS} or more: {size} pieces and {SENTINELS} sentinels"
    return f"vocab_size = {size} or more"
