"""`t5x_like convert`: converts weights from and to Hugging Face and published formats, and from other checkpoints."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from t5x_like import convert_vectors, interop, parameters, partitioning, paths
from t5x_like.adapters.bottleneck import BottleneckAdapter
from t5x_like.config import description
from t5x_like.config.description import describe
from t5x_like.config.stored import StoredSettings
from t5x_like.data import tokenizer_files, vocabulary_digest
from t5x_like.data.vocabulary_digest import TextVocabulary
from t5x_like.errors import UserError
from t5x_like.interop import (
    adapter_files,
    adapter_hub,
    generation,
    json_files,
    long_rows,
    peft,
    quantized,
    registry,
    t5x,
    tensorflow_checkpoints,
    tokenizer_export,
    tokenizer_ids,
)
from t5x_like.interop.adapter_files import LoralibSettings
from t5x_like.models import networks, special_tokens
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import MODEL
from t5x_like.objectives.heads import HeadForm
from t5x_like.objectives.sequence_regression import SequenceRegression
from t5x_like.reporting import model_card
from t5x_like.runtime import run_files
from t5x_like.training import frozen_base, weight_files, weight_source
from t5x_like.training.checkpoints import checkpoint_choice
from t5x_like.training.checkpoints.manager import Checkpoints
from t5x_like.training.network_weights import RunModel
from t5x_like.training.runs import run_tokenizer


def convert(
    *,
    checkpoint_path: str,
    output_path: str,
    model: ModelConfig | None = None,
    checkpoint: str | int = "latest",
    network: str | None = None,
    heads: Literal["all", "none"] = "all",
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
    run knows about it and how to load it. ELMo is read from and written to the files that its authors published
    (`interop.elmo_files`). With `quantization`, the output is always a run directory, with the settings of the run and
    the weights of projections and embeddings in few bits; the commands that read a run read it.

    Args:
      checkpoint_path: A Hugging Face directory with safetensors, a T5X checkpoint of T5, a TensorFlow checkpoint of
        BERT, ALBERT, ELECTRA or XLNet, a directory of peft or adapters, a directory of ELMo with weights.hdf5 and
        options.json, a safetensors file of microsoft/LoRA, a `.npy` file with a prompt, a file of word vectors (`.vec`,
        `.txt`, `.bin`), a run directory, or one of its checkpoints.
      output_path: The directory to write, local or in a bucket; of word vectors, a file with one of these suffixes.
      model: Configuration of the model. Not needed for a Hugging Face directory, whose config.json describes it.
        Required for a T5X checkpoint, which does not describe it, and for a TensorFlow checkpoint without a file that
        does.
      checkpoint: Which checkpoint of a run to convert: `latest`, `best` (by its evaluation), or a step.
      network: Name of the network of a run to convert, such as `generator`, with the heads that read it; None for the
        model. Modules that it shares with another network are written with it.
      heads: Whether to convert the heads of the objective (`all`), or the bare model (`none`). Heads that no class of
        transformers has are left out.
      labels: Names of the labels or scores of a run's head, for config.json; `LABEL_0`, … by default.
      head: The form of a run's head, whose dropout rate is written to config.json.
      vocabulary_path: The vocabulary of a run, by default its copy in the run directory.
      bos_id: The first input of the decoder of a run, which config.json states unless the run started from a Hugging
        Face directory with ids of its own.
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
      allow_nonfinite: Whether to convert weights with infinite values or NaN, which are an error otherwise.

    Returns:
      `output_path`.

    Raises:
      UserError: The output exists, the other format does not support the model, or a tensor is missing, unexpected, not
        finite or has another shape. Nothing has been written.
      RunFailed: The output cannot be written. What was written is deleted.
    """
    writes_vectors = convert_vectors.is_output(output_path)
    if writes_vectors:
        paths.check_output_file("OUTPUT_PATH", output_path, overwrite=False)
    elif paths.exists(output_path) and paths.listdir(output_path):
        raise UserError(f"OUTPUT_PATH={output_path}: exists and is not empty. Give a new directory.")
    if quantized_inputs is not None and quantization is None:
        raise UserError(f"QUANTIZED_INPUTS={quantized_inputs!r}: weights are not quantized. Give QUANTIZATION='int8'.")
    if quantization is not None and not merge:
        raise UserError(f"MERGE=False: adapters alone have no QUANTIZATION={quantization!r}. Give one of the settings.")
    if quantization is not None and (writes_vectors or convert_vectors.is_input(checkpoint_path)):
        raise UserError(f"QUANTIZATION={quantization!r}: not supported for files of word vectors. Omit it.")
    given = checkpoint_path.rstrip("/")
    (checkpoint_path,) = checkpoint_choice.choose(checkpoint_path, checkpoint)

    # ---- Tensors: from any of the formats ----------------------------------------------------------------------------
    is_run, words = False, None
    if convert_vectors.is_input(checkpoint_path):
        model, leaves, described, words = convert_vectors.read(checkpoint_path, model)
    elif (published := registry.find_format(checkpoint_path)) is not None:
        model, leaves, objective = published.read(checkpoint_path)
        described = describe(model, objective=objective)
    elif weight_files.is_huggingface(checkpoint_path):
        model, leaves, described = _read_huggingface(checkpoint_path, model, heads, long)
    elif weight_files.is_adapter(checkpoint_path):
        settings = LoralibSettings(lora_alpha, lora_pattern)
        model, leaves, described = _read_adapters(checkpoint_path, base_path, heads, settings)
    elif (index := weight_files.find_t5x(checkpoint_path)) is not None:
        model, leaves, described = _read_t5x(index, checkpoint_path, model)
    elif (prefix := weight_files.find_tensorflow(checkpoint_path)) is not None:
        model, leaves, described = _read_tensorflow(prefix, model, heads)
    else:
        is_run, (model, leaves) = True, _read_run(checkpoint_path, model, network, averaged)
        if writes_vectors:
            tokenizer, objective = (
                _tokenizer(checkpoint_path, vocabulary_path),
                RunModel.read(checkpoint_path).objective,
            )
            convert_vectors.write(model, objective, leaves, tokenizer, output_path)
            return output_path
        leaves = _select(leaves, heads)
        if quantization is not None:
            for setting, value in (("LONG", long), ("FOLD_NORMS", fold_norms)):
                if value:
                    raise UserError(
                        f"{setting}={value}: not supported with QUANTIZATION of a run. Convert the run with {setting} "
                        "first, and quantize the result."
                    )
            _check_finite(leaves, checkpoint_path, allow_nonfinite)
            text = paths.read_text(paths.join(_run(checkpoint_path), run_files.CONFIG))
            return _write_quantized(leaves, model, text, (quantization, quantized_inputs), checkpoint_path, output_path)
        if not merge:
            _check_finite(leaves, checkpoint_path, allow_nonfinite)
            return _write_adapters(model, leaves, checkpoint_path, base_path, output_path)
        model, leaves = interop.merge_adapters(model, leaves)
        model, leaves = (model, leaves) if long is None else long_rows.lengthen(model, leaves, long)
        if (published := registry.format_of(model)) is not None:
            _check_finite(leaves, checkpoint_path, allow_nonfinite)
            with _removed_on_failure(output_path):
                published.write(model, leaves, output_path)
            _report(_select(leaves, "none"), checkpoint_path, output_path)
            return output_path
        leaves = _exportable(leaves, model)
    if writes_vectors:
        raise UserError(f"OUTPUT_PATH={output_path}: {given} is not a run. Convert it to a run first.")
    if long is not None and not (is_run or weight_files.is_huggingface(checkpoint_path)):
        raise UserError(f"LONG={long}: {given} is neither a Hugging Face directory nor a run. Convert it first.")
    if network not in (None, MODEL) and not is_run:
        raise UserError(f"NETWORK={network!r}: {given} is not a run. Convert all of it to a run, and give the run.")
    leaves = interop.fold_norms(model, leaves) if fold_norms else leaves
    _check_finite(leaves, checkpoint_path, allow_nonfinite)

    # ---- Output: a Hugging Face directory of a run, and a run of anything else ---------------------------------------
    if quantization is not None:
        return _write_quantized(
            leaves, model, described, (quantization, quantized_inputs), checkpoint_path, output_path
        )
    if is_run:
        tokenizer = _tokenizer(checkpoint_path, vocabulary_path)
        model = _with_special_tokens(model, tokenizer, bos_id)
        files = _tokenizer_files(tokenizer, model, bos_id)
        choice = "named" if checkpoint_path.rstrip("/") == given else str(checkpoint)
        with _removed_on_failure(output_path):
            interop.to_huggingface(
                leaves,
                model,
                output_path,
                labels=labels or (),
                regression=StoredSettings.read(_run(checkpoint_path)).has_objective(SequenceRegression.__name__),
                dropout_rate=getattr(head, "dropout_rate", None),
                padding_id=_padding_id(tokenizer, model),
                generation_settings=_generation_settings(checkpoint_path),
            )
            tokenizer_files.write(files, output_path)
            run = model_card.ExportedRun.read(checkpoint_path, choice, network)
            model_card.write(output_path, run, model, _counts(leaves))
    else:
        with _removed_on_failure(output_path):
            _write_run(leaves, model, described, checkpoint_path, output_path, words)
    _report(leaves, checkpoint_path, output_path)
    return output_path


