"""SentencePiece models (Kudo and Richardson 2018) of T5 with the special tokens of a Hugging Face model directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from google.protobuf import message

from t5x_like.vocabularies.sentinels import SENTINEL, SentinelVocabulary, count_sentinels
from t5x_like.vocabularies.tokenizers.base import CONFIG

if TYPE_CHECKING:
    import sentencepiece
    import tensorflow as tf

    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles

_MODEL = "spiece.model"


class HuggingFaceSentencePieceVocabulary(SentinelVocabulary):
    """A SentencePiece vocabulary whose special ids are given and differ from the model's.

    The ids of a text equal the SentencePiece library's. Pieces that only controls stand for, such as </s>, are
    encoded as characters.

    Args:
      model: path of the model.
      special_ids: id of the special token of each role: bos, eos, pad and unk, where the tokenizer has one.
      extra_ids: number of sentinels at the end. As in T5, <extra_id_0> is the last id.
      contained: how many of them are pieces of the model, as in mT5. The others follow the pieces.
    """

    def __init__(self, model: str, special_ids: Mapping[str, int], extra_ids: int = 0, contained: int = 0):
        self._special_ids, self._contained = dict(special_ids), contained
        super().__init__(model, extra_ids=extra_ids)

    @property
    def _appended_ids(self) -> int:
        return self.extra_ids - self._contained

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
        """The id of padding, or None."""
        return self._special_ids.get("pad")

    @property
    def unk_id(self) -> int | None:
        """The id of pieces that are not in the model, or None."""
        return self._special_ids.get("unk")

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


def read(files: TokenizerFiles, extra_ids: int) -> HuggingFaceSentencePieceVocabulary:
    """Returns the vocabulary of the SentencePiece model of a directory.

    Args:
      files: the files of the directory.
      extra_ids: number of sentinels after the pieces. With 0, sentinels at the end of the model count, as in mT5.

    Raises:
      UserError: the file is not a SentencePiece model, a special token is not a piece, or another token is added.
    """
    if (other := other_token(files, extra_ids)) is not None:
        supported = f"the pieces of {_MODEL} and {extra_ids} sentinels after them, <extra_id_0> last"
        raise files.unsupported(*other, supported)
    tokens, pieces = files.special_tokens(), _pieces(files)
    special_ids = {}
    for role in tokens.keys() & {"bos", "eos", "pad", "unk"}:
        special_ids[role] = pieces.PieceToId(tokens[role])
        if pieces.IdToPiece(special_ids[role]) != tokens[role]:
            raise files.unsupported(CONFIG, f"{role}_token", tokens[role], f"pieces of {_MODEL}")
    contained = 0
    if not extra_ids:
        contained = count_sentinels([pieces.IdToPiece(index) for index in range(pieces.GetPieceSize())])
    return HuggingFaceSentencePieceVocabulary(files.path(_MODEL), special_ids, extra_ids or contained, contained)


def other_token(files: TokenizerFiles, extra_ids: int) -> tuple[str, str, dict[str, int | None]] | None:
    """Returns a token that is neither a piece nor a sentinel: its file, its key and its id; None if there is none.

    Args and errors: see `read`.
    """
    pieces = _pieces(files)
    size = pieces.GetPieceSize()
    for name, key, token, index, _ in files.listed_tokens(files.special_tokens()):
        sentinel = SENTINEL.fullmatch(token)
        known = index is None or (index < size and pieces.IdToPiece(index) in (token, f"▁{token}"))
        if not known and (sentinel is None or index != size + extra_ids - 1 - int(sentinel[1])):
            return name, key, {token: index}
    return None


def _pieces(files: TokenizerFiles) -> sentencepiece.SentencePieceProcessor:
    try:
        return SentinelVocabulary(files.path(_MODEL), extra_ids=0).tokenizer
    except (RuntimeError, message.DecodeError) as error:
        raise files.error(_MODEL, None, f"not a SentencePiece model ({error}). Download the file again") from error
