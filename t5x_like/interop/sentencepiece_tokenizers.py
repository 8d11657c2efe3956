"""Writes a SentencePiece model as a `tokenizer.json`, which fast tokenizers of transformers read.

The ids of a text are the ids of the model, except where a text has the symbol of spaces (U+2581) or the name of a byte,
of a control piece or of a sentinel (`<0x0A>`, `</s>`, `<extra_id_0>`), and where two segmentations have the same score
up to rounding: SentencePiece adds scores in float32, the other library in float64.
"""

import base64
import itertools
import re
from collections.abc import Mapping
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

SPACE = "▁"
# The score of SentencePiece for each user-defined piece, which is thereby preferred to any segmentation of its text.
_USER_DEFINED_SCORE = -0.1
_Piece = sentencepiece_model_pb2.ModelProto.SentencePiece
_UNIGRAM, _BPE = sentencepiece_model_pb2.TrainerSpec.UNIGRAM, sentencepiece_model_pb2.TrainerSpec.BPE


def parse(contents: bytes) -> sentencepiece_model_pb2.ModelProto:
    """Returns the contents of a SentencePiece model.

    Raises:
      google.protobuf.message.DecodeError: the contents are not a SentencePiece model.
    """
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(contents)
    return model


def is_supported(model: sentencepiece_model_pb2.ModelProto) -> bool:
    """Returns whether `to_json` represents a model.

    It must be unigram or BPE with spaces before words. Its normalization must keep its user-defined pieces, which must
    be characters in BPE.
    """
    if model.trainer_spec.model_type == _BPE and any(len(piece) > 1 for piece in _user_defined(model)):
        return False
    if model.trainer_spec.model_type not in (_UNIGRAM, _BPE) or model.trainer_spec.treat_whitespace_as_suffix:
        return False
    plain = sentencepiece_model_pb2.ModelProto.FromString(model.SerializeToString())
    plain.normalizer_spec.add_dummy_prefix = plain.normalizer_spec.remove_extra_whitespaces = False
    for piece in plain.pieces:
        piece.type = _Piece.NORMAL if piece.type == _Piece.USER_DEFINED else piece.type
    normalize = sentencepiece.SentencePieceProcessor(model_proto=plain.SerializeToString()).normalize
    return all(normalize(piece) == piece.replace(" ", SPACE) for piece in _user_defined(model))


def to_json(
    model: sentencepiece_model_pb2.ModelProto, added: Mapping[str, int], template: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns the contents of a `tokenizer.json`.

    Args:
      model: a model that `is_supported`.
      added: the special tokens after the pieces, with their ids.
      template: `before`, `between` and `after`: the pieces that a tokenizer adds to one or two texts, with their ids;
        `second_type`: the type of the tokens of a second text. None for no pieces.
    """
    control = [
        (piece.piece, n) for n, piece in enumerate(model.pieces) if piece.type in (_Piece.CONTROL, _Piece.UNKNOWN)
    ]
    tokens = sorted([*control, *added.items()], key=lambda item: item[1])
    sentinels = set(added)
    is_bpe = model.trainer_spec.model_type == _BPE
    dummy = model.normalizer_spec.add_dummy_prefix
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if dummy else []
    decoders = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        # A sentinel belongs to the space before it, and the text after it gets the prefix of a new text.
        "added_tokens": [_added_token(token, index, strips=token in sentinels and dummy) for token, index in tokens],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
        "pre_tokenizer": _split(model) if is_bpe else None,
        "post_processor": _template(template) if template else None,
        "decoder": {"type": "Sequence", "decoders": [*decoders, {"type": "Fuse"}, *strip]},
        "model": _bpe(model) if is_bpe else _unigram(model),
    }


def _added_token(content: str, index: int, *, strips: bool) -> dict[str, Any]:
    spaces = {"lstrip": strips, "rstrip": strips}
    return {"id": index, "content": content, "single_word": False, **spaces, "normalized": False, "special": True}


def _normalizers(model: sentencepiece_model_pb2.ModelProto) -> list[dict[str, Any]]:
    spec = model.normalizer_spec
    steps: list[dict[str, Any]] = []
    if spec.precompiled_charsmap:
        steps += [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(spec.precompiled_charsmap).decode()}]
    if spec.remove_extra_whitespaces:
        replacements = ((r"\A +| +\z", ""), (" {2,}", " "))
        steps += [{"type": "Replace", "pattern": {"Regex": spaces}, "content": new} for spaces, new in replacements]
    if spec.add_dummy_prefix:
        steps += [{"type": "Prepend", "prepend": SPACE}]
    return [*steps, {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]


def _user_defined(model: sentencepiece_model_pb2.ModelProto) -> list[str]:
    return [piece.piece for piece in model.pieces if piece.type == _Piece.USER_DEFINED]


def _split(model: sentencepiece_model_pb2.ModelProto) -> dict[str, Any] | None:
    """Returns the split at user-defined pieces, which BPE never merges."""
    pieces = sorted(_user_defined(model), key=len, reverse=True)
    if not pieces:
        return None
    pattern = {"Regex": "|".join(map(re.escape, pieces))}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def _unigram(model: sentencepiece_model_pb2.ModelProto) -> dict[str, Any]:
    return {
        "type": "Unigram",
        "unk_id": next((n for n, piece in enumerate(model.pieces) if piece.type == _Piece.UNKNOWN), None),
        "vocab": [
            [piece.piece, _USER_DEFINED_SCORE if piece.type == _Piece.USER_DEFINED else piece.score]
            for piece in model.pieces
        ],
        "byte_fallback": model.trainer_spec.byte_fallback,
    }


def _bpe(model: sentencepiece_model_pb2.ModelProto) -> dict[str, Any]:
    """Returns the model of BPE, whose merges are the splits of each piece into two others, by its score."""
    ids = {piece.piece: number for number, piece in enumerate(model.pieces)}
    symbols = {piece.piece for piece in model.pieces if piece.type == _Piece.NORMAL}
    merges = []
    for piece in model.pieces:
        if piece.type == _Piece.NORMAL:
            splits = ((piece.piece[:at], piece.piece[at:]) for at in range(1, len(piece.piece)))
            merges += [(-piece.score, ids[a], ids[b], a, b) for a, b in splits if a in symbols and b in symbols]
    unknown = next((piece.piece for piece in model.pieces if piece.type == _Piece.UNKNOWN), None)
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": model.trainer_spec.byte_fallback,
        "ignore_merges": False,
        "vocab": ids,
        "merges": [[a, b] for *_, a, b in sorted(merges)],
    }


def _template(template: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the post-processor that adds special tokens to one or two texts."""

    def special(name: str, segment: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": token, "type_id": segment}} for token, _ in template[name]]

    first, last = {"Sequence": {"id": "A", "type_id": 0}}, template["second_type"]
    second = {"Sequence": {"id": "B", "type_id": last}}
    known = dict(itertools.chain(template["before"], template["between"], template["after"]))
    return {
        "type": "TemplateProcessing",
        "single": [*special("before", 0), first, *special("after", 0)],
        "pair": [*special("before", 0), first, *special("between", 0), second, *special("after", last)],
        "special_tokens": {token: {"id": token, "ids": [n], "tokens": [token]} for token, n in known.items()},
    }
