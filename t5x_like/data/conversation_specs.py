"""The feature specs of conversations, which a decoder reads as its chat template renders them."""

import dataclasses

from t5x_like.data.choices import with_choices
from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.data.task_features import TaskFeature

LOSS_MASK = "loss_mask"

CONVERSATION = FeatureSpec(
    features=(
        ModelFeature("decoder_input_tokens", "targets", "tokens"),
        ModelFeature("decoder_target_tokens", "targets", "next"),
        ModelFeature("decoder_loss_weights", LOSS_MASK, "next"),
        ModelFeature("decoder_segment_ids", "targets", "segment_ids"),
        ModelFeature("decoder_positions", "targets", "positions"),
    ),
    packable=True,
    aligned_features=(TaskFeature(LOSS_MASK, aligned_with="targets"),),
)
"""A decoder reads `targets`, the tokens of a conversation, and predicts the next token where its `loss_mask` is 1."""

PROMPT = FeatureSpec(
    features=(
        ModelFeature("decoder_input_tokens", "inputs", "tokens"),
        ModelFeature("decoder_segment_ids", "inputs", "segment_ids"),
        ModelFeature("answer_tokens", "targets", "tokens"),
        ModelFeature("answer_segment_ids", "targets", "segment_ids"),
    ),
    packable=False,
)
"""A decoder continues `inputs`, a prompt; `targets`, which may be empty, is what rewards compare a completion with."""

PREFERENCE_PAIR = with_choices(CONVERSATION, 2, shared=())
"""Two conversations with the same prompt, `targets_0` and `targets_1`: the first completion is preferred."""

SCORED_PAIR = dataclasses.replace(
    PREFERENCE_PAIR,
    features=(
        *(each for each in PREFERENCE_PAIR.features if each.sources[0].startswith("targets") and each.role != "next"),
        ModelFeature("margin", "margin", "tokens"),
    ),
    aligned_features=(
        *(each for each in PREFERENCE_PAIR.aligned_features if each.aligned_with is None),
        TaskFeature("margin", length=1, dtype="float32"),
    ),
)
"""A pair whose conversations a reward model scores, and by how much the scores should differ at least, `margin`."""

LABELED_COMPLETION = dataclasses.replace(
    PREFERENCE_PAIR,
    features=(*PREFERENCE_PAIR.features, ModelFeature("label", "label", "tokens")),
    aligned_features=(*PREFERENCE_PAIR.aligned_features, TaskFeature("label", length=1, num_labels=2)),
)
"""A conversation `targets_0` that is desirable (`label` 1) or not (0); `targets_1` ends otherwise."""
