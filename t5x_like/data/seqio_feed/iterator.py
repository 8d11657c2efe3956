"""Iterates over the batches of a tf.data pipeline, and saves and restores its position."""

import contextlib
import dataclasses
import io
import json
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from t5x_like import paths
from t5x_like.data import skipped_records
from t5x_like.data.feed import DataMismatchError, unknown_position
from t5x_like.data.skipped_records import SkippedRecords
from t5x_like.data.token_ids import check_ids
from t5x_like.errors import UserError

_MAGIC = b"t5x_like seqio position 1\n"
_PROGRESS_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class _Position:
    """A position in a pipeline.

    Attributes:
      batches: Number of batches read.
      identity: Properties that must be equal on restoring; see `SeqIOIterator`.
      versions: Properties that may differ on restoring, with a warning.
      files: Zip archive of TensorFlow's checkpoint, or empty if the pipeline cannot be saved.
    """

    batches: int
    identity: Mapping[str, Any]
    versions: Mapping[str, Any]
    files: bytes

    def to_bytes(self) -> bytes:
        """Serializes the position."""
        header = {"batches": self.batches, "identity": self.identity, "versions": self.versions}
        return _MAGIC + json.dumps(header).encode() + b"\n" + self.files

    @classmethod
    def from_bytes(cls, state: bytes) -> "_Position":
        """Deserializes a position.

        Raises:
          DataMismatchError: The bytes are not a position in a SeqIO pipeline.
        """
        if not state.startswith(_MAGIC):
            raise unknown_position(state, "a SeqIO pipeline")
        line, _, files = state[len(_MAGIC) :].partition(b"\n")
        return cls(**json.loads(line), files=files)


