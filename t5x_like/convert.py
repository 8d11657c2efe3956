"""`t5x_like convert`: converts weights from and to Hugging Face directories, and from T5X checkpoints."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from absl import logging

from t5x_like import interop, parameters, partitioning, paths
from t5x_like.data import tokenizer_files, vocabulary_digest
from t5x_like.data.vocabulary_digest import TextVocabulary
from t5x_like.errors import UserError
from t5x_like.interop import description, generation, t5x, tokenizer_export, tokenizer_ids
from t5x_like.interop.description import describe
from t5x_like.models import special_tokens
from t5x_like.models.base import ModelConfig
from t5x_like.objectives.heads import HeadForm
from t5x_like.runtime import run_files
from t5x_like.training import checkpoint_choice, run_tokenizer, weight_files
from t5x_like.training.checkpoints import Checkpoints

_PARAMS, _MODEL = "params/", "model/"


def convert(
    *,
    checkpoint_path: str,
    output_path: str,
    model: ModelConfig | None = None,
    checkpoint: str | int = "latest",
    heads: Literal["all", "none"] = "all",
    labels: Sequence[str] | None = None,
    head: HeadForm | None = None,
    vocabulary_path: str | None = None,
    bos_id: int | None = None,
    fold_norms: bool = False,
) -> str:
    """Converts a Hugging Face directory or a T5X checkpoint to a run directory, or a run to a Hugging Face directory.

    The run directory has one checkpoint at step 0, with the model and the heads of the Hugging Face directory, and a
    config.gin that describes the model and the objective of its head, or else its usual objective. It can be the
    INITIAL_CHECKPOINT_PATH of `train`, and the CHECKPOINT_PATH or MODEL_DIR of the commands that read a run. Values are
    stored in float32, to which float16 and bfloat16 convert exactly. The files of the tokenizer are copied in both
    directions. A vocabulary that is not in the files of a Hugging Face tokenizer is written as such.

    Args:
      checkpoint_path: A Hugging Face directory with safetensors, a T5X checkpoint of T5, a run directory, or one of its
        checkpoints.
      output_path: The directory to write, local or in a bucket.
      model: Configuration of the model. Not needed for a Hugging Face directory, whose config.json describes it.
        Required for a T5X checkpoint, which does not describe it.
      checkpoint: Which checkpoint of a run to convert: `latest`, `best` (by its evaluation), or a step.
      heads: Whether to convert the heads of the objective (`all`), or the bare model (`none`).
      labels: Names of the labels of a run's head, for config.json; `LABEL_0`, … by default.
      head: The form of a run's head, whose dropout rate is written to config.json.
      vocabulary_path: The vocabulary of a run, by default its copy in the run directory.
      bos_id: The first input of the decoder of a run, which config.json states unless the run started from a Hugging
        Face directory with ids of its own.
      fold_norms: Whether to fold the NoNorm layers of MobileBERT into its projections. The outputs stay the same up to
        rounding; all scales but those of the last layer are 1 and all biases are 0 afterwards.

    Returns:
      `output_path`.

    Raises:
      UserError: The output exists, the other format does not support the model, or a tensor is missing, unexpected or
        has another shape. Nothing has been written.
    """
    if paths.exists(output_path) and paths.listdir(output_path):
        raise UserError(f"output_path={output_path!r}: exists and is not empty. Give a new directory.")
    (checkpoint_path,) = checkpoint_choice.choose(checkpoint_path, checkpoint)
    if weight_files.is_huggingface(checkpoint_path):
        stored = interop.config_from_huggingface(checkpoint_path)
        leaves = _select(interop.read(checkpoint_path, model or stored), heads)
        config = model or stored
        config = dataclasses.replace(
            config, vocab_size=stored.vocab_size, special_tokens=config.special_tokens or stored.special_tokens
        )
        leaves = interop.fold_norms(config, leaves) if fold_norms else leaves
        task_head = interop.task_head(checkpoint_path) if heads == "all" else None
        _write_run(leaves, describe(config, task_head), checkpoint_path, output_path)
    elif (index := weight_files.find_t5x(checkpoint_path)) is not None:
        if model is None:
            raise UserError(
                f"{checkpoint_path}: missing model: a T5X checkpoint does not describe it. Give the model of the "
                "checkpoint, such as --gin_file=models/t5_1_1/base.gin"
            )
        leaves = t5x.read(index, model)
        leaves = interop.fold_norms(model, leaves) if fold_norms else leaves
        _write_run(leaves, describe(model), checkpoint_path, output_path)
    else:
        if model is None:
            if checkpoint_choice.find_step(checkpoint_path) is None:
                raise UserError(weight_files.explain_missing(checkpoint_path))
            raise UserError(
                f"{checkpoint_path}: missing model. Omit --gin_file if the run directory has a config.gin, or give the "
                "model with --gin_file=models/…"
            )
        leaves = _select(_read_run(checkpoint_path), heads)
        leaves = interop.fold_norms(model, leaves) if fold_norms else leaves
        rate = getattr(head, "dropout_rate", None)
        tokenizer = _tokenizer(checkpoint_path, vocabulary_path)
        model = _with_special_tokens(model, tokenizer, bos_id)
        padding_id = _padding_id(tokenizer, model)
        interop.to_huggingface(
            leaves,
            model,
            output_path,
            labels=labels or (),
            dropout_rate=rate,
            padding_id=padding_id,
            generation_settings=_generation_settings(checkpoint_path),
        )
        tokenizer_files.write(_tokenizer_files(tokenizer, model, bos_id), output_path)
    _report(leaves, checkpoint_path, output_path)
    return output_path


def _read_run(path: str) -> dict[str, Any]:
    """Reads the parameters of a checkpoint by name, `model/…` and `objective/…`."""
    directory, step = checkpoint_choice.locate(path)
    reader = Checkpoints(directory, read_only=True)
    try:
        step = reader.latest() if step is None else step
        if step is None:
            raise UserError(weight_files.explain_missing(path))
        sharding = partitioning.Partitioner(rules="dp").replicated
        shapes = {
            name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
            for name, shape in reader.shapes(step).items()
            if name.startswith(_PARAMS)
        }
        return {name.removeprefix(_PARAMS): leaf for name, leaf in reader.read(step, shapes).items()}
    finally:
        reader.close()


def _select(leaves: Mapping[str, Any], heads: str) -> dict[str, Any]:
    """Returns the parameters to convert."""
    return {name: leaf for name, leaf in leaves.items() if heads == "all" or name.startswith(_MODEL)}


def _tokenizer_of_run(checkpoint_path: str) -> str:
    """Returns the path of the copy of the tokenizer of a run, which may not exist."""
    return paths.join(_run(checkpoint_path), run_files.TOKENIZER)


def _run(checkpoint_path: str) -> str:
    return checkpoint_choice.locate(checkpoint_path)[0].rpartition("/")[0]


def _tokenizer(checkpoint_path: str, vocabulary_path: str | None) -> str | None:
    """Returns where the tokenizer of a run is, or None, with a warning, if the run has none.

    Raises:
      UserError: `vocabulary_path` is another vocabulary than that of the run.
    """
    path = vocabulary_path or _tokenizer_of_run(checkpoint_path)
    if tokenizer_files.find(path) is None:
        logging.warning(
            "%s: no tokenizer files of the run found, exported without a tokenizer. Give --gin.VOCABULARY_PATH=… to "
            "export one",
            path,
        )
        return None
    given = TextVocabulary(vocabulary_digest.of_path(path), path)
    run_tokenizer.check_checkpoint(checkpoint_path, given, "omit VOCABULARY_PATH")
    return path


def _with_special_tokens(model: ModelConfig, tokenizer: str | None, bos_id: int | None) -> ModelConfig:
    """Returns a model with the special token ids of the run; imported ids are kept."""
    if model.special_tokens is not None or tokenizer is None:
        return model
    default = interop.special_tokens(model)
    ids = tokenizer_export.special_tokens(tokenizer, description.shape(model), default, bos_id)
    return model if ids is None else dataclasses.replace(model, special_tokens=special_tokens.SpecialTokens(ids))


def _padding_id(tokenizer: str | None, model: ModelConfig) -> int | None:
    """Returns the id that pads rows in transformers: the tokenizer's padding, or else the end of a text."""
    ids = tokenizer_ids.special_ids(tokenizer) if tokenizer is not None else {}
    candidates = [ids.get("pad"), ids.get("eos"), interop.eos_id(model)]
    return next((index for index in candidates if index is not None and 0 <= index < model.vocab_size), None)


