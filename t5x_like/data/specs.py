"""The feature specs of the objectives, by name."""

import dataclasses
from collections.abc import Callable, Collection, Mapping

import numpy as np

from t5x_like.data import choices
from t5x_like.data.conversation_specs import CONVERSATION
from t5x_like.data.features import FeatureSpec, ModelFeature, TaskFeature
from t5x_like.errors import UserError
from t5x_like.vocabularies.word_characters import NUM_CHARACTERS

ENCODER_INPUTS = FeatureSpec(
    features=(
        ModelFeature("encoder_input_tokens", "inputs", "tokens"),
        ModelFeature("encoder_segment_ids", "inputs", "segment_ids"),
        ModelFeature("encoder_positions", "inputs", "positions"),
    ),
    packable=True,
)
"""An encoder reads `inputs`."""

CAUSAL_LM = FeatureSpec(
    features=(
        ModelFeature("decoder_input_tokens", "targets", "shifted"),
        ModelFeature("decoder_target_tokens", "targets", "tokens"),
        ModelFeature("decoder_loss_weights", "targets", "weights"),
        ModelFeature("decoder_segment_ids", "targets", "segment_ids"),
        ModelFeature("decoder_positions", "targets", "positions"),
    ),
    packable=True,
)
"""A decoder predicts each token of `targets`, the first one from BOS."""

ENCODER_DECODER = dataclasses.replace(CAUSAL_LM, features=(*ENCODER_INPUTS.features, *CAUSAL_LM.features))
"""Text to text: an encoder reads `inputs`, a decoder predicts `targets`."""

NEXT_TOKEN = FeatureSpec(
    features=(
        ModelFeature("decoder_input_tokens", "targets", "tokens"),
        ModelFeature("decoder_target_tokens", "targets", "next"),
        ModelFeature("decoder_loss_weights", "targets", "next_weights"),
        ModelFeature("decoder_segment_ids", "targets", "segment_ids"),
        ModelFeature("decoder_positions", "targets", "positions"),
    ),
    packable=True,
)
"""A decoder reads `targets` and predicts the next token, without BOS: GPT's training on windows of text."""

_JOINED = ("inputs", "targets")

PREFIX_LM = FeatureSpec(
    features=(
        ModelFeature("decoder_input_tokens", _JOINED, "shifted"),
        ModelFeature("decoder_target_tokens", _JOINED, "tokens"),
        ModelFeature("decoder_loss_weights", _JOINED, "last_weights"),
        ModelFeature("decoder_segment_ids", _JOINED, "segment_ids"),
        ModelFeature("decoder_positions", _JOINED, "positions"),
        ModelFeature("decoder_prefix", _JOINED, "prefix"),
    ),
    packable=True,
)
"""A decoder reads `inputs` with bidirectional attention (`decoder_prefix`), then predicts `targets`."""

PROMPTED = FeatureSpec(
    features=(
        ModelFeature("decoder_input_tokens", _JOINED, "tokens"),
        ModelFeature("decoder_target_tokens", _JOINED, "next"),
        ModelFeature("decoder_loss_weights", _JOINED, "next_last_weights"),
        ModelFeature("decoder_segment_ids", _JOINED, "segment_ids"),
        ModelFeature("decoder_positions", _JOINED, "positions"),
    ),
    packable=True,
)
"""A decoder reads `inputs` with causal attention, then predicts `targets`, without BOS: GPT-2's zero-shot evaluation.

The first token of `targets` is not predicted if there are no `inputs`.
"""

PROMPTED_WITH_BOS = dataclasses.replace(
    PREFIX_LM, features=tuple(feature for feature in PREFIX_LM.features if feature.name != "decoder_prefix")
)
"""A decoder reads BOS and `inputs` with causal attention, then predicts `targets`."""

MASKED_LM = FeatureSpec(
    features=(
        *ENCODER_INPUTS.features,
        ModelFeature("masked_positions", "masked_positions", "row_positions", within="inputs"),
        ModelFeature("masked_targets", "targets", "tokens"),
        ModelFeature("masked_weights", "targets", "weights"),
    ),
    packable=True,
    aligned_features=(TaskFeature("masked_positions", aligned_with="targets"),),
)
"""An encoder reads corrupted `inputs` and predicts `targets`, the original tokens at `masked_positions`.

`TASK_FEATURE_LENGTHS['targets']` is the maximum number of predictions per row (BERT's `max_predictions_per_seq`).
"""

