"""Adapters in the files of the library peft: `adapter_config.json` and `adapter_model.safetensors`.

LoRA and DoRA (`peft_lora`), (IA)³ (`peft_ia3`), prompts (`peft_prompt`) and prefixes (`peft_prefix`) are written and
read.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like import interop, paths
from t5x_like.adapters.base import ADAPTER, Adapter
from t5x_like.adapters.dora import DoRA
from t5x_like.adapters.ia3 import IA3
from t5x_like.adapters.lora import LoRA
from t5x_like.adapters.lora_embedding import EmbeddingLoRA
from t5x_like.adapters.prefix import Prefix
from t5x_like.adapters.prompt import Prompt
from t5x_like.errors import UserError
from t5x_like.interop import adapted_matrices as matrices
from t5x_like.interop import (
    adapter_heads,
    fields,
    json_files,
    peft_embeddings,
    peft_ia3,
    peft_lora,
    peft_prefix,
    peft_prompt,
    peft_settings,
    registry,
    safetensors_files,
    tables,
)
from t5x_like.interop.adapter_base import Base
from t5x_like.interop.adapter_tensors import AdapterTensors
from t5x_like.interop.head_classes import TaskHead
from t5x_like.interop.tensor_mapping import Family, HeadClass
from t5x_like.models import construct
from t5x_like.models.base import ModelConfig

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# What may be before the names of the class: the second one where the modules of the model do not change.
_PREFIXES = ("base_model.model.", "base_model.", "")
_BASE = "base_model_name_or_path"
# End of the name of a class of transformers -> task type of peft.
_TASK_TYPES = {
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "Model": "FEATURE_EXTRACTION",
}
Tensors = dict[str, Float[np.ndarray, "..."]]


def write(config: ModelConfig, leaves: Mapping[str, Any], directory: str, base: str | None = None) -> None:
    """Writes the adapters of a model, and the heads of its task, for `PeftModel.from_pretrained`.

    Args:
      config: configuration of the model.
      leaves: stored name -> array, `model/…` and `objective/…`. Layers are stacked.
      directory: local directory or bucket.
      base: where peft finds the base model, a Hugging Face directory; None if it is not known.

    Raises:
      UserError: peft does not have these adapters. Nothing has been written.
    """
    kinds = {type(adapter) for adapter in config.adapters}
    if kinds not in ({LoRA}, {LoRA, EmbeddingLoRA}, {EmbeddingLoRA}, {DoRA}, {IA3}, {Prompt}, {Prefix}):
        shown = ", ".join(sorted(kind.__name__ for kind in kinds)) or "no adapters"
        raise UserError(
            f"{type(config).__name__}.adapters: {shown}. peft's files have one of LoRA, DoRA, IA3, Prompt and Prefix, "
            "and LoRA may have EmbeddingLoRA beside it."
        )
    bare = construct.without_adapters(config)
    family = interop.family_of(bare)
    heads = {name: leaf for name, leaf in leaves.items() if name.startswith(tables.OBJECTIVE)}
    own = {name: leaf for name, leaf in leaves.items() if f"/{ADAPTER}/" not in name}
    hf_config, head_class = interop.describe_class(family, bare, own)
    architecture = head_class.name if head_class is not None else hf_config["architectures"][0]
    family.check_class(bare, architecture)
    if heads and head_class is None and matrices.is_bare(architecture):
        raise UserError(f"{min(heads)}: the {architecture} of peft's files has no head. Give --heads=none.")
    if kinds == {Prompt}:
        if heads:
            raise UserError(
                f"{min(heads)}: peft's heads read the positions of a prompt, which heads do not read here, so their "
                "outputs would differ. Only prompts of models without a head are written."
            )
        tensors, settings = peft_prompt.write(config, leaves)
        before = ""
    elif kinds == {Prefix}:
        tensors, settings = peft_prefix.write(config, leaves, hf_config["model_type"])
        before = ""
    else:
        tensors, settings = _write_updates(config, leaves, kinds, _Class(family, head_class, architecture))
        before = _PREFIXES[0]
    tensors = {before + name: tensor for name, tensor in tensors.items()}
    saved = _heads(family, bare, heads, head_class, own)
    task = _task_type(architecture)
    settings |= {
        _BASE: base,
        "task_type": task,
        "auto_mapping": None if task else {"base_model_class": architecture, "parent_library": "transformers"},
        "inference_mode": True,
    }
    if kinds != {Prompt}:
        settings["modules_to_save"] = adapter_heads.modules(saved) or None
    before = _PREFIXES[kinds == {Prefix}]
    tensors |= {before + name: tensor for name, tensor in saved.items()}
    _write_files(directory, tensors, settings)


@dataclasses.dataclass(frozen=True)
class _Class:
    """The class of transformers with a model."""

    family: Family
    head_class: HeadClass | None
    architecture: str

    def name(self, module: str) -> str:
        """Returns the name of a module in the class, given its name in the family's table."""
        return matrices.module_name(module, self.family, self.head_class, self.architecture)


