"""The tokenizer of a decoder that continues texts: it adds BOS as in training, and pads and truncates at the left."""

import json
from collections.abc import Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import sentencepiece_tokenizers, tokenizer_ids

_GENERIC_CLASS = "PreTrainedTokenizerFast"
# Classes that read vocab.json and merges.txt and add no special tokens.
_BYTE_BPE = ("GPT2Tokenizer", "GPT2TokenizerFast")
# Classes that add BOS unless their setting says otherwise.
_LLAMA = ("LlamaTokenizer", "LlamaTokenizerFast")
_ADDS_BOS, _PROCESSOR = "add_bos_token", "post_processor"


def files(found: Mapping[str, bytes], ids: Mapping[str, int], bos_id: int | None) -> dict[str, bytes]:
    """Returns the files of a tokenizer for generation.

    A batch of prompts is padded at the left, because each text continues at its end, and with EOS if there is no
    padding. Long prompts keep their end, as in `infer`.

    Args:
      found: the files by name.
      ids: id of the special token of each role.
      bos_id: the first token of a row in training; None if there was none.

    Raises:
      UserError: the tokenizer cannot add the token.
    """
    settings = _json(found, tokenizer_ids.CONFIG) | {"padding_side": "left", "truncation_side": "left"}
    tokenizer = _json(found, tokenizer_ids.TOKENIZER)
    name = settings.get("tokenizer_class", "")
    changed: dict[str, bytes] = {}
    if not tokenizer and name in _LLAMA and bos_id in (None, ids.get("bos")):
        settings[_ADDS_BOS] = bos_id is not None
    elif _prefix(tokenizer) != ([] if bos_id is None else [bos_id]):
        if not tokenizer and tokenizer_ids.VOCABULARY in found and (not name or name in _BYTE_BPE):
            tokenizer = _byte_bpe(found, settings, ids)
        if not tokenizer:
            raise UserError(
                f"BOS_ID={bos_id}: a {name or 'tokenizer without tokenizer.json'} of transformers cannot begin a text "
                "with this token. Give --gin.VOCABULARY_PATH=… with a tokenizer.json."
            )
        pieces = {number: piece for piece, number in _pieces(tokenizer)}
        tokenizer[_PROCESSOR] = None
        if bos_id is not None:
            template = {"before": [(pieces[bos_id], bos_id)], "after": []}
            tokenizer[_PROCESSOR] = sentencepiece_tokenizers.post_processor(template)
        settings["tokenizer_class"] = _GENERIC_CLASS
        settings |= {f"{role}_token": pieces[ids[role]] for role in ("bos", "eos", "unk", "pad") if role in ids}
        changed[tokenizer_ids.TOKENIZER] = _encoded(tokenizer)
    if "pad" not in ids and (end := _text(found, settings, "eos")) is not None:
        settings["pad_token"] = end
    return {**found, **changed, tokenizer_ids.CONFIG: _encoded(settings)}


def _json(found: Mapping[str, bytes], name: str) -> dict[str, Any]:
    return json.loads(found.get(name, b"{}"))


def _encoded(contents: Mapping[str, Any]) -> bytes:
    return (json.dumps(contents, indent=2, ensure_ascii=False) + "\n").encode()


def _prefix(tokenizer: Mapping[str, Any]) -> list[int]:
    """Returns the ids that a tokenizer.json places before a text."""
    processor = tokenizer.get(_PROCESSOR) or {}
    for each in processor.get("processors", [processor]):
        if each.get("type") == "TemplateProcessing":
            tokens = [item["SpecialToken"]["id"] for item in each["single"] if "SpecialToken" in item]
            return [number for token in tokens for number in each["special_tokens"][token]["ids"]]
    return []


def _pieces(tokenizer: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Returns the pieces of a tokenizer.json with their ids; added tokens come last."""
    vocabulary = tokenizer["model"]["vocab"]
    known = [*vocabulary.items()] if isinstance(vocabulary, dict) else [(x[0], n) for n, x in enumerate(vocabulary)]
    return [*known, *((token["content"], token["id"]) for token in tokenizer.get("added_tokens", ()))]


def _byte_bpe(found: Mapping[str, bytes], settings: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
    """Returns the tokenizer.json of a vocab.json and a merges.txt, as transformers' class for GPT-2 makes it."""
    vocabulary = _json(found, tokenizer_ids.VOCABULARY)
    lines = found["merges.txt"].decode("utf-8").split("\n")
    names = {number: piece for piece, number in vocabulary.items()}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    split = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": names[number], **plain} for number in sorted({*ids.values()})],
        "normalizer": None,
        "pre_tokenizer": {**split, "add_prefix_space": settings.get("add_prefix_space", False)},
        _PROCESSOR: None,
        "decoder": {**split, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": [line.split(" ") for line in lines if line and not line.startswith("#version")],
        },
    }


def _text(found: Mapping[str, bytes], settings: Mapping[str, Any], role: str) -> str | None:
    """Returns the text of a special token by the files, or else by the class."""
    key = f"{role}_token"
    token = settings.get(key) or _json(found, tokenizer_ids.SPECIAL_TOKENS_MAP).get(key)
    token = token.get("content") if isinstance(token, dict) else token
    return token or tokenizer_ids.default_token(settings.get("tokenizer_class", ""), role)
