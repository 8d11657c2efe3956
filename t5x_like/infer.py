"""`t5x_like infer`: predicts from, or scores, the records of a file, or the prompts of a terminal."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
from absl import logging

from t5x_like import paths
from t5x_like.data.records import Record
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.inference import interactive as terminal
from t5x_like.inference import windows
from t5x_like.inference.examples import NO_PREDICTION
from t5x_like.inference.output import StandardOutput
from t5x_like.inference.part_files import PartFiles
from t5x_like.inference.predictors import (
    PREDICT,
    SCORE,
    Predictor,
    TextOptions,
    TextPredictor,
    make_examples,
    predictor_for,
)
from t5x_like.inference.records import STANDARD, TEXT_FIELD, read, read_standard_input
from t5x_like.inference.runner import Runner, fields_of
from t5x_like.runtime import distributed
from t5x_like.stored.loaded import Loaded

# Suffixes of files in other formats than the output's.
_OTHER_FORMATS = (".csv", ".tsv", ".txt", ".xlsx")


@distributed.with_watchdog()
def infer(
    loaded: Loaded,
    *,
    input_path: str | None = None,
    output_path: str | None = None,
    overwrite: bool = False,
    interactive: bool = False,
    mode: Literal["predict", "score"] = "predict",
    eos_id: int | None = None,
    score_eos: bool = False,
    per_position: bool = False,
    separator: str | None = None,
    seed: int = 0,
    batch_size: int = 32,
) -> str | None:
    """Reads the records of a file, predicts or scores, and writes one JSON object per record.

    The output has the fields of each record and `prediction`. An objective with a head predicts labels, scores, tags,
    choices or spans; `inference/head_outputs.py` lists the fields. Other objectives generate text: an encoder-decoder
    generates targets for the inputs; a decoder continues the inputs as its prompt.

    The fields of a record are the columns of the task's source, such as `sentence`, and the preprocessors of the task
    make examples of them. Labels may be missing. Instead of these columns, records for an objective that generates text
    may have `inputs` and, to score, `targets`: text, which the vocabulary of the model encodes, or lists of token ids,
    which need neither vocabularies nor TensorFlow. A line of a `.txt` file is such an `inputs`, or else the only text
    column of the task.

    Batches have examples of similar length and are as long as the longest one, rounded up to 16, 32, 64, …. Several
    processes share the records; the output is in the order of the records. After an interruption, finished parts of it
    are not computed again.

    Args:
      loaded: The model, its objective and its task; see `open_model`. The objective determines what is predicted, and
        the layout of inputs and targets in a row.
      input_path: A `.txt`, `.jsonl`, `.csv` or `.tsv` file, local or in a bucket, or `-` for standard input.
      output_path: The file to write, or `-` for standard output. A file appears when it is complete.
      overwrite: Whether to replace an existing output file.
      interactive: Whether to answer the prompts of a terminal, instead of reading and writing files.
      mode: `predict`, or `score`: log-probability of the targets in nats, their number of tokens, and whether each is
        the most probable one.
      eos_id: Token that ends a sequence. The default is EOS of the vocabulary, and for token ids EOS of the special
        tokens of the model, or 1.
      score_eos: Whether the field `targets` of a record, if it is text, is scored with EOS at its end. Targets that the
        task makes are scored as it makes them.
      per_position: Whether the output of mode `score` has `token_scores`, the log-probability of each token.
      separator: Text between a prompt and the text that a decoder generates. The default is the separator of the
        objective of a run; the model card of an exported decoder states it.
      seed: Seed of sampling. Samples of a record depend on the seed and the index of the record alone.
      batch_size: Examples per batch.

    Returns:
      `output_path`; None if interactive.

    Raises:
      UserError: A setting or a record is invalid; the message has its line. Or the output file, or the unfinished
        output of another command, exists.
      ProcessLost: Another process has exited.
    """
    # ---- Settings ---------------------------------------------------------------------------------------------------
    options = check_settings(
        loaded,
        input_path=input_path,
        output_path=output_path,
        overwrite=overwrite,
        interactive=interactive,
        mode=mode,
        eos_id=eos_id,
        score_eos=score_eos,
        per_position=per_position,
        separator=separator,
    )
    predictor = predictor_for(loaded, options)
    if interactive:
        # Raises if text cannot be encoded.
        make_examples(loaded, predictor, terminal.PATH, [Record(1, {TEXT_FIELD: "prompt"})])
        _converse(loaded, predictor, options, seed)
        return None

    # ---- Records: all of them are checked before the parameters are loaded -----------------------------------------
    path, records = read_standard_input() if input_path == STANDARD else (input_path, read(input_path))
    examples = make_examples(loaded, predictor, path, records)

    # ---- Output: the ranges of records that an interrupted command has not written ---------------------------------
    fingerprint = _fingerprint(loaded, records, batch_size, options, seed)
    output = StandardOutput() if output_path == STANDARD else PartFiles(output_path)
    ranges = windows.open_output(output, len(records), batch_size, fingerprint)

    # ---- Results ----------------------------------------------------------------------------------------------------
    runner = Runner(predictor, predictor.load(), loaded.partitioner, batch_size, seed)

    def row(index: int, fields: Mapping[str, Any] | None) -> dict[str, Any]:
        # A record may have a field `index` of its own.
        return {"index": index, **records[index].values, **(NO_PREDICTION if fields is None else fields)}

    dropped = windows.write_results(runner, examples, len(records), ranges, output, row)
    if dropped and jax.process_index() == 0:
        logging.warning("the preprocessors of the task drop %d records, whose prediction is null", dropped)
    if output_path != STANDARD:
        logging.info("wrote %d lines to %s", len(records), output_path)
    return output_path


def check_settings(
    loaded: Loaded,
    *,
    input_path: str | None = None,
    output_path: str | None = None,
    overwrite: bool = False,
    interactive: bool = False,
    mode: str = PREDICT,
    eos_id: int | None = None,
    score_eos: bool = False,
    per_position: bool = False,
    separator: str | None = None,
) -> TextOptions:
    """Checks the settings of the command, and returns those of its predictor.

    Args:
      loaded: The model.
      input_path: The file to read, or `-`.
      output_path: The file to write, or `-`.
      overwrite: Whether the output may exist.
      interactive: Whether to answer prompts instead.
      mode: `predict` or `score`.
      eos_id: Token that ends a sequence.
      score_eos: Whether EOS of text is scored.
      per_position: Whether each token is scored.
      separator: Text between a prompt and the text of a decoder.

    Raises:
      UserError: A setting is invalid, or the output file exists.
    """
    _check(mode, input_path, output_path, interactive)
    if output_path not in (None, STANDARD):
        paths.check_output_file("OUTPUT_PATH", output_path, overwrite=overwrite)
    _check_scoring(mode, score_eos=score_eos, per_position=per_position)
    return TextOptions(mode, eos_id, score_eos, per_position, loaded.decoding, separator)


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
    if output_path.endswith(_OTHER_FORMATS):
        raise UserError(
            f"OUTPUT_PATH={output_path}: the output has one JSON object per line. Give a file that ends in .jsonl."
        )
    if STANDARD in (input_path, output_path) and jax.process_count() > 1:
        flag = "input" if input_path == STANDARD else "output"
        raise UserError(f"--{flag}=-: {jax.process_count()} processes have no standard {flag} in common. Give a file.")
    if input_path != STANDARD and os.path.abspath(input_path) == os.path.abspath(output_path):
        raise UserError(f"OUTPUT_PATH={output_path}: same file as INPUT_PATH. Give another file.")


def _check_scoring(mode: str, **options: bool) -> None:
    for name, value in options.items():
        if value and mode != SCORE:
            raise UserError(f"{name.upper()}=True: only affects scoring. Give MODE=score, or {name.upper()}=False.")


def _converse(loaded: Loaded, predictor: Predictor, options: TextOptions, seed: int) -> None:
    """Answers the prompts of a terminal. The settings of generation may change; each is compiled once."""
    params = predictor.load()
    runners: dict[Decoding, tuple[Predictor, Runner]] = {}

    def respond(record: Record, decoding: Decoding) -> terminal.Answer:
        if decoding not in runners:
            changed = predictor_for(loaded, dataclasses.replace(options, decoding=decoding))
            runners[decoding] = changed, Runner(changed, params, loaded.partitioner, 1, seed)
        changed, runner = runners[decoding]
        (fields,), tokens = fields_of(runner, changed.examples(terminal.PATH, [record]), 1)
        return terminal.Answer(fields, tokens)

    terminal.converse(respond, loaded.decoding, generates=isinstance(predictor, TextPredictor))


def _fingerprint(loaded: Loaded, records: Sequence[Record], batch_size: int, options: TextOptions, seed: int) -> str:
    """Describes everything that the results depend on, so that unfinished output of another command is not resumed."""
    settings = ("mixture_or_task_name", "task_arguments", "vocabulary_path")
    task = {name: getattr(loaded.data, name, None) for name in settings}
    values = json.dumps([record.values for record in records], ensure_ascii=False)
    digest = hashlib.sha256(values.encode()).hexdigest()[:16]
    return (
        f"{loaded.checkpoint_path}, task {task}, lengths {loaded.task_feature_lengths}, batches of {batch_size}, "
        f"seed {seed}, input {digest}, {options}" + (f", {loaded.prompts}" if loaded.prompts else "")
    )
