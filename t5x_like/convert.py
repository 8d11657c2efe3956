"""`t5x_like convert`: converts weights from and to Hugging Face and published formats, and from other checkpoints."""

import dataclasses

from t5x_like import convert_vectors, interop, paths
from t5x_like.checkpoints import checkpoint_choice, weight_files
from t5x_like.conversion import outputs, sources, tokenizers
from t5x_like.conversion.settings import NO_CHANGES, Changes, Source, Target
from t5x_like.conversion.sources import Weights
from t5x_like.errors import UserError
from t5x_like.interop import compressed_tensors, long_rows, registry
from t5x_like.models.networks import MODEL
from t5x_like.runtime import run_files
from t5x_like.stored.network_weights import RunModel
from t5x_like.training.runs import weights_run


def convert(source: Source, target: Target, changes: Changes = NO_CHANGES) -> str:
    """Converts weights of other libraries to a run directory, or a run to a Hugging Face directory.

    The run directory has one checkpoint at step 0, with the model and the heads of the Hugging Face directory, and
    a config.gin that describes the model and the objective of its head, or else its usual objective. It can be the
    INITIAL_CHECKPOINT_PATH of `train`, and the CHECKPOINT_PATH or MODEL_DIR of the commands that read a run. Values
    are stored in float32, to which float16 and bfloat16 convert exactly. The files of the tokenizer are copied in
    both directions. A vocabulary that is not in the files of a Hugging Face tokenizer is written as such. The
    updates of adapters, such as LoRA, are added to the kernels; with `merge=False`, they are written alone, in the
    files of peft or, for bottlenecks, of the library adapters. These are read as well, and so are updates of
    microsoft/LoRA and prompts of google-research/prompt-tuning. An exported model has a README.md, which says what the
    run knows about it and how to load it. ELMo and ETC are read from and written to the files that their authors
    published (`interop.elmo_files`, `interop.etc_checkpoints`). With `quantization`, the output is always a run
    directory, with the settings of the run and the weights of projections and embeddings in few bits; the commands
    that read a run read it.

    Args:
      source: The weights to convert.
      target: What to write.
      changes: How to change the weights.

    Returns:
      The path of the target.

    Raises:
      UserError: The output exists, the other format does not support the model, or a tensor is missing, unexpected, not
        finite or has another shape. Nothing has been written.
      RunFailed: The output cannot be written. What was written is deleted.
    """
    _check_settings(source, target, changes)
    (path,) = checkpoint_choice.choose(source.path, source.checkpoint)
    if (weights := sources.read_other(path, source, heads=target.heads, long=changes.long)) is not None:
        _write_run(weights, path, source, target, changes)
    else:
        _convert_run(path, source, target, changes)
    return target.path


def _write_run(weights: Weights, path: str, source: Source, target: Target, changes: Changes) -> None:
    """Writes weights of another library as a run."""
    _check_not_a_run(source, target, changes)
    weights = _folded(weights) if changes.fold_norms else weights
    sources.check_finite(weights.leaves, path, source.allow_nonfinite)
    if changes.quantization is not None:
        outputs.write_quantized(weights, path, target.path, changes.quantization, changes.quantized_inputs)
    else:
        outputs.write_run(weights, path, target.path)


def _convert_run(chosen: str, source: Source, target: Target, changes: Changes) -> None:
    """Writes a run in another format, or as a smaller run."""
    # ---- word vectors, a quantized run, its adapters -----------------------------------------------------------------
    path, weights = checkpoint_choice.read(
        source.path.rstrip("/"),
        source.checkpoint,
        lambda path: sources.read_run(path, source.model, source.network, source.averaged),
        chosen=chosen,
    )
    if convert_vectors.is_output(target.path):
        tokenizer = tokenizers.find_for_export(path, source.vocabulary_path)
        objective = RunModel.read(path).objective
        convert_vectors.write(weights.model, objective, weights.leaves, tokenizer, target.path)
        return
    weights = dataclasses.replace(weights, leaves=sources.select(weights.leaves, target.heads))
    if changes.quantization is not None:
        _check_changes_nothing_else(changes)
        sources.check_finite(weights.leaves, path, source.allow_nonfinite)
        config = paths.read_text(paths.join(checkpoint_choice.run_of(path), run_files.CONFIG))
        weights = dataclasses.replace(weights, config=config)
        outputs.write_quantized(weights, path, target.path, changes.quantization, changes.quantized_inputs)
        return
    if not target.merge:
        sources.check_finite(weights.leaves, path, source.allow_nonfinite)
        outputs.write_adapters(weights, path, source.base_path, target.path)
        return

    # ---- a Hugging Face directory, or a published format -------------------------------------------------------------
    rounding = compressed_tensors.integers_of(weights.model, weights.leaves) if target.integers else None
    model, leaves = interop.merge_adapters(weights.model, weights.leaves)
    if changes.long is not None:
        model, leaves = long_rows.lengthen(model, leaves, changes.long)
    weights = dataclasses.replace(weights, model=model, leaves=leaves)
    if (published := registry.format_of(weights.model)) is not None:
        if target.integers:
            raise UserError(
                f"INTEGERS=True: {type(weights.model).__name__} is not written as a Hugging Face directory. Export the "
                "dense model (INTEGERS=False)."
            )
        sources.check_finite(weights.leaves, path, source.allow_nonfinite)
        outputs.write_published(published, weights, path, target.path)
        return
    weights = dataclasses.replace(weights, leaves=outputs.exportable(weights, target.heads))
    weights = _folded(weights) if changes.fold_norms else weights
    sources.check_finite(weights.leaves, path, source.allow_nonfinite)
    choice = "named" if path.rstrip("/") == source.path.rstrip("/") else str(source.checkpoint)
    outputs.write_huggingface(weights, path, source, target, choice=choice, integers=rounding)


