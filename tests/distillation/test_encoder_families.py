"""Distillation with encoders that have attention of their own, as students and as teachers."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES
from lanes import others_are_full
from objective_case import Case
from objective_cases import CASES, terms_of

from t5x_like import parameters
from t5x_like.data import batches
from t5x_like.distillation.losses.attention import AttentionScoresMSE
from t5x_like.distillation.losses.hidden import HiddenCosine, HiddenMSE
from t5x_like.distillation.losses.logits import ForwardKL
from t5x_like.distillation.objective import Distillation
from t5x_like.models.base import ModelConfig
from t5x_like.models.longformer import FirstToken
from t5x_like.objectives import heads
from t5x_like.objectives.base import Objective
from t5x_like.objectives.heads.global_tokens import TaskGlobalTokens, TaskSentences
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.passes import forward
from t5x_like.objectives.sequence_classification import SequenceClassification

ENCODERS = {
    "xlnet": CASES["permutation_lm"],
    "deberta": CASES["enhanced_masked_lm"],
    "longformer": Case(MaskedLM(), "longformer"),
    "bigbird": Case(MaskedLM(), "bigbird"),
    "modernbert": Case(MaskedLM(), "modernbert", layers=2),
    "etc": CASES["sentence_masked_lm"],
}
# Rows of one text each, in which a task chooses global tokens for a Longformer and sentences for an ETC.
ROWS = {
    "inputs": np.array([[2, 7, 8, 9, 10, 3], [2, 11, 12, 3, 0, 0]]),
    "token_types": np.zeros((2, 6), np.int32),
    "targets": np.array([[1], [0]]),
}


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A teacher; see `loaded_teachers.LoadedTeacher`."""

    objective: Objective
    config: ModelConfig
    weight: float = 1.0
    vocabulary: str | None = None

    def bound(self):
        return contextlib.nullcontext()


def divergence(of_student, of_teacher):
    """Returns the KL divergence from the teacher's distributions, summed over positions."""
    student, teacher = (jax.nn.log_softmax(each.logits(each.hidden)) for each in (of_student, of_teacher))
    return jnp.sum(of_student.weights * jnp.sum(jnp.exp(teacher) * (teacher - student), axis=-1))


@pytest.mark.parametrize("name", others_are_full(ENCODERS, [*ENCODERS][:2]))
def test_student_learns_from_a_teacher_of_its_family(name):
    case = ENCODERS[name]
    (term,) = case.objective.coefficients
    params, teacher_params = case.params(), case.params(num_layers=case.layers + 1)
    teacher = Teacher(case.objective, dataclasses.replace(FAMILIES[case.family].config, num_layers=case.layers + 1))
    objective = Distillation(case.objective, {"kl": ForwardKL(prediction=term)}, teachers={"teacher": teacher})
    params = {**jax.tree.map(lambda leaf: 0.8 * leaf + 0.05, params), "teachers": {"teacher": teacher_params}}
    batch = case.batch()

    @jax.jit
    def compute(params):
        return jax.value_and_grad(lambda params: terms_of(objective, params, batch).sums["kl"])(params)

    value, gradient = compute(params)
    found = [forward(case.objective, each, batch).predictions[term] for each in (params, teacher_params)]
    np.testing.assert_allclose(value, divergence(*found), rtol=1e-4)
    norms = {name: np.abs(leaf).max() for name, leaf in parameters.named_leaves(gradient["model"]).items()}
    assert np.isfinite(list(norms.values())).all() and max(norms.values()) > 0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient["teachers"]))


LAYER_LOSSES = {
    "hidden": HiddenMSE(layers=((0, 0),), embeddings=True),
    "last": HiddenCosine(),
    "attention": AttentionScoresMSE(layers=((0, 0),)),
}


@pytest.mark.parametrize("loss", LAYER_LOSSES)
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "separate"])
def test_losses_of_layers_leave_out_global_tokens(loss, is_shared):
    """The loss between an ETC and itself is 0, and that to another one is that of the captured arrays of the text."""
    case = ENCODERS["etc"]
    changes = {"tokens_per_global": 2, "shared_projections": is_shared}
    config = dataclasses.replace(FAMILIES["etc"].config, num_layers=2, **changes)
    params, teacher_params = case.params(**changes), case.params(**changes)
    teacher = Teacher(case.objective, config)
    objective = Distillation(case.objective, {loss: LAYER_LOSSES[loss]}, teachers={"teacher": teacher})
    compute = jax.jit(
        lambda model: terms_of(
            objective, {**params, "model": model, "teachers": {"teacher": teacher_params}}, case.batch()
        ).sums[loss]
    )
    changed = jax.tree.map(lambda leaf: 0.8 * leaf + 0.05, params["model"])
    assert abs(float(compute(params["model"]))) < 1e-4 and float(compute(changed)) > 1e-3


@pytest.mark.parametrize(
    ("family", "changes", "wrapper", "features"),
    [
        (
            "longformer",
            {"window": 1, "global_tokens": FirstToken()},
            TaskGlobalTokens,
            [{"global_tokens": np.eye(6, dtype=np.int32)[[place, 1]]} for place in (1, 4)],
        ),
        (
            "etc",
            {"local_radius": 1},
            TaskSentences,
            [{"global_positions": np.array(positions)} for positions in ([[1, 2], [1, 2]], [[3, 4], [2, 0]])],
        ),
    ],
)
def test_global_tokens_of_the_task_reach_the_teacher_alone(family, changes, wrapper, features):
    """The student is a BERT, whose objective does not read them."""
    student = SequenceClassification(("no", "yes"), head=heads.PooledFirstToken())
    with_features = SequenceClassification(("no", "yes"), head=wrapper(form=heads.PooledFirstToken()))
    ours, theirs = (Case(each, name, layers=2) for each, name in ((student, "bert"), (with_features, family)))
    teacher = Teacher(with_features, dataclasses.replace(FAMILIES[family].config, **changes))
    (term,) = student.coefficients
    objective = Distillation(student, {"kl": ForwardKL(prediction=term)}, teachers={"teacher": teacher})
    params = {**ours.params(), "teachers": {"teacher": theirs.params(**changes)}}
    run = jax.jit(lambda batch: terms_of(objective, params, batch).sums)
    first, second = (run(batches.from_arrays(objective.features, ROWS | each)) for each in features)
    assert first[term] == second[term]
    assert abs(first["kl"] - second["kl"]) > 1e-4
