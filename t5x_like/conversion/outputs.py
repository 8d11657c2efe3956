"""What `convert` writes: runs, Hugging Face directories, published formats and files of adapters."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from absl import logging

from t5x_like import convert_vectors, interop, parameters
from t5x_like.adapters.bottleneck import BottleneckAdapter
from t5x_like.checkpoints import checkpoint_choice, weight_files
from t5x_like.config import description
from t5x_like.conversion import prompt_format, tokenizers
from t5x_like.conversion.settings import Source, Target
from t5x_like.conversion.sources import Weights
from t5x_like.data.conversation_specs import SCORED_PAIR
from t5x_like.data.prompts import encoder_bos
from t5x_like.errors import UserError
from t5x_like.inference.predictors import predicts_text
from t5x_like.interop import adapter_hub, exports, peft, quantized
from t5x_like.interop.compressed_tensors import Integers
from t5x_like.interop.formats import Format
from t5x_like.models import construct
from t5x_like.objectives.base import Objective
from t5x_like.reporting import model_card
from t5x_like.stored import frozen_base, run_vocabulary, weight_source
from t5x_like.training.runs import weights_run
from t5x_like.vocabularies import tokenizer_files


def write_run(weights: Weights, path: str, output_path: str) -> None:
    """Writes a run with weights of another library.

    Args:
      weights: The weights.
      path: Where they come from, with the files of their tokenizer.
      output_path: The run directory.
    """
    with weights_run.removed_on_failure(output_path):
        if weights.words is not None:
            reads_texts = convert_vectors.LABEL_VECTORS in weights.leaves
            convert_vectors.store_vocabulary(output_path, weights.words, reads_texts=reads_texts)
        tokenizer = {} if weights.words is not None else tokenizers.read_source(path, weights.model)
        about = {"converted_from": path}
        weights_run.write(output_path, weights.leaves, weights.config, about=about, tokenizer=tokenizer)
    report(weights.leaves, path, output_path)


def write_quantized(weights: Weights, path: str, output_path: str, dtype: str, inputs: str | None) -> None:
    """Writes a run with quantized weights, and a config.gin whose model has the settings of the quantization.

    Args:
      weights: The weights, with the text of the config.gin of their source.
      path: Where they come from.
      output_path: The run directory.
      dtype: Type of the weights; see `interop.quantized.quantize`.
      inputs: How the inputs of projections are quantized.
    """
    model, leaves = quantized.quantize(weights.model, weights.leaves, dtype, inputs)
    config = f"{weights.config}\n{description.describe_model(model)}"
    write_run(dataclasses.replace(weights, model=model, leaves=leaves, config=config), path, output_path)
    before, after = quantized.size(weights.leaves), quantized.size(leaves)
    shown = output_path, f"{after:,}", f"{before:,}", 100 * after / before
    logging.info("%s: %s bytes of weights instead of %s (%.0f %%)", *shown)


def write_adapters(weights: Weights, path: str, base_path: str | None, output_path: str) -> None:
    """Writes the adapters of a run, and the head of its task.

    Args:
      weights: The weights of the run.
      path: Its checkpoint.
      base_path: Hugging Face directory of the base model; None for the one that the run states, if any.
      output_path: The directory.
    """
    model, leaves = weights.model, weights.leaves
    base = frozen_base.of_run(checkpoint_choice.run_of(path))
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
    if not has_blocks:
        _check_heads(weights)
    with weights_run.removed_on_failure(output_path):
        if has_blocks:
            adapter_hub.write(model, leaves, output_path)
        else:
            peft.write(model, leaves, output_path, base_path)
    report({name: leaves[name] for name in sorted(written)}, path, output_path)


def _check_heads(weights: Weights) -> None:
    """Checks that transformers computes what the heads of a run with adapters compute.

    Raises:
      UserError: It computes something else.
    """
    names = [name for name in weights.leaves if "/adapter/" not in name]
    has_heads = any(not name.startswith(weight_source.MODEL) for name in names)
    found = exports.describe(construct.without_adapters(weights.model), names, weights.objective if has_heads else None)
    if found.problem is not None:
        raise UserError(f"{found.problem}. Give HEADS='none' to write the adapters without the head.")


def write_published(published: Format, weights: Weights, path: str, output_path: str) -> None:
    """Writes the files of a published format.

    Args:
      published: The format.
      weights: The weights of a run.
      path: Its checkpoint.
      output_path: The directory.
    """
    with weights_run.removed_on_failure(output_path):
        published.write(weights.model, weights.leaves, output_path)
    report(_of_model(weights.leaves), path, output_path)


def write_huggingface(
    weights: Weights, path: str, source: Source, target: Target, *, choice: str, integers: Integers | None
) -> None:
    """Writes a run as a Hugging Face directory, with tokenizer and model card.

    Args:
      weights: The weights of the run.
      path: Its checkpoint.
      source: The run.
      target: The directory, and what its files state.
      choice: Which checkpoint of the run was chosen, for the model card.
      integers: How its kernels were rounded, to write them in integers; None to write float32.

    Raises:
      UserError: The other format does not support the model.
    """
    objective = weights.objective or Objective()
    of_objective = weights.objective and weights.objective.features.first_id
    bos_id = of_objective if target.bos_id is None else target.bos_id
    tokenizer = tokenizers.find_for_export(path, source.vocabulary_path)
    generates = weights.objective is not None and predicts_text(objective.text_features or objective.features)
    continues = generates and description.architecture_kind(weights.model) == "decoder"
    model = tokenizers.with_special_tokens(weights.model, tokenizer, bos_id, continues=continues)
    prompts = prompt_format.of_run(path, objective)
    run = model_card.ExportedRun.read(path, choice, source.network, prompts)
    lengths = run.settings.value("data.task_feature_lengths")
    length = tokenizers.max_length(model, lengths, bos_id, continues=continues)
    reads_tasks = objective.head_form is not None
    is_reward_model = weights.objective is not None and objective.features == SCORED_PAIR
    last_id = tokenizers.last_id(tokenizer, model) if is_reward_model else None
    model = tokenizers.without_padding(model, last_id)
    files = tokenizers.exported_files(tokenizer, model, bos_id, length, reads_tasks=reads_tasks, last_id=last_id)
    files = prompt_format.with_prompts(files, tokenizer, prompts)
    if generates and description.architecture_kind(model) == "encoder_decoder":
        before = encoder_bos(objective.text_features or objective.features)
        files = prompt_format.with_inputs(files, tokenizer, run_vocabulary.inputs_eos(path, None), before)
    with weights_run.removed_on_failure(target.path):
        interop.to_huggingface(
            weights.leaves,
            model,
            target.path,
            labels=target.labels or objective.labels,
            predicts=objective.predicts,
            dropout_rate=getattr(target.head or objective.head_form, "dropout_rate", None),
            padding_id=tokenizers.padding_id(tokenizer, model, last_id),
            generation_settings=tokenizers.generation_settings(path, lengths if generates else None),
            integers=integers,
        )
        tokenizer_files.write(files, target.path)
        model_card.write(target.path, run, model, count(weights.leaves))
    report(weights.leaves, path, target.path)


def exportable(weights: Weights, heads: str) -> dict[str, Any]:
    """Returns the parameters that a class of transformers has.

    Args:
      weights: The weights of a run.
      heads: `all`; `supported` to leave out heads that no class has, with a warning; or `none`.

    Raises:
      UserError: Transformers does not have the model, or with `all`, computes something else than the run.
    """
    found = exports.describe(weights.model, list(weights.leaves), None if heads == "none" else weights.objective)
    without = f"without {', '.join(found.left_out)}" if found.left_out else "all the same"
    if found.problem is not None and heads == "all":
        raise UserError(
            f"{found.problem}. Give HEADS='supported' to export a {found.architecture} {without}, or train a model "
            "that transformers has."
        )
    if found.problem is not None:
        logging.warning("%s: exported %s", found.problem, without)
    return {name: weights.leaves[name] for name in exports.without(list(weights.leaves), found.left_out)}


def _of_model(leaves: Mapping[str, Any]) -> dict[str, Any]:
    return {name: leaf for name, leaf in leaves.items() if name.startswith(weight_source.MODEL)}


def count(leaves: Mapping[str, Any]) -> dict[str, int]:
    """Returns the number of parameters of the model and of the heads; see `parameters.count`."""
    return {
        root: parameters.count({name: leaf for name, leaf in leaves.items() if name.startswith(f"{root}/")})
        for root in ("model", "objective")
    }


def report(leaves: Mapping[str, Any], path: str, output_path: str) -> None:
    """Logs what was converted."""
    counts = count(leaves)
    heads = sorted({name.split("/")[1] for name in leaves if name.startswith("objective/")})
    logging.info(
        "%s -> %s: %d tensors, model with %s parameters, %s",
        path,
        output_path,
        len(leaves),
        f"{counts['model']:,}",
        f"heads with {counts['objective']:,}: {', '.join(heads)}" if heads else "no heads",
    )
