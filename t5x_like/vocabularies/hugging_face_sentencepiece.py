"""SentencePiece models (Kudo and Richardson 2018) with the special tokens of a Hugging Face model directory."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from t5x_like.errors import UserError
from t5x_like.vocabularies.base import SentencePieceModel, SentencePieceVocabulary, with_sentinels
from t5x_like.vocabularies.sentinels import SentinelVocabulary
from t5x_like.vocabularies.template import Template
from t5x_like.vocabularies.text_rules import UNCHANGED, TextRules

if TYPE_CHECKING:
    import tensorflow as tf


# A space, and the symbol that stands for one in pieces.
_SPACES = " ▁"


class HuggingFaceSentencePieceVocabulary(SentinelVocabulary):
    """A SentencePiece vocabulary whose special ids are given and differ from the model's.

    The ids of a text equal the SentencePiece library's. Pieces that only controls stand for, such as </s>, are
    encoded as characters.

    Args:
      model: path of the model.
      special_ids: id of the special token of each role: bos, eos, pad and unk, where the tokenizer has one.
      extra_ids: number of sentinels after the pieces. As in T5, <extra_id_0> is the last id.
      add_prefix_space: whether a space is added before each text, or None to do as the model says.
      contents: the model, if the file at its path has another format.
      keeps_first_space: whether a space is only added before texts that do not begin with one, whatever
        `add_prefix_space` and the model say.
      rules: what is changed in a text before the model encodes it.
      has_token_types: whether the tokenizer gives the tokens of a second text the type 1.
    """

    def __init__(
        self,
        model: str,
        special_ids: Mapping[str, int],
        extra_ids: int = 0,
        add_prefix_space: bool | None = None,
        *,
        contents: bytes | None = None,
        keeps_first_space: bool = False,
        rules: TextRules = UNCHANGED,
        has_token_types: bool = True,
    ):
        overrides = None
        if keeps_first_space:
            add_prefix_space = False  # `_encode` adds it
        if add_prefix_space is not None:
            overrides = sentencepiece_model_pb2.NormalizerSpec(add_dummy_prefix=add_prefix_space)
        self._special_ids = dict(special_ids)
        self.has_token_types = has_token_types
        self._contents, self._keeps_first_space, self._rules = contents, keeps_first_space, rules
        super().__init__(model, extra_ids=extra_ids, normalizer_spec_overrides=overrides)

    @property
    def bos_id(self) -> int | None:
        """The id of the token before a text, or None."""
        return self._special_ids.get("bos")

    @property
    def eos_id(self) -> int | None:
        """The id of the token after a text, or None."""
        return self._special_ids.get("eos")

    @property
    def pad_id(self) -> int | None:
        """The id of padding, or None. Llama's tokenizers have no padding."""
        return self._special_ids.get("pad")

    @property
    def unk_id(self) -> int | None:
        """The id of pieces that are not in the model, or None."""
        return self._special_ids.get("unk")

    def _model_context(self) -> SentencePieceModel:
        if self._contents is None:
            return super()._model_context()
        overrides = self._normalizer_spec_overrides
        return _load(self._contents, self.extra_ids, overrides and overrides.SerializeToString(deterministic=True))

    def _encode(self, s: str) -> list[int]:
        s = self._rules(s)
        return super()._encode(f" {s}" if self._keeps_first_space and s and s[0] not in _SPACES else s)

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        import tensorflow as tf

        s = self._rules.apply_tf(s)
        if self._keeps_first_space:
            s = tf.strings.regex_replace(s, f"^([^{_SPACES}])", r" \1")
        return super()._encode_tf(s)

    @property
    def changes_texts(self) -> bool:
        """Whether a text is changed before the model encodes it, or its pieces are divided."""
        return self._keeps_first_space or self._rules != UNCHANGED

    def change_units(self, units: tf.Tensor) -> tf.Tensor:
        """Returns units of a text, such as characters with their marks, as `rules` change them."""
        import tensorflow as tf

        rules = self._rules
        if rules.merge_spaces or rules.strip_end:
            units = tf.strings.regex_replace(units, r"^[\s\p{Z}]+$", " ") if rules.merge_spaces else units
            rules = dataclasses.replace(rules, merge_spaces=False, strip_end=False)
        return rules.apply_tf(units)

    def prepare(self, text: tf.Tensor) -> tf.Tensor:
        """Returns a changed text with the space that the tokenizer adds before it, if the model does not."""
        import tensorflow as tf

        return tf.strings.regex_replace(text, f"^([^{_SPACES}])", r" \1") if self._keeps_first_space else text

    def divide(self, ids: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, make: Callable[..., Any]) -> Any:
        """Returns pieces with their characters as `encode_tf` divides them: unchanged."""
        return make(ids, starts, ends)

    def decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        """Decodes ids `[length]`, or several texts `[texts, length]`, each up to its first EOS."""
        import tensorflow as tf

        if self.unk_id is not None:
            ids = tf.where(ids < self.vocab_size, ids, self.unk_id)
        if self.eos_id is not None:
            # EOS itself is decoded as the empty text.
            after = tf.cumsum(tf.cast(tf.equal(ids, self.eos_id), tf.int32), axis=-1) > 0
            ids = tf.where(after, self.eos_id, ids)
        return self._decode_tf(ids)


