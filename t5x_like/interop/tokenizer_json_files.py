"""Makes and changes `tokenizer.json` files, which the fast tokenizers of transformers read."""

import json
from collections.abc import Mapping
from typing import Any

from t5x_like.vocabularies import tokenizer_classes

_SPACE = "▁"


def byte_level(vocabulary: bytes, merges: bytes, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tokenizer of GPT-2's files.

    Args:
      vocabulary: The contents of vocab.json.
      merges: The contents of merges.txt.
      config: The contents of tokenizer_config.json.
    """
    ids = json.loads(vocabulary)
    defaults = tokenizer_classes.CLASSES["GPT2Tokenizer"].special_tokens
    named = {role: config.get(f"{role}_token", token) for role, token in defaults.items()}
    special = dict.fromkeys(token["content"] if isinstance(token, dict) else token for token in named.values() if token)
    lines = (line for line in merges.decode().split("\n") if line and not line.startswith("#version"))
    byte_level = {"type": "ByteLevel", "add_prefix_space": bool(config.get("add_prefix_space")), "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(token, ids[token]) for token in special if token in ids],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": ids,
            "merges": [line.split(" ") for line in lines],
        },
    }


def with_first_space(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a tokenizer of `sentencepiece_tokenizers` that adds a space only before texts without one.

    Args:
      tokenizer: A tokenizer that adds a space before each text.
    """
    metaspace = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": "first", "split": False}
    return {**tokenizer, "normalizer": None, "pre_tokenizer": metaspace}


def adds_tokens_before(tokenizer: Mapping[str, Any]) -> bool:
    """Returns whether a tokenizer adds special tokens before a text.

    Args:
      tokenizer: The contents of a tokenizer.json.
    """
    processor = tokenizer.get("post_processor") or {}
    parts = processor.get("processors", [processor])
    return any("SpecialToken" in part["single"][0] for part in parts if part.get("type") == "TemplateProcessing")


def with_bos(tokenizer: Mapping[str, Any], bos: str | None, bos_id: int | None) -> dict[str, Any]:
    """Returns a tokenizer that adds BOS before each text, and recognizes it in a text.

    Args:
      tokenizer: The contents of a tokenizer.json.
      bos: The token; None to add no token.
      bos_id: Its id.
    """
    if bos is None:
        return {**tokenizer, "post_processor": None}
    added = list(tokenizer.get("added_tokens") or [])
    if bos not in (token["content"] for token in added):
        added = sorted([*added, _added_token(bos, bos_id)], key=lambda token: token["id"])
    token, text = {"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    processor = {
        "type": "TemplateProcessing",
        "single": [token, text],
        "pair": [token, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }
    return {**tokenizer, "added_tokens": added, "post_processor": processor}


def _added_token(content: str, index: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, **flags, "special": True}