def _write_updates(
    config: ModelConfig, leaves: Mapping[str, Any], kinds: Collection[type], model: _Class
) -> tuple[Tensors, dict[str, Any]]:
    """Returns the tensors of LoRA, DoRA or (IA)³ by name in transformers, and their settings.

    Raises:
      UserError: a projection with an adapter is not a module there, or a part of one.
    """
    bare = construct.without_adapters(config)
    targets = {model.name(name): matrix for name, matrix in matrices.find(model.family, bare).items()}
    embeddings = {model.name(name): table for name, table in peft_embeddings.find(model.family, bare).items()}
    known = {name for matrix in targets.values() for name, *_ in matrix.projections.values()}
    adapted = {name.split(f"/{ADAPTER}/")[0] for name in leaves if f"/{ADAPTER}/" in name}
    if others := sorted(name for name in adapted - known if not name.endswith("embedder")):
        patterns = ", ".join(repr(adapter.pattern) for adapter in config.adapters)
        raise UserError(
            f"{config.adapters[0].__class__.__name__}.pattern={patterns}: {others[0].removeprefix(tables.MODEL)} is "
            "not a module of transformers that peft adapts. Merge the adapters (MERGE=True), or train them without it."
        )
    if kinds == {IA3}:
        tensors, settings = peft_ia3.write(config, leaves, targets)
    else:
        tensors, settings = peft_lora.write(config, leaves, targets, embeddings, is_dora=kinds == {DoRA})
    is_transposed = (m.layout == "conv1d" for t in targets.values() for _, m, _ in t.projections.values())
    return tensors, settings | {"fan_in_fan_out": any(is_transposed)}


def _heads(
    family: Family,
    config: ModelConfig,
    heads: Mapping[str, Any],
    head_class: HeadClass | None,
    leaves: Mapping[str, Any],
) -> Tensors:
    """Returns the tensors of heads, with the copies of tied tensors that peft reads for a module of a head."""
    saved = tables.write(family, config, heads, head_class)
    modules = adapter_heads.modules(saved)
    tied = family.tied(config) if saved and head_class is None else {}
    copies = {copy: each for copy, each in tied.items() if any(copy.startswith(f"{module}.") for module in modules)}
    if copies:
        tensors = saved | tables.write(family, config, {name: leaves[name] for name in _tables(family, config)})
        saved |= {copy: tensors[original] for copy, original in copies.items()}
    return saved


def _tables(family: Family, config: ModelConfig) -> list[str]:
    """Returns the stored names of the embeddings of tokens."""
    return [mapping.name for mapping in family.table(config) if mapping.name.endswith("token_embedder/embedding")]


def _write_files(directory: str, tensors: Tensors, settings: Mapping[str, Any]) -> None:
    safetensors_files.write(directory, tensors, file=WEIGHTS)
    paths.write_atomic(paths.join(directory, CONFIG), json.dumps(settings, indent=2) + "\n")


def _task_type(architecture: str) -> str | None:
    return next((task for end, task in _TASK_TYPES.items() if architecture.endswith(end)), None)


def is_written_by_peft(directory: str) -> bool:
    """Returns whether a directory with adapters has the files of peft, and not of another library."""
    return "peft_type" in json_files.read(paths.join(directory, CONFIG))


def base(directory: str) -> str | None:
    """Returns where the base model of adapters is, or None if their files do not name it.

    Raises:
      UserError: the name is not text.
    """
    found = json_files.read(file := paths.join(directory, CONFIG)).get(_BASE)
    if found is not None and not isinstance(found, str):
        raise UserError(f"{file}: {_BASE} {found!r:.80}: must be text. Give the base model as BASE_PATH.")
    return found


def read(
    directory: str, base: Base
) -> tuple[tuple[Adapter, ...], dict[str, Float[np.ndarray, "..."]], TaskHead | None]:
    """Reads adapters that peft wrote.

    Args:
      directory: local directory or bucket with `adapter_config.json` and `adapter_model.safetensors`.
      base: the base model.

    Returns:
      The adapters for `config.adapters`, stored name -> their parameters and those of heads, and the head of a
      downstream task, if there is one. See `adapter_heads` for the heads. Where only some layers of a stack have an
      update, the others have an update of 0.

    Raises:
      UserError: a file is missing or invalid, or the adapters are not supported.
    """
    settings = json_files.read(file := paths.join(directory, CONFIG))
    if WEIGHTS not in paths.listdir(directory):
        raise UserError(
            f"{directory}: {WEIGHTS} not found. Files that are pickled, such as adapter_model.bin, are not read: save "
            "the adapter again with safe_serialization=True."
        )
    kind = settings.get("peft_type")
    readers = {
        "LORA": peft_lora.read,
        "IA3": peft_ia3.read,
        peft_prompt.KIND: peft_prompt.read,
        peft_prefix.KIND: peft_prefix.read,
    }
    if not isinstance(kind, str) or kind not in readers:
        known = "LoRA, DoRA, (IA)³, prompt tuning or prefix tuning"
        raise UserError(f"{file}: peft_type {kind!r:.80}: not supported. Give {known}.")
    with registry.file_in_errors(file):
        peft_settings.check(settings)
        task, named = settings.get("task_type"), fields.mapping({"auto_mapping": {}} | _known(settings), "auto_mapping")
    tensors = AdapterTensors(directory, WEIGHTS, _PREFIXES)
    adapters, leaves = readers[kind](settings, file, tensors, base)
    head, of_heads = adapter_heads.read(tensors, base, task=task, class_name=named.get("base_model_class"))
    tensors.check_unread(base)
    return adapters, leaves | of_heads, head


def _known(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that are not null."""
    return {key: value for key, value in settings.items() if value is not None}
