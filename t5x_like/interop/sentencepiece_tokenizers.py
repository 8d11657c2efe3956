"""Writes a SentencePiece model as a `tokenizer.json`, which fast tokenizers of transformers read.

The ids of a text are the ids of the model, except where a text has the symbol of spaces (U+2581) or the name of a byte,
of a control piece or of a sentinel (`<0x0A>`, `</s>`, `<extra_id_0>`), and where two segmentations have the same score
up to rounding: SentencePiece adds scores in float32, the other library in float64.
"""

import re
from collections.abc import Mapping, Sequence

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from t5x_like.vocabularies.converters import SPACE

# The score of SentencePiece for each user-defined piece, which is thereby preferred to any segmentation of its text.
_USER_DEFINED_SCORE = -0.1
_Piece = sentencepiece_model_pb2.ModelProto.SentencePiece
_UNIGRAM, _BPE = sentencepiece_model_pb2.TrainerSpec.UNIGRAM, sentencepiece_model_pb2.TrainerSpec.BPE
# What ALBERT's tokenizer does to a text first.
_LOWERED = (
    normalizers.Replace("``", '"'),
    normalizers.Replace("''", '"'),
    normalizers.NFKD(),
    normalizers.StripAccents(),
    normalizers.Lowercase(),
)


def is_supported(model: sentencepiece_model_pb2.ModelProto) -> bool:
    """Returns whether `tokenizer` represents a model.

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


def tokenizer(
    model: sentencepiece_model_pb2.ModelProto,
    added: Mapping[str, int],
    template: "Mapping[str, object] | None",
    *,
    lowers_text: bool = False,
) -> tokenizers.Tokenizer:
    """Returns a model as a tokenizer of the library.

    Args:
      model: a model that `is_supported`.
      added: the special tokens after the pieces, with their ids, in the order of these.
      template: `before`, `between` and `after`: the pieces that a tokenizer adds to one or two texts, with their ids;
        `second_type`: the type of the tokens of a second text. None for no pieces.
      lowers_text: whether texts lose capital letters and accents first, as in ALBERT.
    """
    dummy, is_bpe = model.normalizer_spec.add_dummy_prefix, model.trainer_spec.model_type == _BPE
    made = tokenizers.Tokenizer(_bpe(model) if is_bpe else _unigram(model))
    control = [piece.piece for piece in model.pieces if piece.type in (_Piece.CONTROL, _Piece.UNKNOWN)]
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    # A sentinel belongs to the space before it, and the text after it gets the prefix of a new text.
    sentinels = [AddedToken(token, lstrip=dummy, rstrip=dummy, normalized=False, special=True) for token in added]
    made.add_special_tokens(sentinels)
    made.normalizer = normalizers.Sequence([*(_LOWERED if lowers_text else ()), *_normalizers(model)])
    pieces = sorted(_user_defined(model), key=len, reverse=True)
    if is_bpe and pieces:  # which BPE never merges
        made.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(map(re.escape, pieces))), "isolated")
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if dummy else [])])
    if template:
        made.post_processor = _template(template)
    return made


def _normalizers(model: sentencepiece_model_pb2.ModelProto) -> list[normalizers.Normalizer]:
    spec = model.normalizer_spec
    steps = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps += [normalizers.Prepend(SPACE)]
    return [*steps, normalizers.Replace(" ", SPACE)]


def _user_defined(model: sentencepiece_model_pb2.ModelProto) -> list[str]:
    return [piece.piece for piece in model.pieces if piece.type == _Piece.USER_DEFINED]


def _unigram(model: sentencepiece_model_pb2.ModelProto) -> models.Unigram:
    pieces = [
        (piece.piece, _USER_DEFINED_SCORE if piece.type == _Piece.USER_DEFINED else piece.score)
        for piece in model.pieces
    ]
    unknown = next((n for n, piece in enumerate(model.pieces) if piece.type == _Piece.UNKNOWN), None)
    return models.Unigram(pieces, unknown, byte_fallback=model.trainer_spec.byte_fallback)


def _bpe(model: sentencepiece_model_pb2.ModelProto) -> models.BPE:
    """Returns the model of BPE, whose merges are the splits of each piece into two others, by its score."""
    ids = {piece.piece: number for number, piece in enumerate(model.pieces)}
    symbols = {piece.piece for piece in model.pieces if piece.type == _Piece.NORMAL}
    merges = []
    for piece in model.pieces:
        if piece.type == _Piece.NORMAL:
            splits = ((piece.piece[:at], piece.piece[at:]) for at in range(1, len(piece.piece)))
            merges += [(-piece.score, ids[a], ids[b], a, b) for a, b in splits if a in symbols and b in symbols]
    unknown = next((piece.piece for piece in model.pieces if piece.type == _Piece.UNKNOWN), None)
    pairs = [(a, b) for *_, a, b in sorted(merges)]
    return models.BPE(ids, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=model.trainer_spec.byte_fallback)


def _template(template: "Mapping[str, object]") -> processors.TemplateProcessing:
    """Returns the post-processor that adds special tokens to one or two texts."""

    def special(name: str, segment: int) -> Sequence[str]:
        return [f"{token}:{segment}" for token, _ in template[name]]

    last = template["second_type"]
    known = dict([*template["before"], *template["between"], *template["after"]])
    single = [*special("before", 0), "$A:0", *special("after", 0)]
    pair = [*special("before", 0), "$A:0", *special("between", 0), f"$B:{last}", *special("after", last)]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(known.items()))