MASKED_LM_WITH_TYPES = dataclasses.replace(
    MASKED_LM,
    features=(*MASKED_LM.features, ModelFeature("token_types", "token_types", "tokens")),
    aligned_features=(*MASKED_LM.aligned_features, TaskFeature("token_types", aligned_with="inputs")),
)
"""Masked LM of two segments, distinguished by `token_types`."""

WORDS = FeatureSpec(
    features=(
        ModelFeature("encoder_input_tokens", "targets", "tokens"),
        ModelFeature("encoder_segment_ids", "targets", "segment_ids"),
    ),
    packable=False,
)
"""A stream of words in rows, whose sentences end in EOS: the data of static word vectors."""

TOKENS_PER_TARGET = 6
"""Tokens per target of `PERMUTATION_LM`, K of Yang et al. (2019, section 2.3): a row of 512 tokens has 85 targets."""

PERMUTATION_LM = FeatureSpec(
    features=(
        ModelFeature("encoder_input_tokens", "inputs", "tokens"),
        ModelFeature("encoder_segment_ids", "inputs", "segment_ids"),
        ModelFeature("token_types", "token_types", "tokens"),
        ModelFeature("encoder_ranks", "ranks", "tokens"),
        ModelFeature("is_target", "is_target", "tokens"),
        ModelFeature("reversed", "reversed", "tokens"),
    ),
    packable=True,
    aligned_features=tuple(
        TaskFeature(name, aligned_with="inputs") for name in ("token_types", "ranks", "is_target", "reversed")
    ),
)
"""An encoder reads `inputs`, in which a token sees its own rank and lower `ranks`, and predicts where `is_target` is 1.

`reversed` is 1 for the tokens of reversed text.
"""

SENTENCE_PAIRS = FeatureSpec(
    features=(
        *MASKED_LM_WITH_TYPES.features,
        ModelFeature("next_sentence_label", "next_sentence_label", "tokens"),
    ),
    packable=False,
    aligned_features=(*MASKED_LM_WITH_TYPES.aligned_features, TaskFeature("next_sentence_label", length=1)),
)
"""Masked LM of two segments, distinguished by `token_types`; the second follows the first (label 0) or not (1)."""

SENTENCE_TRIPLES = FeatureSpec(
    features=(
        *(feature for feature in ENCODER_INPUTS.features if feature.role != "positions"),
        ModelFeature("previous_target_tokens", "previous", "tokens"),
        ModelFeature("previous_loss_weights", "previous", "weights"),
        ModelFeature("next_target_tokens", "next", "tokens"),
        ModelFeature("next_loss_weights", "next", "weights"),
    ),
    packable=False,
    aligned_features=(TaskFeature("previous", length_key="inputs"), TaskFeature("next", length_key="inputs")),
)
"""An encoder reads a sentence, `inputs`; the sentences before and after it are `previous` and `next`.

`TASK_FEATURE_LENGTHS['inputs']` is the maximum length of each.
"""

ENCODER_INPUTS_WITH_TYPES = dataclasses.replace(
    ENCODER_INPUTS,
    features=(*ENCODER_INPUTS.features, ModelFeature("token_types", "token_types", "tokens")),
    aligned_features=(TaskFeature("token_types", aligned_with="inputs"),),
)
"""An encoder reads `inputs`, whose segments are distinguished by `token_types`."""

DECODER_INPUTS = FeatureSpec(
    features=(
        ModelFeature("decoder_input_tokens", "inputs", "tokens"),
        ModelFeature("decoder_segment_ids", "inputs", "segment_ids"),
        ModelFeature("decoder_positions", "inputs", "positions"),
    ),
    packable=True,
)
"""A decoder reads `inputs`."""

SHIFTED_INPUTS = FeatureSpec(
    features=(
        *ENCODER_INPUTS.features,
        ModelFeature("decoder_input_tokens", "inputs", "shifted"),
        ModelFeature("decoder_segment_ids", "inputs", "segment_ids"),
        ModelFeature("decoder_positions", "inputs", "positions"),
    ),
    packable=True,
)
"""An encoder reads `inputs`, and a decoder reads them shifted right by one position."""


