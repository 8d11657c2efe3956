"""Candidate selection: which of the candidates in a text answers its question, by a global token per candidate."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from t5x_like.data import specs
from t5x_like.data.features import FeatureSpec, ModelFeature, TaskFeature
from t5x_like.errors import UserError
from t5x_like.models.bigbird_etc_inputs import GLOBAL_FEATURES
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, Objective, Params, Pass, RunOptions
from t5x_like.objectives.heads import HeadForm, check_form
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.labels import LABEL_METRICS, row_weights
from t5x_like.objectives.multiple_choice import MASKED
from t5x_like.objectives.prediction import Prediction, identity
from t5x_like.objectives.sentence_masked_lm import with_sentences
from t5x_like.recorded import recorded

NAME = "candidate_selection"
# Feature of tasks and batches, aligned with `global_positions`: 1 for the global token of a candidate.
IS_CANDIDATE = "is_candidate"
# The states of both inputs of ETC after the last layer, the global tokens first.
_STATES = "encoder/output"


def with_candidates(inputs: FeatureSpec) -> FeatureSpec:
    """Adds the global tokens, and which of them stand for candidates: `is_candidate` `[batch globals]`.

    Args:
      inputs: Features of an encoder that reads `inputs`.
    """
    found = with_sentences(inputs)
    return dataclasses.replace(
        found,
        features=(*found.features, ModelFeature(IS_CANDIDATE, IS_CANDIDATE, "tokens")),
        aligned_features=(*found.aligned_features, TaskFeature(IS_CANDIDATE, aligned_with=GLOBAL_FEATURES[0])),
    )


@recorded
class CandidateSelection(Objective):
    """Predicts which candidate answers the question of a row (WikiHop; Ainslie et al. 2020, section 4).

    A row has the question, all of its candidates and the documents. The global input of ETC has one token per
    candidate, from whose last hidden state the head computes a score. A softmax over the candidates of the row gives
    their probabilities. The only term is `candidate_selection`: the cross-entropy of the right candidate. A row whose
    label is below 0, or is not the number of one of its candidates, has weight 0. The metrics are `loss` in nats per
    row and `accuracy`.

    Args:
      head: What the head computes from each global token: a form of `objectives.heads` that reads each token, such as
        `heads.EachToken`.

    Raises:
      UserError: The head does not read each token.
    """

    coefficients = {NAME: 1.0}

    def __init__(self, *, head: HeadForm):
        check_form(head, each_token=True)
        self.features = specs.with_label(with_candidates(head.inputs))
        self._head = self.head_form = head

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the head `candidate_selection`; see `Objective.init`.

        Raises:
          UserError: The model has no global tokens.
        """
        if not set(GLOBAL_FEATURES) <= set(model.config.reads):
            raise UserError(
                f"MODEL=@{type(model.config).__name__}(): has no global input with a token per candidate. Give a model "
                "that has one, such as models/bigbird_etc/base.gin."
            )
        return {NAME: self._head.make(model.config, 1, key=key)}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for rows of text, with or without a label; see `Objective.weights`."""
        return {NAME: row_weights(rows)}

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for rows whose label is the number of a candidate; see `Objective.target_weights`."""
        number = jnp.sum(_is_candidate(rows), axis=1, keepdims=True)
        is_known = (rows["label"] >= 0) & (rows["label"] < number)
        return {NAME: self.weights(rows)[NAME] * is_known}

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Returns the states of the global tokens as `hidden` `[batch globals embed]`; see `Objective.run`."""
        names = tuple(dict.fromkeys((*options.capture, _STATES)))
        outputs = super().run(params, rows, dataclasses.replace(options, capture=names))
        states = outputs.captured[_STATES][:, : rows[IS_CANDIDATE].shape[1]]
        return outputs.replace(hidden=states, captured={name: outputs.captured[name] for name in options.capture})

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distribution over the candidates of each row; see `Objective.read`.

        The row has as many logits as global tokens: those of its candidates in order, and then `MASKED`.
        """
        scores = params["objective"][NAME](self._head.read(outputs.hidden, rows), keys.dropout)[..., 0]
        logits = _in_order(scores, _is_candidate(rows))[:, jnp.newaxis]
        known = self.target_weights(rows)[NAME] if "label" in rows else None
        predicted = Prediction(logits, identity, self.weights(rows)[NAME], rows.get("label"), known)
        return Pass(rows, outputs, {NAME: predicted.with_cross_entropy(NAME, LABEL_METRICS)})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the number of the candidate as `predictions` `[batch, 1]`, and `probabilities` `[batch, globals]`.

        The prediction of a row without candidates is -1.
        """
        logits = found.predictions[NAME].hidden[:, 0]
        has_candidates = jnp.any(_is_candidate(found.rows), axis=1, keepdims=True)
        return {
            "predictions": jnp.where(has_candidates, jnp.argmax(logits, axis=1, keepdims=True), -1).astype(jnp.int32),
            "probabilities": jax.nn.softmax(logits, axis=1),
        }


def _is_candidate(rows: Batch) -> Bool[Array, "batch globals"]:
    return (rows[IS_CANDIDATE] != 0) & (rows["global_segment_ids"] != 0)


def _in_order(
    scores: Float[Array, "batch globals"], is_candidate: Bool[Array, "batch globals"]
) -> Float[Array, "batch candidates"]:
    """Returns the scores of the candidates, in order, and `MASKED` after the last one."""
    order = jnp.argsort(~is_candidate, axis=1, stable=True)
    return jnp.take_along_axis(jnp.where(is_candidate, scores, MASKED), order, axis=1)
