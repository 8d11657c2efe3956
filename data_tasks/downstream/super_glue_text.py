"""The text-to-text forms of SuperGLUE's tasks, as in the t5 package (Raffel et al. 2020, appendix D)."""

from typing import Any

import tensorflow as tf

from data_tasks.downstream.postprocessors import grouped, string_label_to_class_id
from data_tasks.downstream.super_glue_files import FALSE_TRUE
from data_tasks.downstream.text_to_text import UNKNOWN_LABEL

# Words that do not count when a predicted referent is compared with the right one.
_DETERMINERS = frozenset(
    "a an few her his each every many much my our some that the their these this those which whose your".split()
)


# ---- MultiRC ---------------------------------------------------------------------------------------------------------


def remove_markup(text: tf.Tensor) -> tf.Tensor:
    """Removes the HTML of MultiRC from a text, scalar string: `<br>` becomes a space, `<b>` nothing."""
    return tf.strings.regex_replace(tf.strings.regex_replace(text, "<br>", " "), "</?b>", "")


def without_markup(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Removes the HTML of MultiRC from `inputs`; see `remove_markup`."""
    return ds.map(lambda example: {**example, "inputs": remove_markup(example["inputs"])})


def multirc(text: Any, example=None, is_target: bool = False) -> dict[str, Any]:
    """Returns the label of an answer, grouped by question. A head predicts `[label]`, text is a label word."""
    label = string_label_to_class_id(text, FALSE_TRUE) if isinstance(text, str) else int(text[0])
    return grouped(label, int(example["idx/question"]) if is_target else None, is_target)


# ---- ReCoRD ----------------------------------------------------------------------------------------------------------


def without_highlights(passage: tf.Tensor) -> tf.Tensor:
    """Joins the sentences that a passage of ReCoRD highlights, which follow it on lines of their own."""
    passage = tf.strings.regex_replace(passage, r"([.?!\"'])\n@highlight\n", r"\1 ")
    return tf.strings.regex_replace(passage, r"\n@highlight\n", ". ")


def record_to_text(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Makes an example per answer of each question of ReCoRD, or one with an unknown target without answers.

    Returns:
      Examples with `inputs`, `targets`, `idx/passage`, `idx/query`, and all `answers`, string `[any]`.
    """

    def per_answer(example):
        answers = example["answers"]
        targets = tf.cond(tf.size(answers) > 0, lambda: answers, lambda: tf.constant([UNKNOWN_LABEL]))
        passage = without_highlights(example["passage"])
        entities = tf.strings.reduce_join(example["entities"], separator=", ")
        words = ["record query:", example["query"], "entities:", entities, "passage:", passage]
        shared = {
            "inputs": tf.strings.join(words, separator=" "),
            "idx/passage": example["idx"]["passage"],
            "idx/query": example["idx"]["query"],
            "answers": answers,
        }
        repeated = tf.data.Dataset.from_tensors(shared).repeat()
        return tf.data.Dataset.zip((repeated, tf.data.Dataset.from_tensor_slices(targets))).map(
            lambda others, target: {**others, "targets": target}
        )

    return ds.flat_map(per_answer)


def record(text: str, example=None, is_target: bool = False) -> dict[str, Any]:
    """Returns a predicted answer, or for a target all answers, grouped by question."""
    if not is_target:
        return grouped(text, None, False)
    answers = [answer.decode() for answer in example["answers"]]
    return grouped(answers, (int(example["idx/passage"]), int(example["idx/query"])), True)


# ---- WSC and WiC -----------------------------------------------------------------------------------------------------


def mark_word(text: tf.Tensor, word: tf.Tensor, index: tf.Tensor, mark: str) -> tf.Tensor:
    """Puts marks around a span of a text, as T5 does: `This is a test` -> `This is a * test *`.

    Args:
      text: scalar string.
      word: the words of the span; the text is not changed if they do not begin at `index`.
      index: the number of words before the span.
      mark: a character.

    Returns:
      Scalar string.
    """
    before = tf.strings.join(["^((?:\\S+\\s){", tf.as_string(index), "})("])
    escaped = tf.strings.regex_replace(word, r"[\\^$.|?*+()\[\]{}]", r"\\\0")
    return tf.strings.regex_replace(text, tf.strings.join([before, escaped, ")"]), rf"\1{mark} \2 {mark}")


def mark_spans(example: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the text of WSC with `*` around the noun and `#` around the pronoun."""
    text = mark_word(example["text"], example["span1_text"], example["span1_index"], "*")
    # The marks of the first span are words too.
    shift = 2 * tf.cast(example["span1_index"] < example["span2_index"], tf.int32)
    return mark_word(text, example["span2_text"], example["span2_index"] + shift, "#")


def wsc_to_text(ds: tf.data.Dataset, *, correct_referent_only: bool) -> tf.data.Dataset:
    """Makes text of WSC: `wsc: Bob asked Tom if *he* can lend some money.` -> `Tom`.

    The target is the noun, whether the pronoun refers to it or not.

    Args:
      ds: examples of WSC.
      correct_referent_only: whether to keep only examples whose pronoun refers to the noun, as for training.

    Returns:
      Examples with `inputs`, `targets`, `label` and `idx`.
    """
    if correct_referent_only:
        ds = ds.filter(lambda example: example["label"] == 1)

    def to_text(example):
        pronoun = tf.strings.join([" *", example["span2_text"], "* "])
        inputs = tf.strings.regex_replace(_with_blank(example), " X ", pronoun)
        return {
            "inputs": tf.strings.join(["wsc:", inputs], separator=" "),
            "targets": example["span1_text"],
            "label": example["label"],
            "idx": example["idx"],
        }

    return ds.map(to_text, num_parallel_calls=tf.data.AUTOTUNE)


def _with_blank(example: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the text with X in place of the pronoun."""
    text = example["text"]
    # In these two texts, `span2_index` is not the position of the pronoun.
    for wrong, right in (
        (r'"Good for him," he said\. $', '"Good for X ," he said.'),
        (r"^(When they had eventually calmed down a bit ,.*) use it , but", r"\1 use X , but"),
    ):
        text = tf.strings.regex_replace(text, wrong, right)

    def replaced():
        words, index = tf.strings.split(example["text"], " "), example["span2_index"]
        check = tf.debugging.Assert(
            tf.equal(words[index], example["span2_text"]), ["span2_index is not the position of span2_text"]
        )
        with tf.control_dependencies([check]):
            before, after = tf.identity(words[:index]), words[index + 1 :]
        parts = [tf.strings.reduce_join(before, separator=" "), "X", tf.strings.reduce_join(after, separator=" ")]
        return tf.strings.join(parts, separator=" ")

    return tf.cond(text == example["text"], replaced, lambda: text)


def wsc_simple(text: str, example=None, is_target: bool = False) -> int:
    """Returns whether a predicted referent is the noun, as T5 judges it; for a target the label.

    The words of one must be among the words of the other. Capitalization and determiners do not count.
    """
    if is_target:
        return int(example["label"])
    prediction = _content_words(text)
    if not prediction:
        return -1
    referent = _content_words(example["targets_pretokenized"].decode())
    # "Bob" is not "Bob's hat".
    if any("'" in word for word in prediction) != any("'" in word for word in referent):
        return 0
    return int(set(prediction) <= set(referent) or set(referent) <= set(prediction))


def _content_words(text: str) -> list[str]:
    words = [word for word in text.strip().lower().split(" ") if word not in _DETERMINERS]
    return words if " ".join(words) else []


def mark_characters(text: tf.Tensor, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """Puts `*` around the characters `start` … `end - 1` of a text: `a *bank* robbery`."""

    def piece(first, count):
        return tf.strings.substr(text, first, count, unit="UTF8_CHAR")

    length = tf.strings.length(text, unit="UTF8_CHAR")
    parts = [piece(0, start), "*", piece(start, end - start), "*", piece(end, length - end)]
    return tf.strings.join(parts)