def _check_settings(source: Source, target: Target, changes: Changes) -> None:
    """Checks, before weights are read, that the output is new and that the settings suit each other."""
    writes_vectors = convert_vectors.is_output(target.path)
    if writes_vectors:
        paths.check_output_file("OUTPUT_PATH", target.path, overwrite=False)
    else:
        weights_run.check_new(target.path)
    is_vectors = writes_vectors or convert_vectors.is_input(source.path)
    _check_quantization(changes, merge=target.merge, is_vectors=is_vectors)
    if target.integers:
        _check_integers(changes, merge=target.merge, is_vectors=is_vectors)


def _check_quantization(changes: Changes, *, merge: bool, is_vectors: bool) -> None:
    if changes.quantization is None:
        if changes.quantized_inputs is not None:
            raise UserError(
                f"QUANTIZED_INPUTS={changes.quantized_inputs!r}: weights are not quantized. Give QUANTIZATION='int8'."
            )
        return
    setting = f"QUANTIZATION={changes.quantization!r}"
    if not merge:
        raise UserError(f"MERGE=False: adapters alone have no {setting}. Give one of the settings.")
    if is_vectors:
        raise UserError(f"{setting}: not supported for files of word vectors. Omit it.")


def _check_integers(changes: Changes, *, merge: bool, is_vectors: bool) -> None:
    """Checks that integers are exported to a Hugging Face directory, as the run has them."""
    if changes.quantization is not None:
        raise UserError(
            "INTEGERS=True: exports a run that is quantized already, but "
            f"QUANTIZATION={changes.quantization!r} writes such a run. Convert twice: first with QUANTIZATION, then "
            "its output with INTEGERS."
        )
    if not merge:
        raise UserError("INTEGERS=True: adapters alone (MERGE=False) have no integers. Give one of the settings.")
    if is_vectors:
        raise UserError("INTEGERS=True: not supported for files of word vectors. Omit it.")
    if changes.long is not None or changes.fold_norms:
        raise UserError(
            "INTEGERS=True: not supported with LONG and FOLD_NORMS, which change the weights. Convert the dense model "
            "with them, quantize the result, and export its integers."
        )


def _check_changes_nothing_else(changes: Changes) -> None:
    """Checks that no other setting changes the weights of a run that is quantized."""
    for setting, value in (("LONG", changes.long), ("FOLD_NORMS", changes.fold_norms)):
        if value:
            raise UserError(
                f"{setting}={value}: not supported with QUANTIZATION of a run. Convert the run with {setting} first, "
                "and quantize the result."
            )


def _check_not_a_run(source: Source, target: Target, changes: Changes) -> None:
    """Checks that weights of another library are given without settings of runs."""
    given = source.path.rstrip("/")
    if convert_vectors.is_output(target.path):
        raise UserError(f"OUTPUT_PATH={target.path}: {given} is not a run. Convert it to a run first.")
    if changes.long is not None and not weight_files.is_huggingface(given):
        raise UserError(
            f"LONG={changes.long}: {given} is neither a Hugging Face directory nor a run. Convert it first."
        )
    if source.network not in (None, MODEL):
        raise UserError(
            f"NETWORK={source.network!r}: {given} is not a run. Convert all of it to a run, and give the run."
        )
    if target.integers:
        raise UserError(
            f"INTEGERS=True: {given} is not a run. Convert it to a quantized run first (QUANTIZATION='int8'), and "
            "then convert this run."
        )


def _folded(weights: Weights) -> Weights:
    return dataclasses.replace(weights, leaves=interop.fold_norms(weights.model, weights.leaves))
