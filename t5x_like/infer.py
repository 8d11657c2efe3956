"""`t5x_like infer`: predict from, or score, the lines of a file."""

import contextlib
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

from t5x_like import partitioning, paths
from t5x_like.data import batches, features
from t5x_like.decoding.greedy import greedy
from t5x_like.decoding.score import score
from t5x_like.errors import UserError
from t5x_like.training import warm_start
from t5x_like.training.program import check_inputs

_BATCHES_A_PART = 16


def infer(
    *,
    model: Any,
    checkpoint_path: str,
    input_path: str,
    output_path: str,
    mode: Literal["predict", "score"] = "predict",
    objective: Any = None,
    data: Any = None,
    task_feature_lengths: Mapping[str, int] | None = None,
    eos_id: int | None = None,
    batch_size: int = 32,
    partitioner: partitioning.Partitioner | None = None,
) -> str:
    """Reads text or JSONL, predicts or scores, and writes one JSON object a line.

    An input line is plain text (the inputs), or, in a `.jsonl` file, an object with `inputs` and, to score,
    `targets`. Either is text, for which `data` gives the vocabularies, or a list of token ids, which need none (and
    no TensorFlow). An encoder-decoder answers the inputs; a decoder goes on with them as its prompt. What was finished
    before an interruption is not computed again.

    Args:
      model: the family's configuration.
      checkpoint_path: a run folder, one of its checkpoints, or a Hugging Face folder.
      input_path: a `.txt` or `.jsonl` file, local or in a bucket.
      output_path: the file to write; it appears when complete.
      mode: `predict` (greedy) or `score` (log-probability of the targets in nats).
      objective: what the network was trained on, which says how inputs and targets lie in a row; an encoder-decoder's
        by default.
      data: a source with `vocabularies()`, for text; records of token ids alone do not use it.
      task_feature_lengths: the longest `inputs` and `targets` in tokens; longer ones are cut, and counted in a warning.
      eos_id: the id that ends a prediction; by default the vocabulary's, or 1 where the records are token ids.
      batch_size: examples decoded at once.
      partitioner: mesh and rules; all devices by default.

    Returns:
      `output_path`.

    Raises:
      UserError: a line that is not what it should be, with its number; or a half-finished output of another command.
    """
    if mode not in ("predict", "score"):
        raise UserError(f"mode={mode!r}: give 'predict' or 'score'")
    lengths = dict(task_feature_lengths or getattr(data, "task_feature_lengths", None) or {})
    if missing := {"inputs", "targets"} - set(lengths):
        raise UserError(
            f"TASK_FEATURE_LENGTHS={lengths}: no length for {', '.join(sorted(missing))}. Give both; for a decoder, "
            "inputs are prompts and targets are continuations: "
            "--gin.TASK_FEATURE_LENGTHS=\"{'inputs': 512, 'targets': 128}\""
        )
    if os.path.abspath(input_path) == os.path.abspath(output_path):
        raise UserError(f"input_path and output_path are both {input_path!r}")
    layout = Layout.of(features.ENCODER_DECODER if objective is None else objective.features)
    records = list(read_records(input_path))
    codec = Codec(_vocabularies(data, records), lengths, layout, eos_id)
    examples = [codec.encode(number, record, needs_targets=mode == "score") for number, record in enumerate(records, 1)]
    codec.report()
    _check_ids(examples, model.vocab_size)

    partitioner = partitioner or partitioning.Partitioner()
    batch_size = _round_up(batch_size, partitioner.axis_size("batch"))
    config = partitioning.for_platform(model, partitioner.platform)
    check_inputs(config, objective, layout.shapes(batch_size, lengths))
    network = warm_start.load_model(checkpoint_path, config, partitioner)

    def predict(network, batch):
        bos_id = layout.bos[0] if layout.bos else features.BOS_ID
        return greedy(network, batch, max_length=lengths["targets"], bos_id=bos_id, eos_id=codec.eos_id)

    compute = partitioner.jit(predict if mode == "predict" else score)

    fingerprint = _fingerprint(records, checkpoint_path, mode, lengths, batch_size)
    parts = PartFiles(output_path, fingerprint)
    size = batch_size * _BATCHES_A_PART
    with Progress() as progress:
        bar = progress.add_task(mode, total=len(examples), completed=min(parts.count() * size, len(examples)))
        for part in range(parts.count(), -(-len(examples) // size)):
            rows = []
            for start in range(part * size, min((part + 1) * size, len(examples)), batch_size):
                chunk = examples[start : start + batch_size]
                batch = layout.batch(chunk, batch_size, lengths)
                result = jax.device_get(compute(network, partitioner.put_batch(batch)))
                decoded = codec.decode(mode, result)
                for offset, record in enumerate(records[start : start + batch_size]):
                    rows.append({"index": start + offset, **record, **decoded[offset]})
                progress.advance(bar, len(chunk))
            parts.write(part, rows)
    parts.finish()
    logging.info("wrote %d lines to %s", len(examples), output_path)
    return output_path


@dataclasses.dataclass(frozen=True)
class Layout:
    """How inputs and targets lie in the rows of a batch.

    Attributes:
      encoder: whether inputs go into an encoder of their own; elsewhere the targets follow them.
      text_to_text: whether inputs end in EOS, as those of text-to-text tasks do; a text that is continued does not.
      bos: what the decoder reads first.
      prefix: whether the decoder reads them all at once.
    """

    encoder: bool = True
    text_to_text: bool = True
    bos: tuple[int, ...] = (features.BOS_ID,)
    prefix: bool = False

    @classmethod
    def of(cls, spec: features.FeatureSpec) -> "Layout":
        """That of a spec.

        Raises:
          UserError: there is no decoder to predict tokens.
        """
        roles = {feature.name: feature.role for feature in spec.features}
        if "decoder_input_tokens" not in roles:
            raise UserError(
                f"the objective reads {', '.join(roles)}: there is no decoder, which infer needs to predict or score"
            )
        return cls(
            encoder="encoder_input_tokens" in roles,
            text_to_text="inputs" in spec.task_features,
            bos=(spec.bos_id,) if roles["decoder_input_tokens"] == "shifted" else (),
            prefix="decoder_prefix" in roles,
        )

    def shapes(self, rows: int, lengths: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Feature -> shape of a batch to predict from; arguments as for `batch`."""
        return {name: array.shape for name, array in self.batch([{"inputs": [1]}], rows, lengths).items()}

    def batch(
        self, examples: Sequence[Mapping[str, list[int]]], rows: int, lengths: Mapping[str, int]
    ) -> dict[str, np.ndarray]:
        """Examples padded to `rows` rows, each array int32 `[rows, length]`.

        Args:
          examples: `inputs`, and `targets` where they are to be scored.
          rows: as many as there are examples, or more.
          lengths: of `inputs` and `targets`, the longest.
        """
        if self.encoder:
            sequences = {name: [example.get(name, []) for example in examples] for name in ("inputs", "targets")}
            spec = dataclasses.replace(features.ENCODER_DECODER, bos_id=self.bos[0])
            return batches.from_arrays(
                spec,
                {name: _padded(given, rows, lengths[name]) for name, given in sequences.items()},
                counts={name: [*map(len, given), *[0] * (rows - len(given))] for name, given in sequences.items()},
            )
        prompts = [[*self.bos, *example["inputs"]] for example in examples]
        room = len(self.bos) + lengths["inputs"]
        wholes = prompts
        if scored := "targets" in examples[0]:
            wholes = [prompt + example["targets"] for prompt, example in zip(prompts, examples, strict=True)]
            room += lengths["targets"] - 1
        read = [whole[:-1] for whole in wholes] if scored else wholes
        columns = {"decoder_input_tokens": read, "decoder_segment_ids": [[1] * len(row) for row in read]}
        if self.prefix:
            columns["decoder_prefix"] = [[1] * len(prompt) for prompt in prompts]
        if scored:
            columns["decoder_target_tokens"] = [whole[1:] for whole in wholes]
            columns["decoder_loss_weights"] = [
                [int(place + 1 >= len(prompt)) for place in range(len(row))]
                for prompt, row in zip(prompts, read, strict=True)
            ]
        return {name: _padded(column, rows, room) for name, column in columns.items()}


def _padded(sequences: Sequence[Sequence[int]], rows: int, length: int) -> np.ndarray:
    array = np.zeros((rows, length), np.int32)
    for row, sequence in enumerate(sequences):
        array[row, : len(sequence)] = sequence
    return array


class Codec:
    """Turns records into token ids and results into what is written.

    Attributes:
      eos_id: what ends text.
      cut: how many sequences were too long.
    """

    def __init__(
        self,
        vocabularies: Mapping[str, Any] | None,
        lengths: Mapping[str, int],
        layout: Layout = Layout(),  # noqa: B008 (frozen)
        eos_id: int | None = None,
    ):
        """Args:
        vocabularies: of `targets`, and of `inputs` where they have another one; None for token ids.
        lengths: of `inputs` and `targets`, the longest.
        layout: says whether inputs end in EOS, and whether they may be empty.
        eos_id: None for the vocabulary's, or 1.
        """
        self._vocabularies, self._lengths, self._layout = vocabularies, lengths, layout
        if eos_id is None and vocabularies is not None:
            eos_id = vocabularies["targets"].eos_id
        self.eos_id, self.cut = features.EOS_ID if eos_id is None else eos_id, 0

    def encode(self, number: int, record: Mapping[str, Any], *, needs_targets: bool) -> dict[str, list[int]]:
        wanted = ("inputs", "targets") if needs_targets else ("inputs",)
        example = {name: self._ids(number, record, name) for name in wanted}
        if not (self._layout.encoder or self._layout.bos or example["inputs"]):
            raise UserError(f"line {number}: 'inputs' is empty, and this objective has no BOS to go on from")
        return example

    def _ids(self, number, record, name) -> list[int]:
        if name not in record:
            raise UserError(f"line {number} has no {name!r}, only {sorted(record)}")
        value, length = record[name], self._lengths[name]
        ended = name == "targets" or self._layout.text_to_text
        if isinstance(value, str):
            if self._vocabularies is None:
                raise UserError(
                    f"line {number}: {name!r} is text; give MIXTURE_OR_TASK_NAME for its vocabulary, or token ids"
                )
            vocabulary = self._vocabularies.get(name) or self._vocabularies["targets"]
            value = list(vocabulary.encode(value)) + [self.eos_id] * ended
        elif not (isinstance(value, list) and all(isinstance(token, int) and token >= 0 for token in value)):
            raise UserError(f"line {number}: {name!r} must be text or a list of token ids, not {value!r:.80}")
        if len(value) > length:
            self.cut += 1
            # A text is continued from its end.
            value = value[: length - 1] + [self.eos_id] if ended else value[-length:]
        return value

    def report(self) -> None:
        if self.cut:
            logging.warning("%d sequences were longer than %s and have been cut", self.cut, dict(self._lengths))

    def decode(self, mode: str, result: Any) -> list[dict[str, Any]]:
        """What is written of each row of a result, which is on the host."""
        if mode == "score":
            return [{"score": float(value)} for value in result]
        decode = self._vocabularies["targets"].decode if self._vocabularies is not None else list
        return [
            {"prediction": decode(tokens), "log_probability": float(log_probability)}
            for tokens, log_probability in zip(result.token_ids(self.eos_id), result.log_probability, strict=True)
        ]


def _check_ids(examples: Sequence[Mapping[str, Sequence[int]]], vocab_size: int) -> None:
    """Checks that token ids are in the vocabulary: an embedding lookup would return NaN without an error.

    Raises:
      UserError: naming the line, the field and the id.
    """
    for number, example in enumerate(examples, 1):
        for name, ids in example.items():
            if ids and max(ids) >= vocab_size:
                raise UserError(
                    f"line {number}: token id {max(ids)} in {name!r}: the model only has the ids 0 … {vocab_size - 1}. "
                    "Correct the ids, or give the vocabulary that the model was trained with"
                )


def _vocabularies(data: Any, records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The vocabularies for the text in the records; None where they hold nothing but token ids.

    Raises:
      UserError: there is text and no task that says how it is tokenized.
    """
    if not any(isinstance(record.get(name), str) for record in records for name in ("inputs", "targets")):
        return None
    if data is None or not getattr(data, "mixture_or_task_name", True):
        raise UserError(
            "INPUT_PATH: contains text, but no task defines its vocabulary. Give --gin.MIXTURE_OR_TASK_NAME=…, or "
            "token ids in a .jsonl file"
        )
    return data.vocabularies()


def read_records(path: str) -> Iterator[dict[str, Any]]:
    """The records of a text or JSONL file.

    Raises:
      UserError: a line of a `.jsonl` file is not a JSON object; an empty file.
    """
    empty = True
    with _as_text(path), fsspec.open(path, "rt", encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            empty = False
            if not path.endswith(".jsonl"):
                yield {"inputs": line.rstrip("\n")}
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{path}:{number} is not JSON: {error}") from error
            if not isinstance(record, dict):
                raise UserError(f"{path}:{number} must be an object with 'inputs', not {line.strip()!r:.80}")
            yield record
    if empty:
        raise UserError(f"{path} is empty")


@contextlib.contextmanager
def _as_text(path: str) -> Iterator[None]:
    with paths.explain_path_errors("INPUT_PATH", path):
        try:
            yield
        except UnicodeDecodeError as error:
            raise UserError(f"INPUT_PATH={path}: not UTF-8 text ({error}). Give a .txt or .jsonl file") from error


class PartFiles:
    """A large output written part by part, each atomically, and joined at the end: `OUTPUT.parts/000000.jsonl`, …"""

    def __init__(self, output_path: str, fingerprint: str):
        self._filesystem, self._path = fsspec.core.url_to_fs(output_path)
        self._folder = f"{self._path}.parts"
        with paths.explain_path_errors("OUTPUT_PATH", output_path):
            self._filesystem.makedirs(self._folder, exist_ok=True)
        stamp = f"{self._folder}/command"
        if not self._filesystem.exists(stamp):
            self._write(stamp, fingerprint)
        elif (stored := self._filesystem.cat_file(stamp).decode()) != fingerprint:
            raise UserError(
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


def _fingerprint(records, checkpoint_path, mode, lengths, batch_size) -> str:
    digest = hashlib.sha256(json.dumps(records, ensure_ascii=False).encode()).hexdigest()[:16]
    return f"{mode} with {checkpoint_path}, lengths {dict(lengths)}, batches of {batch_size}, input {digest}"


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