def _read_huggingface(
    path: str, model: ModelConfig | None, heads: str, long: int | None
) -> tuple[ModelConfig, dict[str, Any], str]:
    """Returns the model of a Hugging Face directory, its tensors, and the configuration of its run."""
    stored = interop.config_from_huggingface(path)
    leaves = _select(interop.read(path, model or stored), heads)
    config = model or stored
    config = dataclasses.replace(
        config, vocab_size=stored.vocab_size, special_tokens=config.special_tokens or stored.special_tokens
    )
    _log_class(path, config, leaves)
    if long is not None:
        config, leaves = long_rows.lengthen(config, leaves, long)
    return config, leaves, describe(config, interop.task_head(path) if heads == "all" else None)


def _read_adapters(
    path: str, base_path: str | None, heads: str, settings: LoralibSettings
) -> tuple[ModelConfig, dict[str, Any], str]:
    """Returns a base model with the adapters of another library, its tensors, and the configuration of its run."""
    base = base_path or adapter_files.base(path)
    if base is None or not weight_files.is_huggingface(base):
        raise UserError(
            f"{path}: the base model {base!r} is not a Hugging Face directory with safetensors. Give its directory "
            "with --gin.BASE_PATH=…"
        )
    config = interop.config_from_huggingface(base)
    leaves = _select(interop.read(base, config), "none")
    adapters, added, head = adapter_files.read(path, config, leaves, settings)
    config = dataclasses.replace(config, adapters=adapters)
    return config, leaves | _select(added, heads), describe(config, head if heads == "all" else None)


