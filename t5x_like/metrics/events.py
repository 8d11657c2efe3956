"""Writes scalars to TensorBoard event files.

No library is used: tensorboardX imports torch if it is installed, which takes seconds at each start, and its writer
thread dies on a full disk. TensorFlow is not always installed. A scalar only needs five fields of two messages:
https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto and summary.proto, in
records as https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details describes them.
"""

import os
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Mapping

import google_crc32c
import numpy as np
from absl import logging

from t5x_like import paths

# Field numbers and wire types of protocol buffers.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SESSION_START = 1
_MASK_DELTA = 0xA282EAD8


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _field(number: int, kind: int, value: bytes) -> bytes:
    size = _varint(len(value)) if kind == _BYTES else b""
    return _varint(number << 3 | kind) + size + value


def _event(step: int, *fields: bytes) -> bytes:
    wall_time = _field(1, _FIXED64, struct.pack("<d", time.time()))
    return wall_time + _field(2, _VARINT, _varint(step)) + b"".join(fields)


def _scalars(values: Mapping[str, float]) -> bytes:
    """Encodes the field `summary` of an event."""
    with np.errstate(over="ignore"):  # values beyond float32 become infinity
        encoded = {tag: np.asarray(value).astype("<f4").tobytes() for tag, value in values.items()}
    summary = b"".join(
        _field(1, _BYTES, _field(1, _BYTES, tag.encode()) + _field(2, _FIXED32, value))
        for tag, value in encoded.items()
    )
    return _field(5, _BYTES, summary)


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _masked_crc(length) + event + _masked_crc(event)


class EventFiles:
    """Writes scalars named `split/name` to event files in `MODEL_DIR/tensorboard`.

    Event files are append-only. After a rewind, a new file marks the step from which it replaces the older ones. For a
    bucket, the file is written locally and copied on each flush.

    If the files cannot be written, one warning is logged and training continues without them.

    Args:
      model_dir: The run directory, local or in a bucket.
    """

    def __init__(self, model_dir: str):
        self._target = paths.join(model_dir, "tensorboard")
        self._directory = str(paths.local(self._target)) if paths.is_local(model_dir) else None
        self._temporary: str | None = None
        self._file = None

    def rewind(self, step: int) -> None:
        """Starts a file whose events replace those after `step`."""
        self.close()
        try:
            if self._directory is None:
                self._temporary = tempfile.mkdtemp(prefix="t5x_like_tensorboard_")
            directory = self._directory or self._temporary
            os.makedirs(directory, exist_ok=True)
            # TensorBoard reads files in the order of their names, so starts within a second need different names.
            name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
            self._file = open(os.path.join(directory, name), "ab", buffering=0)  # noqa: SIM115 (closed by close)
        except OSError as error:
            self._give_up(error)
        self._write(_event(0, _field(3, _BYTES, b"brain.Event:2")))
        self._write(_event(step + 1, _field(7, _BYTES, _field(1, _VARINT, _varint(_SESSION_START)))))

    def append(self, step: int, split: str, scalars: Mapping[str, float]) -> None:
        """Adds the scalars of a step."""
        self._write(_event(step, _scalars({f"{split}/{name}": value for name, value in scalars.items()})))

    def flush(self) -> None:
        """Copies the file to the bucket, if MODEL_DIR is in one."""
        if self._file is None or not self._temporary:
            return
        try:
            with open(self._file.name, "rb") as file:
                paths.write_atomic(paths.join(self._target, os.path.basename(self._file.name)), file.read())
        except Exception as error:  # each store raises its own errors
            self._give_up(error)

    def close(self) -> None:
        """Flushes and closes the file."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def _write(self, event: bytes) -> None:
        if self._file is None:
            return
        record = _record(event)
        try:
            written = self._file.write(record)
        except OSError as error:
            self._give_up(error)
        else:
            if written < len(record):
                self._give_up(OSError(f"{written} of {len(record)} bytes were written"))

    def _give_up(self, error: Exception) -> None:
        logging.warning("%s cannot be written: %s. Training continues without TensorBoard", self._target, error)
        if self._file is not None:
            self._file.close()
            self._file = None
