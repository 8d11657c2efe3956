"""Checks of `tokenizer.json`: which of its normalizers, splits and models the vocabularies of this package reproduce.

A directory without `tokenizer.json` passes: its other files then define the tokenizer.
"""

import base64
import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from t5x_like.vocabularies import word_bpe, word_splits, wordpiece
from t5x_like.vocabularies.text_rules import UNCHANGED, TextRules
from t5x_like.vocabularies.tokenizer_folder import TOKENIZER, TokenizerFiles

_SPACE_SYMBOL = "▁"
_OUTER_SPACES = r"\A +| +\z"
# Attribute of TextRules, its value, and the normalizers that it stands for.
_RULES: list[tuple[str, Any, list[dict[str, Any]]]] = [
    # DeBERTa v2 and v3, and BigBird, as transformers 5 writes them.
    (
        "spaces",
        "line_end",
        [{"type": "Replace", "pattern": {"Regex": r"\s{2,}|[\n\r\t]"}, "content": " "}, {"type": "NFC"}],
    ),
    ("strip_end", True, [{"type": "Strip", "strip_left": False, "strip_right": True}]),
    (
        "spaces",
        "several",
        [
            {"type": "Strip", "strip_left": False, "strip_right": False},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": _SPACE_SYMBOL},
        ],
    ),
    (
        "quotes",
        True,
        [{"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")],
    ),
    ("strip_accents", "marks", [{"type": "NFKD"}, {"type": "StripAccents"}]),
    ("lower_case", True, [{"type": "Lowercase"}]),
]


def bert_normalizer(files: TokenizerFiles) -> dict[str, bool | None]:
    """Returns the settings of the normalizer of a WordPiece tokenizer, {} without `tokenizer.json`.

    Raises:
      UserError: the tokenizer is not BERT's.
    """
    tokenizer = files.tokenizer
    if not tokenizer:
        return {}
    _require(files, "model.type", "WordPiece")
    _require(files, "model.continuing_subword_prefix", wordpiece.CONTINUATION)
    _require(files, "model.max_input_chars_per_word", wordpiece.MAX_WORD_CHARACTERS)
    _require(files, "model.unk_token", wordpiece.UNKNOWN)
    _require_bert_words(files)
    return tokenizer["normalizer"]


def check_word_bpe(files: TokenizerFiles, unk_token: str) -> None:
    """Checks that `tokenizer.json`, if it exists, has the settings of GPT-1.

    Args:
      files: the files of a directory.
      unk_token: the token of characters that are not in the vocabulary.

    Raises:
      UserError: the tokenizer is not GPT-1's.
    """
    if not files.tokenizer:
        return
    _require(files, "model.type", "BPE")
    _require(files, "model.dropout", None)
    _require(files, "model.unk_token", unk_token)
    _require(files, "model.byte_fallback", False, None)
    _require(files, "model.ignore_merges", False, None)
    _require(files, "model.fuse_unk", False, None)
    _require(files, "model.continuing_subword_prefix", None, "")
    _require(files, "model.end_of_word_suffix", word_bpe.END_OF_WORD)
    _require_bert_words(files)
    _require(files, "normalizer.lowercase", True)
    _require(files, "normalizer.strip_accents", None, True)
    _require(files, "normalizer.handle_chinese_chars", True)


def is_byte_level(files: TokenizerFiles) -> bool:
    """Returns whether `tokenizer.json` replaces the bytes of a text by letters."""
    return any(step.get("type") == "ByteLevel" for _, step in _steps(files, "pre_tokenizer", "pretokenizers"))


def byte_level_split(files: TokenizerFiles) -> tuple[word_splits.WordSplit, bool | None]:
    """Returns the split into words and `add_prefix_space` of a byte-level BPE tokenizer.

    Without `tokenizer.json` text is split as in GPT-2, and `add_prefix_space` is None.

    Raises:
      UserError: the tokenizer is not byte-level BPE, or its split is not supported.
    """
    tokenizer = files.tokenizer
    if not tokenizer:
        return word_splits.GPT2_FAST, None
    _require(files, "model.type", "BPE")
    _require(files, "model.dropout", None)
    _require(files, "model.byte_fallback", False, None)
    for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
        _require(files, f"model.{affix}", None, "")
    _require(files, "normalizer", None)
    steps = _steps(files, "pre_tokenizer", "pretokenizers")
    types = [step.get("type") for _, step in steps]
    if types == ["ByteLevel"] and steps[0][1].get("use_regex", True):
        return word_splits.GPT2_FAST, steps[0][1].get("add_prefix_space", True)
    if types != ["Split", "ByteLevel"] or steps[1][1].get("use_regex", True):
        raise files.unsupported(TOKENIZER, "pre_tokenizer", types, "ByteLevel, or Split with the pattern of Llama 3")
    (key, split), (_, byte_level) = steps
    if split.get("pattern") != {"Regex": word_splits.LLAMA_3_PATTERN}:
        raise files.unsupported(TOKENIZER, f"{key}.pattern", split.get("pattern"), "the pattern of Llama 3")
    if split.get("behavior") != "Isolated" or split.get("invert"):
        raise files.unsupported(TOKENIZER, f"{key}.behavior", split.get("behavior"), '"Isolated" without "invert"')
    if byte_level.get("add_prefix_space", True):
        raise files.unsupported(TOKENIZER, f"{steps[1][0]}.add_prefix_space", True, "false after Split")
    return word_splits.LLAMA_3, False


