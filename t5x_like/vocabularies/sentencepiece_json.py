"""SentencePiece models in the `tokenizer.json` of transformers: unigram, and BPE of characters with byte fallback."""

import base64
import re
from collections.abc import Sequence

from sentencepiece import sentencepiece_model_pb2

from t5x_like.vocabularies import from_tokenizer_json
from t5x_like.vocabularies.tokenizer_folder import TOKENIZER, TokenizerFiles

SENTINEL = re.compile(r"<extra_id_(\d+)>")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_Piece = sentencepiece_model_pb2.ModelProto.SentencePiece
_Trainer = sentencepiece_model_pb2.TrainerSpec


def is_sentencepiece(files: TokenizerFiles) -> bool:
    """Returns whether a `tokenizer.json` has a SentencePiece model: a unigram model, or BPE that is not byte-level."""
    model = files.tokenizer.get("model", {})
    if from_tokenizer_json.is_byte_level(files):
        return False
    return model.get("type") == "Unigram" or (model.get("type") == "BPE" and bool(model.get("byte_fallback")))


def pieces(files: TokenizerFiles) -> list[str]:
    """Returns the pieces of the model in the order of their ids, without sentinels at their end."""
    vocab = files.tokenizer["model"]["vocab"]
    found = [piece for piece, _ in vocab] if isinstance(vocab, list) else sorted(vocab, key=vocab.get)
    if isinstance(vocab, dict) and sorted(vocab.values()) != list(range(len(vocab))):
        raise files.error(TOKENIZER, "model.vocab", f"the ids are not the numbers 0 … {len(vocab) - 1}")
    while found and SENTINEL.fullmatch(found[-1]):
        found.pop()
    return found


def to_model(
    files: TokenizerFiles, special: Sequence[str], user_defined: Sequence[str] = ()
) -> sentencepiece_model_pb2.ModelProto:
    """Returns the SentencePiece model of a `tokenizer.json`, without sentinels.

    Args:
      files: the files of a directory.
      special: the special tokens, which no text is encoded as.
      user_defined: the pieces that are found in a text before all others.

    Raises:
      UserError: SentencePiece cannot represent the tokenizer.
    """
    settings, names = files.tokenizer["model"], pieces(files)
    is_bpe = settings["type"] == "BPE"
    unknown = settings.get("unk_token") if is_bpe else names[settings["unk_id"]] if settings.get("unk_id") else None
    unknown = unknown or files.special_tokens({"unk": "<unk>"}).get("unk")
    scores = _scores_of_merges(files) if is_bpe else {piece: score for piece, score in settings["vocab"]}
    if unknown not in names:
        raise files.unsupported(TOKENIZER, "model.unk_id", unknown, "an unknown token that is a piece")
    model = sentencepiece_model_pb2.ModelProto()
    for name in names:
        piece = model.pieces.add(piece=name, score=scores.get(name, 0.0), type=_Piece.NORMAL)
        if name == unknown:
            piece.type = _Piece.UNKNOWN
        elif name in special:
            piece.type = _Piece.CONTROL
        elif name in user_defined:
            piece.type = _Piece.USER_DEFINED
        elif settings.get("byte_fallback") and _BYTE.fullmatch(name):
            piece.type = _Piece.BYTE
    model.trainer_spec.model_type = _Trainer.BPE if is_bpe else _Trainer.UNIGRAM
    model.trainer_spec.byte_fallback = bool(settings.get("byte_fallback"))
    model.trainer_spec.unk_id, model.trainer_spec.unk_piece = names.index(unknown), unknown
    for role in ("bos", "eos", "pad"):
        setattr(model.trainer_spec, f"{role}_id", -1)
    spaces = from_tokenizer_json.sentencepiece_spaces(files)
    if spaces.isolated:
        supported = "a pattern next to the model file"
        raise files.unsupported(TOKENIZER, "pre_tokenizer.pattern", spaces.isolated, supported)
    model.normalizer_spec.add_dummy_prefix = spaces.prefix != "never"
    model.normalizer_spec.remove_extra_whitespaces = spaces.merged
    if spaces.charsmap:
        model.normalizer_spec.precompiled_charsmap = base64.b64decode(spaces.charsmap)
    return model


def _scores_of_merges(files: TokenizerFiles) -> dict[str, float]:
    """Returns the score of each piece that a merge produces: SentencePiece merges all pairs of a piece at one score.

    Raises:
      UserError: the merges of a piece are not all of its splits, or are not next to each other.
    """
    settings = files.tokenizer["model"]
    for key, supported in (("dropout", None), ("continuing_subword_prefix", None), ("end_of_word_suffix", None)):
        if settings.get(key) not in (supported, ""):
            raise files.unsupported(TOKENIZER, f"model.{key}", settings[key], "null")
    found: dict[str, list[int]] = {}
    for rank, merge in enumerate(settings["merges"]):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        found.setdefault(left + right, []).append(rank)
    ids = settings["vocab"]
    for piece, ranks in found.items():
        splits = sum(piece[:at] in ids and piece[at:] in ids for at in range(1, len(piece)))
        if ranks[-1] - ranks[0] + 1 != len(ranks) or splits != len(ranks):
            raise files.unsupported(TOKENIZER, "model.merges", piece, "all splits of a piece next to each other")
    return {piece: -float(ranks[0]) for piece, ranks in found.items()}
