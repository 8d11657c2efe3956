"""Describes models as gin settings: MODEL with all its fields, and the usual OBJECTIVE of such a model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import model_tokens, tokenizer_export
from t5x_like.interop.head_classes import TaskHead
from t5x_like.models import build
from t5x_like.models.base import GenerativeEncoderDecoder, GenerativeModel, ModelConfig
from t5x_like.objectives import (
    conditional_spans,
    multiple_choice,
    sequence_prediction,
    span_extraction,
    token_classification,
)
from t5x_like.objectives.base import Objective
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.conditional_spans import ConditionalSpanExtraction
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.multi_label_classification import MultiLabelClassification
from t5x_like.objectives.multiple_choice import MultipleChoice
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.sequence_regression import SequenceRegression
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.objectives.span_extraction import SpanExtraction
from t5x_like.objectives.token_classification import TokenClassification

# Head -> objective. That of `sequence_prediction.NAME` is another one for regression.
_OBJECTIVES = {
    sequence_prediction.NAME: SequenceClassification,
    token_classification.NAME: TokenClassification,
    span_extraction.NAME: SpanExtraction,
    multiple_choice.NAME: MultipleChoice,
    conditional_spans.NAME: ConditionalSpanExtraction,
}


def describe(
    config: ModelConfig,
    head: TaskHead | None = None,
    objective: tuple[type, Mapping[str, Any]] | None = None,
) -> str:
    """Writes the configuration of a model as a gin file.

    Args:
      config: A dataclass; see `describe_dataclass`.
      head: The head of a downstream task, if the model has one.
      objective: Class and settings of an objective; by default that of the head, or else the usual one of such a model.

    Returns:
      Gin text that sets MODEL and OBJECTIVE.
    """
    lines = ["from __gin__ import dynamic_registration", "", describe_model(config)]
    if head is not None:
        return "\n".join([*lines, describe_head(head), "PACK = False", ""])  # examples of heads do not share a row
    objective, settings = objective or usual_objective(config)
    lines += [describe_objective(objective, {name: repr(value) for name, value in settings.items()})]
    return "\n".join(lines)


def describe_model(config: ModelConfig, macros: Mapping[str, str] | None = None) -> str:
    """Writes gin statements that set MODEL, with their imports.

    Args:
      config: A dataclass; see `describe_dataclass`.
      macros: Field of `config` -> macro that has its value.
    """
    return describe_dataclass("MODEL", config, macros)


def describe_dataclass(macro: str, value: Any, macros: Mapping[str, str] | None = None) -> str:
    """Writes gin statements that set a macro to a dataclass, with their imports.

    Args:
      macro: The macro.
      value: A dataclass. Fields may be dataclasses too, at most one of each class beside `parts`, or tuples of any
        dataclasses.
      macros: Field of `value` -> macro that has its value.
    """
    parts = _with_parts(value)
    classes = {type(part) for part in parts.values()}
    lines = [_import(each) for each in sorted(classes, key=lambda each: each.__module__)]
    lines += [f"{macro} = @{class_name(type(value))}()"]
    for scoped, part in parts.items():
        named = (macros or {}) if part is value else {}
        scope = scoped.removesuffix(class_name(type(part)))
        lines += [f"{scoped}:"] if _fields(part) else []
        lines += [
            f"  {name} = {f'%{named[name]}' if name in named else _reference(part, name, field, scope)}"
            for name, field in _fields(part)
        ]
    return "\n".join([*lines, ""])


def _with_parts(value: Any, scope: str = "") -> dict[str, Any]:
    """Returns a dataclass and the dataclasses in it, by their names with scopes."""
    found = {f"{scope}{class_name(type(value))}": value}
    for name, field in _fields(value):
        for inner, each in _dataclasses(value, name, field, scope):
            found |= _with_parts(each, inner)
    return found


def _dataclasses(part: Any, name: str, value: Any, scope: str) -> list[tuple[str, Any]]:
    """Returns the dataclasses in the value of a field with their scopes, which parts and elements of tuples have."""
    if dataclasses.is_dataclass(value):
        return [(f"{scope}{name}/" if name in getattr(part, "parts", {}) else scope, value)]
    return [(f"{scope}{name}_{index}/", each) for index, each in enumerate(value if _has_dataclasses(value) else ())]


def describe_head(head: TaskHead) -> str:
    """Writes gin statements that set OBJECTIVE and HEAD for the head of a downstream task.

    Args:
      head: The head of a Hugging Face directory. Its labels are the value of the macro LABELS. The directory does not
        have the number of choices, so the macro NUM_CHOICES is required.
    """
    objective = _objective_class(head)
    macros = {"LABELS": repr(head.labels)} if head.labels else {}
    if objective is MultipleChoice:
        macros["NUM_CHOICES"] = "%gin.REQUIRED"
    settings = {macro.lower(): f"%{macro}" for macro in (*macros, "HEAD")}
    text = describe_objective(objective, settings) + describe_dataclass("HEAD", head.form)
    return text + "".join(f"{macro} = {value}\n" for macro, value in macros.items())


def objective_of(config: ModelConfig, head: TaskHead | None = None, choices: int | None = None) -> Objective:
    """Builds the objective of a Hugging Face directory.

    Args:
      config: The configuration of its model.
      head: The head of a downstream task, if the directory has one. Otherwise the result is `usual_objective`.
      choices: Number of choices of a multiple-choice task, which no directory has.

    Raises:
      UserError: The number of choices is needed and missing.
    """
    if head is None:
        objective, settings = usual_objective(config)
        return objective(**settings)
    settings = {"labels": head.labels} if head.labels else {}
    objective = _objective_class(head)
    if objective is MultipleChoice:
        if choices is None:
            raise UserError("the number of choices of a multiple-choice model is not known. Give its objective.")
        settings["num_choices"] = choices
    return objective(**settings, head=head.form)


def _objective_class(head: TaskHead) -> type[Objective]:
    of_text = {"scores": SequenceRegression, "labels": MultiLabelClassification}
    return of_text.get(head.predicts) or _OBJECTIVES[head.name]


def describe_objective(objective: type, settings: Mapping[str, str]) -> str:
    """Writes gin statements that set OBJECTIVE, with their import.

    Args:
      objective: Class of the objective.
      settings: Parameter -> value in gin syntax.
    """
    lines = [_import(objective), f"OBJECTIVE = @{class_name(objective)}()"]
    return "\n".join([*lines, *(f"{class_name(objective)}.{name} = {value}" for name, value in settings.items()), ""])


def usual_objective(config: ModelConfig, directory: str | None = None) -> tuple[type, dict[str, Any]]:
    """Returns the usual objective of a model and its settings. BOS is taken from the special tokens of the model.

    Args:
      config: Configuration of the model.
      directory: Its Hugging Face directory, whose tokenizer may begin the inputs of an encoder as the decoder begins.
    """
    tokens, parts = model_tokens.special_tokens(config), architecture_kind(config)
    if parts == "encoder_decoder":
        start = tokens.get("decoder_start_token_id")
        begins = None not in (directory, start) and model_tokens.inputs_bos(directory) == start
        bos = {} if start is None else {"bos_id": start}
        return SequenceToSequence, bos | ({"encoder_bos": True} if begins else {})
    if parts == "decoder":
        return CausalLM, {"bos_id": tokens.get("bos_token_id")}
    return MaskedLM, {}


def architecture_kind(config: ModelConfig) -> tokenizer_export.Shape:
    """Returns whether a model is an encoder, a decoder or an encoder-decoder."""
    model = build.shapes(config)
    if isinstance(model, GenerativeEncoderDecoder):
        return "encoder_decoder"
    return "decoder" if isinstance(model, GenerativeModel) else "encoder"


def class_name(each: type) -> str:
    """Returns the name of a class in gin statements that import its module."""
    return f"{each.__module__.rpartition('.')[2]}.{each.__qualname__}"


def _import(each: type) -> str:
    package, _, module = each.__module__.rpartition(".")
    return f"from {package} import {module}"


def _fields(part: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(part, field.name)) for field in dataclasses.fields(part)]


def _has_dataclasses(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(dataclasses.is_dataclass(each) for each in value)


def _reference(part: Any, name: str, value: Any, scope: str) -> str:
    """Returns the value of a field in gin syntax: a literal, or references that build dataclasses."""
    found = [f"@{inner}{class_name(type(each))}()" for inner, each in _dataclasses(part, name, value, scope)]
    if not found:
        return repr(value)
    return found[0] if dataclasses.is_dataclass(value) else f"({', '.join(found)},)"
