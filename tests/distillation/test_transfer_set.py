"""Distillation on a table without labels: the teacher's distributions have weight 1, the labels of the task 0."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio

from data_tasks.downstream.own_tables import add_classification_task
from t5x_like import optimizers
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.distillation.losses.logits import SoftCrossEntropy
from t5x_like.distillation.objective import Distillation
from t5x_like.models.bert import BertConfig
from t5x_like.objectives import gradients
from t5x_like.objectives.heads import DenseFirstToken
from t5x_like.objectives.keys import NO_KEYS
from t5x_like.objectives.passes import predict, total_weights
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.sequence_prediction import NAME
from t5x_like.objectives.variables import Frozen
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL

STUDENT = BertConfig(vocab_size=1200, embed_dim=8, mlp_dim=8, num_heads=2, head_dim=4, num_layers=1, max_length=16)
OBJECTIVE = SequenceClassification(("negative", "positive"), head=DenseFirstToken())


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A teacher with more layers; see `loaded_teachers.LoadedTeacher`."""

    config: BertConfig = dataclasses.replace(STUDENT, num_layers=2)
    objective: SequenceClassification = OBJECTIVE
    vocabulary: str | None = None
    weight: float = 1.0

    def bound(self):
        return contextlib.nullcontext()


def params_of(config, seed):
    model = config.make(jax.random.key(seed))
    params = {"model": model, "objective": OBJECTIVE.init(jax.random.key(seed), model)}
    return jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size + seed), x.shape), params)


@pytest.fixture
def batch(tmp_path):
    """The rows of a table without labels, and a row of padding."""
    (tmp_path / "unlabelled.csv").write_text("review\nIt works.\nNo.\nIt does not work.\n")
    options = {"texts": ["review"], "label": "opinion", "labels": OBJECTIVE.labels, "unlabelled": ["train"]}
    add_classification_task("unlabelled", {"train": str(tmp_path / "unlabelled.csv")}, **options)
    arguments = {"vocabulary_path": str(PYTHON_DOCS_MODEL)}
    source = SeqIOSource(
        mixture_or_task_name="unlabelled",
        task_feature_lengths={"inputs": 12},
        batch_size=4,
        pack=False,
        task_arguments=arguments,
    )
    yield next(iter(source.eval_batches(OBJECTIVE.features)))
    seqio.TaskRegistry.remove("unlabelled")


@pytest.mark.full
def test_student_learns_the_probabilities_of_a_teacher_without_labels(batch):
    losses, coefficients = {"soft": SoftCrossEntropy(prediction=NAME)}, {"task": 0.0}
    objective = Distillation(OBJECTIVE, losses, coefficients=coefficients, teachers={"teacher": Teacher()})
    student, teacher = params_of(STUDENT, 0), params_of(Teacher().config, 1)
    assert batch["label"][:3, 0].tolist() == [-1, -1, -1]
    weights = total_weights(objective, batch)
    assert (float(weights[NAME]), float(weights["soft"])) == (0, 3)

    def gradient(batch):
        frozen = Frozen(optimizers.split(student, ())[1], {"teacher": teacher})
        normalize = gradients.normalizers(objective, batch, "NUM_REAL_TARGET_TOKENS")
        return gradients.compute(objective, student, frozen, batch, keys=NO_KEYS, microbatches=1, normalize=normalize)[
            :2
        ]

    grads, metrics = gradient(batch)
    targets, predictions = (predict(OBJECTIVE, each, batch)["probabilities"] for each in (teacher, student))
    entropy = -np.sum(np.asarray(targets) * np.log(np.asarray(predictions)), axis=-1)[:3]
    np.testing.assert_allclose(metrics["objective"][0], entropy.mean(), rtol=1e-5)
    assert max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(grads)) > 1e-3
    labelled, _ = gradient(batch | {"label": np.ones_like(batch["label"])})  # labels do not matter
    jax.tree.map(np.testing.assert_array_equal, grads, labelled)
