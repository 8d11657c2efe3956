"""Tokenizers of the library `tokenizers` from the files of a vocabulary, as transformers converts them.

The rules are those of `convert_slow_tokenizer` in transformers 4 and 5. Where the two differ, a comment says which one
holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from google.protobuf import message
from sentencepiece import sentencepiece_model_pb2

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.vocabularies import tokenizer_json

if TYPE_CHECKING:
    import tokenizers

CONTINUATION = "##"
"""The prefix of WordPiece's pieces that continue a word."""
END_OF_WORD = "</w>"
"""The suffix of GPT-1's pieces that end a word."""
SPACE = "▁"
"""What stands for a space in the pieces of SentencePiece."""
QWEN_2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen 2's split of texts into words, with single digits."""
BERT_TEMPLATE = "{cls} $A {sep}", "{cls} $A {sep} $B:1 {sep}:1"
"""The special tokens around one text and around two, by role; in this form also of ALBERT and DeBERTa."""
XLNET_TEMPLATE = "$A {sep} {cls}:2", "$A {sep} $B:1 {sep}:1 {cls}:2"
# A piece with this penalty is used only where no other segmentation exists.
_NUMBER_AND_COMMA_PENALTY = 100.0
_Piece = sentencepiece_model_pb2.ModelProto.SentencePiece
_BPE = sentencepiece_model_pb2.TrainerSpec.BPE


def word_pieces(
    pieces: Mapping[str, int],
    *,
    lower_case: bool,
    strip_accents: bool | None = None,
    split_cjk: bool = True,
    compose: bool = False,
    unknown: str = "[UNK]",
) -> tokenizers.Tokenizer:
    """Returns BERT's WordPiece (Devlin et al. 2018).

    Args:
      pieces: The id of each piece.
      lower_case: Whether texts are lower-cased.
      strip_accents: Whether texts lose accents. None: if they are lower-cased.
      split_cjk: Whether CJK ideographs are words of their own.
      compose: Whether characters are composed (NFC), as in the released code and transformers' tokenizer in Python, but
        not in its fast tokenizer.
      unknown: The token of words that have no pieces.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    made = Tokenizer(models.WordPiece(dict(pieces), unk_token=unknown))
    options = {"handle_chinese_chars": split_cjk, "strip_accents": strip_accents, "lowercase": lower_case}
    made.normalizer = normalizers.BertNormalizer(clean_text=True, **options)
    if compose:
        clean = {"handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
        first = normalizers.BertNormalizer(clean_text=True, **clean)
        made.normalizer = normalizers.Sequence([first, normalizers.NFC(), made.normalizer])
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return made


def word_bpe(ids: Mapping[str, int], merges: Sequence[Sequence[str]], unknown: str) -> tokenizers.Tokenizer:
    """Returns GPT-1's BPE of lower-cased words (Radford et al. 2018, section 4.1)."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    pairs = [tuple(merge) for merge in merges]
    made = Tokenizer(models.BPE(dict(ids), pairs, unk_token=unknown, end_of_word_suffix=END_OF_WORD, fuse_unk=False))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
    return made


