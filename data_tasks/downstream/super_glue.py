"""The SuperGLUE benchmark (Wang et al. 2019): eight tasks and the diagnostic datasets AX-b and AX-g.

    TASK_ARGUMENTS = {"data_dir": "superglue/BoolQ"}

The text-to-text tasks are `super_glue_<name>_v102`, as in the t5 package; WSC is `super_glue_wsc_v102_simple_train` and
`…_simple_eval`. The tasks for classification heads are `super_glue_<name>_classification`, and COPA is
`super_glue_copa_multiple_choice`. `data_dir` is as in `data_tasks.downstream.glue`.

| task | texts of the classification form |
|---|---|
| boolq | question, passage |
| cb, rte, axb, axg | premise, hypothesis |
| multirc | paragraph, and question with an answer; metrics group the answers of a question |
| record | passage, and query with an entity in place of `@placeholder`; the most probable entity is the answer |
| wic | both sentences, with `*` around the word |
| wsc | the text with `*` around the noun and `#` around the pronoun, as in Raffel et al. 2020 |
| copa | premise with the question in words, and a choice |
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from data_tasks.corpora.data_dir import DATA_DIR, DataDirSource
from data_tasks.downstream import classification, multiple_choice, postprocessors, super_glue_files, text_to_text
from data_tasks.downstream import super_glue_text as texts
from data_tasks.downstream.super_glue_files import FALSE_TRUE, LABELS
from data_tasks.metrics.classification import accuracy, matthews_corrcoef, mean_multiclass_f1
from data_tasks.metrics.grouped import exact_match_of_groups, multirc_f1_over_all_answers
from data_tasks.metrics.record import record as record_metric
from data_tasks.metrics.record import record_of_entities
from t5x_like.data import task_arguments

TFDS_VERSION = "1.0.2"
ALL_SPLITS = ("train", "validation", "test")
FOLDERS = {
    **{"boolq": "BoolQ", "cb": "CB", "copa": "COPA", "multirc": "MultiRC", "record": "ReCoRD", "rte": "RTE"},
    **{"wic": "WiC", "wsc": "WSC", "axb": "AX-b", "axg": "AX-g"},
}
"""The official directory of each task."""

METRICS: dict[str, tuple[Callable, ...]] = {
    "boolq": (accuracy,),
    "cb": (mean_multiclass_f1(3), accuracy),
    "copa": (accuracy,),
    "multirc": (multirc_f1_over_all_answers, exact_match_of_groups),
    "record": (record_metric,),
    "rte": (accuracy,),
    "wic": (accuracy,),
    "wsc": (accuracy,),
    "axb": (matthews_corrcoef,),
    "axg": (accuracy,),
}
# COPA's questions in words.
_COPA_QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}


def _declare(name: str, task: str, splits: Sequence[str]) -> tuple[task_arguments.Arguments, DataDirSource]:
    """Declares the arguments of a task and returns them with its source."""
    arguments = task_arguments.declare(
        name,
        # A directory with the files of the benchmark. Default: TFDS.
        **{DATA_DIR: None},
        # A Hugging Face directory or a SentencePiece model. Required.
        **{classification.VOCABULARY_PATH: None},
    )
    config = "wsc.fixed" if task == "wsc" else task
    source = DataDirSource(
        name,
        arguments,
        super_glue_files.files(task, tuple(splits)),
        folders=(FOLDERS[task],),
        tfds=f"super_glue/{config}:{TFDS_VERSION}",
    )
    return arguments, source


def _splits(task: str) -> tuple[str, ...]:
    return ("test",) if task in ("axb", "axg") else ALL_SPLITS


# ---- texts of the classification forms -------------------------------------------------------------------------------


def _map(make: Callable[[Mapping[str, tf.Tensor]], Mapping[str, tf.Tensor]]):
    """Returns a preprocessor that adds features to each example."""

    def preprocessor(ds: tf.data.Dataset) -> tf.data.Dataset:
        return ds.map(lambda example: {**example, **make(example)}, num_parallel_calls=tf.data.AUTOTUNE)

    return preprocessor


def _multirc_texts(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {
        "paragraph": texts.remove_markup(example["paragraph"]),
        "answer": tf.strings.join([example["question"], example["answer"]], separator=" "),
    }


def _wic_texts(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {
        f"sentence{number}": texts.mark_characters(
            example[f"sentence{number}"], example[f"start{number}"], example[f"end{number}"]
        )
        for number in (1, 2)
    }


def _copa_texts(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    is_cause = example["question"] == "cause"
    question = tf.where(is_cause, _COPA_QUESTIONS["cause"], _COPA_QUESTIONS["effect"])
    return {"premise": tf.strings.join([example["premise"], question], separator=" ")}


def record_pairs(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Makes an example per entity of each question of ReCoRD, with label 1 if the entity is an answer.

    Returns:
      Examples with `passage`, `query`, `label`, `entity`, `idx/passage`, `idx/query`, and `answers`, string `[any]`.
      The label is unknown without answers.
    """

    def per_entity(example):
        entities, answers = example["entities"], example["answers"]
        is_answer = tf.cast(tf.reduce_any(entities[:, tf.newaxis] == answers, axis=1), tf.int32)
        labels = tf.where(tf.size(answers) > 0, is_answer, -1)
        passage = texts.without_highlights(example["passage"])

        def pair(entity, label):
            return {
                "passage": passage,
                "query": _replace_placeholder(example["query"], entity),
                "label": label,
                "entity": entity,
                "idx/passage": example["idx"]["passage"],
                "idx/query": example["idx"]["query"],
                "answers": answers,
            }

        return tf.data.Dataset.from_tensor_slices((entities, labels)).map(pair)

    return ds.flat_map(per_entity)