def with_label(inputs: FeatureSpec, *, num_labels: int | None = None) -> FeatureSpec:
    """Adds the index of a label: the model feature `label` `[batch, 1]`, from the task feature `targets`.

    Args:
      inputs: Features that the model reads.
      num_labels: Number of labels. None: not known.
    """
    return _with_targets(inputs, "label", TaskFeature("targets", length=1, num_labels=num_labels))


def with_scores(inputs: FeatureSpec, number: int = 1) -> FeatureSpec:
    """Adds scores: the model feature `label` `[batch, number]`, float32, from the task feature `targets`.

    Args:
      inputs: Features that the model reads.
      number: Number of scores.
    """
    return _with_targets(inputs, "label", TaskFeature("targets", length=number, dtype="float32"))


def with_span(inputs: FeatureSpec) -> FeatureSpec:
    """Adds the span of an answer: the model feature `span` `[batch, 2]`, from the task feature `targets`.

    Args:
      inputs: Features that the model reads.
    """
    return _with_targets(inputs, "span", TaskFeature("targets", length=2))


def _with_targets(inputs: FeatureSpec, name: str, targets: TaskFeature) -> FeatureSpec:
    """Adds a model feature of the targets of each example."""
    return dataclasses.replace(
        inputs,
        features=(*inputs.features, ModelFeature(name, "targets", "tokens")),
        aligned_features=(*inputs.aligned_features, targets),
        packable=False,
    )


def with_tags(inputs: FeatureSpec, *, num_labels: int | None = None) -> FeatureSpec:
    """Adds one target per token: the model feature `labels` `[batch, length]`, from the task feature `targets`.

    Args:
      inputs: Features that the model reads.
      num_labels: Number of labels. None: not known.
    """
    return dataclasses.replace(
        inputs,
        features=(*inputs.features, ModelFeature("labels", "targets", "tokens")),
        aligned_features=(
            *inputs.aligned_features,
            TaskFeature("targets", aligned_with="inputs", num_labels=num_labels),
        ),
    )


def with_characters(words: FeatureSpec, number: int) -> FeatureSpec:
    """Adds the characters of words: the model feature `decoder_input_characters` `[batch, length, number]`.

    Args:
      words: Features of a decoder that reads `targets`. The task feature `characters` has the characters of each.
      number: Number of characters per word.
    """
    return dataclasses.replace(
        words,
        features=(*words.features, ModelFeature("decoder_input_characters", "characters", "tokens")),
        aligned_features=(
            *words.aligned_features,
            TaskFeature("characters", aligned_with="targets", inner=number, num_ids=NUM_CHARACTERS),
        ),
    )


def with_entities(inputs: FeatureSpec, size: int) -> FeatureSpec:
    """Adds the entities that a text mentions: `entities` and `entity_positions` `[batch, mentions]`, and their vectors.

    `entities` are numbers from 1, `entity_positions` the first tokens of the mentions, and `entity_vectors`
    `[batch, mentions, size]` float32. `TASK_FEATURE_LENGTHS['entity_positions']` is the maximum number of mentions.

    Args:
      inputs: Features of an encoder that reads `inputs`.
      size: Size of a vector.
    """
    lead = "entity_positions"  # not `entities`, whose numbers would be token ids
    return dataclasses.replace(
        inputs,
        features=(
            *inputs.features,
            ModelFeature("entities", "entities", "tokens"),
            ModelFeature("entity_positions", lead, "row_positions", within="inputs"),
            ModelFeature("entity_vectors", "entity_vectors", "tokens"),
        ),
        aligned_features=(
            *inputs.aligned_features,
            TaskFeature("entities", aligned_with=lead),
            TaskFeature("entity_vectors", aligned_with=lead, dtype="float32", inner=size),
        ),
    )


SEQUENCE_CLASSIFICATION = with_label(ENCODER_INPUTS_WITH_TYPES)
"""An encoder reads one or two texts; `targets` is the index of their label."""

SEQUENCE_REGRESSION = with_scores(ENCODER_INPUTS_WITH_TYPES)
"""An encoder reads one or two texts; `targets` is their score."""

SPAN_EXTRACTION = with_span(ENCODER_INPUTS_WITH_TYPES)
"""An encoder reads a question and a text; `targets` has the first and the last position of the answer in `inputs`."""

TOKEN_CLASSIFICATION = with_tags(ENCODER_INPUTS_WITH_TYPES)
"""An encoder reads a text; `targets` has the label of each token, -1 for tokens without a label."""