def byte_level(
    ids: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    *,
    add_prefix_space: bool = False,
    split: str | None = None,
    compose: bool = False,
) -> tokenizers.Tokenizer:
    """Returns GPT-2's byte-level BPE (Radford et al. 2019, section 2.2).

    Args:
      ids: The id of each piece.
      merges: The two pieces of each merge, in the order learned.
      add_prefix_space: Whether a space is added before texts that do not begin with one.
      split: A regular expression for words; None for GPT-2's.
      compose: Whether characters are composed (NFC).
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    pairs = [tuple(merge) for merge in merges]
    affixes = {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    made = Tokenizer(models.BPE(dict(ids), pairs, fuse_unk=False, **affixes))
    letters = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=split is None)
    words = [] if split is None else [pre_tokenizers.Split(Regex(split), "isolated")]
    made.pre_tokenizer = pre_tokenizers.Sequence([*words, letters]) if words else letters
    if compose:
        made.normalizer = normalizers.NFC()
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    return made


# ---- SentencePiece ---------------------------------------------------------------------------------------------------


def read_sentencepiece(path: str) -> sentencepiece_model_pb2.ModelProto:
    """Reads a SentencePiece model; see `parse_sentencepiece`."""
    return parse_sentencepiece(paths.read_bytes(path), path)


def parse_sentencepiece(contents: bytes, path: str) -> sentencepiece_model_pb2.ModelProto:
    """Returns the contents of a SentencePiece model.

    Raises:
      UserError: The file is not a SentencePiece model.
    """
    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(contents)
    except message.DecodeError as error:
        raise tokenizer_json.error(path, None, f"not a SentencePiece model ({error}). Download the file again") from (
            error
        )
    if not model.pieces:
        raise tokenizer_json.error(path, None, "not a SentencePiece model (no pieces). Download the file again")
    return model


def sentencepiece(
    model: sentencepiece_model_pb2.ModelProto, path: str, *, penalize_numbers: bool = False
) -> tokenizers.Tokenizer:
    """Returns the pieces of a SentencePiece model, which `albert`, `deberta_v2`, … complete.

    Control pieces become special tokens, and user-defined pieces added tokens that are found in texts.

    Args:
      model: The model: unigram, or BPE.
      path: Its path, for messages.
      penalize_numbers: Whether pieces of a number and a comma are avoided, in place of the second segmentation of the
        released code of ALBERT and XLNet.
    """
    from tokenizers import AddedToken, Tokenizer, models

    spec, pieces = model.trainer_spec, [(piece.piece, piece.score) for piece in model.pieces]
    if spec.model_type == _BPE:
        ids = {piece: number for number, (piece, _) in enumerate(pieces)}
        options = {"unk_token": spec.unk_piece, "fuse_unk": True, "byte_fallback": spec.byte_fallback}
        made = Tokenizer(models.BPE(ids, _merges(pieces, ids), **options))
    elif spec.model_type == sentencepiece_model_pb2.TrainerSpec.UNIGRAM:
        if penalize_numbers:
            pieces = [(piece, score - _NUMBER_AND_COMMA_PENALTY * _is_number(piece)) for piece, score in pieces]
        made = Tokenizer(models.Unigram(pieces, spec.unk_id, byte_fallback=spec.byte_fallback))
    else:
        raise UserError(f"{path}: a SentencePiece model of words or characters. Give one of type unigram or bpe.")
    for piece in model.pieces:
        if piece.type in (_Piece.CONTROL, _Piece.USER_DEFINED):
            is_special = piece.type == _Piece.CONTROL
            made.add_tokens([AddedToken(piece.piece, normalized=False, special=is_special)])
    return made


def _is_number(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def _merges(pieces: Sequence[tuple[str, float]], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Returns the splits of each piece into two others, by its score."""
    found = []
    for piece, score in pieces:
        splits = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        known = sorted((ids[a], ids[b], a, b) for a, b in splits if a in ids and b in ids)
        found += [(score, a, b) for *_, a, b in known]
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(a, b) for _, a, b in found]


def set_metaspace(made: tokenizers.Tokenizer, *first: tokenizers.pre_tokenizers.PreTokenizer) -> None:
    """Makes a tokenizer split texts at spaces, with a space before each text, after other pre-tokenizers."""
    from tokenizers import decoders, pre_tokenizers

    space = {"replacement": SPACE, "prepend_scheme": "always"}
    metaspace = pre_tokenizers.Metaspace(**space)
    made.pre_tokenizer = pre_tokenizers.Sequence([*first, metaspace]) if first else metaspace
    made.decoder = decoders.Metaspace(**space)


def albert(
    model: sentencepiece_model_pb2.ModelProto, path: str, *, lower_case: bool, keep_accents: bool = False
) -> tokenizers.Tokenizer:
    """Returns ALBERT's or XLNet's tokenizer: plain quotation marks, perhaps no accents and capital letters.

    A space at the end of a text is a piece, as in transformers 4 and in published files; version 5 removes it.
    """
    from tokenizers import Regex, normalizers

    made = sentencepiece(model, path, penalize_numbers=True)
    steps = [normalizers.Replace(quotes, '"') for quotes in ("``", "''")]
    steps += [] if keep_accents else [normalizers.NFKD(), normalizers.StripAccents()]
    steps += [normalizers.Lowercase()] if lower_case else []
    steps += _charsmap(model)
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(Regex(" {2,}"), " ")])
    set_metaspace(made)
    return made


def deberta_v2(
    model: sentencepiece_model_pb2.ModelProto, path: str, *, lower_case: bool, split_punctuation: bool
) -> tokenizers.Tokenizer:
    """Returns the tokenizer of DeBERTa v2 and v3.

    It applies the replacements of the model, as transformers 4 and SentencePiece do; transformers 5 omits them.
    """
    from tokenizers import Regex, normalizers, pre_tokenizers

    made = sentencepiece(model, path)
    steps = [normalizers.Lowercase()] if lower_case else []
    steps += [normalizers.Strip(), *_charsmap(model), normalizers.Replace(Regex(" {2,}"), " ")]
    made.normalizer = normalizers.Sequence(steps)
    set_metaspace(made, *([pre_tokenizers.Punctuation("isolated")] if split_punctuation else []))
    return made