class AlbertVocabulary(HuggingFaceSentencePieceVocabulary):
    """ALBERT's SentencePiece model, and what the released code and `AlbertTokenizer` do before and after it.

    Before, text gets plain quotation marks and loses accents. After, a piece that ends in a digit and a comma, such as
    `▁1,`, is encoded again without the comma, so that a number has the same pieces with and without it.

    Args:
      model: path of the model.
      rules: what is changed in a text before the model encodes it.
      special_tokens: role -> special token; only those that are pieces count.
      contents: the model, if the file at its path has another format.
      divides_numbers: whether such pieces are encoded again. Fast tokenizers do not.
    """

    def __init__(
        self,
        model: str,
        rules: TextRules,
        special_tokens: Mapping[str, str] = MappingProxyType({}),
        *,
        contents: bytes | None = None,
        divides_numbers: bool = True,
    ):
        pieces = sentencepiece_pieces(model, contents)
        ids = {"pad": pieces.pad_id(), "unk": pieces.unk_id()}
        ids = {role: number for role, number in ids.items() if number >= 0}
        named = {role: pieces.PieceToId(token) for role, token in special_tokens.items()}
        ids |= {role: number for role, number in named.items() if pieces.IdToPiece(number) == special_tokens[role]}
        super().__init__(model, ids, contents=contents, rules=rules)
        self._divides_numbers = divides_numbers

    def _encode(self, s: str) -> list[int]:
        divided = _divided_numbers(self.sp_model) if self._divides_numbers else {}
        return [number for index in super()._encode(s) for number in divided.get(index, (index,))]

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        if not self._divides_numbers:
            return super()._encode_tf(s)
        import tensorflow as tf

        divided = _divided_numbers(self.sp_model)
        table = tf.ragged.constant([divided.get(index, (index,)) for index in range(self.vocab_size)], dtype=tf.int32)
        ids = super()._encode_tf(s)
        if not isinstance(ids, tf.RaggedTensor):
            return tf.gather(table, ids).flat_values
        return ids.with_flat_values(tf.gather(table, ids.flat_values)).merge_dims(-2, -1)

    def divide(self, ids: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, make: Callable[..., Any]) -> Any:
        """Returns pieces with their characters as `encode_tf` divides them: numbers without the comma after them."""
        if not self._divides_numbers:
            return make(ids, starts, ends)
        import tensorflow as tf

        divided = _divided_numbers(self.sp_model)
        table = tf.ragged.constant([divided.get(index, (index,)) for index in range(self.vocab_size)], dtype=tf.int32)
        found = tf.gather(table, ids)
        owners, lengths = found.value_rowids(), found.row_lengths()
        is_divided = tf.gather(lengths, owners) > 1
        is_comma = is_divided & tf.equal(
            tf.range(tf.size(owners)), tf.gather(tf.cast(found.row_limits(), tf.int32), owners) - 1
        )
        starts, ends = tf.gather(starts, owners), tf.gather(ends, owners)
        return make(
            found.flat_values, tf.where(is_comma, ends - 1, starts), tf.where(is_divided & ~is_comma, ends - 1, ends)
        )


