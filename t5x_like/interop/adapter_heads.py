"""The heads beside adapters in the files of other libraries: which class they belong to, and what the base model adds.

peft stores the classifier of a class of transformers, but not the pooler before it, which the base model has. It states
the class, or the task, for which several classes may have a classifier of the same name.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.interop import fields, head_classes, tables
from t5x_like.interop.adapter_base import Base
from t5x_like.interop.adapter_tensors import AdapterTensors
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, SPANS, TOKENS, TaskHead
from t5x_like.interop.tensor_mapping import HeadClass
from t5x_like.objectives import conditional_spans

# Task type of peft -> heads of its classes.
_HEADS = {"SEQ_CLS": (SEQUENCE,), "TOKEN_CLS": (TOKENS,), "QUESTION_ANS": (SPANS, conditional_spans.NAME)}
# Names of modules that peft itself adds to `modules_to_save` of its tasks. No module in one of them may be named.
_ADDED = ("classifier", "score", "qa_outputs")


def read(
    tensors: AdapterTensors, base: Base, *, task: str | None = None, class_name: str | None = None
) -> tuple[TaskHead | None, dict[str, Any]]:
    """Reads the heads of the class that was trained, from the file of the adapters or the base model.

    Args:
      tensors: the file of the adapters.
      base: the base model.
      task: task type of peft, if the file states one.
      class_name: class of transformers that was trained, if the file states it.

    Returns:
      The head of a downstream task, if the class has one; and stored name -> parameters of its heads. A class that has
      no such head has the heads of the base model.

    Raises:
      UserError: the class is not known, or a tensor of its head is missing or has another shape.
    """
    head_class = _find_class(tensors, base, task, class_name)
    if head_class is None:
        return base.head, base.heads | _read_own(tensors, base)
    found, model = {}, base.config
    for mapping in head_class.table:
        tensor = tensors.read(mapping.hf_name)
        if tensor is None and base.stored is not None and base.stored.has(mapping.hf_name):
            shape = base.stored.shape(mapping.hf_name)
            # Heads have the same dimensions on both sides, so that hf_shape is its own inverse for them.
            found[mapping.name] = base.stored.read(mapping, mapping.hf_name, mapping.hf_shape(shape))
            continue
        if tensor is None:
            raise UserError(
                f"{tensors.file}: tensor {mapping.hf_name!r} of its {head_class.name} is neither here nor in the base "
                f"model {base.path}. Give the base model that has this tensor of the head as BASE_PATH."
            )
        found[mapping.name] = mapping.from_hf(tensor, mapping.hf_shape(tensor.shape))
    outputs = found[head_class.table[-1].name].shape[-1:] or (0,)
    stated, form = _stated(head_class, base, outputs[0]), head_class.form(base.hf_config)
    given = () if head_class.head == conditional_spans.NAME else outputs
    made = jax.eval_shape(lambda key: form.make(model, *given, key=key), jax.random.key(0))
    for name, leaf in parameters.named_leaves(made).items():
        if (shape := found[f"{tables.OBJECTIVE}{head_class.head}/{name}"].shape) != leaf.shape:
            raise UserError(
                f"{tensors.file}: {name} of the head of its {head_class.name} has shape {shape}, not {leaf.shape}. "
                "Give the base model that it was trained on as BASE_PATH."
            )
    labels = head_classes.labels_from_json(stated) if head_class.has_labels else ()
    return TaskHead(head_class.head, form, labels, head_classes.predicts(head_class, stated)), found


def _stated(head_class: HeadClass, base: Base, outputs: int) -> Mapping[str, Any]:
    """Returns what config.json of the base model says about a head; names of labels by default."""
    labels = {str(index): f"LABEL_{index}" for index in range(outputs)}
    is_same = head_class.name in fields.strings(base.hf_config, "architectures")
    stated = base.hf_config if is_same and len(base.hf_config.get("id2label") or ()) == outputs else {}
    return {"id2label": labels} | stated


def _find_class(tensors: AdapterTensors, base: Base, task: str | None, name: str | None) -> HeadClass | None:
    """Returns the class that was trained if it has the head of a downstream task."""
    classes = [each for each in base.family.head_classes(base.hf_config) if each.accepts(base.hf_config)]
    if name is not None:
        return next((each for each in classes if each.name == name), None)
    if task in _HEADS:
        fitting = [each for each in classes if each.head in _HEADS[task]]
        if not fitting:
            raise UserError(
                f"{tensors.file}: task_type {task!r}: no class of {base.family.config_class.__name__} has such a head. "
                "Check BASE_PATH."
            )
    else:
        own = {each.hf_name for each in base.family.table(base.config) if each.name.startswith(tables.OBJECTIVE)}
        heads = {each.hf_name for head in classes for each in head.table} - own
        stored = {each for each in heads if tensors.find(each) is not None}
        if not stored:
            return None
        stored |= {each.hf_name for head in classes for each in head.table if tensors.find(each.hf_name) is not None}
        fitting = [each for each in classes if stored <= {mapping.hf_name for mapping in each.table}]
        fitting = [each for each in fitting if each.head != CHOICES or _outputs(tensors, each) == 1]
    architectures = fields.strings(base.hf_config, "architectures")
    fitting = [each for each in fitting if each.name in architectures] or fitting
    if task in _HEADS:
        present = [each for each in fitting if any(tensors.find(mapping.hf_name) for mapping in each.table)]
        fitting = (present or fitting)[:1]
    if len(fitting) != 1:
        shown = " or ".join(each.name for each in fitting) or "no class"
        raise UserError(
            f"{tensors.file}: its head fits {shown}. Give task_type in adapter_config.json, or name the class in "
            "`architectures` of config.json of the base model."
        )
    return fitting[0]


def _outputs(tensors: AdapterTensors, head_class: HeadClass) -> int | None:
    """Returns the number of outputs of a head, or None if the file does not have its last tensor."""
    last = tensors.find(head_class.table[-1].hf_name)
    return None if last is None else tensors.shapes[last][0]


def _read_own(tensors: AdapterTensors, base: Base) -> dict[str, Any]:
    """Reads the heads of pretraining that a file has."""
    found, table = {}, base.family.table(base.config)
    for mapping in table:
        if mapping.name.startswith(tables.OBJECTIVE) and (tensor := tensors.read(mapping.hf_name)) is not None:
            if mapping.name in base.leaves and base.leaves[mapping.name].shape != mapping.hf_shape(tensor.shape):
                tensors.read(mapping.hf_name, mapping.hf_shape(base.leaves[mapping.name].shape))  # raises
            found[mapping.name] = mapping.from_hf(tensor, mapping.hf_shape(tensor.shape))
    names = {mapping.hf_name: mapping.name for mapping in table if mapping.name in found}
    for copy, original in base.family.tied(base.config).items():
        if original in names and (tensor := tensors.read(copy)) is not None:
            if not np.array_equal(tensor, tensors.read(original)):
                raise UserError(f"{tensors.file}: tensor {copy!r} differs from {original!r}, which it must equal.")
    return found


def modules(tensors: Iterable[str]) -> list[str]:
    """Returns `modules_to_save` of peft for the tensors of heads: none of them is in another one."""
    found = set()
    for name in tensors:
        module = name.rsplit(".", 1)[0]
        parts = module.split(".")
        added = next((index for index, part in enumerate(parts) if part in _ADDED), len(parts) - 1)
        found.add(".".join(parts[: added + 1]))
    return sorted(each for each in found if not any(each.startswith(f"{other}.") for other in found))
