"""The heads of downstream tasks: which class of transformers has a head, its labels, and its form."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from t5x_like.errors import UserError
from t5x_like.interop import fields
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping, dense
from t5x_like.objectives import heads, multiple_choice, sequence_prediction, span_extraction, token_classification
from t5x_like.objectives.heads import HeadForm

SEQUENCE, TOKENS = sequence_prediction.NAME, token_classification.NAME
PADDING = "pad_token_id"
REGRESSION, CLASSIFICATION = "regression", "single_label_classification"
# What a head predicts (`Objective.predicts`) -> `problem_type` of transformers.
PROBLEM_TYPES = {"label": CLASSIFICATION, "labels": "multi_label_classification", "scores": REGRESSION}
# The name that transformers gives to the only output of a head without names.
_UNNAMED = "LABEL_0"
SPANS, CHOICES = span_extraction.NAME, multiple_choice.NAME


@dataclasses.dataclass(frozen=True)
class TaskHead:
    """The head of a Hugging Face directory, as an objective describes it.

    Attributes:
      name: name of the head: `sequence_classification`, `token_classification`, ….
      form: what the head reads, and how.
      labels: names of the labels in the order of their indices, or of the scores of a regression. Empty for a head
        without names.
      predicts: what the head of a text predicts; see `Objective.predicts`.
    """

    name: str
    form: HeadForm
    labels: tuple[str, ...] = ()
    predicts: str = "label"


def class_of_directory(family: Family, hf_config: Mapping[str, Any]) -> HeadClass | None:
    """Returns the class of a directory if it has the head of a downstream task.

    Args:
      family: the family of the model.
      hf_config: contents of config.json.

    Raises:
      UserError: the class has such a head, but `problem_type` is unknown.
    """
    architectures = fields.strings(hf_config, "architectures")
    classes = [each for each in family.head_classes(hf_config) if each.accepts(hf_config)]
    found = next((each for each in classes if each.name in architectures), None)
    problem = hf_config.get("problem_type")
    if found is not None and problem not in (None, *PROBLEM_TYPES.values()):
        raise UserError(f"problem_type {problem!r}: unknown. Give one of {', '.join(PROBLEM_TYPES.values())}.")
    return found


def predicts(head_class: HeadClass, hf_config: Mapping[str, Any]) -> str:
    """Returns what a head predicts: by `problem_type`, or without it, scores if the head of a text has one output.

    Args:
      head_class: class of transformers.
      hf_config: contents of config.json.

    Raises:
      UserError: the head would predict a label among one.
    """
    if head_class.head != SEQUENCE:
        return "label"
    problem, outputs = hf_config.get("problem_type"), len(_names(hf_config))
    if problem == CLASSIFICATION and outputs == 1:
        raise UserError(f"problem_type {problem!r}: the head has one label only. Set 'regression' if it is a score.")
    problem = problem or (REGRESSION if outputs == 1 else CLASSIFICATION)
    return next(name for name, each in PROBLEM_TYPES.items() if each == problem)


def class_of_parameters(family: Family, hf_config: Mapping[str, Any], names: Iterable[str]) -> HeadClass | None:
    """Returns the class with just the given parameters of heads, or None if no class of a downstream task has them.

    Args:
      family: the family of the model.
      hf_config: contents of config.json without heads.
      names: stored names of parameters.
    """
    given = {name for name in names if name.startswith(OBJECTIVE)}
    classes = family.head_classes(hf_config)
    return next((each for each in classes if given == {mapping.name for mapping in each.table}), None)


def form_of(family: Family, hf_config: Mapping[str, Any], name: str) -> HeadForm:
    """Returns the form in which transformers has a head for a family.

    Args:
      family: the family of the model.
      hf_config: contents of config.json.
      name: name of the head.

    Raises:
      UserError: transformers does not have such a head for the family.
    """
    classes = {each.head: each for each in reversed(family.head_classes(hf_config)) if each.accepts(hf_config)}
    if name not in classes:
        raise UserError(
            f"model_type {hf_config['model_type']!r}: transformers has no class with the head {name!r}. Set HEAD to a "
            "form of t5x_like.objectives.heads."
        )
    return classes[name].form(hf_config)


def labels_from_json(hf_config: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the outputs in the order of their indices; empty for one without a name of its own.

    Args:
      hf_config: contents of config.json.

    Raises:
      UserError: `id2label` is not a mapping from the indices 0, 1, … to names.
    """
    names = _names(hf_config)
    return () if names == (_UNNAMED,) else names


def _names(hf_config: Mapping[str, Any]) -> tuple[str, ...]:
    hf_config = fields.with_defaults(hf_config, {"num_labels": 2})  # the default of transformers
    stored = fields.mapping(hf_config, "id2label")
    if not stored:
        number = fields.size(hf_config, "num_labels")
        stored = {str(index): f"LABEL_{index}" for index in range(number)}
    names = tuple(stored.get(str(index)) for index in range(len(stored)))
    if not all(isinstance(name, str) for name in names):
        raise UserError(f"id2label {stored!r}: must map the indices 0 … {len(stored) - 1} to names")
    return names


