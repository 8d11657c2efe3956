"""Adapters in the files of the library peft: `adapter_config.json` and `adapter_model.safetensors`.

LoRA, DoRA, (IA)³, prompts (`peft_prompt`) and prefixes (`peft_prefix`) are written and read. Where transformers has one
matrix for several projections, such as GPT-2's `c_attn`, the updates of these projections are written as one update,
whose rank is the sum of their ranks.
"""

import json
import math
import re
from collections.abc import Mapping
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
    json_files,
    patterns,
    peft_embeddings,
    peft_ia3,
    peft_prefix,
    peft_prompt,
    safetensors_files,
    tables,
)
from t5x_like.interop.head_classes import TaskHead
from t5x_like.interop.tables import Family
from t5x_like.models import construct
from t5x_like.models.base import ModelConfig

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX, _SUFFIX = "base_model.model.", ".weight"
# Prefix of the tensors of a head where the modules of the model do not change.
_HEAD_PREFIX = "base_model."
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
# Settings of LoRA whose other values have other outputs, and their only supported values.
_FIXED = {
    "bias": "none",
    "lora_bias": False,
    "layer_replication": None,
    "alora_invocation_tokens": None,
    "arrow_config": None,
    "kasa_config": None,
    "monteclora_config": None,
    "use_bdlora": None,
    "use_qalora": False,
}
# Beginnings of initializations of LoRA that also change the base model: PiSSA and others.
_CHANGE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
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
    if kinds == {Prompt}:
        if heads:
            raise UserError(
                f"{min(heads)}: peft's heads read the positions of a prompt, which heads do not read here, so their "
                "outputs would differ. Only prompts of models without a head are written."
            )
        tensors, settings = peft_prompt.write(config, leaves)
        settings |= {"base_model_name_or_path": base, "task_type": _task_type(architecture), "inference_mode": True}
        _write_files(directory, tensors, settings)
        return
    if kinds == {Prefix}:
        tensors, settings = peft_prefix.write(config, leaves, hf_config["model_type"])
    else:
        targets, embeddings = (
            {matrices.module_name(name, family, head_class, architecture): target for name, target in found.items()}
            for found in (matrices.find(family, bare), peft_embeddings.find(family, bare))
        )
        if kinds == {IA3}:
            tensors, settings = peft_ia3.write(config, leaves, targets)
            tensors = {_PREFIX + name: tensor for name, tensor in tensors.items()}
        else:
            tensors, settings = _write_lora(config, leaves, targets, embeddings, is_dora=kinds == {DoRA})
        is_transposed = (m.layout == "conv1d" for t in targets.values() for _, m, _ in t.projections.values())
        settings["fan_in_fan_out"] = any(is_transposed)
    saved = tables.write(family, bare, heads, head_class)
    settings |= {
        "base_model_name_or_path": base,
        "task_type": _task_type(architecture),
        "modules_to_save": sorted({name.rsplit(".", 1)[0] for name in saved}) or None,
        "inference_mode": True,
    }
    before = _HEAD_PREFIX if kinds == {Prefix} else _PREFIX
    tensors |= {before + name: tensor for name, tensor in saved.items()}
    _write_files(directory, tensors, settings)


def _write_files(directory: str, tensors: Tensors, settings: Mapping[str, Any]) -> None:
    safetensors_files.write(directory, tensors, file=WEIGHTS)
    paths.write_atomic(paths.join(directory, CONFIG), json.dumps(settings, indent=2) + "\n")


def _task_type(architecture: str) -> str | None:
    return next((task for end, task in _TASK_TYPES.items() if architecture.endswith(end)), None)