def _write_adapters(
    model: ModelConfig, leaves: Mapping[str, Any], path: str, base_path: str | None, output_path: str
) -> str:
    """Writes the adapters of a run, and the head of its task."""
    base = frozen_base.of_run(_run(path))
    base_path = base_path or (base.path if base is not None and weight_files.is_huggingface(base.path) else None)
    if base_path is None:
        logging.warning(
            "%s: no Hugging Face directory of its base model is known. Convert the base model, and give it with "
            "--gin.BASE_PATH=…",
            path,
        )
    has_blocks = any(isinstance(adapter, BottleneckAdapter) for adapter in model.adapters)
    written = {name for name in leaves if "/adapter/" in name}
    if not has_blocks:
        written |= {name for name in leaves if not name.startswith(weight_source.MODEL)}
    trained = sorted(set(leaves) - written - set(base.leaves if base is not None else leaves))
    if trained:
        logging.warning(
            "%s: the files of adapters do not have %d other parameters that were trained, such as %s. Use the run "
            "itself, or train the adapters alone, with FROZEN='^model/(?!.*/adapter/)'",
            *(path, len(trained), trained[0]),
        )
    with _removed_on_failure(output_path):
        if has_blocks:
            adapter_hub.write(model, leaves, output_path)
        else:
            peft.write(model, leaves, output_path, base_path)
    _report({name: leaves[name] for name in sorted(written)}, path, output_path)
    return output_path


def _read_t5x(index: str, path: str, model: ModelConfig | None) -> tuple[ModelConfig, dict[str, Any], str]:
    """Returns the model of a T5X checkpoint, its tensors, and the configuration of its run."""
    if model is None:
        raise UserError(
            f"{path}: missing model: a T5X checkpoint does not describe it. Give the model of the checkpoint, such as "
            "--gin_file=models/t5_1_1/base.gin"
        )
    return model, t5x.read(index, model), describe(model)


def _read_tensorflow(prefix: str, model: ModelConfig | None, heads: str) -> tuple[ModelConfig, dict[str, Any], str]:
    """Returns the model of a TensorFlow checkpoint, its tensors, and the configuration of its run."""
    found = tensorflow_checkpoints.read(prefix, model)
    objective = found.objective if heads == "all" else None
    return found.config, _select(found.leaves, heads), describe(found.config, objective=objective)


