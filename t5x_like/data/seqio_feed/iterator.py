"""Batches of a tf.data pipeline as arrays, and the position in it as bytes."""

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

from t5x_like.data.feed import DataMismatchError
from t5x_like.data.token_ids import check_ids
from t5x_like.errors import UserError

_MAGIC = b"t5x_like seqio position 1\n"
_PROGRESS_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class _Position:
    """What a state holds: how many batches have been read, whose they are, and TensorFlow's files if there are any."""

    batches: int
    identity: Mapping[str, Any]
    versions: Mapping[str, Any]
    files: bytes

    def to_bytes(self) -> bytes:
        header = {"batches": self.batches, "identity": self.identity, "versions": self.versions}
        return _MAGIC + json.dumps(header).encode() + b"\n" + self.files

    @classmethod
    def from_bytes(cls, state: bytes) -> "_Position":
        if not state.startswith(_MAGIC):
            raise ValueError(
                f"{len(state)} bytes that begin with {state[:24]!r} are not a position in a SeqIO pipeline"
            )
        line, _, files = state[len(_MAGIC) :].partition(b"\n")
        return cls(**json.loads(line), files=files)


class SeqIOIterator:
    """A host iterator: `__next__`, `state`, `restore`.

    The position is tf.data's own checkpoint, exact to the last bit. A pipeline that cannot be saved (it calls Python,
    or draws from a stateful random generator) is read again from its seed up to the position instead, which takes time
    and repeats the same batches only where the pipeline itself does.

    Attributes:
      can_be_saved: whether the position is tf.data's own; known after the first batch.
    """

    def __init__(
        self,
        make_dataset: Callable[[], tf.data.Dataset],
        *,
        explain_errors: Callable[[], contextlib.AbstractContextManager],
        lengths: Mapping[str, int],
        dtypes: Mapping[str, str],
        id_limits: Mapping[str, int],
        identity: Mapping[str, Any],
        versions: Mapping[str, Any],
    ):
        """Args:
        make_dataset: gives the pipeline, its elements batched, always the same one.
        explain_errors: converts TensorFlow's errors while a batch is read into user errors.
        lengths: model feature -> tokens; what each batch is checked against.
        dtypes: model feature -> the type of its values.
        id_limits: model feature -> how many token ids its vocabulary has.
        identity: what must be the same for a position to mean the same, such as the number of processes.
        versions: what may be different on restoring, with a warning.
        """
        self._make_dataset, self._explain_errors, self._lengths = make_dataset, explain_errors, dict(lengths)
        self._dtypes, self._id_limits = dict(dtypes), dict(id_limits)
        self._identity, self._versions = dict(identity), dict(versions)
        self._batches = 0
        self._dataset = make_dataset()
        self._iterator = iter(self._dataset)
        self.can_be_saved = True

    def __iter__(self) -> "SeqIOIterator":
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        with self._explain_errors():
            read = next(self._iterator, None)
        if read is None:
            self._refuse_nothing()
            raise StopIteration
        batch = {name: tensor.numpy() for name, tensor in read.items()}
        for name, length in self._lengths.items():
            dtype = self._dtypes[name]
            if batch[name].dtype != np.dtype(dtype) or batch[name].shape[1:] != (length,):
                raise ValueError(f"{name} is {batch[name].dtype}{batch[name].shape}, expected {dtype} rows of {length}")
        check_ids(batch, self._id_limits, data=str(self._identity.get("task")), holder="its vocabulary")
        self._batches += 1
        if self._batches == 1:
            self._save()  # so that whoever has a pipeline that cannot be saved hears of it at the start
        return batch

    def _refuse_nothing(self) -> None:
        if not self._batches:
            task, split, rows = (self._identity.get(name) for name in ("task", "split", "batch_size"))
            raise UserError(
                f"{task}: the split {split!r} has less than one batch of {rows} rows: it is empty, its documents are "
                "too short or skipped, or BATCH_SIZE is too large. Run `t5x_like inspect` to see its examples"
            )

    def state(self) -> bytes:
        """The position after the last batch."""
        return _Position(self._batches, self._identity, self._versions, self._save()).to_bytes()

    def restore(self, state: bytes) -> None:
        """Goes to a position that `state()` gave, in this process or another one.

        Raises:
          UserError: it is a position in another pipeline; the message says in what they differ.
        """
        position = _Position.from_bytes(state)
        self._refuse_other(position.identity)
        for name, value in self._versions.items():
            if (stored := position.versions.get(name)) != value:
                logging.warning("%s was %s when the data's position was saved and is %s now", name, stored, value)
        if position.files:
            self._iterator = iter(self._dataset)
            with tempfile.TemporaryDirectory() as folder:
                with zipfile.ZipFile(io.BytesIO(position.files)) as archive:
                    archive.extractall(folder)
                with _without_info():
                    tf.train.Checkpoint(iterator=self._iterator).read(str(Path(folder, "position"))).assert_consumed()
        else:
            # Not the same dataset once more: its shuffling would go on where the last iterator left it.
            self._iterator = iter(self._make_dataset())
            self._replay(position.batches)
        self._batches = position.batches

    def _save(self) -> bytes:
        """TensorFlow's checkpoint of the iterator; nothing where there can be none."""
        if not self.can_be_saved:
            return b""
        stored = io.BytesIO()
        with tempfile.TemporaryDirectory() as folder:
            try:
                with _without_info():
                    tf.train.Checkpoint(iterator=self._iterator).write(str(Path(folder, "position")))
            except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError) as error:
                self.can_be_saved = False
                logging.warning(
                    "the position in the data of %s cannot be saved: on resuming, batches are read again from the "
                    "start. A preprocessor or a source calls Python (py_function, numpy_function, from_generator) or "
                    "draws from stateful tf.random: %s",
                    self._identity.get("task"),
                    str(error).splitlines()[0],
                )
                return b""
            with zipfile.ZipFile(stored, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                for path in sorted(Path(folder).iterdir()):
                    archive.write(path, path.name)
        return stored.getvalue()

    def _refuse_other(self, stored: Mapping[str, Any]) -> None:
        differ = [name for name in self._identity if stored.get(name) != self._identity[name]]
        if not differ:
            return
        changes = "; ".join(f"{name} was {stored.get(name)}, is {self._identity[name]}" for name in differ)
        why = ""
        if "process_count" in differ:
            why = " A live SeqIO pipeline is divided among the processes and can go on only with as many as before."
        raise DataMismatchError(f"the data cannot go on from the saved position: {changes}.{why}")

    def _replay(self, batches: int) -> None:
        started = told = time.monotonic()
        logging.info("reading %d batches again to reach the position in the data", batches)
        for done in range(batches):
            next(self._iterator)
            if time.monotonic() - told > _PROGRESS_SECONDS:
                told = time.monotonic()
                left = (told - started) / (done + 1) * (batches - done - 1)
                logging.info("read %d of %d batches again, %.0f s left", done + 1, batches, left)


@contextlib.contextmanager
def _without_info():
    """TensorFlow tells how long each save took, in the middle of a progress bar."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(min(verbosity, logging.WARNING))
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
