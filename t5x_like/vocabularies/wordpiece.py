"""BERT's WordPiece vocabularies: text to words, words to the longest matching pieces."""

from __future__ import annotations

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import fsspec
import numpy as np

from t5x_like.errors import UserError
from t5x_like.vocabularies import tokenizer_json
from t5x_like.vocabularies.base import Vocabulary
from t5x_like.vocabularies.bpe_files import TOKENIZER_FILE

if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_text as tf_text

PAD, UNKNOWN, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
CONTINUATION = "##"
"""The prefix of pieces that continue a word."""

# Longer words are unknown. The limit follows Hugging Face; BERT's own code has 200.
MAX_WORD_CHARACTERS = 100
_MAX_BYTES_PER_CHARACTER = 4
# Replaces a word that is too long. No text contains it after private characters are removed.
_TOO_LONG = "\ue000"

# Control, format, private and unassigned characters, and the replacement character.
_DROPPED = r"[^\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z}\t\n\r]|\x{FFFD}"
_ACCENTS = r"\p{Mn}+"
# Characters that are words of their own: punctuation, including all ASCII symbols as in BERT, and CJK ideographs.
_PUNCTUATION = r"\x21-\x2F\x3A-\x40\x5B-\x60\x7B-\x7E\p{P}"
_CJK = r"\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2CEAF}\x{2F800}-\x{2FA1F}"
_SPACES = r"\p{Z}"
_CJK_CHARACTER = re.compile(re.sub(r"\\x{(.*?)}", lambda found: chr(int(found[1], 16)), f"[{_CJK}]"))


def split_words(
    text: tf.Tensor,
    lower_case: bool,
    strip_accents: bool | None = None,
    split_cjk: bool = True,
    compose: bool = True,
) -> tf.Tensor | tf.RaggedTensor:
    """Splits text into words as BERT's `BasicTokenizer` does.

    Args:
      text: UTF-8, of any shape.
      lower_case: whether to lower-case text.
      strip_accents: whether to strip accents. The default is `lower_case`, as in the published models.
      split_cjk: whether CJK ideographs are words of their own.
      compose: whether characters are composed (NFC) unless accents are stripped, as in Hugging Face's `BertTokenizer`
        but not in `BertTokenizerFast`.

    Returns:
      `[…, (words)]`, ragged unless `text` is a scalar.
    """
    import tensorflow as tf
    import tensorflow_text as tf_text

    strip_accents = lower_case if strip_accents is None else strip_accents
    text = tf.strings.regex_replace(text, _DROPPED, "")
    if compose and not strip_accents:
        text = tf_text.normalize_utf8(text, "NFC")
    if lower_case:
        # Hugging Face lower-cases characters one by one, without the final form of sigma.
        text = tf.strings.lower(tf.strings.regex_replace(text, "Σ", "σ"), encoding="utf-8")
    if strip_accents:
        text = tf.strings.regex_replace(tf_text.normalize_utf8(text, "NFD"), _ACCENTS, "")
    own_words = _PUNCTUATION + _CJK if split_cjk else _PUNCTUATION
    text = tf.strings.regex_replace(text, f"([{own_words}])", r" \1 ")
    return tf.strings.split(tf.strings.regex_replace(text, _SPACES, " "))


def words_of(
    text: str, lower_case: bool, strip_accents: bool | None = None, split_cjk: bool = True, compose: bool = True
) -> list[str]:
    """Splits a text into words without TensorFlow; see `split_words`."""
    strip_accents = lower_case if strip_accents is None else strip_accents
    text = "".join(character for character in text if not _is_dropped(character))
    if compose and not strip_accents:
        text = unicodedata.normalize("NFC", text)
    if lower_case:
        text = text.replace("Σ", "σ").lower()
    if strip_accents:
        text = unicodedata.normalize("NFD", text)
        text = "".join(character for character in text if unicodedata.category(character) != "Mn")
    return "".join(_spaced(character, split_cjk) for character in text).split()


def _is_dropped(character: str) -> bool:
    return character == "\ufffd" or (unicodedata.category(character)[0] == "C" and character not in "\t\n\r")