def big_bird(model: sentencepiece_model_pb2.ModelProto, path: str) -> tokenizers.Tokenizer:
    """Returns BigBird's tokenizer."""
    from tokenizers import Regex, normalizers

    made = sentencepiece(model, path)
    steps = [*_charsmap(model), normalizers.Strip(left=False), normalizers.Replace(Regex(" {2,}"), SPACE)]
    made.normalizer = normalizers.Sequence(steps)
    set_metaspace(made)
    return made


def llama(
    model: sentencepiece_model_pb2.ModelProto, path: str, prefix: Literal["always", "first", "never"]
) -> tokenizers.Tokenizer:
    """Returns the tokenizer of Llama 1 and 2, Mistral and Gemma, which keeps all whitespace.

    Args:
      model: The model.
      path: Its path, for messages.
      prefix: Which texts get a space in front: all (`legacy`), those without one, or none.
    """
    from tokenizers import decoders, normalizers, pre_tokenizers

    made = sentencepiece(model, path)
    replace = normalizers.Replace(" ", SPACE)
    if prefix == "always":
        made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace])
    elif prefix == "first":
        made.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first", split=False)
    else:
        made.normalizer = normalizers.Sequence([replace])
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(steps if prefix == "never" else [*steps, decoders.Strip(" ", 1, 0)])
    return made


def _charsmap(model: sentencepiece_model_pb2.ModelProto) -> list[tokenizers.normalizers.Normalizer]:
    from tokenizers import normalizers

    compiled = model.normalizer_spec.precompiled_charsmap
    return [normalizers.Precompiled(compiled)] if compiled else []


# ---- special tokens --------------------------------------------------------------------------------------------------


def surround_by_roles(
    made: tokenizers.Tokenizer, template: tuple[str, str], tokens: Mapping[str, str], path: str
) -> None:
    """Makes a tokenizer place special tokens around texts.

    Args:
      made: The tokenizer.
      template: The templates of one text and of two, such as `BERT_TEMPLATE`.
      tokens: Role -> special token.
      path: The file of the vocabulary, for messages.

    Raises:
      UserError: The tokenizer has no token of a role, or the vocabulary lacks it.
    """
    if missing := [role for role in ("cls", "sep") if role not in tokens]:
        raise UserError(
            f"{path!r}: no {missing[0]}_token, but the tokenizer places one around texts. Name it in "
            "tokenizer_config.json."
        )
    single, pair = (text.format(**tokens) for text in template)
    surround(made, single, pair, (tokens["cls"], tokens["sep"]), path)


def surround(made: tokenizers.Tokenizer, single: str, pair: str, tokens: Sequence[str], path: str) -> None:
    """Makes a tokenizer place special tokens around texts.

    Args:
      made: The tokenizer.
      single: The template of one text, such as `[CLS] $A [SEP]`.
      pair: The template of two texts, such as `[CLS] $A [SEP] $B:1 [SEP]:1`.
      tokens: The tokens of the templates.
      path: The file of the vocabulary, for messages.

    Raises:
      UserError: A token is not in the vocabulary.
    """
    from tokenizers import processors

    ids = special_ids(made, tokens, path)
    made.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(ids.items()))


def special_ids(made: tokenizers.Tokenizer, tokens: Sequence[str], path: str) -> dict[str, int]:
    """Returns the ids of tokens; see `surround`."""
    ids = {token: made.token_to_id(token) for token in dict.fromkeys(tokens)}
    if missing := [token for token, index in ids.items() if index is None]:
        raise UserError(f"{path!r}: {', '.join(missing)} not found. Give a vocabulary with its special tokens.")
    return ids


def inside_special_tokens(made: tokenizers.Tokenizer) -> str:
    """Returns an expression for the first letters of special tokens in a text; empty without such tokens."""
    added = made.get_added_tokens_decoder().values()
    tokens = sorted(token.content for token in added if token.special and len(token.content) > 1)
    return "|".join(f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in tokens)


def split_inside(made: tokenizers.Tokenizer) -> str:
    """Returns the definition of a unigram tokenizer that encodes special tokens in a text as characters.

    Unigram models find each of their pieces in a text, so the text of these tokens is divided after its first letter.
    Other tokenizers do not change.
    """
    from tokenizers import Regex, models, pre_tokenizers

    if isinstance(made.model, models.Unigram) and (pattern := inside_special_tokens(made)):
        split = pre_tokenizers.Split(Regex(pattern), "merged_with_previous")
        made.pre_tokenizer = pre_tokenizers.Sequence([*([made.pre_tokenizer] if made.pre_tokenizer else []), split])
    return made.to_str()