def multiple_choice(number: int, inputs: FeatureSpec = ENCODER_INPUTS_WITH_TYPES) -> FeatureSpec:
    """Returns the spec of a question with several choices, of which `targets` is the index of the right one.

    Args:
      number: Number of choices.
      inputs: Features that the model reads of one choice.

    Raises:
      UserError: `number` is not an integer of at least 2.
    """
    return choices.with_choices(with_label(inputs), number)


SPECS = {
    "ENCODER_DECODER": ENCODER_DECODER,
    "CAUSAL_LM": CAUSAL_LM,
    "NEXT_TOKEN": NEXT_TOKEN,
    "PREFIX_LM": PREFIX_LM,
    "PROMPTED": PROMPTED,
    "PROMPTED_WITH_BOS": PROMPTED_WITH_BOS,
    "CONVERSATION": CONVERSATION,
    "MASKED_LM": MASKED_LM,
    "PERMUTATION_LM": PERMUTATION_LM,
    "SENTENCE_PAIRS": SENTENCE_PAIRS,
    "SENTENCE_TRIPLES": SENTENCE_TRIPLES,
    "SEQUENCE_CLASSIFICATION": SEQUENCE_CLASSIFICATION,
    "SEQUENCE_REGRESSION": SEQUENCE_REGRESSION,
    "SPAN_EXTRACTION": SPAN_EXTRACTION,
    "TOKEN_CLASSIFICATION": TOKEN_CLASSIFICATION,
}
_BY_TASK = (PERMUTATION_LM, SENTENCE_TRIPLES, SENTENCE_PAIRS, MASKED_LM, ENCODER_DECODER, CONVERSATION, CAUSAL_LM)


def get_spec(name: str) -> FeatureSpec:
    """Returns the spec with a name such as `PREFIX_LM`.

    Raises:
      UserError: no spec has this name.
    """
    if name not in SPECS:
        raise UserError(f"FEATURES={name!r}: unknown feature spec. Give one of {', '.join(SPECS)}.")
    return SPECS[name]


def spec_for_task(
    task_features: Collection[str], read_example: Callable[[], Mapping[str, np.ndarray] | None] = lambda: None
) -> FeatureSpec:
    """Returns the spec that reads most of a task's features.

    A task with only `inputs` and `targets` gets the spec of an encoder-decoder, and a task with `inputs_0`, `inputs_1`,
    … the spec of multiple choice. The targets tell tasks with `inputs`, `token_types` and `targets` apart.
    `targets` with `characters` are words, whose number of characters the example has too, as it has the size of the
    vectors of entities.

    Args:
      task_features: Names of the task's features.
      read_example: Returns an example of the task, or None if there is none.

    Raises:
      UserError: no spec reads a task with these features.
    """
    if (number := choices.count_choices(task_features)) > 1:
        has_types = choices.choice_name("token_types", 0) in task_features
        return multiple_choice(number, ENCODER_INPUTS_WITH_TYPES if has_types else ENCODER_INPUTS)
    if set(task_features) == set(SEQUENCE_CLASSIFICATION.task_features):
        return _spec_for_example(read_example())
    if {"targets", "characters"} <= set(task_features) and (example := read_example()) is not None:
        return with_characters(NEXT_TOKEN, example["characters"].shape[-1])
    if set(SENTENCE_PAIRS.task_features) | {"entity_vectors"} <= set(task_features):
        if (example := read_example()) is not None:
            return with_entities(SENTENCE_PAIRS, example["entity_vectors"].shape[-1])
    for spec in _BY_TASK:
        if set(spec.task_features) <= set(task_features):
            return spec
    raise UserError(
        f"task features {', '.join(map(repr, task_features)) or 'none'}: no objective reads them. Give the task "
        "`targets`, or `inputs` and `targets`."
    )


def _spec_for_example(example: Mapping[str, np.ndarray] | None) -> FeatureSpec:
    """Returns the spec of a task with `inputs`, `token_types` and `targets`."""
    if example is None:
        return SEQUENCE_CLASSIFICATION
    targets = example["targets"]
    if targets.dtype.kind == "f":
        return with_scores(ENCODER_INPUTS_WITH_TYPES, len(targets))
    if len(targets) == len(example["inputs"]):
        return TOKEN_CLASSIFICATION
    return SPAN_EXTRACTION if len(targets) == 2 else SEQUENCE_CLASSIFICATION
