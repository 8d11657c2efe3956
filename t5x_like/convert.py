"""`t5x_like convert`: converts weights from and to Hugging Face and published formats, and from other checkpoints."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from t5x_like import convert_vectors, interop, paths
from t5x_like.checkpoints import checkpoint_choice, weight_files
from t5x_like.conversion import outputs, sources, tokenizers
from t5x_like.conversion.outputs import ExportSettings
from t5x_like.conversion.sources import Weights
from t5x_like.errors import UserError
from t5x_like.interop import compressed_tensors, long_rows, registry
from t5x_like.interop.adapter_files import LoralibSettings
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import MODEL
from t5x_like.objectives.heads import HeadForm
from t5x_like.runtime import run_files
from t5x_like.stored.network_weights import RunModel
from t5x_like.training.runs import weights_run


def convert(
    *,
    checkpoint_path: str,
    output_path: str,
    model: ModelConfig | None = None,
    checkpoint: str | int = "latest",
    network: str | None = None,
    heads: Literal["all", "supported", "none"] = "all",
    labels: Sequence[str] | None = None,
    head: HeadForm | None = None,
    vocabulary_path: str | None = None,
    bos_id: int | None = None,
    fold_norms: bool = False,
    averaged: bool = True,
    merge: bool = True,
    base_path: str | None = None,
    lora_alpha: float | None = None,
    lora_pattern: str = LoralibSettings.pattern,
    long: int | None = None,
    quantization: Literal["int8", "int4", "bfloat16", "float16"] | None = None,
    quantized_inputs: Literal["dynamic"] | None = None,
    integers: bool = False,
    allow_nonfinite: bool = False,
) -> str:
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
      checkpoint_path: A Hugging Face directory with safetensors, a T5X checkpoint of T5, a TensorFlow checkpoint of
        BERT, ALBERT, BigBird, ELECTRA, ETC or XLNet, a directory of peft or adapters, a directory of ELMo with
        `…weights.hdf5` and `…options.json`, a safetensors file of microsoft/LoRA, a `.npy` file with a prompt, a file
        of word vectors (`.vec`, `.txt`, `.bin`), a run directory, or one of its checkpoints.
      output_path: The directory to write, local or in a bucket; of word vectors, a file with one of these suffixes.
      model: Configuration of the model. Not needed for a run, whose config.gin describes it, and for a Hugging Face
        directory, whose config.json does. Required for a T5X checkpoint, which does not describe it, and for a
        TensorFlow checkpoint without a file that does.
      checkpoint: Which checkpoint of a run to convert: `latest`, `best` (by its evaluation), or a step.
      network: Name of the network of a run to convert, such as `generator`, with the heads that read it; None for the
        model. Modules that it shares with another network are written with it.
      heads: Whether to convert the heads of the objective (`all`), or the bare model (`none`). Exporting a run whose
        predictions no class of transformers computes is an error, unless it is `supported`: heads that no class has are
        left out then.
      labels: Names of the labels or scores of a run's head, for config.json; those of the objective by default, or else
        `LABEL_0`, ….
      head: The form of a run's head, whose dropout rate is written to config.json; that of the objective by default.
      vocabulary_path: The vocabulary of a run, by default its copy in the run directory.
      bos_id: The first input of the decoder of a run, which config.json states; that of the objective by default.
      fold_norms: Whether to fold the NoNorm layers of MobileBERT into its projections. The outputs stay the same up to
        rounding; all scales but those of the last layer are 1 and all biases are 0 afterwards.
      averaged: Whether to convert the averages of the parameters of a run with EMA_DECAY, and not its parameters.
      merge: Whether to add the updates of the adapters of a run to the kernels. False writes a directory of peft with
        the adapters and the head of the task alone.
      base_path: The Hugging Face directory of the base model of adapters, if it is not where the files of peft, or
        base.json of a run, say.
      lora_alpha: α of the updates in a file of microsoft/LoRA, which does not have it.
      lora_pattern: Regular expression of the names of the projections that have an update in a file of microsoft/LoRA,
        where one matrix has several projections (`enable_lora`).
      long: Makes a Longformer with this number of positions of a RoBERTa: positions are repeated, and projections of
        global tokens are copies of the others. A Longformer gets new copies, as after its pretraining.
      quantization: Type of the weights of a quantized run: `int8`, `int4`, `bfloat16` or `float16`; None for float32. A
        run of quantization-aware training has the same type.
      quantized_inputs: Whether the inputs of projections are int8 as well; see `adapters.quantization.Quantized`.
      integers: Whether the Hugging Face directory of a quantized run has its integers, in the format of
        compressed-tensors, and not float32.
      allow_nonfinite: Whether to convert weights with infinite values or NaN, which are an error otherwise.

    Returns:
      `output_path`.

    Raises:
      UserError: The output exists, the other format does not support the model, or a tensor is missing, unexpected, not
        finite or has another shape. Nothing has been written.
      RunFailed: The output cannot be written. What was written is deleted.
    """
    # ---- settings ----------------------------------------------------------------------------------------------------
    writes_vectors = convert_vectors.is_output(output_path)
    if writes_vectors:
        paths.check_output_file("OUTPUT_PATH", output_path, overwrite=False)
    else:
        weights_run.check_new(output_path)
    reads_or_writes_vectors = writes_vectors or convert_vectors.is_input(checkpoint_path)
    _check_quantization(quantization, quantized_inputs, merge=merge, is_vectors=reads_or_writes_vectors)
    if integers:
        _check_integers(
            quantization, merge=merge, is_vectors=reads_or_writes_vectors, changes=long is not None or fold_norms
        )
    given = checkpoint_path.rstrip("/")
    (checkpoint_path,) = checkpoint_choice.choose(checkpoint_path, checkpoint)

    # ---- weights of another library: a run ---------------------------------------------------------------------------
    lora = LoralibSettings(lora_alpha, lora_pattern)
    options = sources.Options(model=model, heads=heads, long=long, base_path=base_path, lora=lora)
    if (weights := sources.read_other(checkpoint_path, options)) is not None:
        _check_not_a_run(given, writes_vectors=writes_vectors, output_path=output_path, long=long, network=network)
        if integers:
            raise UserError(
                f"INTEGERS=True: {given} is not a run. Convert it to a quantized run first (QUANTIZATION='int8'), and "
                "then convert this run."
            )
        weights = _folded(weights) if fold_norms else weights
        sources.check_finite(weights.leaves, checkpoint_path, allow_nonfinite)
        if quantization is not None:
            outputs.write_quantized(weights, checkpoint_path, output_path, quantization, quantized_inputs)
        else:
            outputs.write_run(weights, checkpoint_path, output_path)
        return output_path

    # ---- a run: word vectors, a quantized run, its adapters ----------------------------------------------------------
    checkpoint_path, weights = checkpoint_choice.read(
        given, checkpoint, lambda path: sources.read_run(path, model, network, averaged)
    )
    if writes_vectors:
        tokenizer = tokenizers.find_for_export(checkpoint_path, vocabulary_path)
        objective = RunModel.read(checkpoint_path).objective
        convert_vectors.write(weights.model, objective, weights.leaves, tokenizer, output_path)
        return output_path
    weights = dataclasses.replace(weights, leaves=sources.select(weights.leaves, heads))
    if quantization is not None:
        _check_changes_nothing_else(long=long, fold_norms=fold_norms)
        sources.check_finite(weights.leaves, checkpoint_path, allow_nonfinite)
        config = paths.read_text(paths.join(checkpoint_choice.run_of(checkpoint_path), run_files.CONFIG))
        weights = dataclasses.replace(weights, config=config)
        outputs.write_quantized(weights, checkpoint_path, output_path, quantization, quantized_inputs)
        return output_path
    if not merge:
        sources.check_finite(weights.leaves, checkpoint_path, allow_nonfinite)
        outputs.write_adapters(weights, checkpoint_path, base_path, output_path)
        return output_path

    # ---- a run: a Hugging Face directory, or a published format ------------------------------------------------------
    rounding = compressed_tensors.integers_of(weights.model, weights.leaves) if integers else None
    model, leaves = interop.merge_adapters(weights.model, weights.leaves)
    if long is not None:
        model, leaves = long_rows.lengthen(model, leaves, long)
    weights = dataclasses.replace(weights, model=model, leaves=leaves)
    if (published := registry.format_of(weights.model)) is not None:
        if integers:
            raise UserError(
                f"INTEGERS=True: {type(weights.model).__name__} is not written as a Hugging Face directory. Export the "
                "dense model (INTEGERS=False)."
            )
        sources.check_finite(weights.leaves, checkpoint_path, allow_nonfinite)
        outputs.write_published(published, weights, checkpoint_path, output_path)
        return output_path
    weights = dataclasses.replace(weights, leaves=outputs.exportable(weights, heads))
    weights = _folded(weights) if fold_norms else weights
    sources.check_finite(weights.leaves, checkpoint_path, allow_nonfinite)
    settings = ExportSettings(
        labels=labels or (),
        head=head,
        vocabulary_path=vocabulary_path,
        bos_id=bos_id,
        choice="named" if checkpoint_path.rstrip("/") == given else str(checkpoint),
        network=network,
        integers=rounding,
    )
    outputs.write_huggingface(weights, checkpoint_path, output_path, settings)
    return output_path


