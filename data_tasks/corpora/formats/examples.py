"""Files of `tf.train.Example`, as TensorFlow Datasets and SeqIO write them: TFRecord and ArrayRecord."""

import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import fsspec
import google_crc32c
from array_record.python.array_record_module import ArrayRecordReader

from data_tasks.corpora import text_lines
from data_tasks.corpora.compression import decompress, is_damage
from data_tasks.corpora.formats.base import BadRecord, Cursor, Reading, Record, damaged
from data_tasks.corpora.text_lines import DamagedFile
from t5x_like.errors import UserError

# TensorFlow Datasets puts the number of the shard after the suffix, such as c4-train.tfrecord-00000-of-01024.
_SHARD = r"(-\d+-of-\d+)?$"
_MASK = 0xA282EAD8  # of the checksums of TFRecord
# The defaults read ahead 16 MiB in each of many threads.
_SEQUENTIAL = "readahead_buffer_size:1M,max_parallelism:1"


class _Examples:
    """What both formats share: a record is a serialized example."""

    first = 0
    place = "{path}, record {number} (from 0)"

    def check_installed(self) -> None:
        """Needs no package."""

    def text(self, raw: bytes | BadRecord | None, reading: Reading) -> bytes:
        """Returns the value of the feature of an example; see `Format`."""
        if isinstance(raw, BadRecord):
            raise raw
        if raw is None:
            raise BadRecord(text_lines.too_long("record"))
        features = _features(raw)
        if reading.text_column not in features:
            names = ", ".join(map(repr, sorted(features))) or "none"
            raise BadRecord(
                f"the example has no feature {reading.text_column!r} (TEXT_COLUMN), its features are {names}"
            )
        values = features[reading.text_column].bytes_list.value
        if len(values) != 1:
            raise BadRecord(f"the feature {reading.text_column!r} has {len(values)} strings instead of one")
        return values[0]

    def fields(self, raw: bytes, reading: Reading) -> dict[str, str]:
        """Returns other features of an example that are one string; see `Format`."""
        features = _features(raw) if reading.fields else {}
        found = {name: features[name].bytes_list.value for name in reading.fields if name in features}
        return {name: values[0].decode("utf-8", "replace") for name, values in found.items() if len(values) == 1}


class TFRecord(_Examples):
    """Examples in TFRecord files."""

    description = "TFRecord of tf.train.Example: .tfrecord .tfrecords"
    names = re.compile(r"\.tfrecords?" + _SHARD)
    may_be_compressed = True

    def records(self, file: fsspec.core.OpenFile, start: Cursor, reading: Reading) -> Iterator[Record]:
        """Yields the records, whose checksums are checked; see `Format`."""
        number, offset = start
        try:
            with file as stored:
                contents = decompress(stored, file.path, offset)
                while header := contents.read(12):
                    size, checksum = struct.unpack("<QI", header)
                    if _checksum(header[:8]) != checksum:
                        raise EOFError("the checksum of the length does not match")
                    raw = _read(contents, size)
                    if raw is not None and _checksum(raw) != struct.unpack("<I", contents.read(4))[0]:
                        raw = damaged(ValueError("its checksum does not match"))
                    offset, number = offset + 16 + size, number + 1
                    yield Record(number - 1, Cursor(number, offset), raw, size)
        except Exception as error:
            if not is_damage(error) and not isinstance(error, struct.error):
                raise
            raise DamagedFile(
                f"{file.path}: the file is damaged or not complete at byte {offset:,}, record {number:,} ({error}). "
                "Copy the file again."
            ) from error


class ArrayRecord(_Examples):
    """Examples in ArrayRecord files."""

    description = "ArrayRecord of tf.train.Example: .array_record .arrayrecord"
    names = re.compile(r"\.array_?record" + _SHARD)
    may_be_compressed = False

    def records(self, file: fsspec.core.OpenFile, start: Cursor, reading: Reading) -> Iterator[Record]:
        """Yields the records by their number; see `Format`."""
        path = file.fs.unstrip_protocol(file.path).removeprefix("file://").removeprefix("local://")
        if "://" in path and not path.startswith("gs://"):
            raise UserError(f"{path}: ArrayRecord reads local paths and gs:// only. Copy the file to one of them.")
        if not file.fs.exists(file.path):
            raise FileNotFoundError(path)
        errors = (ValueError, RuntimeError, IndexError)
        try:
            reader = _array_record_reader(path, start.record)
            records = range(start.record, reader.num_records())
        except errors as error:
            raise DamagedFile(f"{path}: the file is damaged or not complete ({error}). Copy the file again.") from error
        for number in records:
            try:
                reader = reader or _array_record_reader(path, number)
                raw = reader.read()
            except errors as error:
                raw, reader = damaged(error), None  # it reads nothing more after an error
            yield Record(number, Cursor(number + 1), raw, len(raw) if reader else 1)
        if reader is not None:
            reader.close()


def _array_record_reader(path: str, record: int) -> ArrayRecordReader:
    reader = ArrayRecordReader(path, _SEQUENTIAL)
    reader.seek(record)
    return reader


def _features(raw: bytes) -> Mapping[str, Any]:
    """Returns the features of a serialized example.

    Raises:
      BadRecord: it is not one.
    """
    from tensorflow.core.example.example_pb2 import Example  # TensorFlow is imported for these formats alone

    try:
        return Example.FromString(raw).features.feature
    except Exception as error:  # the decoders of protobuf raise errors of their own
        raise BadRecord("the record is not a tf.train.Example") from error


def _read(contents: BinaryIO, size: int) -> bytes | None:
    """Reads a record, or skips one that is too long."""
    if size <= text_lines.MAX_LINE_BYTES:
        raw = contents.read(size)
        if len(raw) < size:
            raise EOFError(f"{len(raw):,} of {size:,} bytes of the record")
        return raw
    left = size + 4
    while left:
        if not (piece := contents.read(min(left, 1 << 20))):
            raise EOFError(f"{left:,} bytes of the record are missing")
        left -= len(piece)
    return None


def _checksum(data: bytes) -> int:
    value = google_crc32c.value(data)
    return ((value >> 15 | value << 17) + _MASK) & 0xFFFFFFFF


FORMATS = (TFRecord(), ArrayRecord())
