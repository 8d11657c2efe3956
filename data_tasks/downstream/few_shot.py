"""In-context evaluation: a prompt of examples from the training split, then the example to predict.

    TASK_ARGUMENTS = {"data_dir": "glue", "shots": 8}

| task | prediction |
|---|---|
| `glue_sst2_v002_few_shot` | generated text up to the end of the line, for every text-to-text task |
| `glue_sst2_v002_few_shot_rank` | the most probable answer, for tasks with label words; see `rank_classification` |

Each task also has the arguments of the task that it is made from. Without shots, the evaluation is zero-shot. Every
example has shots of its own, drawn without replacement (Brown et al. 2020, section 2.4). If the prompt is longer than
`inputs`, whole shots are dropped, the oldest first; an example that is too long by itself keeps its end.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import seqio
import seqio.experimental
import tensorflow as tf

from data_tasks.downstream import (  # noqa: F401
    rank_classification,
    squad,
    summarization,
    text_to_text,
    translation,
    trivia_qa,
)
from data_tasks.downstream.few_shot_forms import FORMS, PLAIN, Form
from data_tasks.downstream.rank_classification import answers_of, ranked, rows_of_answers, text_stage
from data_tasks.feature_checks import require_lengths
from t5x_like.data import task_arguments
from t5x_like.data.records import Record
from t5x_like.errors import UserError

SUFFIX, RANK_SUFFIX = "_few_shot", "_few_shot_rank"

# Separates examples until the prompt has been shortened. Control characters do not occur in texts.
_MARK = "\x1e"
# Rows from which the next shot is drawn.
_SHUFFLE_BUFFER = 100_000


class FewShotSource(seqio.DataSource):
    """The examples of a task together with shots from its training split; see `seqio.experimental.FewshotDataSource`.

    Args:
      task: the text-to-text task.
      arguments: the arguments of the few-shot task.
      form: returns the form of the text.
    """

    def __init__(self, task: seqio.Task, arguments: Mapping[str, Any], form: Callable[[], Form]):
        self._task, self._arguments, self._form = task, arguments, form
        super().__init__(splits=())

    @property
    def splits(self) -> Sequence[str]:
        """The splits of the task."""
        return self._task.source.splits

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """False: shots are drawn from the whole training split."""
        return False

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns the shards of the task."""
        return self._task.source.list_shards(split)

    def num_input_examples(self, split: str) -> int | None:
        """Returns the number of examples of a split."""
        return self._task.source.num_input_examples(split)

    def describe(self) -> str:
        """Returns one line about the data and the shots."""
        describe = getattr(self._task.source, "describe", lambda: self._task.name)
        return f"{describe()}, {self._arguments['shots']} shots, seed {self._arguments['shots_seed']}"

    def get_dataset(self, split="validation", shuffle=False, seed=None, shard_info=None, **_) -> tf.data.Dataset:
        """Returns pairs of shots, `train`, and an example, `eval`; see `seqio.DataSource`."""
        shots, train = self._arguments["shots"], self._arguments["shots_split"]
        if shots < 0:
            raise UserError(f"TASK_ARGUMENTS: shots={shots} is negative. Give a number of examples, or 0.")
        if shots and train not in self.splits:
            raise UserError(
                f"TASK_ARGUMENTS: shots_split={train!r} is not a split of {self._task.name}. Give one of "
                f"{', '.join(self.splits)}."
            )
        draw = functools.partial(
            tf.data.Dataset.shuffle, buffer_size=_SHUFFLE_BUFFER, seed=self._arguments["shots_seed"]
        )
        source = seqio.experimental.FewshotDataSource(
            self._task.source,
            num_shots=shots,
            train_preprocessors=[draw, self._text],
            eval_preprocessors=[self._text],
            train_split=train,
        )
        return source.get_dataset(split=split, shuffle=shuffle, seed=seed, shard_info=shard_info)

    @property
    def text_features(self) -> Sequence[str]:
        """The names of the texts of a row, without targets."""
        return getattr(self._task.source, "text_features", ())

    def parse_rows(self, path: str, records: Iterable[Record]) -> tf.data.Dataset:
        """Returns pairs of shots and a record of a file; see `table_files.ParsesRows`.

        A record has the shots of the example with its number in any split.

        Raises:
          UserError: the task does not read columns, a column is missing, or a value is invalid.
        """
        if not hasattr(self._task.source, "parse_rows"):
            raise UserError(f"{path}: {self._task.name} does not read columns. Give records with the field 'inputs'.")
        records = list(records)
        pairs = {"eval": self._text(self._task.source.parse_rows(path, records))}
        if self._arguments["shots"]:
            drawn = self.get_dataset(split=self._arguments["shots_split"]).map(lambda pair: pair["train"]).repeat()
            # Held in memory, because a second pass over shuffled data draws others.
            shots = next(iter(drawn.batch(len(records)).take(1)))
            pairs["train"] = tf.data.Dataset.from_tensor_slices(shots)
        return tf.data.Dataset.zip(pairs)

    def _text(self, ds: tf.data.Dataset) -> tf.data.Dataset:
        """Makes `inputs` and `targets` of the examples of the task's source, as the form writes them."""
        form = self._form()
        for preprocessor in self._task.preprocessors[: text_stage(self._task)]:
            if preprocessor not in (text_to_text.check_eos, text_to_text.add_separator):  # the form ends the inputs
                features = {"output_features": self._task.output_features, "sequence_length": None}
                ds = seqio.utils.add_kwargs_to_transform(preprocessor, **features)(ds)

        def written(example):
            inputs, targets = example["inputs"], example["targets"]
            for pattern, replacement in ((_MARK, " "), *form.inputs):
                inputs = tf.strings.regex_replace(inputs, pattern, replacement)
            for target, word in form.words:
                targets = tf.where(example["targets"] == target, word, targets)
            return {**example, "inputs": inputs, "targets": targets}

        return ds.map(written, num_parallel_calls=tf.data.AUTOTUNE)