def _generation_settings(checkpoint_path: str) -> dict[str, Any]:
    """Returns the settings of generation of the Hugging Face directory that a run started from."""
    _, found = generation.read(_tokenizer_of_run(checkpoint_path))
    return {key: value for key, value in found.items() if not key.endswith(special_tokens.SUFFIX)}


def _tokenizer_files(tokenizer: str | None, model: ModelConfig, bos_id: int | None) -> dict[str, bytes]:
    """Returns the files of the tokenizer of an exported run."""
    if tokenizer is None:
        return {}
    reader = tokenizer_export.Reader(
        shape=description.shape(model),
        vocab_size=model.vocab_size,
        bos_id=bos_id,
        sentencepiece=interop.sentencepiece_name(model),
        has_token_types=bool(getattr(model, "num_token_types", 0)),
    )
    return tokenizer_export.files(tokenizer, reader)


def _write_run(leaves: Mapping[str, Any], config: str, source: str, output_path: str) -> None:
    checkpoints = Checkpoints(paths.join(output_path, "checkpoints"))
    try:
        arrays = {name: jnp.asarray(leaf) for name, leaf in leaves.items()}
        checkpoints.save(0, {"params": arrays}, about={"converted_from": source})
        checkpoints.wait()
    finally:
        checkpoints.close()
    names = tokenizer_files.MODEL
    if tokenizer_files.find(source) is not None:
        names |= tokenizer_files.TOKENIZER
    if weight_files.is_huggingface(source):
        tokenizer_files.write(tokenizer_files.read(source, names), paths.join(output_path, run_files.TOKENIZER))
    # config.gin comes last: a directory that has it is complete.
    paths.write_atomic(paths.join(output_path, run_files.CONFIG), config)


def _report(leaves, checkpoint_path, output_path):
    counts = {
        root: parameters.count({name: leaf for name, leaf in leaves.items() if name.startswith(f"{root}/")})
        for root in ("model", "objective")
    }
    heads = sorted({name.split("/")[1] for name in leaves if name.startswith("objective/")})
    logging.info(
        "%s -> %s: %d tensors, model with %s parameters, %s",
        checkpoint_path,
        output_path,
        len(leaves),
        f"{counts['model']:,}",
        f"heads with {counts['objective']:,}: {', '.join(heads)}" if heads else "no heads",
    )
