"""Reads the JSON files of a tokenizer, whose contents may be damaged or hostile, and checks what other code relies on.

Sizes are limited to twice the largest public tokenizers, because the tables of a vocabulary take a multiple of
the size of its files.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fsspec

from t5x_like import paths
from t5x_like.errors import UserError

# The largest public vocabularies: Gemma 3, LaBSE and XLM-V.
MAX_PIECES = {"BPE": 2 * 262_144, "WordPiece": 2 * 501_153, "Unigram": 2 * 901_629}
MAX_MERGES = 2 * 580_604  # Gemma 2
MAX_BYTES = 1 << 27
"""The largest size of a file. That of XLM-V's tokenizer.json is a third of this."""

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""The roles of special tokens: `bos_token` in the files is the token of the role bos."""

_MAX_ID = 1 << 31
_MAX_SENTINELS = 1 << 20
_SHOWN = 80


def read(path: str) -> dict[str, Any]:
    """Reads and checks a file.

    Args:
      path: path of tokenizer.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json, vocab.json or
        config.json, local or in a bucket.

    Raises:
      UserError: the file is too large, is not a JSON object, or has values of other types than a tokenizer's. The
        message names the file and the key.
    """
    filesystem, inner = fsspec.core.url_to_fs(path)
    if (size := filesystem.size(inner)) is not None and size > MAX_BYTES:
        raise error(path, None, f"{size:,} bytes are more than the {MAX_BYTES:,} of a tokenizer. Use another tokenizer")
    text = paths.read_text(path)
    try:
        contents = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise error(path, None, f"not valid JSON ({cause}). Download the file again") from cause
    if not isinstance(contents, dict):
        raise error(path, None, "not a JSON object. Download the file again")
    check(path, contents)
    return contents


def check(path: str, contents: Mapping[str, Any]) -> None:
    """Checks the contents of a file; see `read`."""
    check_file = _CHECKS.get(path.replace("\\", "/").rpartition("/")[2])
    if check_file is not None:
        check_file(path, contents)


def error(path: str, key: str | None, reason: str) -> UserError:
    """Returns the error for a key of a file, or for the file."""
    return UserError(f"{path!r}, key {key}: {reason}" if key else f"{path!r}: {reason}")


# ---- types -----------------------------------------------------------------------------------------------------------


def _require(path: str, key: str, value: Any, is_valid: bool, expected: str) -> None:
    if not is_valid:
        shown = repr(value) if not isinstance(value, list | dict) else f"a {type(value).__name__}"
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
        raise error(path, key, f"{shown} is not {expected}. Download the file again")


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_ID


def _is_token(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("content"), str))


# ---- tokenizer.json --------------------------------------------------------------------------------------------------


def _check_tokenizer(path: str, contents: Mapping[str, Any]) -> None:
    model = contents.get("model", {})
    _require(path, "model", model, isinstance(model, dict), "an object")
    _check_vocab(path, model)
    _check_merges(path, model.get("merges"))
    added = contents.get("added_tokens")
    _require(path, "added_tokens", added, added is None or isinstance(added, list), "a list")
    for number, token in enumerate(added or []):
        is_valid = isinstance(token, dict) and isinstance(token.get("content"), str) and _is_id(token.get("id"))
        _require(path, f"added_tokens[{number}]", token, is_valid, "an object with content, a string, and id, a number")
    for name, within in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        _check_steps(path, name, contents.get(name), within)


def _check_steps(path: str, key: str, step: Any, within: str) -> None:
    _require(path, key, step, step is None or isinstance(step, dict), "an object")
    if step is None or step.get("type") != "Sequence":
        return
    steps = step.get(within)
    _require(path, f"{key}.{within}", steps, isinstance(steps, list), "a list")
    for number, inner in enumerate(steps):
        _require(path, f"{key}.{within}[{number}]", inner, isinstance(inner, dict), "an object")


def _check_vocab(path: str, model: Mapping[str, Any]) -> None:
    vocab, kind = model.get("vocab"), model.get("type")
    _require(path, "model.type", kind, kind is None or isinstance(kind, str), "the name of a type")
    if vocab is None:
        return
    # Files of early versions of tokenizers have no type.
    key, is_list = "model.vocab", kind == "Unigram" or (kind is None and isinstance(vocab, list))
    expected = "a list of pairs of a Unigram model" if is_list else f"an object of the {kind} model, from piece to id"
    _require(path, key, vocab, isinstance(vocab, list if is_list else dict), expected)
    _limit(path, key, len(vocab), MAX_PIECES.get(kind, max(MAX_PIECES.values())), "pieces")
    if not is_list:
        check_ids(path, vocab, f"{key}.")
        return
    for number, pair in enumerate(vocab):
        _require(path, f"{key}[{number}]", pair, _is_scored(pair), "a pair of a piece and a score")
    unknown = model.get("unk_id")
    is_piece = unknown is None or (_is_id(unknown) and unknown < len(vocab))
    _require(path, "model.unk_id", unknown, is_piece, "the id of a piece")


def _is_scored(pair: Any) -> bool:
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
        return False
    return isinstance(pair[1], int | float) and not isinstance(pair[1], bool) and math.isfinite(pair[1])


def _check_merges(path: str, merges: Any) -> None:
    _require(path, "model.merges", merges, merges is None or isinstance(merges, list), "a list")
    _limit(path, "model.merges", len(merges or []), MAX_MERGES, "merges")
    for number, merge in enumerate(merges or []):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        is_pair = isinstance(parts, list) and len(parts) == 2 and all(isinstance(part, str) for part in parts)
        _require(path, f"model.merges[{number}]", merge, is_pair, "a pair of pieces")


def _limit(path: str, key: str, found: int, limit: int, things: str) -> None:
    if found > limit:
        raise error(
            path,
            key,
            f"{found:,} {things} are more than {limit:,}, twice the number of the largest public tokenizer. Use "
            "another tokenizer",
        )


# ---- other files -----------------------------------------------------------------------------------------------------


def check_ids(path: str, contents: Mapping[str, Any], prefix: str = "") -> None:
    """Checks that a file, or an object in it, maps pieces to ids."""
    _limit(path, prefix.rstrip(".") or None, len(contents), max(MAX_PIECES.values()), "pieces")
    for piece, index in contents.items():
        if not _is_id(index):
            _require(path, f"{prefix}{piece[:_SHOWN]}", index, False, "an id, a number from 0")


def _check_special_tokens(path: str, contents: Mapping[str, Any]) -> None:
    for role in ROLES:
        token = contents.get(f"{role}_token")
        _require(path, f"{role}_token", token, token is None or _is_token(token), "a token")
    for key in ("additional_special_tokens", "extra_special_tokens"):
        listed = contents.get(key)
        is_named = key == "extra_special_tokens" and isinstance(listed, dict)
        _require(path, key, listed, listed is None or isinstance(listed, list) or is_named, "a list")
        for number, token in enumerate(listed if isinstance(listed, list) else []):
            _require(path, f"{key}[{number}]", token, _is_token(token), "a token")


def _check_config(path: str, contents: Mapping[str, Any]) -> None:
    _check_special_tokens(path, contents)
    name = contents.get("tokenizer_class")
    _require(path, "tokenizer_class", name, name is None or isinstance(name, str), "the name of a class")
    decoder = contents.get("added_tokens_decoder", {})
    _require(path, "added_tokens_decoder", decoder, isinstance(decoder, dict), "an object")
    for index, token in decoder.items():
        is_valid = index.isdecimal() and len(index) < 11 and isinstance(token, dict) and _is_token(token)
        _require(path, f"added_tokens_decoder.{index[:_SHOWN]}", token, is_valid, "an object with content under an id")
    names = contents.get("model_input_names")
    _require(path, "model_input_names", names, names is None or isinstance(names, list), "a list")
    for key in ("do_lower_case", "keep_accents", "add_prefix_space", "add_bos_token", "add_eos_token", "legacy"):
        flag = contents.get(key)
        _require(path, key, flag, flag is None or isinstance(flag, bool), "true or false")
    sentinels = contents.get("extra_ids", 0)
    is_number = _is_id(sentinels) and sentinels <= _MAX_SENTINELS
    _require(path, "extra_ids", sentinels, is_number, f"a number of at most {_MAX_SENTINELS:,}")


def _check_model_config(path: str, contents: Mapping[str, Any]) -> None:
    name = contents.get("model_type")
    _require(path, "model_type", name, name is None or isinstance(name, str), "the name of a type")


_CHECKS: Mapping[str, Callable[[str, Mapping[str, Any]], None]] = {
    "tokenizer.json": _check_tokenizer,
    "tokenizer_config.json": _check_config,
    "special_tokens_map.json": _check_special_tokens,
    "added_tokens.json": check_ids,
    "vocab.json": check_ids,
    "config.json": _check_model_config,
}


def pieces(contents: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yields each piece of a tokenizer.json with its id. Unigram models list them, others map them to ids."""
    vocab = contents.get("model", {}).get("vocab") or {}
    yield from vocab.items() if isinstance(vocab, Mapping) else ((piece, id) for id, (piece, _) in enumerate(vocab))
