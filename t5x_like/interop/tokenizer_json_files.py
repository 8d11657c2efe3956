"""Makes and changes `tokenizer.json` files, which the fast tokenizers of transformers read."""

from collections.abc import Mapping
from typing import Any


def adds_tokens_before(tokenizer: Mapping[str, Any]) -> bool:
    """Returns whether a tokenizer adds special tokens before a text.

    Args:
      tokenizer: The contents of a tokenizer.json.
    """
    processor = tokenizer.get("post_processor") or {}
    parts = processor.get("processors", [processor])
    return any(
        part.get("type") in ("BertProcessing", "RobertaProcessing")
        or (part.get("type") == "TemplateProcessing" and "SpecialToken" in (part["single"] or [{}])[0])
        for part in parts
    )


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
