"""Reads the ids of special tokens from the files of a tokenizer."""

from collections.abc import Iterator
from typing import Any

import sentencepiece

from t5x_like import paths
from t5x_like.interop import json_files
from t5x_like.vocabularies import tokenizer_classes, tokenizer_files, tokenizer_json
from t5x_like.vocabularies.tokenizer_classes import ADDED_TOKENS, CONFIG, MODEL_CONFIG, SPECIAL_TOKENS_MAP, TOKENIZER

VOCABULARY, WORDPIECE = tokenizer_classes.BPE_IDS, tokenizer_files.WORDPIECE_FILE
ROLES = tokenizer_json.ROLES

_BERT, _XLNET = (tokenizer_classes.CLASSES[name].special_tokens for name in ("BertTokenizer", "XLNetTokenizer"))


def special_ids(path: str) -> dict[str, int]:
    """Returns the id of the special token of each role that a tokenizer has; empty if there is no tokenizer.

    Args:
      path: a Hugging Face directory, a SentencePiece model, or a file like `vocab.txt`.

    Raises:
      UserError: a file is not a valid JSON object.
    """
    found = tokenizer_files.find(path)
    if found is None:
        return {}
    if not paths.is_file(found):
        ids = {role: special_id(found, role) for role in ROLES}
    elif found.endswith(tokenizer_files.WORDPIECE):
        lines = _lines(found)
        ids = {role: lines.get(token) for role, token in _BERT.items()}
    else:
        ids = of_sentencepiece(paths.read_bytes(found))
    return {role: number for role, number in ids.items() if number is not None}


def token(path: str, number: int) -> str | None:
    """Returns the token of an id, as it is in the files; None if they do not list it.

    Args:
      path: see `special_ids`.
      number: the id.
    """
    if (found := tokenizer_files.find(path)) is None:
        return None
    if not paths.is_file(found):
        tokens = _ids(found)
    elif found.endswith(tokenizer_files.WORDPIECE):
        tokens = iter(_lines(found).items())
    else:
        model = sentencepiece.SentencePieceProcessor(model_proto=paths.read_bytes(found))
        return model.id_to_piece(number) if number < model.get_piece_size() else None
    return next((text for text, index in tokens if index == number), None)


def of_sentencepiece(contents: bytes) -> dict[str, int]:
    """Returns the id of the special token of each role that a SentencePiece model has."""
    model = sentencepiece.SentencePieceProcessor(model_proto=contents)
    ids = {role: getattr(model, f"{role}_id")() for role in ("bos", "eos", "unk", "pad")}
    for tokens, roles in ((_BERT, ("cls", "sep", "mask")), (_XLNET, ("cls", "sep", "mask", "pad"))):
        pieces = {tokens[role]: model.piece_to_id(tokens[role]) for role in roles}
        if all(model.id_to_piece(number) == token for token, number in pieces.items()):
            ids |= {role: pieces[tokens[role]] for role in roles}
    return {role: number for role, number in ids.items() if number >= 0}


def special_id(directory: str, role: str) -> int | None:
    """Returns the id of a special token.

    Args:
      directory: the directory of the tokenizer.
      role: `pad`, `eos`, ….

    Returns:
      The id, or None if the tokenizer does not have the token, or if no file states its id.

    Raises:
      UserError: a file is not a valid JSON object.
    """
    config, key = _read(directory, CONFIG), f"{role}_token"
    token = config.get(key) or _read(directory, SPECIAL_TOKENS_MAP).get(key)
    token = token.get("content") if isinstance(token, dict) else token
    if token is None and key not in config:
        known = tokenizer_classes.CLASSES.get(tokenizer_class(directory))
        token = known and known.special_tokens.get(role)
    return None if token is None else next((index for piece, index in _ids(directory) if piece == token), None)


def tokenizer_class(directory: str) -> str | None:
    """Returns the class of a tokenizer in transformers, without the suffix "Fast"; None if no file implies one."""
    files = _read(directory, CONFIG), _read(directory, MODEL_CONFIG)
    found = tokenizer_classes.find_class(*files, has_tokenizer=paths.is_file(paths.join(directory, TOKENIZER)))
    return "GPT2Tokenizer" if found is None and _is_byte_bpe(directory) else found


def _is_byte_bpe(directory: str) -> bool:
    """Returns whether a directory has the files of GPT-2's vocabulary alone."""
    return VOCABULARY in (names := paths.listdir(directory)) and not {CONFIG, TOKENIZER, MODEL_CONFIG} & set(names)


def _ids(directory: str) -> Iterator[tuple[str, int]]:
    """Yields the tokens with their ids, added tokens first."""
    decoder, tokenizer = _read(directory, CONFIG).get("added_tokens_decoder", {}), _read(directory, TOKENIZER)
    yield from ((token["content"], int(index)) for index, token in decoder.items())
    yield from ((token["content"], token["id"]) for token in tokenizer.get("added_tokens") or ())
    yield from _read(directory, ADDED_TOKENS).items()
    yield from tokenizer_json.pieces(tokenizer)
    yield from _read(directory, VOCABULARY).items()
    if paths.is_file(file := paths.join(directory, WORDPIECE)):
        yield from _lines(file).items()
    for name in sorted(paths.listdir(directory)):
        if name.endswith(tokenizer_files.SENTENCEPIECE):
            model = sentencepiece.SentencePieceProcessor(model_proto=paths.read_bytes(paths.join(directory, name)))
            yield from ((model.id_to_piece(number), number) for number in range(model.get_piece_size()))


def _lines(path: str) -> dict[str, int]:
    lines = paths.read_text(path).removesuffix("\n").split("\n")
    return {line.rstrip("\r"): number for number, line in enumerate(lines)}


def _read(directory: str, name: str) -> dict[str, Any]:
    """Returns the contents of a file, or {} if it does not exist."""
    file = paths.join(directory, name)
    if not paths.is_file(file):
        return {}
    contents = json_files.read(file)
    tokenizer_json.check(file, contents)
    return contents