def _write_lora(
    config: ModelConfig,
    leaves: Mapping[str, Any],
    targets: Mapping[str, matrices.Matrix],
    embeddings: Mapping[str, str],
    *,
    is_dora: bool,
) -> tuple[Tensors, dict[str, Any]]:
    """Returns the tensors of LoRA or DoRA, and their settings."""
    tensors, ranks, scales = peft_embeddings.write(config, leaves, embeddings)
    for module, matrix in targets.items():
        adapted = {k: name for k, (name, *_) in matrix.projections.items() if f"{name}/{ADAPTER}/down" in leaves}
        if not adapted:
            continue
        downs, ups = [], []
        for k, name in adapted.items():
            _, mapping, shape = matrix.projections[k]
            adapter = matrices.adapter_of(config.adapters, name)
            down = matrix.leaf(leaves, f"{name}/{ADAPTER}/down").reshape(-1, adapter.rank)
            up = matrix.leaf(leaves, f"{name}/{ADAPTER}/up").reshape(adapter.rank, -1)
            block = np.zeros((up.shape[1] * matrix.parts, adapter.rank), np.float32)
            scale = scales.setdefault(module, adapter.scale)
            block[k * up.shape[1] : (k + 1) * up.shape[1]] = up.T * (adapter.scale / scale)
            downs.append(down.T)
            ups.append(block)
        tensors[f"{module}.lora_A"], tensors[f"{module}.lora_B"] = np.concatenate(downs), np.concatenate(ups, axis=1)
        ranks[module] = len(tensors[f"{module}.lora_A"])
        if is_dora:
            tensors[f"{module}.lora_magnitude_vector"] = np.concatenate(
                [_magnitude(matrix, leaves, k) for k in range(matrix.parts)]
            )
    if not ranks:
        patterns = ", ".join(repr(adapter.pattern) for adapter in config.adapters if isinstance(adapter, LoRA))
        raise UserError(
            f"LoRA.pattern={patterns}: no matrix of transformers has the matched projections, so peft has no updates "
            "of them. Merge them (MERGE=True)."
        )
    first, is_tied = next(iter(ranks)), any(getattr(adapter, "tied_logits", False) for adapter in config.adapters)
    settings = {
        "peft_type": "LORA",
        "r": ranks[first],
        "lora_alpha": scales[first] * ranks[first],
        "lora_dropout": max((a.dropout_rate for a in config.adapters if isinstance(a, LoRA)), default=0.0),
        "use_dora": is_dora,
        "target_modules": sorted([*ranks, *([peft_embeddings.LOGITS] if is_tied else [])]),
        "rank_pattern": {module: rank for module, rank in ranks.items() if rank != ranks[first]},
        "alpha_pattern": {
            module: scales[module] * rank
            for module, rank in ranks.items()
            if not math.isclose(scales[module] * rank, scales[first] * ranks[first])
        },
        "bias": "none",
        "ensure_weight_tying": is_tied,
    }
    named = {
        _PREFIX + name + ("" if re.search(r"vector$|embedding_[AB]$", name) else _SUFFIX): tensor
        for name, tensor in tensors.items()
    }
    return named, settings


def _magnitude(matrix: matrices.Matrix, leaves: Mapping[str, Any], part: int) -> Float[np.ndarray, " outputs"]:
    """Returns the norms of the outputs of a part, with the change that was trained if it has any."""
    name, mapping, _ = matrix.projections[part]
    kernel = matrix.leaf(leaves, f"{name}/kernel")
    norms = np.sqrt(np.sum(kernel**2, axis=tuple(range(mapping.input_dims))))
    change = f"{name}/{ADAPTER}/magnitude_change"
    return (norms + (matrix.leaf(leaves, change) if change in leaves else 0)).reshape(-1)


def is_written_by_peft(directory: str) -> bool:
    """Returns whether a directory with adapters has the files of peft, and not of another library."""
    return "peft_type" in json_files.read(paths.join(directory, CONFIG))


def base(directory: str) -> str | None:
    """Returns where the base model of adapters is, or None if their files do not name it."""
    return json_files.read(paths.join(directory, CONFIG)).get("base_model_name_or_path")