def labels_to_json(
    head_class: HeadClass,
    outputs: int,
    labels: Sequence[str],
    dropout_rate: float | None,
    *,
    predicts: str = "label",
) -> dict[str, Any]:
    """Returns what config.json says about a head.

    Args:
      head_class: class of transformers.
      outputs: number of outputs of the head.
      labels: names of the labels; empty for the names of transformers, `LABEL_0`, ….
      dropout_rate: dropout rate of the head; None omits it, so that the default of the class applies.
      predicts: what the head of a text predicts. One output is always a score.

    Raises:
      UserError: the numbers of labels and outputs differ.
    """
    if labels and len(labels) != outputs:
        raise UserError(f"labels {tuple(labels)}: the head has {outputs} outputs. Give one name per output.")
    found: dict[str, Any] = {"architectures": [head_class.name], **head_class.settings}
    if dropout_rate is not None:
        found[head_class.dropout_key] = dropout_rate
    if not head_class.has_labels:
        return found
    names = list(labels) or [f"LABEL_{index}" for index in range(outputs)]
    if head_class.head == SEQUENCE:
        found["problem_type"] = REGRESSION if outputs == 1 and predicts == "label" else PROBLEM_TYPES[predicts]
    return found | {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }


def padding_to_json(head_class: HeadClass, hf_config: Mapping[str, Any], padding_id: int | None) -> dict[str, int]:
    """Returns `pad_token_id` if config.json lacks it and the head reads the last token, which transformers finds by it.

    Args:
      head_class: class of transformers.
      hf_config: contents of config.json.
      padding_id: the id to write; None if it is not known, so that transformers accepts one row at a time.
    """
    if hf_config.get(PADDING) is not None or not isinstance(head_class.form(hf_config), heads.LastToken):
        return {}
    if padding_id is None:
        logging.warning(
            "no token can be %s: %s accepts one row at a time. Add a token for it to the tokenizer, and its id to "
            "config.json",
            *(PADDING, head_class.name),
        )
        return {}
    logging.info("%s = %d, by which %s finds the last token of each row", PADDING, padding_id, head_class.name)
    return {PADDING: padding_id}


def head_table(head: str, **names: str) -> tuple[TensorMapping, ...]:
    """Returns the tensor mappings of a head that consists of projections.

    Args:
      head: Name of the head.
      **names: Name of the projection -> its name in transformers.
    """
    return tuple(each for name, hf_name in names.items() for each in dense(f"{OBJECTIVE}{head}/{name}", hf_name))


def question_answering(name: str, form: HeadForm, **prefixes: str) -> HeadClass:
    """Returns a class for question answering, which is a linear classifier of each token without dropout.

    Args:
      name: name of the class.
      form: what the head reads.
      **prefixes: see `HeadClass`.
    """
    return HeadClass(
        name, SPANS, head_table(SPANS, classifier="qa_outputs"), lambda hf_config: form, has_labels=False, **prefixes
    )


# Default of transformers for the head of decoders that label each token.
_TAGGING_DROPOUT = 0.1


def tagging_form(hf_config: Mapping[str, Any]) -> HeadForm:
    """Returns the form in which decoders of transformers label each token."""
    hidden = hf_config.get("hidden_dropout")
    return heads.EachDecoderToken(dropout_rate=dropout_rate(hf_config, _TAGGING_DROPOUT if hidden is None else hidden))


def dropout_rate(hf_config: Mapping[str, Any], default: float | None, key: str = "classifier_dropout") -> float | None:
    """Returns the dropout rate of a head in config.json, or a default if it is missing.

    Args:
      hf_config: contents of config.json.
      default: the class's default; None stands for the dropout rate of the model.
      key: key of config.json.
    """
    stored = {name: value for name, value in hf_config.items() if value is not None}
    return fields.number(stored, key) if key in stored else default


def architecture(
    heads: Iterable[str],
    classes: Mapping[tuple[str, ...], str],
    family: str,
    *,
    pooler: str | None = None,
    pooled: str | None = None,
) -> str:
    """Returns the class of transformers that has the heads of pretraining of a model.

    Args:
      heads: stored names of the tensors of the heads.
      classes: sorted names of heads, such as `objective/masked_lm` -> class.
      family: name of the family, for the error.
      pooler: beginning of the names of a pooler, which does not count as a head: the class of the model has one.
      pooled: a head that no class has without the pooler.

    Raises:
      UserError: transformers does not have such a class.
    """
    names = set(heads)
    poolers = {name for name in names if pooler is not None and name.startswith(pooler)}
    present = tuple(sorted({"/".join(name.split("/")[:2]) for name in names - poolers}))
    if present not in classes or (pooled in present and not poolers):
        raise UserError(
            f"{', '.join(sorted(names))}: no {family} class of transformers has just these heads. Convert without "
            "heads: --heads=none"
        )
    return classes[present]
