"""Vocabularies in files of their own: `vocab.txt`, `vocab.json` with `merges.txt`, and SentencePiece models."""

import functools
from collections.abc import Iterator

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.vocabularies import converters, tokenizer_json
from t5x_like.vocabularies.tokenizer_vocabulary import TokenizerVocabulary
from t5x_like.vocabularies.tokenizers.base import ALBERT, BERT, BPE_IDS, BPE_MERGES, GPT2, XLNET

PAD = BERT["pad"]


# ---- contents --------------------------------------------------------------------------------------------------------


def read_word_pieces(path: str) -> dict[str, int]:
    """Returns the pieces of a `vocab.txt`, one per line, with their ids: line numbers from 0.

    Raises:
      UserError: The file does not exist, or is not a BERT vocabulary.
    """
    try:
        lines = paths.read_bytes(path).decode("utf-8").split("\n")
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UserError(f"{path!r} is not a WordPiece vocabulary: file not found. Give the path of one.") from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path!r} is not a WordPiece vocabulary: not UTF-8 text ({error}). Give a vocab.txt."
        ) from error
    # splitlines() would split at pieces that are line separators of Unicode.
    pieces = [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    if missing := [piece for piece in BERT.values() if piece not in pieces]:
        raise UserError(
            f"{path!r} is not a WordPiece vocabulary of BERT: {', '.join(missing)} not found. Give a vocab.txt with "
            "one token per line, special tokens included."
        )
    if pieces[0] != PAD:
        raise UserError(
            f"{path!r}: {PAD} is line {pieces.index(PAD) + 1}, but must be line 1, because 0 pads batches. Give a file "
            "that begins with it."
        )
    if len(set(pieces)) != len(pieces) or "" in pieces:
        wrong = next(piece for piece in pieces if piece == "" or pieces.count(piece) > 1)
        raise UserError(f"{path!r}: an empty line or a duplicate piece ({wrong!r}). Every line must be a unique piece.")
    return {piece: number for number, piece in enumerate(pieces)}


def read_ids(path: str) -> dict[str, int]:
    """Returns the id of each piece in a `vocab.json`.

    Raises:
      UserError: The file does not exist or is not valid.
    """
    try:
        contents = tokenizer_json.read(path)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UserError(f"{path!r} is not a file of a BPE vocabulary: file not found") from error
    tokenizer_json.check_ids(path, contents)
    return contents


def read_merges(path: str, ids: dict[str, int]) -> list[tuple[str, ...]]:
    """Returns the two pieces of each merge in a `merges.txt`, in the order learned.

    Args:
      path: The file.
      ids: The id of each piece.

    Raises:
      UserError: The file does not exist, or a merge does not consist of pieces or make one.
    """
    try:
        text = paths.read_bytes(path).decode("utf-8")
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UserError(f"{path!r} is not a file of a BPE vocabulary: file not found") from error
    merges = [tuple(line.split(" ")) for line in text.split("\n") if line and not line.startswith("#version")]
    if len(merges) > tokenizer_json.MAX_MERGES:
        raise UserError(
            f"{path!r}: {len(merges):,} merges are more than {tokenizer_json.MAX_MERGES:,}, twice the largest "
            "public tokenizer's. Use another tokenizer."
        )
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= ids.keys():
            raise UserError(
                f"{path!r} and its {BPE_IDS} do not match: {' '.join(merge)!r:.60} is not a merge of two pieces. Give "
                "both files of one vocabulary."
            )
    return merges


# ---- vocabularies ----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def word_pieces(path: str, lower_case: bool = True) -> TokenizerVocabulary:
    """Returns the vocabulary of BERT's vocab.txt (Devlin et al. 2018; Wu et al. 2016). Each path is read once.

    The ids equal those of the released code and of transformers' tokenizer in Python, which compose characters (NFC).

    Args:
      path: The file.
      lower_case: Whether texts are lower-cased and lose accents, as in the uncased models.

    Raises:
      UserError: See `read_word_pieces`.
    """
    made = converters.word_pieces(read_word_pieces(path), lower_case=lower_case, compose=not lower_case)
    converters.surround_by_roles(made, converters.BERT_TEMPLATE, BERT, path)
    made.add_special_tokens(list(BERT.values()))
    return TokenizerVocabulary(made.to_str(), path, BERT)


@functools.lru_cache(maxsize=8)
def byte_bpe(directory: str) -> TokenizerVocabulary:
    """Returns GPT-2's vocabulary of a directory with vocab.json and merges.txt. Each path is read once.

    Raises:
      UserError: See `read_ids` and `read_merges`.
    """
    ids = read_ids(paths.join(directory, BPE_IDS))
    made = converters.byte_level(ids, read_merges(paths.join(directory, BPE_MERGES), ids))
    tokens = {role: token for role, token in GPT2.items() if role != "unk"}
    converters.special_ids(made, list(tokens.values()), directory)
    made.add_special_tokens(list(tokens.values()))
    return TokenizerVocabulary(made.to_str(), directory, tokens)


@functools.lru_cache(maxsize=8)
def albert(path: str, lower_case: bool) -> TokenizerVocabulary:
    """Returns ALBERT's vocabulary of a SentencePiece model. Each path is read once.

    Args:
      path: The model.
      lower_case: Whether texts are lower-cased.

    Raises:
      UserError: The file is not a SentencePiece model, or lacks a special token.
    """
    made = converters.albert(converters.read_sentencepiece(path), path, lower_case=lower_case)
    converters.surround_by_roles(made, converters.BERT_TEMPLATE, ALBERT, path)
    return _with_special(made, path, ALBERT)


@functools.lru_cache(maxsize=8)
def xlnet(path: str) -> TokenizerVocabulary:
    """Returns XLNet's vocabulary of a SentencePiece model, which keeps capital letters. Each path is read once.

    Raises:
      UserError: See `albert`.
    """
    made = converters.albert(converters.read_sentencepiece(path), path, lower_case=False)
    converters.surround_by_roles(made, converters.XLNET_TEMPLATE, XLNET, path)
    return _with_special(made, path, XLNET | {"eos": "<eod>"})


def sentencepiece(path: str) -> Iterator[TokenizerVocabulary]:
    """Yields the vocabularies that a SentencePiece model with special pieces may be."""
    pieces = {piece.piece for piece in converters.read_sentencepiece(path).pieces}
    if XLNET["cls"] in pieces:
        yield xlnet(path)
    elif ALBERT["cls"] in pieces:
        yield from (albert(path, lower_case) for lower_case in (True, False))


def _with_special(made, path: str, tokens: dict[str, str]) -> TokenizerVocabulary:
    converters.special_ids(made, list(tokens.values()), path)
    made.add_special_tokens(list(tokens.values()))
    return TokenizerVocabulary(converters.split_inside(made), path, tokens)