def read(
    directory: str, config: ModelConfig, kernels: Mapping[str, Any]
) -> tuple[tuple[Adapter, ...], dict[str, Float[np.ndarray, "..."]], TaskHead | None]:
    """Reads adapters that peft wrote.

    Args:
      directory: local directory or bucket with `adapter_config.json` and `adapter_model.safetensors`.
      config: configuration of the base model, without adapters.
      kernels: stored name -> parameter of the base model, `model/…`. Layers are stacked.

    Returns:
      The adapters for `config.adapters`, stored name -> their parameters and those of the head of a task, and this
      head, if there is one. Where only some layers of a stack have an update, the others have an update of 0.

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
    if kind not in ("LORA", "IA3", peft_prompt.KIND, peft_prefix.KIND):
        known = "LoRA, DoRA, (IA)³, prompt tuning or prefix tuning"
        raise UserError(f"{file}: peft_type {kind!r}: not supported. Give {known}.")
    stored = safetensors_files.Tensors(directory, WEIGHTS)
    family = interop.family_of(config)
    reader = _Reader(directory, settings, stored, family, config, kernels)
    if kind == peft_prompt.KIND:
        adapters, leaves = reader.prompt()
        reader.check_unread()
        return adapters, leaves, None
    read_kind = {"LORA": reader.lora, "IA3": reader.ia3, peft_prefix.KIND: reader.prefix}[kind]
    adapters, leaves = read_kind()
    head, of_head = reader.head()
    reader.check_unread()
    return adapters, leaves | of_head, head


class _Reader:
    """Reads the tensors of one directory; see `read`."""

    def __init__(
        self,
        directory: str,
        settings: Mapping[str, Any],
        stored: Mapping[str, Any],
        family: Family,
        config: ModelConfig,
        kernels: Mapping[str, Any],
    ):
        self.directory, self.settings, self.stored, self.kernels = directory, settings, stored, kernels
        self.family, self.config = family, config
        self.targets = matrices.find(family, config)
        self.unread = set(stored)

    def lora(self) -> tuple[tuple[Adapter, ...], dict[str, Any]]:
        """Returns LoRA or DoRA with the largest rank of all matrices; others are filled with zeros."""
        self._check(_FIXED)
        self._check_base()
        modules = {module: self._read(f"{module}.lora_A") for module in self.targets}
        modules = {module: down for module, down in modules.items() if down is not None}
        root = self.settings.get("use_rslora", False)
        if missing := [key for key in ("r", "lora_alpha") if key not in self.settings]:
            file = paths.join(self.directory, CONFIG)
            raise UserError(f"{file}: key {missing[0]!r} not found. Save the adapter again.")
        embeddings, of_embeddings = peft_embeddings.read(
            peft_embeddings.find(self.family, self.config),
            self._read,
            lambda module, rank: self._scale(module, rank, root),
            self.kernels,
            tied_logits=bool(self.settings.get("ensure_weight_tying")),
        )
        if not modules and not embeddings:
            raise UserError(f"{self.directory}: no update of a projection of the base model found. Check BASE_PATH.")
        if not modules:
            return embeddings, of_embeddings
        rank = max(len(down) for down in modules.values())
        scale = self._scale(None, self.settings["r"], root)
        is_dora = bool(self.settings.get("use_dora"))
        leaves: dict[str, np.ndarray] = {}
        for module, down in modules.items():
            matrix, up = self.targets[module], self._require(f"{module}.lora_B")
            factor = self._scale(module, len(down), root) / scale
            magnitude = self._require(f"{module}.lora_magnitude_vector") if is_dora else None
            for k, (name, mapping, shape) in matrix.projections.items():
                inputs, outputs = shape[: mapping.input_dims], shape[mapping.input_dims :]
                part = np.split(up, matrix.parts)[k] * factor
                missing = rank - len(down)
                whole_down, whole_up = np.pad(down.T, ((0, 0), (0, missing))), np.pad(part.T, ((0, missing), (0, 0)))
                matrix.put(leaves, f"{name}/{ADAPTER}/down", whole_down.reshape(*inputs, rank))
                matrix.put(leaves, f"{name}/{ADAPTER}/up", whole_up.reshape(rank, *outputs))
                if is_dora:
                    own = np.split(magnitude.reshape(-1), matrix.parts)[k].reshape(outputs)
                    change = own - _magnitude(matrix, self.kernels, k).reshape(outputs)
                    matrix.put(leaves, f"{name}/{ADAPTER}/magnitude_change", change)
        make = DoRA if is_dora else LoRA
        dropout_rate = float(self.settings.get("lora_dropout") or 0.0)
        adapter = make(pattern=matrices.pattern_of(leaves), rank=rank, alpha=scale * rank, dropout_rate=dropout_rate)
        return (adapter, *embeddings), leaves | of_embeddings

    def ia3(self) -> tuple[tuple[Adapter, ...], dict[str, Any]]:
        """Returns (IA)³ of outputs, of inputs, or both."""
        adapters, leaves = peft_ia3.read(self.targets, self._read)
        if not adapters:
            raise UserError(f"{self.directory}: no update of a projection of the base model found. Check BASE_PATH.")
        return adapters, leaves

    def prompt(self) -> tuple[tuple[Prompt, ...], dict[str, Any]]:
        """Returns a prompt."""
        file = paths.join(self.directory, WEIGHTS)
        self.unread.discard(peft_prompt.TENSOR)
        adapter, leaves = peft_prompt.read(self.settings, self.stored, self.config, self.kernels, file)
        return (adapter,), leaves

    def prefix(self) -> tuple[tuple[Prefix, ...], dict[str, Any]]:
        """Returns a prefix."""
        file = paths.join(self.directory, WEIGHTS)
        self.unread.discard(peft_prefix.TENSOR)
        adapter, leaves = peft_prefix.read(self.settings, self.stored, self.config, file)
        return (adapter,), leaves

    def head(self) -> tuple[TaskHead | None, dict[str, Any]]:
        """Returns the head of a task and its parameters, if the directory has one. Its labels have no names."""
        hf_config = self.family.config_to_json(self.config, [])
        for head_class in self.family.head_classes(hf_config):
            names = {mapping: self._find(mapping.hf_name) for mapping in head_class.table}
            if None not in names.values():
                self.unread -= set(names.values())
                tensors = {mapping: self.stored[name].astype(np.float32) for mapping, name in names.items()}
                # Heads have the same dimensions on both sides, so that hf_shape is its own inverse for them.
                found = {m.name: m.from_hf(tensor, m.hf_shape(tensor.shape)) for m, tensor in tensors.items()}
                outputs = found[head_class.table[-1].name].shape[-1]
                labels = tuple(f"LABEL_{index}" for index in range(outputs)) if head_class.has_labels else ()
                return TaskHead(head_class.head, head_class.form(hf_config), labels), found
        return None, {}

    def check_unread(self) -> None:
        """Raises a UserError for a tensor that was not read."""
        if self.unread:
            raise UserError(
                f"{paths.join(self.directory, WEIGHTS)}: tensor {min(self.unread)!r} is neither an update of a "
                f"projection of {self.family.config_class.__name__} nor a head that is supported."
            )

    def _check(self, fixed: Mapping[str, Any]) -> None:
        for key, value in fixed.items():
            if self.settings.get(key, value) != value:
                file = paths.join(self.directory, CONFIG)
                raise UserError(f"{file}: {key} {self.settings[key]!r}: not supported, only {value!r}.")

    def _check_base(self) -> None:
        """Raises a UserError if the updates belong to a base model that their initialization has changed."""
        initialization = self.settings.get("init_lora_weights", True)
        if isinstance(initialization, str) and initialization.lower().startswith(_CHANGE_BASE):
            raise UserError(
                f"{paths.join(self.directory, CONFIG)}: init_lora_weights {initialization!r} changes the weights of "
                "the base model: not supported. If the adapter was also saved before its training, peft converts "
                "PiSSA, CorDA and OLoRA (path_initial_model_for_weight_conversion of save_pretrained)."
            )

    def _find(self, name: str) -> str | None:
        """Returns the stored name of a tensor; the names of a bare model have no prefix."""
        names = (name, matrices.without_prefix(name, self.family))
        candidates = (
            before + each + end for before in (_PREFIX, _HEAD_PREFIX) for each in names for end in ("", _SUFFIX)
        )
        return next((each for each in candidates if each in self.stored.shapes), None)

    def _read(self, name: str) -> Float[np.ndarray, "..."] | None:
        if (stored := self._find(name)) is None:
            return None
        self.unread.discard(stored)
        return self.stored[stored].astype(np.float32)

    def _require(self, name: str) -> Float[np.ndarray, "..."]:
        if (found := self._read(name)) is None:
            file = paths.join(self.directory, WEIGHTS)
            raise UserError(f"{file}: tensor {_PREFIX + name!r} not found. Save the adapter again.")
        return found

    def _scale(self, module: str | None, rank: int, root: bool) -> float:
        alpha = self.settings["lora_alpha"]
        for pattern, value in (self.settings.get("alpha_pattern") or {}).items():
            if module is not None and patterns.match(rf"(.*\.)?({pattern})$", module):
                alpha = value
                break
        return alpha / (math.sqrt(rank) if root else rank)
