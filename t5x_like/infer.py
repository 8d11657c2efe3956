"""`t5x_like infer`: predict from, or score, the lines of a file."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import fsspec
import jax
import numpy as np
from absl import logging
from rich.progress import Progress

from t5x_like import initial, partitioning
from t5x_like.data import batches, features
from t5x_like.decoding.greedy import EOS_ID, greedy
from t5x_like.decoding.score import score

_BATCHES_A_PART = 16


def infer(
    *,
    model: Any,
    checkpoint_path: str,
    input_path: str,
    output_path: str,
    mode: Literal["predict", "score"] = "predict",
    data: Any = None,
    task_feature_lengths: Mapping[str, int] | None = None,
    batch_size: int = 32,
    partitioner: partitioning.Partitioner | None = None,
) -> str:
    """Reads text or JSONL, predicts or scores with an encoder-decoder, and writes one JSON object a line.

    An input line is plain text (the inputs), or, in a `.jsonl` file, an object with `inputs` and, to score,
    `targets`. Either is text, for which `data` gives the vocabularies, or a list of token ids, which need none (and
    no TensorFlow). What was finished before an interruption is not computed again.

    Args:
      model: the family's configuration.
      checkpoint_path: a run folder, one of its checkpoints, or a Hugging Face folder.
      input_path: a `.txt` or `.jsonl` file, local or in a bucket.
      output_path: the file to write; it appears when complete.
      mode: `predict` (greedy) or `score` (log-probability of the targets in nats).
      data: a source with `vocabularies()`, or None for token ids.
      task_feature_lengths: the longest `inputs` and `targets` in tokens; longer ones are cut, and counted in a warning.
      batch_size: examples decoded at once.
      partitioner: mesh and rules; all devices by default.

    Returns:
      `output_path`.

    Raises:
      ValueError: a line that is not what it should be, with its number; or a half-finished output of another command.
    """
    if mode not in ("predict", "score"):
        raise ValueError(f"mode={mode!r}: give 'predict' or 'score'")
    lengths = dict(task_feature_lengths or getattr(data, "task_feature_lengths", None) or {})
    if missing := {"inputs", "targets"} - set(lengths):
        raise ValueError(f"TASK_FEATURE_LENGTHS={lengths} lacks {sorted(missing)}")
    if os.path.abspath(input_path) == os.path.abspath(output_path):
        raise ValueError(f"input_path and output_path are both {input_path!r}")
    records = list(read_records(input_path))
    codec = Codec(data.vocabularies() if data is not None else None, lengths)
    examples = [codec.encode(number, record, needs_targets=mode == "score") for number, record in enumerate(records, 1)]
    codec.report()

    partitioner = partitioner or partitioning.Partitioner()
    batch_size = _round_up(batch_size, partitioner.axis_size("batch"))
    config = partitioning.for_platform(model, partitioner.platform)
    network = initial.load_model(checkpoint_path, config, partitioner)
    compute = partitioner.jit(
        (lambda network, batch: greedy(network, batch, max_length=lengths["targets"])) if mode == "predict" else score
    )

    fingerprint = _fingerprint(records, checkpoint_path, mode, lengths, batch_size)
    parts = PartFiles(output_path, fingerprint)
    size = batch_size * _BATCHES_A_PART
    with Progress() as progress:
        bar = progress.add_task(mode, total=len(examples), completed=min(parts.count() * size, len(examples)))
        for part in range(parts.count(), -(-len(examples) // size)):
            rows = []
            for start in range(part * size, min((part + 1) * size, len(examples)), batch_size):
                chunk = examples[start : start + batch_size]
                result = jax.device_get(compute(network, partitioner.put_batch(_batch(chunk, batch_size, lengths))))
                for offset, record in enumerate(records[start : start + batch_size]):
                    rows.append({"index": start + offset, **record, **codec.decode(mode, result, offset)})
                progress.advance(bar, len(chunk))
            parts.write(part, rows)
    parts.finish()
    logging.info("wrote %d lines to %s", len(examples), output_path)
    return output_path


@dataclasses.dataclass
class Codec:
    """Turns records into token ids and results into what is written."""

    vocabularies: Mapping[str, Any] | None
    lengths: Mapping[str, int]
    cut: int = 0

    def encode(self, number: int, record: Mapping[str, Any], *, needs_targets: bool) -> dict[str, list[int]]:
        wanted = ("inputs", "targets") if needs_targets else ("inputs",)
        return {name: self._ids(number, record, name) for name in wanted}

    def _ids(self, number, record, name) -> list[int]:
        if name not in record:
            raise ValueError(f"line {number} has no {name!r}, only {sorted(record)}")
        value = record[name]
        if isinstance(value, str):
            if self.vocabularies is None:
                raise ValueError(
                    f"line {number}: {name!r} is text; give MIXTURE_OR_TASK_NAME for its vocabulary, or token ids"
                )
            value = list(self.vocabularies[name].encode(value)) + [EOS_ID]
        elif not (isinstance(value, list) and all(isinstance(token, int) and token >= 0 for token in value)):
            raise ValueError(f"line {number}: {name!r} must be text or a list of token ids, not {value!r:.80}")
        if len(value) > self.lengths[name]:
            self.cut += 1
            value = value[: self.lengths[name] - 1] + [EOS_ID]
        return value

    def report(self) -> None:
        if self.cut:
            logging.warning("%d sequences were longer than %s and have been cut", self.cut, dict(self.lengths))

    def decode(self, mode: str, result: Any, row: int) -> dict[str, Any]:
        if mode == "score":
            return {"score": float(result[row])}
        tokens = [int(token) for token in result.tokens[row]]
        tokens = tokens[: tokens.index(EOS_ID)] if EOS_ID in tokens else tokens
        shown = self.vocabularies["targets"].decode(tokens) if self.vocabularies is not None else tokens
        return {"prediction": shown, "log_probability": float(result.log_probability[row])}


def read_records(path: str) -> Iterator[dict[str, Any]]:
    """The records of a text or JSONL file.

    Raises:
      ValueError: a line of a `.jsonl` file is not a JSON object; an empty file.
    """
    empty = True
    with fsspec.open(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            empty = False
            if not path.endswith(".jsonl"):
                yield {"inputs": line.rstrip("\n")}
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number} is not JSON: {error}") from error
            if not isinstance(record, dict):
                raise ValueError(f"{path}:{number} must be an object with 'inputs', not {line.strip()!r:.80}")
            yield record
    if empty:
        raise ValueError(f"{path} is empty")


class PartFiles:
    """A large output written part by part, each atomically, and joined at the end: `OUTPUT.parts/000000.jsonl`, …"""

    def __init__(self, output_path: str, fingerprint: str):
        self._filesystem, self._path = fsspec.core.url_to_fs(output_path)
        self._folder = f"{self._path}.parts"
        self._filesystem.makedirs(self._folder, exist_ok=True)
        stamp = f"{self._folder}/command"
        if not self._filesystem.exists(stamp):
            self._write(stamp, fingerprint)
        elif (stored := self._filesystem.cat_file(stamp).decode()) != fingerprint:
            raise ValueError(
                f"{self._folder} holds the unfinished output of another command: {stored}. This one is {fingerprint}. "
                "Delete it, or give another output_path."
            )

    def _part(self, index: int) -> str:
        return f"{self._folder}/{index:06d}.jsonl"

    def count(self) -> int:
        """How many parts are complete."""
        index = 0
        while self._filesystem.exists(self._part(index)):
            index += 1
        return index

    def write(self, index: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._write(self._part(index), "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def _write(self, path: str, text: str) -> None:
        self._filesystem.pipe_file(path + ".writing", text.encode())
        self._filesystem.mv(path + ".writing", path)

    def finish(self) -> None:
        """Joins the parts into the output and removes them."""
        joined = b"".join(self._filesystem.cat_file(self._part(index)) for index in range(self.count()))
        self._write(self._path, joined.decode())
        self._filesystem.rm(self._folder, recursive=True)


def _batch(examples: Sequence[Mapping[str, list[int]]], rows: int, lengths: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Examples padded to `rows` rows as the features of an encoder-decoder."""

    def padded(name):
        array = np.zeros((rows, lengths[name]), np.int32)
        for row, example in enumerate(examples):
            tokens = example.get(name, [])
            array[row, : len(tokens)] = tokens
        return array

    arrays = {"inputs": padded("inputs"), "targets": padded("targets")}
    return batches.from_arrays(features.ENCODER_DECODER, arrays)


def _fingerprint(records, checkpoint_path, mode, lengths, batch_size) -> str:
    digest = hashlib.sha256(json.dumps(records, ensure_ascii=False).encode()).hexdigest()[:16]
    return f"{mode} with {checkpoint_path}, lengths {dict(lengths)}, batches of {batch_size}, input {digest}"


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