class SeqIOIterator:
    """Host iterator over a tf.data pipeline; see `HostIterator`.

    The position is a checkpoint of tf.data, so a restored iterator continues with exactly the same batches. A pipeline
    that calls Python or draws from a stateful random generator cannot be saved. On restoring, such a pipeline is read
    again from the start up to the position. This takes time, and gives the same batches only if the pipeline is
    deterministic.

    Args:
      make_dataset: Function that builds the pipeline, whose elements are batches; always the same pipeline.
      explain_errors: Function that returns a context manager; it converts TensorFlow errors of reading to user errors.
      row_shapes: Model feature -> shape of a row; each batch is checked against it.
      dtypes: Model feature -> dtype; each batch is checked against it.
      id_limits: Model feature -> number of token ids of its vocabulary.
      identity: Properties that must be equal for a position to have the same meaning, such as the number of processes.
      versions: Properties that may differ on restoring, with a warning.

    Attributes:
      can_be_saved: Whether tf.data can save the position; known after the first batch.
    """

    def __init__(
        self,
        make_dataset: Callable[[], tf.data.Dataset],
        *,
        explain_errors: Callable[[], contextlib.AbstractContextManager],
        row_shapes: Mapping[str, tuple[int, ...]],
        dtypes: Mapping[str, str],
        id_limits: Mapping[str, int],
        identity: Mapping[str, Any],
        versions: Mapping[str, Any],
    ):
        self._make_dataset, self._explain_errors, self._row_shapes = make_dataset, explain_errors, dict(row_shapes)
        self._dtypes, self._id_limits = dict(dtypes), dict(id_limits)
        self._identity, self._versions = dict(identity), dict(versions)
        self._batches = 0
        self._skipped = SkippedRecords()
        self._dataset = self._make()
        self._iterator = iter(self._dataset)
        self.can_be_saved = True

    def __iter__(self) -> "SeqIOIterator":
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        with self._explain_errors():
            read = next(self._iterator, None)
        if read is None:
            self._check_not_empty()
            raise StopIteration
        batch = {name: tensor.numpy() for name, tensor in read.items()}
        for name, shape in self._row_shapes.items():
            dtype = self._dtypes[name]
            if batch[name].dtype != np.dtype(dtype) or batch[name].shape[1:] != shape:
                items = " x ".join(map(str, shape))
                raise ValueError(
                    f"{name!r} is {batch[name].dtype}{batch[name].shape}, expected {dtype} rows of {items} items."
                )
        check_ids(batch, self._id_limits, data=str(self._identity.get("task")), holder="its vocabulary")
        self._batches += 1
        if self._batches == 1:
            self._save()  # warns at the start of a run if the pipeline cannot be saved
        return batch

    def _make(self) -> tf.data.Dataset:
        with skipped_records.counted(self._skipped):
            return self._make_dataset()

    def metrics(self, batches: int) -> dict[str, int]:
        """Returns the numbers of bad records and damaged files that this process has skipped since it started.

        Args:
          batches: Not used: the pipeline may have read further.
        """
        return dict(self._skipped.bad)

    def _check_not_empty(self) -> None:
        """Raises if the pipeline has ended before the first batch."""
        if not self._batches:
            task, split, rows = (self._identity.get(name) for name in ("task", "split", "batch_size"))
            raise UserError(
                f"{task}: the split {split!r} has less than one batch of {rows} rows. It is empty, its documents are "
                "too short or skipped, or BATCH_SIZE is too large. Run `t5x_like inspect` to see its examples."
            )

    def state(self) -> bytes:
        """Returns the position after the last batch."""
        return _Position(self._batches, self._identity, self._versions, self._save()).to_bytes()

    def restore(self, state: bytes) -> None:
        """Moves to a position that `state()` returned in this process or another one.

        Raises:
          DataMismatchError: the position was saved in another pipeline; the message lists the known differences.
        """
        position = _Position.from_bytes(state)
        self._check_identity(position.identity)
        for name, value in self._versions.items():
            if (stored := position.versions.get(name)) != value:
                logging.warning("data position: %s was %s when it was saved, and is %s now", name, stored, value)
        if position.files:
            self._iterator = iter(self._dataset)
            with tempfile.TemporaryDirectory() as directory:
                with zipfile.ZipFile(io.BytesIO(position.files)) as archive:
                    archive.extractall(directory)
                try:
                    read = tf.train.Checkpoint(iterator=self._iterator).read(str(Path(directory, "position")))
                    read.assert_consumed()
                except (tf.errors.OpError, AssertionError) as error:
                    raise DataMismatchError(
                        "the data cannot resume from the saved position: the pipeline of the task was another one, in "
                        f"another version of its preprocessors or of t5x_like ({str(error).splitlines()[0]}). Resume "
                        "with this version, or read the data from its beginning with --override_config."
                    ) from error
        else:
            # A new dataset, because the shuffling of the old one would continue from the last iterator.
            self._iterator = iter(self._make())
            self._replay(position.batches)
        self._batches = position.batches

    def _save(self) -> bytes:
        """Returns TensorFlow's checkpoint of the iterator, or empty bytes if the pipeline cannot be saved."""
        if not self.can_be_saved:
            return b""
        stored = io.BytesIO()
        with (
            paths.explain_storage_errors("TMPDIR", tempfile.gettempdir()),
            tempfile.TemporaryDirectory() as directory,
        ):
            try:
                tf.train.Checkpoint(iterator=self._iterator).write(str(Path(directory, "position")))
            except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError) as error:
                self.can_be_saved = False
                logging.warning(
                    "%s: the position in the data cannot be saved. When the run resumes, it reads the data again from "
                    "the start. A preprocessor or a source calls Python (py_function, numpy_function, from_generator) "
                    "or draws from stateful tf.random: %s",
                    self._identity.get("task"),
                    str(error).splitlines()[0],
                )
                return b""
            with zipfile.ZipFile(stored, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                for path in sorted(Path(directory).iterdir()):
                    archive.write(path, path.name)
        return stored.getvalue()

    def _check_identity(self, stored: Mapping[str, Any]) -> None:
        now = self._identity
        differ = [name for name in now | dict(stored) if stored.get(name) != now.get(name)]
        if not differ:
            return
        changes = "; ".join(f"{name} was {stored.get(name)}, is {now.get(name)}" for name in differ)
        reason = ""
        if "process_count" in differ:
            count = stored.get("process_count")
            reason = (
                f" A live SeqIO pipeline is sharded over the processes: resume with {count}. A run that reads a cache "
                "(t5x_like cache, then --gin_file=data/cached.gin) resumes with any number."
            )
        raise DataMismatchError(f"the data cannot resume from the saved position: {changes}.{reason}")

    def _replay(self, batches: int) -> None:
        started = logged = time.monotonic()
        logging.info("reading %d batches again to reach the saved position", batches)
        for done in range(batches):
            next(self._iterator)
            if time.monotonic() - logged > _PROGRESS_SECONDS:
                logged = time.monotonic()
                left = (logged - started) / (done + 1) * (batches - done - 1)
                logging.info("read %d of %d batches again, %.0f s left", done + 1, batches, left)