def _replace_placeholder(query: tf.Tensor, entity: tf.Tensor) -> tf.Tensor:
    escaped = tf.strings.regex_replace(entity, r"\\", r"\\\\")  # a backslash in a replacement refers to a group
    return tf.strings.regex_replace(query, "@placeholder", escaped)


def _record_entity(values: Sequence[int], example=None, is_target: bool = False) -> dict[str, Any]:
    """Returns the entity of an example with its question, and for a target also the answers."""
    group = (int(example["idx/passage"]), int(example["idx/query"]))
    entity = {"entity": example["entity"].decode(), "group": group}
    return entity | ({"answers": [answer.decode() for answer in example["answers"]]} if is_target else {})


# ---- registration ----------------------------------------------------------------------------------------------------

_CLASSIFICATION: dict[str, tuple[tuple[str, ...], tuple[Callable, ...]]] = {
    "boolq": (("question", "passage"), ()),
    "cb": (("premise", "hypothesis"), ()),
    "multirc": (("paragraph", "answer"), (_map(_multirc_texts),)),
    "record": (("passage", "query"), (record_pairs,)),
    "rte": (("premise", "hypothesis"), ()),
    "wic": (("sentence1", "sentence2"), (_map(_wic_texts),)),
    "wsc": (("text",), (_map(lambda example: {"text": texts.mark_spans(example)}),)),
    "axb": (("sentence1", "sentence2"), ()),
    "axg": (("premise", "hypothesis"), ()),
}
"""For each task, the features that hold its texts, and the preprocessors that make them."""


def _add_classification(task: str) -> None:
    name = f"super_glue_{task}_classification"
    arguments, source = _declare(name, task, _splits(task))
    features, prepare = _CLASSIFICATION[task]
    classification.add(
        name,
        source,
        arguments,
        texts=features,
        labels=LABELS.get(task, FALSE_TRUE),
        prepare=prepare,
        metric_fns=(record_of_entities,) if task == "record" else METRICS[task],
        postprocess_fn={"multirc": texts.multirc, "record": _record_entity}.get(task),
    )


def _add_multiple_choice() -> None:
    arguments, source = _declare(name := "super_glue_copa_multiple_choice", "copa", ALL_SPLITS)
    multiple_choice.add(
        name,
        source,
        arguments,
        choices=(("premise", "choice1"), ("premise", "choice2")),
        labels=LABELS["copa"],
        prepare=[_map(_copa_texts)],
        metric_fns=METRICS["copa"],
    )


# Where the features are not in the order of their names, as in the t5 package.
_FEATURE_ORDER = {
    "multirc": ("question", "answer", "paragraph"),
    "wic": ("sentence1", "sentence2", "word"),
}


def _premise_and_hypothesis(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {"premise": example["sentence1"], "hypothesis": example["sentence2"]}


def _text_preprocessors(task: str) -> list[Callable]:
    if task == "record":
        return [texts.record_to_text]
    names = ("hypothesis", "premise") if task in ("axb", "axg") else _FEATURE_ORDER.get(task)
    columns = super_glue_files.COLUMNS[task]
    names = names or tuple(sorted(name for name, column in columns.items() if column.dtype == tf.string))
    prefix = "rte" if task in ("axb", "axg") else task
    join = functools.partial(text_to_text.join_features, prefix=prefix, texts=names, labels=LABELS[task])
    before = [_map(_premise_and_hypothesis)] if task == "axb" else []
    return [*before, join, *([texts.without_markup] if task == "multirc" else [])]


def _add_text_to_text(task: str) -> None:
    name = f"super_glue_{task}_v102"
    arguments, source = _declare(name, task, _splits(task))
    own = {"multirc": texts.multirc, "record": texts.record}
    by_word = functools.partial(postprocessors.string_label_to_class_id, label_classes=LABELS.get(task))
    text_to_text.add(
        name,
        source,
        arguments,
        prepare=_text_preprocessors(task),
        metric_fns=METRICS[task],
        postprocess_fn=own.get(task, by_word),
    )


def _add_wsc_simple(form: str, splits: Sequence[str], metric_fns: Sequence[Callable]) -> None:
    arguments, source = _declare(name := f"super_glue_wsc_v102_simple_{form}", "wsc", splits)
    text_to_text.add(
        name,
        source,
        arguments,
        prepare=[functools.partial(texts.wsc_to_text, correct_referent_only=form == "train")],
        metric_fns=metric_fns,
        postprocess_fn=texts.wsc_simple if metric_fns else None,
    )


for _task in FOLDERS:
    if _task != "wsc":
        _add_text_to_text(_task)
    if _task != "copa":
        _add_classification(_task)
_add_multiple_choice()
_add_wsc_simple("train", ("train",), ())
_add_wsc_simple("eval", ("validation", "test"), METRICS["wsc"])
