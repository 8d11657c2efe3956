"""Reads and changes the special tokens that a `tokenizer.json` of transformers adds to texts."""

from collections.abc import Mapping
from typing import Any


def adds_tokens_before(tokenizer: Mapping[str, Any]) -> bool:
    """Returns whether a tokenizer adds special tokens before a text.

    Args:
      tokenizer: The contents of a tokenizer.json.
    """
    return _adds_tokens(tokenizer, 0)


def adds_tokens_after(tokenizer: Mapping[str, Any]) -> bool:
    """Returns whether a tokenizer adds special tokens after a text; see `adds_tokens_before`."""
    return _adds_tokens(tokenizer, -1)


def _adds_tokens(tokenizer: Mapping[str, Any], place: int) -> bool:
    processor = tokenizer.get("post_processor") or {}
    return any(
        part.get("type") in ("BertProcessing", "RobertaProcessing")
        or (part.get("type") == "TemplateProcessing" and "SpecialToken" in (part["single"] or [{}])[place])
        for part in processor.get("processors", [processor])
    )


def surround(
    tokenizer: Mapping[str, Any], *, before: tuple[str, int] | None = None, after: tuple[str, int] | None = None
) -> dict[str, Any]:
    """Returns a tokenizer that adds these tokens to each text and no others, and recognizes them in a text.

    Args:
      tokenizer: The contents of a tokenizer.json.
      before: The token before the first text, and its id.
      after: The token after each text, and its id.
    """
    tokens = dict(token for token in (before, after) if token is not None)
    if not tokens:
        return {**tokenizer, "post_processor": None}
    added = list(tokenizer.get("added_tokens") or [])
    known = {token["content"] for token in added}
    added += [_added_token(token, index) for token, index in tokens.items() if token not in known]
    first, last = (
        [] if token is None else [{"SpecialToken": {"id": token[0], "type_id": 0}}] for token in (before, after)
    )
    texts = [{"Sequence": {"id": name, "type_id": kind}} for kind, name in enumerate("AB")]
    processor = {
        "type": "TemplateProcessing",
        "single": [*first, texts[0], *last],
        "pair": [*first, texts[0], *last, texts[1], *last],
        "special_tokens": {token: {"id": token, "ids": [index], "tokens": [token]} for token, index in tokens.items()},
    }
    added = sorted(added, key=lambda token: token["id"])
    return {**tokenizer, "added_tokens": added, "post_processor": processor}


def _added_token(content: str, index: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, **flags, "special": True}
