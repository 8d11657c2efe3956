"""SeqIO source of documents in files, which are read from disk or from a bucket in constant memory.

Positions in the data can be saved and restored exactly, although Python reads the files: tf.data saves cursors
(`documents_of_files`) alone, and turns them into documents by stateless Python functions. A resumed run opens its files
at their cursors, and decompresses compressed files up to the cursor.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import fsspec
import numpy as np
import seqio
import tensorflow as tf

from data_tasks.corpora.documents import TEXT, TRAIN, VALIDATION, epoch_seeds
from data_tasks.corpora.documents_of_files import Block, BlockReader, Part, Rules, iterate, parts_of_shard
from data_tasks.corpora.formats import format_of
from data_tasks.corpora.formats.base import Cursor, where
from data_tasks.corpora.matching_files import digest_of, path_of
from t5x_like.data import skipped_records
from t5x_like.data.origins import DOCUMENT, PLACE, Recorder, current_recorder
from t5x_like.data.skipped_records import SkippedRecords
from t5x_like.errors import UserError

FILE, RECORD = "file", "record"
"""Features with the place of a document; see `FileSource.get_dataset`."""
PROVENANCE = ("url", "timestamp", "source", "record")
"""Fields of a record that say where its text comes from, as `t5x_like clean` writes them."""

# Shuffled data comes from this many files at the same time, in random order within blocks of this size.
_FILES_AT_ONCE = 8
_SHUFFLED_BYTES = 16 << 20
_BLOCK_BYTES = 1 << 20  # of data in order
_DOCUMENTS_AT_ONCE = 32
_OVER = -1  # in place of a cursor: the end of the file


class FileSource(seqio.DataSource):
    """The documents of files as the feature `text`. Files are listed when a dataset is requested, and read later.

    Shuffling permutes the files, reads several of them at the same time, and permutes the documents of each block of
    16 MiB, all differently in every epoch. The state of an iterator holds cursors, no documents.

    Args:
      split: returns the files of a split, and the rules for its documents.
      describe: returns one line about the files. It is part of the identity of the data, which resuming checks.
      advice: returns what to do if a split has no documents, for messages.
    """

    def __init__(
        self,
        split: Callable[[str], tuple[Sequence[fsspec.core.OpenFile], Rules]],
        describe: Callable[[], str],
        advice: Callable[[str], str] = lambda split: "",
    ):
        self._split, self._describe, self.advice_if_empty = split, describe, advice
        self._error = None
        super().__init__(splits=(TRAIN, VALIDATION))

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """True: see `parts_of_shard`."""
        return True

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns the paths of the files of a split."""
        return [path_of(file) for file in self._split(split)[0]]

    def num_input_examples(self, split: str) -> int | None:
        """Returns None: the number of documents is not known before all of them are read."""
        return None

    def describe(self) -> str:
        """Returns one line about the files."""
        return self._describe()

    def digest(self, split: str) -> dict[str, str]:
        """Returns what identifies the documents of a split: a `digest`, and `digest_of`, what it is computed from.

        It depends on the files, on the column of the text, and on the documents that are held out.
        """
        files, rules = self._split(split)
        digest, hashed = digest_of(files)
        held_out = (rules.validation_fraction, rules.is_held_out) if rules.validation_fraction else None
        chosen = f"{digest} {rules.reading.text_column} {held_out}"
        return {"digest": hashlib.blake2b(chosen.encode(), digest_size=8).hexdigest(), "digest_of": hashed}

    def place(self, split: str, number: int) -> str:
        """Returns the file and the record of a document of a split in order, from 0, for messages."""
        ds = self.get_dataset(split, shuffle=False, places=True)
        (row,) = ds.skip(number).take(1)
        path = row[FILE].numpy().decode()
        return where(format_of(path), path, int(row[RECORD]))

    def origins(self, split: str, text: str = "") -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yields where the documents of a split come from, in order.

        Args:
          split: the split.
          text: a part of the documents to yield; every document contains the empty text.

        Yields:
          The file and the record, and those of `PROVENANCE` that the record has.
        """
        files, rules = self._split(split)
        rules = dataclasses.replace(rules, reading=dataclasses.replace(rules.reading, fields=PROVENANCE))
        reader = BlockReader(files, rules, SkippedRecords(), block_bytes=_BLOCK_BYTES)
        for part in map(Part, range(len(files))):
            path = path_of(files[part.file])
            for document in iterate(reader, part, counts=False):
                if text.encode() in document.text:
                    yield where(format_of(path), path, document.record), document.fields

    def take_error(self) -> Exception | None:
        """Returns the last error of reading, once. TensorFlow raises an error with its text instead."""
        error, self._error = self._error, None
        return error

    @tf.autograph.experimental.do_not_convert
    def get_dataset(
        self, split=TRAIN, shuffle=True, seed=None, shard_info=None, *, places: bool = False, **_
    ) -> tf.data.Dataset:
        """Returns the documents of a split; see `seqio.DataSource`.

        Args:
          split: the split.
          shuffle: whether to shuffle.
          seed: seed of the order.
          shard_info: the shard to read.
          places: whether to add the place of each document: the path `file`, and `record`, the number of its record or,
            in a text file, of its first line, from 0.
        """
        if split not in self.splits:
            raise UserError(f"split {split!r} not found. Give one of {', '.join(self.splits)}.")
        files, rules = self._split(split)
        if (recorder := current_recorder()) is not None:
            rules = dataclasses.replace(rules, reading=dataclasses.replace(rules.reading, fields=PROVENANCE))
        index, count = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
        parts = parts_of_shard(len(files), index, count)
        block_bytes = _SHUFFLED_BYTES if shuffle else _BLOCK_BYTES
        skipped = skipped_records.current() or SkippedRecords()
        reader = BlockReader(files, rules, skipped, block_bytes=block_bytes)
        if shuffle:
            found = epoch_seeds(seed).flat_map(functools.partial(self._shuffled, reader, parts))
        else:
            found = self._in_order(reader, parts)
        return (
            found.batch(_DOCUMENTS_AT_ONCE).map(lambda rows: self._documents(reader, rows, places, recorder)).unbatch()
        )

    def _in_order(self, reader: BlockReader, parts: Sequence[Part]) -> tf.data.Dataset:
        """Returns the position of each document: part, cursor, and index in the block."""

        def of_part(part):
            def of_block(cursor, size):
                return tf.data.Dataset.range(size).map(lambda index: tf.concat([part, cursor, [index]], axis=0))

            return self._blocks(reader, part).flat_map(of_block)

        return tf.data.Dataset.from_tensor_slices(tf.constant(parts, tf.int64)).flat_map(of_part)

    def _shuffled(self, reader: BlockReader, parts: Sequence[Part], seed: tf.Tensor) -> tf.data.Dataset:
        """Returns the position of each document in a random order; see `_in_order`."""
        key = tf.stack([seed, seed // 2**31])
        last = tf.constant(len(parts) - 1, tf.int64)
        stored = tf.constant(parts, tf.int64)

        def of_part(number):
            part = stored[tf.random.experimental.index_shuffle(number, key, last)]

            def of_block(cursor, size):
                own = tf.random.experimental.stateless_fold_in(key, part[0])
                own = tf.random.experimental.stateless_fold_in(own, cursor[0])

                def position(index):
                    shuffled = tf.random.experimental.index_shuffle(index, own, size - 1)
                    return tf.concat([part, cursor, [shuffled]], axis=0)

                return tf.data.Dataset.range(size).map(position)

            return self._blocks(reader, part).flat_map(of_block)

        return tf.data.Dataset.range(len(parts)).interleave(
            of_part, cycle_length=_FILES_AT_ONCE, block_length=1, num_parallel_calls=None
        )

    def _blocks(self, reader: BlockReader, part: tf.Tensor) -> tf.data.Dataset:
        """Returns the cursor and the number of documents of each block of a part."""

        def read(part, cursor):
            if cursor[0] == _OVER:
                return np.int64(_OVER), cursor
            block = self._read(reader, part, cursor, counts=True)
            end = (_OVER, _OVER) if block.is_last else block.end
            return np.int64(len(block.documents)), np.array(end, np.int64)

        def step(cursor, _):
            size, end = _stateless(read, [part, cursor], tf.TensorSpec([], tf.int64), tf.TensorSpec([2], tf.int64))
            return end, (cursor, size)

        steps = tf.data.Dataset.range(np.iinfo(np.int64).max)
        blocks = steps.scan(tf.zeros([2], tf.int64), step)
        return blocks.take_while(lambda cursor, size: size != _OVER)

    def _documents(
        self, reader: BlockReader, positions: tf.Tensor, places: bool, recorder: Recorder | None
    ) -> dict[str, tf.Tensor]:
        """Returns the features of the documents at some positions, `[documents, 6]`."""

        def read(positions):
            found = []
            for position in positions:
                document = self._read(reader, position[:3], position[3:5]).documents[position[5]]
                path = path_of(reader.files[position[0]])
                found.append((document.text, path, document.record))
                if recorder is not None:
                    place = where(format_of(path), path, document.record)
                    recorder.add(int(position[0]) + 1, document.record, {"place": place, **document.fields})
            texts, paths, records = zip(*found, strict=True)
            # Arrays of objects, because arrays of bytes end at a NUL.
            return np.array(texts, object), np.array(paths, object), np.array(records, np.int64)

        texts, paths, records = _stateless(
            read, [positions], *(tf.TensorSpec([None], dtype) for dtype in (tf.string, tf.string, tf.int64))
        )
        found = {TEXT: texts} | ({FILE: paths, RECORD: records} if places else {})
        if recorder is not None:
            places = tf.stack([positions[:, 0] + 1, records], axis=1)
            found[DOCUMENT] = tf.ensure_shape(tf.cast(places, tf.int32), [None, PLACE])
        return found

    def _read(self, reader: BlockReader, part: np.ndarray, cursor: np.ndarray, *, counts: bool = False) -> Block:
        try:
            return reader.read(Part(*map(int, part)), Cursor(*map(int, cursor)), counts=counts)
        except Exception as error:
            self._error = error
            raise


def _stateless(
    function: Callable[..., Any], arguments: Sequence[tf.Tensor], *results: tf.TensorSpec
) -> list[tf.Tensor]:
    """Calls Python in a dataset, by a function whose results depend on its arguments alone.

    So tf.data may save the position of the dataset, which it does not if Python may have a state.
    """
    found = tf.numpy_function(function, arguments, [result.dtype for result in results], stateful=False)
    return [tf.ensure_shape(tensor, result.shape) for tensor, result in zip(found, results, strict=True)]