def _read_run(
    path: str, model: ModelConfig | None, network: str | None, averaged: bool
) -> tuple[ModelConfig, dict[str, Any]]:
    """Returns a network of a run, and its parameters and those of its heads by name, `model/…` and `objective/…`."""
    if model is None:
        if checkpoint_choice.find_step(path) is None:
            raise UserError(weight_files.explain_missing(path))
        raise UserError(
            f"{path}: missing model. Omit --gin_file if the run directory has a config.gin, or give the model with "
            "--gin_file=models/…"
        )
    if network is not None or run_files.find_run(path) is not None:
        run = RunModel(model, RunModel.read(path).objective)
        network = network or (MODEL if len(networks.specs(run.objective, model)) > 1 else None)
        if network is not None:
            model = networks.find(run.objective, model, network, path).config
    sharding = partitioning.Partitioner(rules="dp").replicated
    dtypes = quantized.dtypes(model)
    with weight_source.open_run(path, network=network, averaged=averaged) as weights:
        wanted = {
            name: jax.ShapeDtypeStruct(shape, dtypes.get(name, jnp.float32), sharding=sharding)
            for name, shape in weights.shapes.items()
        }
        return model, weights.read(wanted)


def _select(leaves: Mapping[str, Any], heads: str) -> dict[str, Any]:
    """Returns the parameters to convert."""
    return {name: leaf for name, leaf in leaves.items() if heads == "all" or name.startswith(weight_source.MODEL)}


def _exportable(leaves: dict[str, Any], model: ModelConfig) -> dict[str, Any]:
    """Leaves out the heads that no class of transformers has beside the others, with a warning."""
    heads = sorted({name.split("/")[1] for name in leaves if not name.startswith(weight_source.MODEL)})
    problem = None
    for left_out in itertools.chain.from_iterable(itertools.combinations(heads, n) for n in range(len(heads) + 1)):
        prefixes = tuple(f"objective/{head}/" for head in left_out)
        kept = {name: leaf for name, leaf in leaves.items() if not name.startswith(prefixes)}
        try:
            interop.exported_class(model, kept)
        except UserError as error:
            problem = problem or error
            continue
        if left_out:
            shown = ", ".join(heads), ", ".join(left_out)
            logging.warning("no class of transformers has the heads %s: exported without %s", *shown)
        return kept
    raise problem  # without its heads, the model is not supported either


def _check_finite(leaves: Mapping[str, Any], checkpoint_path: str, allow: bool) -> None:
    """Checks that all values are finite, or logs a warning with the tensors that are not."""
    counts = {name: np.size(leaf) - int(np.sum(np.isfinite(leaf))) for name, leaf in leaves.items()}
    counts = {name: count for name, count in counts.items() if count}
    if not counts:
        return
    shown = ", ".join(f"{name} ({count:,} of {np.size(leaves[name]):,})" for name, count in list(counts.items())[:5])
    problem = (
        f"{checkpoint_path}: {len(counts)} of {len(leaves)} tensors have values that are not finite: {shown}"
        f"{', …' if len(counts) > 5 else ''}"
    )
    if not allow:
        raise UserError(f"{problem}. Give an earlier checkpoint, or --allow_nonfinite to convert them.")
    logging.warning("%s", problem)


def _log_class(directory: str, config: ModelConfig, leaves: Mapping[str, Any]) -> None:
    """Logs that a bare model comes back as a language model, which has the same parameters."""
    stored = json_files.read(paths.join(directory, generation.CONFIG)).get("architectures") or []
    bare = [name for name in stored if name.endswith("Model")]
    if bare and (exported := interop.exported_class(config, leaves)) not in stored:
        logging.info(
            "%s: a %s is read as a language model with tied embeddings. Its export is a %s with the same parameters.",
            *(directory, bare[0], exported),
        )


def _tokenizer_of_run(checkpoint_path: str) -> str:
    """Returns the path of the copy of the tokenizer of a run, which may not exist."""
    return paths.join(_run(checkpoint_path), run_files.TOKENIZER)