@functools.lru_cache(maxsize=1 << 16)
def _spaced(character: str, split_cjk: bool) -> str:
    """Returns a space for whitespace, and a character that is a word of its own between spaces."""
    category = unicodedata.category(character)[0]
    if category == "Z":
        return " "
    is_word = category == "P" or (character.isascii() and category == "S")
    return f" {character} " if is_word or (split_cjk and _CJK_CHARACTER.match(character)) else character


class WordPieceVocabulary(Vocabulary):
    """A vocabulary file with one piece per line; ids are line numbers from 0 (Devlin et al. 2018; Wu et al. 2016).

    The ids of a text equal Hugging Face's `BertTokenizer`'s, with one difference: `[MASK]` and the like in a text
    are encoded as brackets and words, never as the special tokens.

    Args:
      vocab_file: path of the file or of a `tokenizer.json`, local or in a bucket, or a function that returns the path
        at each use. With a function, a task can be registered before the path of its vocabulary is known.
      lower_case: whether to lower-case text (the uncased models), or a function that returns this.
      strip_accents: whether to strip accents. The default is `lower_case`, as in the published models.
      split_cjk: whether CJK ideographs are words of their own.
      compose: whether characters are composed (NFC) unless accents are stripped; see `split_words`.
    """

    def __init__(
        self,
        vocab_file: str | Callable[[], str],
        lower_case: bool | Callable[[], bool] = True,
        *,
        strip_accents: bool | None = None,
        split_cjk: bool = True,
        compose: bool = True,
    ):
        self._vocab_file, self._lower_case = vocab_file, lower_case
        self._split_options = {"strip_accents": strip_accents, "split_cjk": split_cjk, "compose": compose}
        super().__init__(extra_ids=0)

    @property
    def vocab_file(self) -> str:
        """The current path of the file."""
        return self._vocab_file() if callable(self._vocab_file) else self._vocab_file

    @property
    def lower_case(self) -> bool:
        """Whether text is lower-cased."""
        return self._lower_case() if callable(self._lower_case) else self._lower_case

    @property
    def split_options(self) -> dict[str, bool | None]:
        """The arguments with which `split_words` splits a text for this vocabulary."""
        return {"lower_case": self.lower_case, **self._split_options}

    @property
    def pieces(self) -> tuple[str, ...]:
        """All pieces in the order of their ids.

        Raises:
          UserError: the file does not exist, or is not a BERT vocabulary.
        """
        return _read(self.vocab_file).pieces

    @property
    def word_starts(self) -> np.ndarray:
        """Which pieces begin a word, bool `[vocab_size]`."""
        return np.array([not piece.startswith(CONTINUATION) for piece in self.pieces])

    @property
    def pad_id(self) -> int:
        """The id of [PAD]."""
        return self._id(PAD)

    @property
    def unk_id(self) -> int:
        """The id of [UNK]."""
        return self._id(UNKNOWN)

    @property
    def cls_id(self) -> int:
        """The id of [CLS]."""
        return self._id(CLS)

    @property
    def sep_id(self) -> int:
        """The id of [SEP]."""
        return self._id(SEP)

    @property
    def mask_id(self) -> int:
        """The id of [MASK]."""
        return self._id(MASK)

    @property
    def bos_id(self) -> None:
        """None: preprocessors add `[CLS]` at the beginning of an example."""

    @property
    def eos_id(self) -> None:
        """None: `[SEP]` may occur within an example, so decoding must not end there."""

    @property
    def _base_vocab_size(self) -> int:
        return len(self.pieces)

    def _id(self, piece: str) -> int:
        return _read(self.vocab_file).special_ids[piece]

    def _encode(self, s: str) -> list[int]:
        pieces = _read(self.vocab_file)
        return [index for word in words_of(s, **self.split_options) for index in pieces.encode_word(word)]

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """Encodes text as int32 ids, `[…, (pieces)]`, ragged unless `s` is a scalar."""
        return self.encode_words(split_words(s, **self.split_options)).merge_dims(-2, -1)

    def encode_words(self, words: tf.Tensor | tf.RaggedTensor) -> tf.RaggedTensor:
        """Encodes words of `split_words`: `[…, words]` -> ragged int32 `[…, words, (pieces)]`."""
        import tensorflow as tf

        return _tokenizer(self.vocab_file).tokenize(tf.ragged.map_flat_values(_without_too_long, words))

    def _decode(self, ids: Iterable[int]) -> str:
        pieces = self.pieces
        return " ".join(pieces[index] for index in ids).replace(" " + CONTINUATION, "")

    def _decode_tf(self, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        import tensorflow as tf

        pieces = tf.ragged.map_flat_values(tf.gather, tf.constant(self.pieces), ids)
        return tf.strings.regex_replace(tf.strings.reduce_join(pieces, axis=-1, separator=" "), f" {CONTINUATION}", "")

    def __eq__(self, other) -> bool:
        return (
            isinstance(other, WordPieceVocabulary)
            and self.vocab_file == other.vocab_file
            and self.lower_case == other.lower_case
            and self._split_options == other._split_options
        )

    __hash__ = None


def _without_too_long(words: tf.Tensor) -> tf.Tensor:
    import tensorflow as tf

    return tf.where(tf.strings.length(words, unit="UTF8_CHAR") > MAX_WORD_CHARACTERS, _TOO_LONG, words)


@dataclasses.dataclass(frozen=True, eq=False)
class _Pieces:
    """The contents of a file: its pieces, and the ids of the special ones."""

    pieces: tuple[str, ...]
    special_ids: dict[str, int]

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {piece: index for index, piece in enumerate(self.pieces)}

    @functools.lru_cache(maxsize=1 << 16)  # noqa: B019 (at most four vocabularies are kept)
    def encode_word(self, word: str) -> tuple[int, ...]:
        """Returns the longest pieces of a word from its beginning on, or [UNK] if a part of it is not a piece."""
        unknown, found, start = (self._ids[UNKNOWN],), [], 0
        if len(word) > MAX_WORD_CHARACTERS:
            return unknown
        while start < len(word):
            prefix = CONTINUATION if start else ""
            ends = (end for end in range(len(word), start, -1) if prefix + word[start:end] in self._ids)
            if (end := next(ends, None)) is None:
                return unknown
            found.append(self._ids[prefix + word[start:end]])
            start = end
        return tuple(found)


@functools.lru_cache(maxsize=4)
def _read(path: str) -> _Pieces:
    try:
        with fsspec.open(path, "rb") as file:
            lines = file.read().decode("utf-8").split("\n")
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UserError(f"{path!r} is not a WordPiece vocabulary: file not found. Give the path of one.") from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path!r} is not a WordPiece vocabulary: not UTF-8 text ({error}). Give a vocab.txt."
        ) from error
    if path.endswith(TOKENIZER_FILE):
        ids = dict(tokenizer_json.pieces(tokenizer_json.read(path)))
        lines = sorted(ids, key=ids.get)
    # splitlines() would split at pieces that are line separators of Unicode.
    pieces = tuple(line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines))
    special = {piece: pieces.index(piece) for piece in (PAD, UNKNOWN, CLS, SEP, MASK) if piece in pieces}
    if missing := [piece for piece in (PAD, UNKNOWN, CLS, SEP, MASK) if piece not in special]:
        raise UserError(
            f"{path!r} is not a WordPiece vocabulary of BERT: {', '.join(missing)} not found. Give a vocab.txt with "
            "one token per line, special tokens included."
        )
    if special[PAD] != 0:
        raise UserError(
            f"{path!r}: {PAD} is line {special[PAD] + 1}, but must be line 1, because 0 pads batches. Give a file "
            "that begins with it."
        )
    if len(set(pieces)) != len(pieces) or "" in pieces:
        wrong = next(piece for piece in pieces if piece == "" or pieces.count(piece) > 1)
        raise UserError(f"{path!r}: an empty line or a duplicate piece ({wrong!r}). Every line must be a unique piece.")
    return _Pieces(pieces, special)


@functools.lru_cache(maxsize=4)
def _tokenizer(path: str) -> tf_text.FastWordpieceTokenizer:
    import tensorflow as tf
    import tensorflow_text as tf_text

    with tf.init_scope():  # the tables of the tokenizer must outlive the function being traced
        return tf_text.FastWordpieceTokenizer(
            vocab=list(_read(path).pieces),
            suffix_indicator=CONTINUATION,
            max_bytes_per_word=MAX_WORD_CHARACTERS * _MAX_BYTES_PER_CHARACTER,
            unknown_token=UNKNOWN,
            no_pretokenization=True,
            token_out_type=tf.int32,
        )
