"""WNLI in the form of WSC, which T5 evaluates instead of WNLI's own form (Raffel et al. 2020, appendix B).

    TASK_ARGUMENTS = {"data_dir": "glue/WNLI"}

`glue_wnli_v002_simple_eval` is text to text, as in the t5 package: `wsc: The fish ate the worm. *It* was tasty.` ->
`The worm`. A sentence of WNLI is compared with the hypothesis, which has a noun in place of one of its pronouns: the
pronoun whose neighbors occur most often in the hypothesis is marked, and the target is the noun. The task has no
training split. A model that is trained on `super_glue_wsc_v102_simple_train` is evaluated on it.
"""

import re
from collections.abc import Sequence

import tensorflow as tf

from data_tasks.downstream import glue, super_glue_text, text_to_text
from data_tasks.metrics.classification import accuracy
from t5x_like.errors import UserError

TASK = "glue_wnli_v002_simple_eval"
PREFIX = "wsc:"
_PRONOUNS = frozenset("he she they it her his their them him".split())
_PUNCTUATION = ".,?!"


def pronoun_and_referent(premise: str, hypothesis: str) -> tuple[str, str]:
    """Marks the pronoun of a premise that the hypothesis replaces, and finds the words that replace it.

    Args:
      premise: sentences with a pronoun.
      hypothesis: a part of the premise with other words in place of the pronoun.

    Returns:
      The premise with `*` around the pronoun, and the words, without a possessive ending.

    Raises:
      UserError: the premise has no pronoun, or the hypothesis does not match it.
    """
    words, claim = _words(premise), _words(hypothesis)
    pronouns = [index for index, word in enumerate(words) if word in _PRONOUNS]
    if not pronouns:
        raise UserError(
            f"{TASK}: {premise!r:.80} has none of the pronouns {', '.join(sorted(_PRONOUNS))}. Remove the example."
        )
    matches = [_match(words[:index], words[index + 1 :], claim) for index in pronouns]
    index, (_, found) = max(zip(pronouns, matches, strict=True), key=lambda pair: pair[1][0])
    return _marked(premise, index), _as_written(_from_last_article(found), premise, hypothesis)


def _words(text: str) -> list[str]:
    """Returns the words of a text in lower case, each without one punctuation mark at its end."""
    words = (re.sub(rf"[{_PUNCTUATION}]$", "", word) for word in text.strip().lower().split(" "))
    return [word for word in words if word]


def _longest_prefix(words: Sequence[str], text: str) -> int:
    """Returns the number of words of the longest prefix, joined by spaces, that occurs in a text."""
    for count in range(1, len(words) + 1):
        if " ".join(words[:count]) not in text:
            return count - 1
    return len(words)


def _match(before: Sequence[str], after: Sequence[str], claim: Sequence[str]) -> tuple[int, str]:
    """Compares the words around a pronoun with a hypothesis.

    Returns:
      The number of words next to the pronoun that occur in the hypothesis, and the words of it between them.
    """
    # The words before the pronoun are compared from the pronoun on, in a hypothesis with its words in reverse order.
    count_before = _longest_prefix(before[::-1], " ".join(claim[::-1]))
    count_after = _longest_prefix(after, " ".join(claim))
    if not count_before + count_after:
        return 0, ""
    left = list(map(re.escape, before[len(before) - count_before :]))
    right = list(map(re.escape, after[:count_after]))
    text = " ".join(claim)
    for parts in ([*left, "(.+)", *right], ["^(.+)", *right], [*left, "(.+)$"]):
        if found := re.search(" ".join(parts), text):
            return count_before + count_after, found[1]
    return count_before + count_after, ""


def _marked(premise: str, index: int) -> str:
    """Returns a premise with `*` around the word at an index, before a punctuation mark at its end."""
    words = premise.split(" ")
    word = words[index]
    words[index] = f"*{word[:-1]}* {word[-1]}" if word[-1] in _PUNCTUATION else f"*{word}*"
    return " ".join(words)


def _from_last_article(found: str) -> str:
    """Returns words from their last article on: a match may begin with words of the hypothesis before the noun."""
    words = found.split(" ")
    return " ".join(
        words[max((words.index(article) for article in ("a", "an", "the") if article in words), default=0) :]
    )


def _as_written(found: str, premise: str, hypothesis: str) -> str:
    """Returns words as a hypothesis spells them, without punctuation and a possessive ending."""
    pattern = " ".join(rf"{re.escape(word)}[{_PUNCTUATION}]?" for word in found.split(" "))
    match = re.search(pattern, hypothesis, re.IGNORECASE)
    if match is None:
        raise UserError(
            f"{TASK}: the sentence {hypothesis!r:.80} does not repeat {premise!r:.80} with other words in place of a "
            "pronoun. Correct or remove the example."
        )
    words = match[0]
    words = words[:-1] if words.endswith(tuple(_PUNCTUATION)) else words
    return words.removesuffix("'s") if words.endswith("'s") else words.removesuffix("'")


def to_text(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Makes `inputs` and `targets` of WNLI; see `pronoun_and_referent`.

    It calls Python, so its position cannot be saved. The task is only evaluated, which starts at the first example.
    """

    def converted(premise: bytes, hypothesis: bytes) -> tuple[bytes, bytes]:
        marked, referent = pronoun_and_referent(premise.decode(), hypothesis.decode())
        return f"{PREFIX} {marked}".encode(), referent.encode()

    def to_example(example):
        texts = [example["sentence1"], example["sentence2"]]
        inputs, targets = tf.numpy_function(converted, texts, (tf.string, tf.string), stateful=False)
        return {
            "inputs": tf.ensure_shape(inputs, []),
            "targets": tf.ensure_shape(targets, []),
            "premise": example["sentence1"],
            "hypothesis": example["sentence2"],
            "label": example["label"],
            "idx": example["idx"],
        }

    return ds.map(to_example, num_parallel_calls=tf.data.AUTOTUNE)


def _add() -> None:
    task = next(task for task in glue.TASKS if task.name == "wnli").evaluated()
    arguments = glue.declare(TASK)
    text_to_text.add(
        TASK,
        task.source(TASK, arguments),
        arguments,
        prepare=[to_text],
        metric_fns=[accuracy],
        postprocess_fn=super_glue_text.wsc_simple,
    )


_add()
