"""`t5x_like infer`: predicts from, or scores, the records of a file, or the prompts of a terminal."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
from absl import logging

from t5x_like import partitioning, paths
from t5x_like.data import specs
from t5x_like.data.records import Record
from t5x_like.data.source import DataSource
from t5x_like.decoding.part_files import PartFiles
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.inference import interactive as terminal
from t5x_like.inference import windows
from t5x_like.inference.output import StandardOutput
from t5x_like.inference.predictors import PREDICT, SCORE, Predictor, TextOptions, TextPredictor, predictor_for
from t5x_like.inference.records import STANDARD, TEXT_FIELD, read, read_standard_input
from t5x_like.inference.runner import Runner
from t5x_like.models.base import ModelConfig, for_platform
from t5x_like.objectives.base import Objective
from t5x_like.runtime import distributed
from t5x_like.training import checkpoint_choice, run_tokenizer, run_vocabulary


@distributed.with_watchdog()
def infer(
    *,
    model: ModelConfig,
    checkpoint_path: str,
    input_path: str | None = None,
    output_path: str | None = None,
    overwrite: bool = False,
    interactive: bool = False,
    checkpoint: str | int = "latest",
    mode: Literal["predict", "score"] = "predict",
    objective: Objective | None = None,
    data: DataSource | None = None,
    task_feature_lengths: Mapping[str, int] | None = None,
    eos_id: int | None = None,
    score_eos: bool = False,
    per_position: bool = False,
    decoding: Decoding = Decoding(),  # noqa: B008 (frozen)
    seed: int = 0,
    batch_size: int = 32,
    other_vocabulary: bool = False,
    partitioner: partitioning.Partitioner | None = None,
) -> str | None:
    """Reads the records of a file, predicts or scores, and writes one JSON object per record.

    The output has the fields of each record and `prediction`. An objective with a head predicts labels, scores, tags,
    choices or spans; `inference/head_outputs.py` lists the fields. Other objectives generate text: an encoder-decoder
    generates targets for the inputs; a decoder continues the inputs as its prompt.

    The fields of a record are the columns of the task's source, such as `sentence`, and the preprocessors of the task
    make examples of them. Labels may be missing. Instead of these columns, records for an objective that generates text
    may have `inputs` and, to score, `targets`: text, which the vocabularies of `data` encode, or lists of token ids,
    which need neither vocabularies nor TensorFlow. A line of a `.txt` file is such an `inputs`, or else the only text
    column of the task.

    Batches have examples of similar length and are as long as the longest one, rounded up to 16, 32, 64, …. Several
    processes share the records; the output is in the order of the records. After an interruption, finished parts of it
    are not computed again.

    Args:
      model: Configuration of the model.
      checkpoint_path: A run directory, one of its checkpoints, a Hugging Face directory, or a T5X checkpoint.
      input_path: A `.txt`, `.jsonl`, `.csv` or `.tsv` file, local or in a bucket, or `-` for standard input.
      output_path: The file to write, or `-` for standard output. A file appears when it is complete.
      overwrite: Whether to replace an existing output file.
      interactive: Whether to answer the prompts of a terminal, instead of reading and writing files.
      checkpoint: Which checkpoint of a run to use: `latest`, `best` (by its evaluation), or a step.
      mode: `predict`, or `score`: log-probability of the targets in nats, their number of tokens, and whether each is
        the most probable one.
      objective: The training objective, which determines what is predicted, and the layout of inputs and targets in a
        row. The default is the layout of an encoder-decoder.
      data: The task, or a source with only a vocabulary. Records of token ids do not need it.
      task_feature_lengths: Maximum lengths of `inputs` and `targets` in tokens. Longer sequences are truncated, with a
        warning.
      eos_id: Token that ends a sequence. The default is that of the vocabulary, and for token ids that of the special
        tokens of the model, or 1.
      score_eos: Whether the field `targets` of a record, if it is text, is scored with EOS at its end. Targets that the
        task makes are scored as it makes them.
      per_position: Whether the output of mode `score` has `token_scores`, the log-probability of each token.
      decoding: How text is generated. The default is greedy.
      seed: Seed of sampling. Samples of a record depend on the seed and the index of the record alone.
      batch_size: Examples per batch.
      other_vocabulary: Whether text may be encoded with another vocabulary than that of the model. This is an error
        otherwise.
      partitioner: Mesh and rules; all devices by default.

    Returns:
      `output_path`; None if interactive.

    Raises:
      UserError: A setting or a record is invalid; the message has its line. Or the output file, or the unfinished
        output of another command, exists.
      ProcessLost: Another process has exited.
    """
    # ---- Settings ---------------------------------------------------------------------------------------------------
    _check(mode, input_path, output_path, interactive)
    if output_path not in (None, STANDARD):
        paths.check_output_file("OUTPUT_PATH", output_path, overwrite=overwrite)
    _check_scoring(mode, score_eos=score_eos, per_position=per_position)
    partitioner = partitioner or partitioning.Partitioner()
    config = for_platform(model, partitioner.platform)
    lengths = dict(task_feature_lengths or getattr(data, "task_feature_lengths", None) or {})
    options = TextOptions(mode, eos_id, score_eos, per_position, decoding)
    vocabulary = None if other_vocabulary else run_vocabulary.of_text(checkpoint_path, data)
    predictor = predictor_for(config, objective, data, lengths, options, vocabulary)
    if interactive:
        predictor.examples(terminal.PATH, [Record(1, {TEXT_FIELD: "prompt"})])  # raises if text cannot be encoded
        checkpoint_path = checkpoint_choice.choose_together(checkpoint_path, checkpoint)
        if not other_vocabulary and vocabulary is None:
            _check_vocabulary(checkpoint_path, objective, data)
        _converse(predictor, predictor.load(checkpoint_path, partitioner), partitioner, decoding, seed)
        return None

    # ---- Records: all of them are checked before the parameters are loaded -----------------------------------------
    path, records = read_standard_input() if input_path == STANDARD else (input_path, read(input_path))
    checkpoint_path = checkpoint_choice.choose_together(checkpoint_path, checkpoint)
    examples = predictor.examples(path, records)
    is_checked = vocabulary is not None and TEXT_FIELD in records[0].values  # that of the run
    if not (other_vocabulary or is_checked or all(map(_is_token_ids, records))):
        _check_vocabulary(checkpoint_path, objective, data)

    # ---- Output: the ranges of records that an interrupted command has not written ---------------------------------
    fingerprint = _fingerprint(records, data, checkpoint_path, lengths, batch_size, options, seed)
    output = StandardOutput() if output_path == STANDARD else PartFiles(output_path)
    ranges = windows.open_output(output, len(records), batch_size, fingerprint)

    # ---- Results ----------------------------------------------------------------------------------------------------
    distributed.heartbeat(f"the parameters of {checkpoint_path}")
    runner = Runner(predictor, predictor.load(checkpoint_path, partitioner), partitioner, batch_size, seed)

    def row(index: int, fields: Mapping[str, Any] | None) -> dict[str, Any]:
        # A record may have a field `index` of its own.
        return {"index": index, **records[index].values, **({"prediction": None} if fields is None else fields)}

    dropped = windows.write_results(runner, examples, len(records), ranges, output, row)
    if dropped and jax.process_index() == 0:
        logging.warning("the preprocessors of the task drop %d records, whose prediction is null", dropped)
    if output_path != STANDARD:
        logging.info("wrote %d lines to %s", len(records), output_path)
    return output_path


def _check(mode: str, input_path: str | None, output_path: str | None, interactive: bool) -> None:
    if mode not in (PREDICT, SCORE):
        raise UserError(f"MODE={mode!r}: unknown. Give 'predict' or 'score'.")
    if interactive:
        if mode == SCORE or input_path or output_path or jax.process_count() > 1:
            raise UserError("--interactive: reads prompts in one process. Omit --input, --output and --mode=score.")
        return
    for flag, path in (("input", input_path), ("output", output_path)):
        if not path:
            raise UserError(
                f"--{flag}: missing. Give a file, or - for standard {flag}; or answer prompts with --interactive."
            )
    if STANDARD in (input_path, output_path) and jax.process_count() > 1:
        flag = "input" if input_path == STANDARD else "output"
        raise UserError(f"--{flag}=-: {jax.process_count()} processes have no standard {flag} in common. Give a file.")
    if input_path != STANDARD and os.path.abspath(input_path) == os.path.abspath(output_path):
        raise UserError(f"OUTPUT_PATH={output_path}: same file as INPUT_PATH. Give another file.")


def _is_token_ids(record: Record) -> bool:
    return isinstance(record.values.get("inputs"), list)


def _check_vocabulary(checkpoint_path: str, objective: Objective | None, data: DataSource | None) -> None:
    if data is not None:
        spec = specs.ENCODER_DECODER if objective is None else objective.features
        run_tokenizer.check_checkpoint(checkpoint_path, data.text_vocabulary(spec))


def _check_scoring(mode: str, **options: bool) -> None:
    for name, value in options.items():
        if value and mode != SCORE:
            raise UserError(f"{name.upper()}=True: only affects scoring. Give MODE=score, or {name.upper()}=False.")


def _converse(
    predictor: Predictor, params: Any, partitioner: partitioning.Partitioner, decoding: Decoding, seed: int
) -> None:
    """Answers the prompts of a terminal. The settings of generation may change; each is compiled once."""
    runners: dict[Decoding, tuple[Predictor, Runner]] = {}

    def respond(record: Record, decoding: Decoding) -> terminal.Answer:
        if decoding not in runners:
            changed = predictor.with_decoding(decoding)
            runners[decoding] = changed, Runner(changed, params, partitioner, 1, seed)
        changed, runner = runners[decoding]
        examples = changed.examples(terminal.PATH, [record])
        results = runner.run(examples, 0, 1, lambda *_: None)
        fields = examples.fields(results).get(0, {"prediction": None})
        return terminal.Answer(fields, examples.tokens(results))

    terminal.converse(respond, decoding, generates=isinstance(predictor, TextPredictor))


def _fingerprint(
    records: Sequence[Record],
    data: DataSource | None,
    checkpoint_path: str,
    lengths: Mapping[str, int],
    batch_size: int,
    options: TextOptions,
    seed: int,
) -> str:
    """Describes everything that the results depend on, so that unfinished output of another command is not resumed."""
    settings = ("mixture_or_task_name", "task_arguments", "vocabulary_path")
    task = {name: getattr(data, name, None) for name in settings}
    values = json.dumps([record.values for record in records], ensure_ascii=False)
    digest = hashlib.sha256(values.encode()).hexdigest()[:16]
    return (
        f"{checkpoint_path}, task {task}, lengths {dict(lengths)}, batches of {batch_size}, seed {seed}, "
        f"input {digest}, {options}"
    )
