"""Every objective with a small model and a batch, for the properties that all objectives must have.

Test modules use `from objective_cases import CASES`. A new objective adds one entry to `CASES`.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from families import FAMILIES

from t5x_like import parameters
from t5x_like.data import batches
from t5x_like.data.choices import choice_name, count_choices
from t5x_like.kernels.chunks import Readout, sum_over_positions
from t5x_like.models import build
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import heads
from t5x_like.objectives.base import Objective, Pass
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.gpt1_finetuning import AuxiliaryLM, ExtractToken
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.keys import Keys
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.multiple_choice import MultipleChoice
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.passes import Terms, forward, forward_at_evaluation, terms
from t5x_like.objectives.prefix_lm import PrefixLM
from t5x_like.objectives.prompted_lm import PromptedLM
from t5x_like.objectives.replaced_tokens import ReplacedTokenDetection
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.sequence_regression import SequenceRegression
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.objectives.span_boundary import SpanBoundary
from t5x_like.objectives.span_extraction import SpanExtraction
from t5x_like.objectives.token_classification import TokenClassification

ROWS, LENGTH, PREDICTIONS = 32, 7, 3
LABELS = ("negative", "neutral", "positive")


@dataclasses.dataclass(frozen=True)
class Case:
    """An objective and a family of `FAMILIES` that it suits.

    Attributes:
      objective: the objective.
      family: name of the family.
      targets: function of a random generator that returns `targets` `[rows, n]` if they are not token ids.
      without_effect: regex of parameters that only add a constant to all logits of a softmax, as the bias of a score
        per choice or of all keys does. Their gradient is 0 up to rounding.
    """

    objective: Objective
    family: str
    targets: Any = None
    without_effect: str = "key/bias"

    def params(self, **changes: Any) -> dict[str, Any]:
        """Returns a model with one layer per stack, and heads, with random values everywhere."""
        return _params(self.objective, self.family, tuple(changes.items()))

    def batch(self) -> Mapping[str, np.ndarray]:
        """Returns rows of different lengths, some of them empty, so that microbatches differ in weight."""
        return _batch(self)


CASES = {
    "causal_lm": Case(CausalLM(), "llama"),
    "prefix_lm": Case(PrefixLM(), "llama"),
    "prompted_lm": Case(PromptedLM(), "gpt2"),
    "sequence_to_sequence": Case(SequenceToSequence(), "t5_1_1"),
    "masked_lm": Case(MaskedLM(z_loss=1e-2), "bert"),
    "pretraining": Case(Joint([MaskedLM(), NextSentence()]), "bert"),
    "span_boundary": Case(Joint([MaskedLM(), SpanBoundary(max_targets=2, position_dim=3)]), "bert"),
    "replaced_tokens": Case(ReplacedTokenDetection(generator_size=1 / 3), "bert"),
    "classification": Case(
        SequenceClassification(LABELS, head=heads.PooledFirstToken(), label_smoothing=0.1),
        "bert",
        lambda rng: rng.integers(-1, 3, (ROWS, 1)),
    ),
    "classification with a decoder": Case(
        SequenceClassification(LABELS, head=heads.LastToken()), "llama", lambda rng: rng.integers(0, 3, (ROWS, 1))
    ),
    "regression": Case(
        SequenceRegression(head=heads.DecoderLastToken(bos_id=2)),
        "bart",
        lambda rng: rng.uniform(-1, 5, (ROWS, 1)).astype(np.float32),
    ),
    "regression of several scores": Case(
        SequenceRegression(labels=LABELS, head=heads.PooledFirstToken()),
        "bert",
        lambda rng: rng.uniform(-1, 5, (ROWS, 3)).astype(np.float32),
    ),
    "multiple choice": Case(
        MultipleChoice(3, head=heads.PooledFirstToken()),
        "bert",
        lambda rng: rng.integers(-1, 3, (ROWS, 1)),
        "key/bias|classifier/bias",
    ),
    "span extraction": Case(
        SpanExtraction(head=heads.EachToken(dropout_rate=0.0)),
        "bert",
        lambda rng: rng.integers(-1, 9, (ROWS, 2)),
        "key/bias|mlp_norm/bias|classifier/bias",
    ),
    "GPT-1's multiple choice": Case(
        Joint([MultipleChoice(2, head=ExtractToken()), AuxiliaryLM(num_sequences=2)]),
        "gpt1",
        lambda rng: rng.integers(0, 2, (ROWS, 1)),
        "key/bias|classifier/bias",
    ),
    "GPT-1's similarity": Case(
        Joint([SequenceClassification(LABELS, head=ExtractToken(orders=2)), AuxiliaryLM(num_sequences=2)]),
        "gpt1",
        lambda rng: rng.integers(0, 3, (ROWS, 1)),
    ),
    "tagging": Case(
        TokenClassification(LABELS, head=heads.EachToken()), "bert", lambda rng: rng.integers(-1, 3, (ROWS, LENGTH))
    ),
}


def terms_of(
    objective: Objective, params: Mapping[str, Any], batch: Mapping[str, Any], keys: Keys | None = None
) -> Terms:
    """Returns the terms of a batch, whose sums have gradients. Without keys, they are those of an evaluation."""
    if keys is None:
        return _differentiable(forward_at_evaluation(objective, params, batch))
    return _differentiable(forward(objective, params, batch, keys=keys))


def read_terms(objective: Objective, params: Mapping[str, Any], outputs: Outputs, rows: Mapping[str, Any]) -> Terms:
    """Returns the terms of given outputs of a model, whose sums have gradients."""
    return _differentiable(objective.read(params, outputs, rows))


def _differentiable(found: Pass) -> Terms:
    """Returns the terms, each loss of logits summed by itself instead of in one pass."""
    sums = dict(found.sums)
    for prediction in found.predictions.values():
        readout = Readout(prediction.hidden, prediction.logits)
        for each in prediction.losses:
            value = each.share * each.loss.trained(sum_over_positions(readout, each.loss))
            sums[each.term] = sums.get(each.term, 0.0) + value
    return Terms(sums, terms(found).metrics)


@functools.cache
def _params(objective: Objective, family: str, changes: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    config = FAMILIES[family].config
    layers = {field.name for field in dataclasses.fields(config)} & {"num_layers", "encoder_layers", "decoder_layers"}
    config = dataclasses.replace(config, **(dict.fromkeys(layers, 1) | dict(changes)))
    like = build.params_shapes(config, objective)
    rng = np.random.default_rng(0)

    def draw(name, leaf):
        scale = 1 + 0.2 * rng.normal(size=leaf.shape) if name.endswith("scale") else 0.4 * rng.normal(size=leaf.shape)
        return jnp.asarray(scale, jnp.float32)

    return parameters.map_named(draw, like)


def _batch(case: Case) -> dict[str, np.ndarray]:
    rng, spec = np.random.default_rng(1), case.objective.features
    real = np.arange(ROWS) % 5 != 4
    lengths = spec.task_lengths({"inputs": LENGTH, "targets": PREDICTIONS})
    counts = {
        name: rng.integers(0 if name == "targets" else 3, lengths[name] + 1, ROWS) * real
        for name in spec.task_features
        if spec.is_token_ids(name)
    }
    if (last := choice_name("inputs", count_choices(spec.task_features) - 1)) in counts:
        counts[last][::3] = 0  # fewer choices
    arrays = {}
    for name in spec.task_features:
        values = rng.integers(1, LENGTH if name == "masked_positions" else 40, (ROWS, lengths[name]))
        if name.startswith("token_types") or name == "next_sentence_label":
            values %= 2
        if name == "targets" and case.targets:
            values = case.targets(rng)
        arrays[name] = values
        if name in spec.fixed_lengths:
            arrays[name] = values * real[:, None]
    return batches.from_arrays(spec, arrays, counts=counts)
