"""GPT-2's byte-level BPE (Radford et al. 2019, section 2.2), in TensorFlow; RoBERTa's and BART's order of it, too.

A text is cut into words with the space before them; the bytes of a word are merged, the pair that was learnt first
before the others. All words of a text are merged at once, each different one once.
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
# How transformers names the two files of a vocabulary in a folder.
VOCAB_FILE, MERGES_FILE = "vocab.json", "merges.txt"
ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
# Between RoBERTa's pieces and its <mask> are three that nothing is encoded as, made up to round off the number of ids.
ROBERTA_FILLERS = 3

# Between words while a text is being cut. It is no character ("noncharacter"): a text that has it loses it.
_SEPARATOR = "\U0010ffff"
_SPACE = r"\t-\r\x1C-\x20\x{85}\p{Z}"
# Of several white spaces before a word the last one is the word's.
_SPACES_BEFORE_WORD = rf"([{_SPACE}])([{_SPACE}][^{_SPACE}])"
_WORD = (
    r"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+"
    rf"| ?[^{_SPACE}\p{{L}}\p{{N}}\x{{10FFFF}}]+|[{_SPACE}]+)"
)
_NO_MERGE = np.iinfo(np.int32).max


def split_words(text: tf.Tensor) -> tf.RaggedTensor:
    """The words of texts, each with the space before it: `[texts]` to `[texts, (words)]`. Nothing but cuts is made."""
    text = tf.strings.regex_replace(text, _SPACES_BEFORE_WORD, rf"\1{_SEPARATOR}\2")
    words = tf.strings.split(tf.strings.regex_replace(text, _WORD, rf"\1{_SEPARATOR}"), sep=_SEPARATOR)
    return tf.ragged.boolean_mask(words, words != "")


class ByteBPEVocabulary(seqio.Vocabulary):
    """The byte-level BPE of GPT-2 (50,257 ids), or its pieces in the order of RoBERTa and BART (50,265 ids).

    The ids of a text are those of Hugging Face's `GPT2Tokenizer`, with one difference: `<|endoftext|>` in a text is
    characters, never the special token itself.
    """

    def __init__(
        self,
        encoder_json: str | Callable[[], str],
        vocab_bpe: str | Callable[[], str],
        roberta_dict: str | Callable[[], str | None] | None = None,
    ):
        """Args:
        encoder_json: GPT-2's `encoder.json` (`vocab.json`), piece -> id: a local path, one in a bucket, or a function
          that says it each time it is needed.
        vocab_bpe: its `vocab.bpe` (`merges.txt`), the merges in the order they were learnt.
        roberta_dict: fairseq's `dict.txt`, a line "id count" a piece; with it ids are RoBERTa's, which has <s> 0,
          <pad> 1, </s> 2, <unk> 3, the pieces in that order, and <mask> last.
        """
        self._files = (encoder_json, vocab_bpe, roberta_dict)
        super().__init__(extra_ids=0)

    @property
    def files(self) -> tuple[str, str, str | None]:
        """The three paths."""
        return tuple(file() if callable(file) else file for file in self._files)

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """What each id stands for, bytes of UTF-8; a character may be divided among several pieces.

        Raises:
          UserError: there is no such file.
          UserError: the files do not belong together.
        """
        return _read(*self.files).pieces

    @property
    def word_starts(self) -> np.ndarray:
        """Which pieces begin with white space or are no part of text, bool `[vocab_size]`; a text's first word has
        none."""
        special = _read(*self.files).special_ids.values()
        return np.array([piece[:1].isspace() or index in special for index, piece in enumerate(self.pieces)])

    @property
    def is_roberta(self) -> bool:
        return self.files[2] is not None

    @property
    def pad_id(self) -> int | None:
        """The id of padding; None in GPT-2's order, where every id is text (0 is `!`) or END_OF_TEXT."""
        return self._id("<pad>") if self.is_roberta else None

    @property
    def bos_id(self) -> int:
        return self._id("<s>" if self.is_roberta else END_OF_TEXT)

    @property
    def eos_id(self) -> int:
        return self._id("</s>" if self.is_roberta else END_OF_TEXT)

    @property
    def unk_id(self) -> int | None:
        """GPT-2 has none, since bytes spell anything."""
        return self._id("<unk>") if self.is_roberta else None

    @property
    def cls_id(self) -> int:
        """What RoBERTa's examples begin with, <s>; see `mask_id`."""
        return self._id("<s>")

    @property
    def sep_id(self) -> int:
        """What RoBERTa's segments end with, </s>; see `mask_id`."""
        return self._id("</s>")

    @property
    def mask_id(self) -> int:
        """RoBERTa's <mask>.

        Raises:
          UserError: the order is GPT-2's, which has none.
        """
        return self._id("<mask>")

    @property
    def _base_vocab_size(self) -> int:
        return len(self.pieces)

    def _id(self, piece: str) -> int:
        ids = _read(*self.files).special_ids
        if piece not in ids:
            raise UserError(f"GPT-2's vocabulary has no {piece}, only {', '.join(ids)}: RoBERTa's needs `roberta_dict`")
        return ids[piece]

    def _encode(self, s: str) -> list[int]:
        return self._encode_tf(tf.constant(s)).numpy().tolist()

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """int32 ids, of one text `[length]` or of several, `[texts, (length)]`."""
        s = tf.convert_to_tensor(s)
        words = split_words(tf.reshape(s, [-1]))
        different, which = tf.unique(words.flat_values)
        ids = tf.gather(_read(*self.files).merged(different), which)
        ids = words.with_flat_values(ids).merge_dims(-2, -1)
        return ids.flat_values if s.shape.rank == 0 else ids

    def _decode(self, ids: Iterable[int]) -> str:
        pieces, eos_id = self.pieces, self.eos_id
        ids = itertools.takewhile(lambda index: index != eos_id, ids)
        return b"".join(pieces[i] if i < len(pieces) else b"\xff" for i in ids).decode("utf-8", errors="replace")

    def decode_tf(self, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        """The texts of ids `[length]`, or of several `[texts, length]`, each up to and without its first EOS."""
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
    """What the files hold, as arrays.

    Attributes:
      pieces: what each id stands for.
      special_ids: of what is no piece of text.
      byte_ids: the id of each single byte, int32 `[256]`.
      pairs: left * ids + right of every pair that is merged, int64 `[merges + 1]`, ascending, then a largest number.
      ranks: when it was learnt, int32 `[merges + 1]`.
      results: the id of what it becomes, int32 `[merges + 1]`.
    """

    pieces: tuple[bytes, ...]
    special_ids: dict[str, int]
    byte_ids: np.ndarray
    pairs: np.ndarray
    ranks: np.ndarray
    results: np.ndarray

    def merged(self, words: tf.Tensor) -> tf.RaggedTensor:
        """The ids of words: `[words]` to `[words, (ids)]`."""
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
        """Merges in each word the pair that was learnt first, wherever it occurs.

        Args:
          tokens: of all words, one after the other, int32 `[tokens]`.
          owners: the word of each, ascending, int32 `[tokens]`.
          words: how many there are.

        Returns:
          Whether anything was merged, and both arrays after it.
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
    """Of each run of true flags `[length]` the first, third … alone: of three letters a the first two make a pair."""
    begins = flags & ~tf.pad(flags, [[1, 0]])[:-1]
    places = tf.range(tf.size(flags))
    run = tf.cumsum(tf.cast(begins, tf.int32))
    begin_of_run = tf.concat([[0], tf.boolean_mask(places, begins)], axis=0)
    return flags & ((places - tf.gather(begin_of_run, run)) % 2 == 0)


@functools.lru_cache(maxsize=4)
def _read(encoder_json: str, vocab_bpe: str, roberta_dict: str | None) -> _BPE:
    ids: dict[str, int] = json.loads(_text(encoder_json))
    names = sorted(ids, key=ids.get)
    if [ids[name] for name in names] != list(range(len(ids))):
        raise UserError(f"the ids in {encoder_json!r} are not 0 … {len(ids) - 1}, each once")
    if END_OF_TEXT not in ids:
        raise UserError(f"{encoder_json!r} has no {END_OF_TEXT}, so it is no vocabulary of GPT-2's kind")
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
            f"{vocab_bpe!r} and {encoder_json!r} do not belong together: a merge or a byte is no piece ({error})"
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
    """RoBERTa's id of each of GPT-2's, its pieces in its order, and its special ids."""
    listed = [line.split(" ")[0] for line in _text(path).split("\n") if line]
    old = [int(number) for number in listed if number.isdigit()]
    if sorted(old) != list(range(len(gpt2_pieces))):
        raise UserError(f"{path!r} does not list each of the {len(gpt2_pieces)} ids of the vocabulary once")
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
    """How the files write each byte: as itself where it prints, and as a letter from U+0100 on elsewhere."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def _text(path: str) -> str:
    try:
        with fsspec.open(path, "rb") as file:
            return file.read().decode("utf-8")
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UserError(f"there is no file of a byte-level BPE vocabulary at {path!r}") from error
