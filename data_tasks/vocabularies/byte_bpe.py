"""GPT-2's byte-level BPE (Radford et al. 2019, section 2.2) in TensorFlow, also with the ids of RoBERTa and BART.

A text is split into words with their preceding space. The bytes of each word are merged pair by pair, in the order in
which the merges were learned. The distinct words of a text are merged together, each one once.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterable

import fsspec
import numpy as np
import seqio
import tensorflow as tf

from t5x_like.errors import UserError

END_OF_TEXT = "<|endoftext|>"
# The names that transformers gives the two files of a vocabulary.
VOCAB_FILE, MERGES_FILE = "vocab.json", "merges.txt"
ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
# RoBERTa has three unused filler ids between its pieces and <mask>, which round up the number of ids.
ROBERTA_FILLERS = 3

# Separates words during splitting. It is a noncharacter of Unicode, and is removed from texts that contain it.
_SEPARATOR = "\U0010ffff"
_SPACE = r"\t-\r\x1C-\x20\x{85}\p{Z}"
# The last of several whitespace characters before a word belongs to the word.
_SPACES_BEFORE_WORD = rf"([{_SPACE}])([{_SPACE}][^{_SPACE}])"
_WORD = (
    r"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+"
    rf"| ?[^{_SPACE}\p{{L}}\p{{N}}\x{{10FFFF}}]+|[{_SPACE}]+)"
)
_NO_MERGE = np.iinfo(np.int32).max


def split_words(text: tf.Tensor) -> tf.RaggedTensor:
    """Split texts into words, each with its preceding space: `[texts]` -> `[texts, (words)]`. No text is changed."""
    text = tf.strings.regex_replace(text, _SPACES_BEFORE_WORD, rf"\1{_SEPARATOR}\2")
    words = tf.strings.split(tf.strings.regex_replace(text, _WORD, rf"\1{_SEPARATOR}"), sep=_SEPARATOR)
    return tf.ragged.boolean_mask(words, words != "")


class ByteBPEVocabulary(seqio.Vocabulary):
    """The byte-level BPE of GPT-2 (50,257 ids), or the same pieces with the ids of RoBERTa and BART (50,265 ids).

    The ids of a text are those of Hugging Face's `GPT2Tokenizer`, with one difference: `<|endoftext|>` in a text is
    encoded as characters, never as the special token.

    Args:
      encoder_json: path of GPT-2's `encoder.json` (`vocab.json`), which maps pieces to ids. It may be local or in a
        bucket, or a function that returns the path at each use.
      vocab_bpe: path of GPT-2's `vocab.bpe` (`merges.txt`), which lists the merges in the order learned.
      roberta_dict: path of fairseq's `dict.txt`, with a line "id count" per piece. It selects the ids of RoBERTa:
        <s> 0, <pad> 1, </s> 2, <unk> 3, the pieces in the order of the file, and <mask> last.
    """

    def __init__(
        self,
        encoder_json: str | Callable[[], str],
        vocab_bpe: str | Callable[[], str],
        roberta_dict: str | Callable[[], str | None] | None = None,
    ):
        self._files = (encoder_json, vocab_bpe, roberta_dict)
        super().__init__(extra_ids=0)

    @property
    def files(self) -> tuple[str, str, str | None]:
        """The paths of the three files."""
        return tuple(file() if callable(file) else file for file in self._files)

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The UTF-8 bytes of each id. A character may be divided among several pieces.

        Raises:
          UserError: a file does not exist, or the files do not match.
        """
        return _read(*self.files).pieces

    @property
    def word_starts(self) -> np.ndarray:
        """Which pieces begin with whitespace or are not text, bool `[vocab_size]`.

        The first word of a text does not begin with whitespace.
        """
        special = _read(*self.files).special_ids.values()
        return np.array([piece[:1].isspace() or index in special for index, piece in enumerate(self.pieces)])

    @property
    def is_roberta(self) -> bool:
        """Whether the ids are those of RoBERTa."""
        return self.files[2] is not None

    @property
    def pad_id(self) -> int | None:
        """The id of padding. None with GPT-2's ids, which are all text (0 is `!`) or END_OF_TEXT."""
        return self._id("<pad>") if self.is_roberta else None

    @property
    def bos_id(self) -> int:
        """The id of <s>, or END_OF_TEXT with GPT-2's ids."""
        return self._id("<s>" if self.is_roberta else END_OF_TEXT)

    @property
    def eos_id(self) -> int:
        """The id of </s>, or END_OF_TEXT with GPT-2's ids."""
        return self._id("</s>" if self.is_roberta else END_OF_TEXT)

    @property
    def unk_id(self) -> int | None:
        """The id of <unk>. None with GPT-2's ids, since bytes can encode any text."""
        return self._id("<unk>") if self.is_roberta else None

    @property
    def cls_id(self) -> int:
        """The id of <s>, the first token of RoBERTa's examples; see `mask_id`."""
        return self._id("<s>")

    @property
    def sep_id(self) -> int:
        """The id of </s>, the last token of RoBERTa's segments; see `mask_id`."""
        return self._id("</s>")

    @property
    def mask_id(self) -> int:
        """The id of RoBERTa's <mask>.

        Raises:
          UserError: the ids are those of GPT-2, which has no such token.
        """
        return self._id("<mask>")

    @property
    def _base_vocab_size(self) -> int:
        return len(self.pieces)

    def _id(self, piece: str) -> int:
        ids = _read(*self.files).special_ids
        if piece not in ids:
            raise UserError(
                f"GPT-2's vocabulary has no {piece}, only {', '.join(ids)}. Give `roberta_dict` to use RoBERTa's"
            )
        return ids[piece]

    def _encode(self, s: str) -> list[int]:
        return self._encode_tf(tf.constant(s)).numpy().tolist()

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """Encode one text as int32 `[length]`, or several texts as ragged int32 `[texts, (length)]`."""
        s = tf.convert_to_tensor(s)
        words = split_words(tf.reshape(s, [-1]))
        distinct, index = tf.unique(words.flat_values)
        ids = tf.gather(_read(*self.files).merged(distinct), index)
        ids = words.with_flat_values(ids).merge_dims(-2, -1)
        return ids.flat_values if s.shape.rank == 0 else ids

    def _decode(self, ids: Iterable[int]) -> str:
        pieces, eos_id = self.pieces, self.eos_id
        ids = itertools.takewhile(lambda index: index != eos_id, ids)
        return b"".join(pieces[i] if i < len(pieces) else b"\xff" for i in ids).decode("utf-8", errors="replace")

    def decode_tf(self, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        """Decode ids `[length]`, or several texts `[texts, length]`, each up to and without its first EOS."""
        after = tf.cumsum(tf.cast(tf.equal(ids, self.eos_id), tf.int32), axis=-1) > 0
        return self._decode_tf(tf.ragged.boolean_mask(ids, tf.logical_not(after)))

    def _decode_tf(self, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        pieces = tf.ragged.map_flat_values(tf.gather, tf.constant(self.pieces), ids)
        return tf.strings.reduce_join(pieces, axis=-1)

    def __eq__(self, other) -> bool:
        return isinstance(other, ByteBPEVocabulary) and self.files == other.files

    __hash__ = None


@dataclasses.dataclass(frozen=True, eq=False)
class _BPE:
    """The contents of the files as arrays.

    Attributes:
      pieces: the bytes of each id.
      special_ids: ids of the special tokens.
      byte_ids: the id of each single byte, int32 `[256]`.
      pairs: left * number of ids + right of every merge, int64 `[merges + 1]`, ascending, with the largest int64 last.
      ranks: position of each merge in the order learned, int32 `[merges + 1]`.
      results: the id that each merge produces, int32 `[merges + 1]`.
    """

    pieces: tuple[bytes, ...]
    special_ids: dict[str, int]
    byte_ids: np.ndarray
    pairs: np.ndarray
    ranks: np.ndarray
    results: np.ndarray

    def merged(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Encode words: `[words]` -> ragged `[words, (ids)]`."""
        letters = tf.strings.bytes_split(words)
        bytes_ = tf.reshape(tf.io.decode_raw(letters.flat_values, tf.uint8), [-1])
        tokens = tf.gather(self.byte_ids, tf.cast(bytes_, tf.int32))
        count = tf.size(words, tf.int64)
        owners = letters.value_rowids()
        any_length = tf.TensorShape([None])

        def merge(_, tokens, owners):
            return self._merge_lowest_rank(tokens, owners, count)

        _, tokens, owners = tf.while_loop(
            lambda more, *_: more,
            merge,
            (tf.size(tokens) > 0, tokens, owners),
            shape_invariants=(tf.TensorShape([]), any_length, any_length),
            parallel_iterations=1,
        )
        return tf.RaggedTensor.from_value_rowids(tokens, owners, nrows=count, validate=False)

    def _merge_lowest_rank(self, tokens: tf.Tensor, owners: tf.Tensor, words: tf.Tensor):
        """Apply to each word the merge of lowest rank, wherever it occurs.

        Args:
          tokens: tokens of all words in sequence, int32 `[tokens]`.
          owners: the word of each token, ascending, int64 `[tokens]`.
          words: number of words.

        Returns:
          Whether any merge was applied, and both arrays after it.
        """
        pairs = tf.cast(tokens[:-1], tf.int64) * len(self.pieces) + tf.cast(tokens[1:], tf.int64)
        pairs = tf.where(owners[:-1] == owners[1:], pairs, -1)
        found = tf.searchsorted(self.pairs, pairs)
        ranks = tf.where(tf.gather(self.pairs, found) == pairs, tf.gather(self.ranks, found), _NO_MERGE)
        lowest_rank = tf.math.unsorted_segment_min(ranks, owners[:-1], words)
        merges = (ranks < _NO_MERGE) & (ranks == tf.gather(lowest_rank, owners[:-1]))
        merges = every_other(merges)
        tokens = tf.where(tf.pad(merges, [[0, 1]]), tf.pad(tf.gather(self.results, found), [[0, 1]]), tokens)
        kept = ~tf.pad(merges, [[1, 0]])
        return tf.reduce_any(merges), tf.boolean_mask(tokens, kept), tf.boolean_mask(owners, kept)


def every_other(flags: tf.Tensor) -> tf.Tensor:
    """Keep the first, third, … flag of each run of True flags `[length]`: in "aaa" only the first two letters merge."""
    begins = flags & ~tf.pad(flags, [[1, 0]])[:-1]
    positions = tf.range(tf.size(flags))
    run = tf.cumsum(tf.cast(begins, tf.int32))
    begin_of_run = tf.concat([[0], tf.boolean_mask(positions, begins)], axis=0)
    return flags & ((positions - tf.gather(begin_of_run, run)) % 2 == 0)


@functools.lru_cache(maxsize=4)
def _read(encoder_json: str, vocab_bpe: str, roberta_dict: str | None) -> _BPE:
    ids: dict[str, int] = json.loads(_text(encoder_json))
    names = sorted(ids, key=ids.get)
    if [ids[name] for name in names] != list(range(len(ids))):
        raise UserError(f"{encoder_json!r}: the ids are not the numbers 0 … {len(ids) - 1}, each used once")
    if END_OF_TEXT not in ids:
        raise UserError(f"{encoder_json!r} has no {END_OF_TEXT}, so it is not a GPT-2 vocabulary")
    order, special = np.arange(len(ids), dtype=np.int32), {END_OF_TEXT: ids[END_OF_TEXT]}
    letters = _byte_letters()
    byte_of = {letter: byte for byte, letter in letters.items()}
    pieces = [bytes(byte_of[letter] for letter in name) if name != END_OF_TEXT else name.encode() for name in names]
    if roberta_dict is not None:
        order, pieces, special = _roberta(roberta_dict, pieces)
    lines = [line for line in _text(vocab_bpe).split("\n") if line and not line.startswith("#version")]
    merges = [line.split(" ") for line in lines]
    try:
        table = np.array([[order[ids[a]], order[ids[b]], order[ids[a + b]]] for a, b in merges], np.int64)
        byte_ids = np.array([order[ids[letters[byte]]] for byte in range(256)], np.int32)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"{vocab_bpe!r} and {encoder_json!r} do not match: a merge or a byte is not a piece ({error})"
        ) from error
    pairs = table[:, 0] * len(pieces) + table[:, 1]
    by_pair = np.argsort(pairs, kind="stable")
    return _BPE(
        pieces=tuple(pieces),
        special_ids=special,
        byte_ids=byte_ids,
        pairs=np.append(pairs[by_pair], np.iinfo(np.int64).max),
        ranks=np.append(by_pair, _NO_MERGE).astype(np.int32),
        results=np.append(table[by_pair, 2], 0).astype(np.int32),
    )


def _roberta(path: str, gpt2_pieces: list[bytes]) -> tuple[np.ndarray, list[bytes], dict[str, int]]:
    """Return RoBERTa's id of each GPT-2 id, RoBERTa's pieces in the order of their ids, and its special ids."""
    listed = [line.split(" ")[0] for line in _text(path).split("\n") if line]
    old = [int(number) for number in listed if number.isdigit()]
    if sorted(old) != list(range(len(gpt2_pieces))):
        raise UserError(f"{path!r} does not list each of the {len(gpt2_pieces)} ids of the vocabulary exactly once")
    order = np.empty(len(old), np.int32)
    order[old] = len(ROBERTA_SPECIAL) + np.arange(len(old))
    fillers = [f"<filler{number}>" for number in range(ROBERTA_FILLERS)]
    pieces = [
        *(name.encode() for name in ROBERTA_SPECIAL),
        *(gpt2_pieces[number] for number in old),
        *(name.encode() for name in (*fillers, "<mask>")),
    ]
    names = {**dict(zip(ROBERTA_SPECIAL, range(len(ROBERTA_SPECIAL)), strict=True)), "<mask>": len(pieces) - 1}
    return order, pieces, names


def _byte_letters() -> dict[int, str]:
    """Return the letter that represents each byte in the files: itself if printable, otherwise a letter from U+0100."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def _text(path: str) -> str:
    try:
        with fsspec.open(path, "rb") as file:
            return file.read().decode("utf-8")
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UserError(f"{path!r} is not a file of a byte-level BPE vocabulary: file not found") from error