def _check_quantization(quantization: str | None, inputs: str | None, *, merge: bool, is_vectors: bool) -> None:
    if quantization is None:
        if inputs is not None:
            raise UserError(f"QUANTIZED_INPUTS={inputs!r}: weights are not quantized. Give QUANTIZATION='int8'.")
        return
    if not merge:
        raise UserError(f"MERGE=False: adapters alone have no QUANTIZATION={quantization!r}. Give one of the settings.")
    if is_vectors:
        raise UserError(f"QUANTIZATION={quantization!r}: not supported for files of word vectors. Omit it.")


def _check_integers(quantization: str | None, *, merge: bool, is_vectors: bool, changes: bool) -> None:
    """Checks that integers are exported to a Hugging Face directory, as the run has them."""
    if quantization is not None:
        raise UserError(
            f"INTEGERS=True: exports a run that is quantized already, but QUANTIZATION={quantization!r} writes such a "
            "run. Convert twice: first with QUANTIZATION, then its output with INTEGERS."
        )
    if not merge:
        raise UserError("INTEGERS=True: adapters alone (MERGE=False) have no integers. Give one of the settings.")
    if is_vectors:
        raise UserError("INTEGERS=True: not supported for files of word vectors. Omit it.")
    if changes:
        raise UserError(
            "INTEGERS=True: not supported with LONG and FOLD_NORMS, which change the weights. Convert the dense model "
            "with them, quantize the result, and export its integers."
        )


def _check_changes_nothing_else(*, long: int | None, fold_norms: bool) -> None:
    """Checks that no other setting changes the weights of a run that is quantized."""
    for setting, value in (("LONG", long), ("FOLD_NORMS", fold_norms)):
        if value:
            raise UserError(
                f"{setting}={value}: not supported with QUANTIZATION of a run. Convert the run with {setting} first, "
                "and quantize the result."
            )


def _check_not_a_run(
    given: str, *, writes_vectors: bool, output_path: str, long: int | None, network: str | None
) -> None:
    """Checks that weights of another library are given without settings of runs."""
    if writes_vectors:
        raise UserError(f"OUTPUT_PATH={output_path}: {given} is not a run. Convert it to a run first.")
    if long is not None and not weight_files.is_huggingface(given):
        raise UserError(f"LONG={long}: {given} is neither a Hugging Face directory nor a run. Convert it first.")
    if network not in (None, MODEL):
        raise UserError(f"NETWORK={network!r}: {given} is not a run. Convert all of it to a run, and give the run.")


def _folded(weights: Weights) -> Weights:
    return dataclasses.replace(weights, leaves=interop.fold_norms(weights.model, weights.leaves))
