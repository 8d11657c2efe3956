"""Reads the ids of special tokens from the files of a tokenizer."""

from collections.abc import Iterator, Mapping
from typing import Any

import sentencepiece

from t5x_like import paths
from t5x_like.data import tokenizer_files, tokenizer_json
from t5x_like.interop import json_files

CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
TOKENIZER, VOCABULARY, WORDPIECE = "tokenizer.json", "vocab.json", tokenizer_files.WORDPIECE_FILE
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

_END_OF_TEXT = "<|endoftext|>"
_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ROBERTA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}
_XLNET = {role: f"<{role}>" for role in ("unk", "sep", "pad", "cls", "mask")} | {"bos": "<s>", "eos": "</s>"}
# Class of transformers -> the special tokens that it has if the files name none.
_DEFAULT_TOKENS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"), _BERT),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer"), _ROBERTA),
    "GPT2Tokenizer": {"bos": _END_OF_TEXT, "eos": _END_OF_TEXT, "unk": _END_OF_TEXT},
    "T5Tokenizer": {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
    "AlbertTokenizer": {**_BERT, "unk": "<unk>", "pad": "<pad>"},
    "XLNetTokenizer": _XLNET,
    "DebertaTokenizer": _BERT,
    "DebertaV2Tokenizer": _BERT,
    "LlamaTokenizer": {"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
}


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
        name = config.get("tokenizer_class") or ("GPT2Tokenizer" if _is_byte_bpe(directory) else "")
        token = _DEFAULT_TOKENS.get(name.removesuffix("Fast"), {}).get(role)
    return None if token is None else next((index for piece, index in _ids(directory) if piece == token), None)


def _is_byte_bpe(directory: str) -> bool:
    """Returns whether a directory has the files of GPT-2's vocabulary alone."""
    return VOCABULARY in (names := paths.listdir(directory)) and not {CONFIG, TOKENIZER, "config.json"} & set(names)


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