def prompts(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    form: Callable[[], Form],
) -> tf.data.Dataset:
    """Joins shots and examples to prompts that fit into `inputs`.

    Args:
      ds: pairs of shots and an example; see `FewShotSource`.
      sequence_length: length of `inputs` in tokens.
      output_features: `inputs`, whose vocabulary encodes the prompts.
      form: returns the form of the text.

    Returns:
      Examples with `inputs`, the prompt, and `targets`, scalar strings, and the other features of the example.

    Raises:
      UserError: the length is missing.
    """
    length = require_lengths("in-context evaluation", sequence_length, "inputs")["inputs"]
    vocabulary, form = output_features["inputs"].vocabulary, form()
    kept = 1 if form.description else 0

    def fits(text):
        return tf.size(vocabulary.encode_tf(text)) <= length

    def shortened(example):
        pieces = tf.strings.split(example["inputs"], _MARK)
        last = tf.size(pieces) - 1

        def without(dropped):
            return tf.strings.reduce_join(
                tf.concat([pieces[:kept], pieces[kept + dropped :]], axis=0), separator=form.separator
            )

        dropped = tf.while_loop(
            lambda dropped: (kept + dropped < last) & ~fits(without(dropped)),
            lambda dropped: [dropped + 1],
            [tf.constant(0)],
        )[0]
        return {**example, "inputs": without(dropped)}

    joined = seqio.experimental.fewshot_preprocessor(
        ds, targets_prefix=form.answer_prefix, example_separator=_MARK, prompt=form.description
    )
    return joined.map(shortened, num_parallel_calls=tf.data.AUTOTUNE)