def _run(checkpoint_path: str) -> str:
    return checkpoint_choice.run_of(checkpoint_path)


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
    if vocabulary_path is None and paths.is_local(path):
        for file in (path, *(paths.join(path, name) for name in paths.listdir(path))):
            if paths.leaves(file, _run(checkpoint_path)):
                raise UserError(
                    f"{file}: a link that leaves the run directory, so its target is not exported. Replace it by a "
                    "copy, or give --gin.VOCABULARY_PATH=…"
                )
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
    sentencepiece, tokenizer_class, lowers_text = interop.sentencepiece_format(model)
    reader = tokenizer_export.Reader(
        shape=description.shape(model),
        vocab_size=model.vocab_size,
        bos_id=bos_id,
        sentencepiece=sentencepiece,
        tokenizer_class=tokenizer_class,
        lowers_text=lowers_text,
        has_token_types="token_types" in model.reads,
    )
    return tokenizer_export.files(tokenizer, reader)


@contextlib.contextmanager
def _removed_on_failure(output_path: str) -> Iterator[None]:
    """Deletes the output if it is not written completely, and explains errors of its storage."""
    try:
        with paths.explain_storage_errors("OUTPUT_PATH", output_path):
            yield
    except BaseException:
        paths.remove_directory(output_path)
        raise


def _write_run(
    leaves: Mapping[str, Any],
    model: ModelConfig,
    config: str,
    source: str,
    output_path: str,
    words: bytes | None = None,
) -> None:
    """Writes a run directory with one checkpoint, of step 0. `words` is the vocabulary file of word vectors."""
    with contextlib.closing(Checkpoints(paths.join(output_path, run_files.CHECKPOINTS))) as checkpoints:
        arrays = {name: jnp.asarray(leaf) for name, leaf in leaves.items()}
        checkpoints.save(0, {"params": arrays}, about={"converted_from": source})
        checkpoints.wait()
    if words is not None:
        is_classifier = convert_vectors.LABEL_VECTORS in leaves
        convert_vectors.store_vocabulary(output_path, words, reads_texts=is_classifier)
    else:
        tokenizer_files.write(_source_tokenizer(source, model), paths.join(output_path, run_files.TOKENIZER))
    # config.gin comes last: a directory that has it is complete.
    paths.write_atomic(paths.join(output_path, run_files.CONFIG), config)


def _write_quantized(
    leaves: Mapping[str, Any],
    model: ModelConfig,
    config: str,
    settings: tuple[str, str | None],
    source: str,
    output_path: str,
) -> str:
    """Writes a run with quantized weights, whose configuration is that of its source with another model."""
    before = quantized.size(leaves)
    model, leaves = quantized.quantize(model, leaves, *settings)
    with _removed_on_failure(output_path):
        _write_run(leaves, model, f"{config}\n{description.describe_model(model)}", source, output_path)
    _report(leaves, source, output_path)
    after = quantized.size(leaves)
    logging.info(
        "%s: %.2f MB of weights instead of %.2f MB (%.0f %%)",
        output_path,
        after / 1e6,
        before / 1e6,
        100 * after / before,
    )
    return output_path


def _source_tokenizer(source: str, model: ModelConfig) -> dict[str, bytes]:
    """Returns the files of the tokenizer of weights of another library by name, and those that describe its model."""
    if weight_files.is_huggingface(source):
        has_tokenizer = tokenizer_files.find(source) is not None
        return tokenizer_files.read(
            source, tokenizer_files.MODEL | (tokenizer_files.TOKENIZER if has_tokenizer else frozenset())
        )
    if run_files.find_run(source) is not None:
        directory = _tokenizer_of_run(source)
        return {name: paths.read_bytes(paths.join(directory, name)) for name in paths.listdir(directory)}
    if weight_files.find_t5x(source) is None and (prefix := weight_files.find_tensorflow(source)) is not None:
        return tensorflow_checkpoints.tokenizer(prefix, model)
    return {}


def _counts(leaves: Mapping[str, Any]) -> dict[str, int]:
    """Returns the number of parameters of the model and of the heads."""
    return {
        root: parameters.count({name: leaf for name, leaf in leaves.items() if name.startswith(f"{root}/")})
        for root in ("model", "objective")
    }


def _report(leaves, checkpoint_path, output_path):
    counts = _counts(leaves)
    heads = sorted({name.split("/")[1] for name in leaves if name.startswith("objective/")})
    logging.info(
        "%s -> %s: %d tensors, model with %s parameters, %s",
        checkpoint_path,
        output_path,
        len(leaves),
        f"{counts['model']:,}",
        f"heads with {counts['objective']:,}: {', '.join(heads)}" if heads else "no heads",
    )