class XLNetVocabulary(AlbertVocabulary):
    """XLNet's SentencePiece model, whose first pieces are <unk>, <s>, </s>, <cls>, <sep>, <pad>, <mask>, <eod>, <eop>.

    Text is prepared as by `AlbertVocabulary`. Texts are followed by their special tokens.

    Args:
      model: path of the model.
      rules: what is changed in a text before the model encodes it.
      contents: see `AlbertVocabulary`.
      divides_numbers: see `AlbertVocabulary`.

    Raises:
      UserError: the model does not have one of the special pieces.
    """

    def __init__(self, model: str, rules: TextRules, *, contents: bytes | None = None, divides_numbers: bool = True):
        names = {role: f"<{role}>" for role in ("cls", "sep", "pad", "mask", "eod")}
        super().__init__(model, rules, names | {"bos": "<s>"}, contents=contents, divides_numbers=divides_numbers)
        ids = self._special_ids
        if missing := [name for role, name in names.items() if role not in ids]:
            raise UserError(
                f"{model} has no piece {', '.join(missing)}. Give a model of XLNet, which `t5x_like vocabulary "
                "--kind=xlnet` trains."
            )
        ids["eos"] = ids["eod"]  # documents end with <eod>; </s> does not occur in XLNet's data

    @property
    def cls_id(self) -> int:
        """The id of the last token of an example."""
        return self._special_ids["cls"]

    @property
    def sep_id(self) -> int:
        """The id of the token after each segment."""
        return self._special_ids["sep"]

    @property
    def mask_id(self) -> int:
        """The id of <mask>, which XLNet's pretraining does not use."""
        return self._special_ids["mask"]

    @property
    def eod_id(self) -> int:
        """The id of the token after a document."""
        return self._special_ids["eod"]

    @property
    def template(self) -> Template:
        """The template `a <sep> b <sep> <cls>`; see `template.template_of`."""
        return Template((), (self.sep_id,), (self.sep_id, self.cls_id), second_type=1, last_type=2)


class DebertaV2Vocabulary(HuggingFaceSentencePieceVocabulary):
    """The SentencePiece model of DeBERTa v2 and v3, whose pieces begin with [PAD], [CLS], [SEP] and [UNK].

    If [MASK] is not one of the pieces, it is the id after the last one, as in the published models.

    Args:
      model: path of the model.
      special_tokens: the special token of each role.
      contents: see `HuggingFaceSentencePieceVocabulary`.
      keeps_first_space: see `HuggingFaceSentencePieceVocabulary`.
      rules: see `HuggingFaceSentencePieceVocabulary`.
    """

    def __init__(
        self,
        model: str,
        special_tokens: Mapping[str, str],
        *,
        contents: bytes | None = None,
        keeps_first_space: bool = False,
        rules: TextRules = UNCHANGED,
    ):
        pieces = sentencepiece_pieces(model, contents)
        size = pieces.GetPieceSize()
        ids = {token: pieces.PieceToId(token) for token in special_tokens.values()}
        self.token_ids = {token: index for token, index in ids.items() if pieces.IdToPiece(index) == token}
        mask = special_tokens.get("mask")
        has_mask = mask in self.token_ids
        if not has_mask:
            self.token_ids[mask] = size
        self._of_roles = {role: self.token_ids.get(token) for role, token in special_tokens.items()}
        known = {role: index for role, index in self._of_roles.items() if index is not None}
        super().__init__(
            model, known, 0 if has_mask else 1, contents=contents, keeps_first_space=keeps_first_space, rules=rules
        )

    @property
    def cls_id(self) -> int:
        """The id of the first token of an example."""
        return self._of_roles["cls"]

    @property
    def sep_id(self) -> int:
        """The id of the token after each segment."""
        return self._of_roles["sep"]

    @property
    def mask_id(self) -> int:
        """The id of the token in the place of tokens to be predicted."""
        return self._of_roles["mask"]


@functools.lru_cache(maxsize=4)
def _divided_numbers(contents: bytes) -> dict[int, tuple[int, ...]]:
    """Returns id -> ids of the pieces of a number and a comma, for pieces that are both."""
    model = sentencepiece.SentencePieceProcessor(model_proto=contents)
    found = {}
    for index in range(model.GetPieceSize()):
        piece = model.IdToPiece(index)
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            pieces = model.EncodeAsPieces(piece[:-1].replace("▁", ""))
            if not piece.startswith("▁"):
                pieces = [each for each in (pieces[0].removeprefix("▁"), *pieces[1:]) if each]
            found[index] = tuple(model.PieceToId(each) for each in (*pieces, ","))
    return found


def sentencepiece_pieces(path: str, contents: bytes | None) -> sentencepiece.SentencePieceProcessor:
    """Returns the pieces of a model, without sentinels.

    Args:
      path: path of the model.
      contents: the model, if the file at its path has another format.

    Raises:
      RuntimeError: the file is not a SentencePiece model.
      google.protobuf.message.DecodeError: the file is not a SentencePiece model.
    """
    return SentencePieceVocabulary(path).tokenizer if contents is None else _load(contents, 0, None).tokenizer


@functools.lru_cache(maxsize=4)
def _load(contents: bytes, extra_ids: int, overrides: bytes | None) -> SentencePieceModel:
    return with_sentinels(contents, extra_ids, overrides)