def tokenize(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    form: Callable[[], Form],
) -> tf.data.Dataset:
    """Encodes prompts and targets together, and divides the result after the tokens of the prompt.

    Args:
      ds: examples with `inputs` and `targets`, scalar strings.
      sequence_length: length of `inputs` in tokens. Longer prompts keep their end.
      output_features: `inputs` and `targets`, of the same vocabulary.
      form: returns the form of the text.

    Returns:
      The examples with token ids, and the texts as `inputs_pretokenized` and `targets_pretokenized`.
    """
    length = require_lengths("in-context evaluation", sequence_length, "inputs")["inputs"]
    vocabulary, gap = output_features["inputs"].vocabulary, form().gap

    def encoded(example):
        prompt, targets = example["inputs"], example["targets"]
        count = tf.size(vocabulary.encode_tf(prompt))
        whole = vocabulary.encode_tf(tf.strings.join([prompt, gap, targets]))
        texts = {"inputs_pretokenized": prompt, "targets_pretokenized": targets}
        return {**example, **texts, "inputs": whole[:count][-length:], "targets": whole[count:]}

    return ds.map(encoded, num_parallel_calls=tf.data.AUTOTUNE)


def first_line(text: str) -> str:
    """Returns the first line of a generated text that is not empty, without the whitespace around it."""
    return (text.strip().splitlines() or [""])[0].strip()


def label_of_word(
    text: str,
    *,
    example: Mapping[str, Any],
    is_target: bool,
    form: Callable[[], Form],
    postprocess: Callable | None,
) -> Any:
    """Returns what the postprocessor of the task makes of a target, or of the first line of a prediction."""
    text = text if is_target else first_line(text)
    label = {word: target for target, word in form().words}.get(text, text)
    return postprocess(label, example=example, is_target=is_target) if postprocess else label


def add(task: seqio.Task, *, forms: Mapping[str, Form] = PLAIN) -> None:
    """Registers a text-to-text task for in-context evaluation: by generation and, with label words, by rank.

    Args:
      task: the registered task, whose metrics are functions of targets and predictions.
      forms: name -> how examples are written. The first one is the default.

    Raises:
      UserError: the task is not a text-to-text task.
    """
    _add(task, task.name + SUFFIX, forms, answers=None)
    if answers := answers_of(task):
        _add(task, task.name + RANK_SUFFIX, forms, answers=answers)


def _add(task: seqio.Task, name: str, forms: Mapping[str, Form], answers: Sequence[str] | None) -> None:
    text_stage(task)  # raises if the task has no text
    arguments = task_arguments.extend(
        task.name,
        name,
        # Examples in the prompt.
        shots=0,
        # Seed of their choice.
        shots_seed=0,
        # The split that they are drawn from.
        shots_split="train",
        # How examples are written.
        form=next(iter(forms)),
    )

    def form() -> Form:
        if arguments["form"] not in forms:
            raise UserError(
                f"TASK_ARGUMENTS: form={arguments['form']!r} is not a form of {name}. Give one of {', '.join(forms)}."
            )
        return forms[arguments["form"]]

    def rows(ds: tf.data.Dataset) -> tf.data.Dataset:
        """Makes a row per answer, in the words of the form."""
        words = dict(form().words)
        return rows_of_answers(ds, answers=[words.get(answer, answer) for answer in answers])

    postprocess = functools.partial(label_of_word, form=form, postprocess=task.postprocess_fn)
    by_rank = answers is not None
    seqio.TaskRegistry.add(
        name,
        source=FewShotSource(task, arguments, form),
        preprocessors=[
            functools.partial(prompts, form=form),
            *([rows] if by_rank else []),
            functools.partial(tokenize, form=form),
        ],
        output_features={
            feature: seqio.Feature(task.output_features[feature].vocabulary, add_eos=False)
            for feature in ("inputs", "targets")
        },
        postprocess_fn=functools.partial(ranked, postprocess=postprocess) if by_rank else postprocess,
        metric_fns=[rank_classification.rank_classification(task.metric_fns)] if by_rank else task.metric_fns,
    )


def _add_all() -> None:
    for name in list(seqio.TaskRegistry.names()):
        task = seqio.TaskRegistry.get(name)
        if task_arguments.names(name) and task.metric_fns and text_to_text.check_eos in task.preprocessors:
            add(task, forms=FORMS.get(name, PLAIN))


_add_all()
