"""GPT-1's input transformations (Radford et al. 2018, section 3.3): tasks as sequences for a language model.

| kind of task | sequences |
|---|---|
| classification | start, text, extract |
| entailment | start, premise, delimiter, hypothesis, extract |
| similarity | both orders of the texts, each like entailment: `inputs_0` and `inputs_1` |
| multiple choice | start, context, delimiter, choice, extract: one sequence per choice |

The start, delimiter and extract tokens are new: their ids follow the vocabulary's. Every task for classification
or multiple choice whose vocabulary is a task argument also exists with them: `glue_rte_classification` as
`glue_rte_gpt1`.
"""

from collections.abc import Iterable, Mapping, Sequence

import seqio
import tensorflow as tf

from data_tasks.downstream import (  # noqa: F401 (the tasks that get a form)
    derived_tasks,
    glue,
    race,
    super_glue,
    swag,
    templates,
)
from data_tasks.feature_checks import require_lengths
from t5x_like.data import task_arguments
from t5x_like.vocabularies.late import LateVocabulary
from t5x_like.vocabularies.template import Template, template_of

NEW_TOKENS = ("_start_", "_delimiter_", "_classify_")
"""The tokens in the order of their ids, with the names of the published code."""

SIMILARITY = ("glue_mrpc", "glue_qqp", "glue_stsb")
"""The tasks whose texts have no order."""

SUFFIX = "_gpt1"
_SUFFIXES = ("_classification", "_multiple_choice")


class GPTVocabulary(seqio.Vocabulary):
    """A vocabulary with the start, delimiter and extract tokens of GPT-1's fine-tuning after its last id.

    Args:
      base: the vocabulary of the pretrained model.
    """

    def __init__(self, base: seqio.Vocabulary):
        self._base = base
        super().__init__(extra_ids=0)

    @property
    def start_id(self) -> int:
        """The id of the token before the first text."""
        return self._base.vocab_size

    @property
    def delimiter_id(self) -> int:
        """The id of the token between two texts."""
        return self._base.vocab_size + 1

    @property
    def extract_id(self) -> int:
        """The id of the last token, whose state the classifier reads."""
        return self._base.vocab_size + 2

    @property
    def template(self) -> Template:
        """The template that `template_of` returns."""
        return Template((self.start_id,), (self.delimiter_id,), (self.extract_id,))

    @property
    def bos_id(self) -> None:
        """None: the start token belongs to the template."""

    @property
    def eos_id(self) -> None:
        """None: the extract token belongs to the template."""

    @property
    def pad_id(self) -> None:
        """None: the extract token ends each sequence."""

    @property
    def unk_id(self) -> int | None:
        """The id of unknown pieces, or None."""
        return self._base.unk_id

    @property
    def _base_vocab_size(self) -> int:
        return self._base.vocab_size + len(NEW_TOKENS)

    def _encode(self, s: str) -> Sequence[int]:
        return self._base.encode(s)

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        return self._base.encode_tf(s)

    def _decode(self, ids: Iterable[int]) -> str:
        """Decodes the texts between the new tokens, and joins all by spaces."""
        found, text = [], []
        for index in ids:
            if index < self.start_id:
                text.append(index)
                continue
            found += [self._base.decode(text)] if text else []
            found.append(NEW_TOKENS[index - self.start_id])
            text = []
        return " ".join([*found, self._base.decode(text)] if text else found)

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        return self._base.decode_tf(tf.boolean_mask(ids, ids < self.start_id))

    def __eq__(self, other) -> bool:
        return isinstance(other, GPTVocabulary) and self._base == other._base

    __hash__ = None

    def __str__(self) -> str:
        return f"GPTVocabulary({self._base})"


def both_orders(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    texts: tuple[str, str],
) -> tf.data.Dataset:
    """Replaces two texts of each example by `inputs_0`, in their order, and `inputs_1`, in the reverse order.

    Args:
      ds: examples with texts, scalar strings.
      sequence_length: the length of `inputs`, for each order.
      output_features: `inputs_0`, whose vocabulary encodes the texts.
      texts: names of the two features that hold texts.

    Returns:
      Examples with `inputs_0` and `inputs_1`, and the other features.

    Raises:
      UserError: the length is missing or too short.
    """
    length = require_lengths("a similarity task", sequence_length, "inputs")["inputs"]
    vocabulary = output_features["inputs_0"].vocabulary
    template = template_of(vocabulary)
    template.budget(length, pair=True)

    def filled(example):
        first, second = (templates.encode(vocabulary, example[name]) for name in texts)
        others = {name: value for name, value in example.items() if name not in texts}
        return {
            **others,
            "inputs_0": templates.pair(template, first, second, length).inputs,
            "inputs_1": templates.pair(template, second, first, length).inputs,
        }

    return ds.map(filled, num_parallel_calls=tf.data.AUTOTUNE)


def add(task: seqio.Task, name: str, *, similarity: bool = False) -> seqio.Task:
    """Registers a task for classification or multiple choice once more, with GPT-1's tokens.

    Both tasks have the same arguments.

    Args:
      task: the registered task.
      name: the name of the new task.
      similarity: whether both orders of the texts are read.

    Returns:
      The new task.
    """
    features = {
        feature: seqio.Feature(GPTVocabulary(found.vocabulary), add_eos=False)
        if isinstance(found.vocabulary, LateVocabulary)
        else found
        for feature, found in task.output_features.items()
        if not feature.startswith("token_types")  # GPT-1 has none
    }
    preprocessors = list(task.preprocessors)
    if similarity:
        inputs = features.pop("inputs")
        features |= {"inputs_0": inputs, "inputs_1": inputs}
        preprocessors = derived_tasks.with_fill(preprocessors, both_orders)
    return derived_tasks.add(task, name, preprocessors=preprocessors, output_features=features)


def _add_all() -> None:
    for name in list(seqio.TaskRegistry.names()):
        stem = next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), None)
        if stem is not None and task_arguments.names(name):
            add(seqio.TaskRegistry.get(name), stem + SUFFIX, similarity=stem in SIMILARITY)


_add_all()