@dataclasses.dataclass(frozen=True)
class Spaces:
    """How a SentencePiece tokenizer normalizes texts.

    Attributes:
      prefix: which texts get a space in front: `always`, `never`, or those without one (`unless_present`).
      merged: whether spaces at the ends of a text are removed and others merged.
      charsmap: the compiled replacements of characters in base 64, or None.
      isolated: the pattern of texts that are words of their own, as user-defined pieces of a SentencePiece model; None
        for none.
      rules: what is changed in texts before.
    """

    prefix: Literal["always", "never", "unless_present"] = "never"
    merged: bool = False
    charsmap: str | None = None
    isolated: dict[str, str] | None = None
    rules: TextRules = UNCHANGED


def sentencepiece_spaces(files: TokenizerFiles) -> Spaces | None:
    """Returns how a SentencePiece tokenizer normalizes texts, None without `tokenizer.json`.

    Raises:
      UserError: the tokenizer changes texts in ways that a SentencePiece model does not.
    """
    if not files.tokenizer:
        return None
    _require(files, "model.type", "Unigram", "BPE")
    steps = _steps(files, "normalizer", "normalizers")
    rules, count = _text_rules([step for _, step in steps])
    found = Spaces(rules=rules)
    for key, step in steps[count:]:
        found = _normalized(files, key, step, found)
    for key, step in _steps(files, "pre_tokenizer", "pretokenizers"):
        if step.get("type") == "Metaspace":
            scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
            if scheme != "never" and found.prefix == "never":
                found = dataclasses.replace(found, prefix="unless_present")
        elif step.get("type") == "WhitespaceSplit":
            found = dataclasses.replace(found, merged=True, rules=dataclasses.replace(found.rules, spaces="any"))
        elif step.get("type") == "Split" and step.get("behavior") == "Isolated" and "pattern" in step:
            found = dataclasses.replace(found, isolated=step["pattern"])
        else:
            raise files.unsupported(TOKENIZER, f"{key}.type", step.get("type"), "Metaspace and WhitespaceSplit")
    return found


def _text_rules(steps: Sequence[dict[str, Any]]) -> tuple[TextRules, int]:
    """Returns the rules that the first normalizers are, and the number of these normalizers."""
    rules, count = UNCHANGED, 0
    for attribute, value, expected in _RULES:
        if list(steps[count : count + len(expected)]) == expected:
            rules, count = dataclasses.replace(rules, **{attribute: value}), count + len(expected)
    return rules, count


def _normalized(files: TokenizerFiles, key: str, step: dict[str, Any], found: Spaces) -> Spaces:
    """Returns what a normalizer adds to those before it."""
    if step.get("type") == "Replace":
        if step.get("pattern") == {"Regex": rf"\A{_SPACE_SYMBOL}"} and step.get("content") == 2 * _SPACE_SYMBOL:
            return dataclasses.replace(found, prefix="always")  # together with the Metaspace of Llama in transformers 5
        supported = ({"String": " "}, {"Regex": " {2,}"}, {"Regex": _OUTER_SPACES})
        if step.get("pattern") not in supported or step.get("content") not in ("", " ", _SPACE_SYMBOL):
            raise files.unsupported(TOKENIZER, key, step, "the replacement of spaces")
        return dataclasses.replace(found, merged=found.merged or step.get("pattern") == {"Regex": " {2,}"})
    if step.get("type") == "Prepend":
        if step.get("prepend") != _SPACE_SYMBOL:
            raise files.unsupported(TOKENIZER, f"{key}.prepend", step.get("prepend"), f'"{_SPACE_SYMBOL}"')
        return dataclasses.replace(found, prefix="always")
    if step.get("type") == "Precompiled":
        return dataclasses.replace(found, charsmap=_charsmap(files, key, step))
    if step.get("type") != "Strip":
        raise files.unsupported(TOKENIZER, f"{key}.type", step.get("type"), "Precompiled, Prepend, Replace and Strip")
    return found


def _charsmap(files: TokenizerFiles, key: str, step: dict[str, Any]) -> str | None:
    """Returns the replacements of a step in base 64."""
    charsmap = step.get("precompiled_charsmap")
    try:
        base64.b64decode(charsmap or "", validate=True)
    except (TypeError, ValueError) as error:
        raise files.error(
            TOKENIZER, f"{key}.precompiled_charsmap", f"not base 64 ({error}). Download the file again"
        ) from error
    return charsmap


def _require_bert_words(files: TokenizerFiles) -> None:
    """Checks that texts are split into words as in BERT."""
    _require(files, "normalizer.type", "BertNormalizer")
    _require(files, "normalizer.clean_text", True)
    _require(files, "pre_tokenizer.type", "BertPreTokenizer")


def _steps(files: TokenizerFiles, key: str, within: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns key and contents of each step of a normalizer or pre-tokenizer, which may be a sequence."""
    step = files.tokenizer.get(key)
    if step is None:
        return []
    if step.get("type") != "Sequence":
        return [(key, step)]
    return [(f"{key}.{within}[{number}]", inner) for number, inner in enumerate(step[within])]


def _require(files: TokenizerFiles, key: str, *supported: Any) -> None:
    """Checks the value of a dotted key; a missing key is None.

    Raises:
      UserError: the value is not one of those supported.
    """
    value: Any = files.tokenizer
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value not in supported:
        known = " or ".join("null" if one is None else repr(one) for one in supported)
        raise files.unsupported(TOKENIZER, key, value, known)
