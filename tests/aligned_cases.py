"""Two rows that a student and a teacher with other tokens have read: logits, targets and groups of tokens."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import two_tokenizers

from t5x_like.data.retokenized import STUDENT_GROUPS, STUDENT_WORDS, TEACHER_GROUPS, TEACHER_WORDS
from t5x_like.distillation.loss import ForwardPass, ModelSpec
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.prediction import Prediction

STUDENT, TEACHER = two_tokenizers.student(), two_tokenizers.teacher()
LENGTHS = {"student": 7, "teacher": 9}
# Groups and words of two rows: the second has a token without a group, and padding.
ROWS = {
    STUDENT_GROUPS: [[1, 1, 2, 3, 3, 3, 4], [1, 0, 2, 2, 0, 0, 0]],
    TEACHER_GROUPS: [[1, 2, 2, 2, 3, 4, 4, 4, 4], [1, 1, 2, 0, 0, 0, 0, 0, 0]],
    STUDENT_WORDS: [[1, 1, 1, 2, 2, 2, 0], [1, 0, 1, 1, 0, 0, 0]],
    TEACHER_WORDS: [[1, 1, 1, 1, 2, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0, 0]],
}
ROWS = {name: np.array(rows, np.int32) for name, rows in ROWS.items()}
PREDICTED = {"student": np.array([[1] * 7, [1, 1, 1, 1, 0, 0, 0]]), "teacher": np.array([[1] * 9, [1] * 4 + [0] * 5])}


@dataclasses.dataclass(frozen=True)
class Config:
    vocab_size: int


def inputs(seed=0):
    """Returns the logits and the targets of both networks."""
    rng = np.random.default_rng(seed)
    logits = {
        name: 2 * rng.normal(size=(2, length, len(table)))
        for (name, length), table in zip(LENGTHS.items(), (STUDENT, TEACHER), strict=True)
    }
    targets = {name: rng.integers(0, x.shape[2], x.shape[:2]) for name, x in logits.items()}
    return logits, targets


def views(logits, targets, teacher=None, *, rows=slice(None)):
    """Returns what student and teacher computed for some rows; the teacher's stored logits replace its own."""
    found = {}
    for name, table in (("student", STUDENT), ("teacher", TEACHER)):
        network = ModelSpec(name, Config(len(table)), CausalLM(), tokens=table)
        batch = {"decoder_target_tokens": targets[name], "decoder_loss_weights": PREDICTED[name]}
        prediction = Prediction(
            jnp.asarray(logits[name])[rows], lambda x: x, PREDICTED[name][rows], targets[name][rows]
        )
        if name == "teacher" and teacher is not None:
            prediction = teacher
        batch = jax.tree.map(lambda x: jnp.asarray(x)[rows], batch | (ROWS if name == "teacher" else {}))
        found[name] = ForwardPass(network, None, batch, lambda prediction=prediction: {"targets": prediction})
    return found["student"], found["teacher"]


def compute(loss, logits, targets, teacher=None, *, rows=slice(None)):
    """Returns the value of a loss and its gradients with respect to the logits of both networks."""

    def value(logits):
        return loss({}, *views(logits, targets, teacher, rows=rows))

    with jax.enable_x64(False):
        return jax.jit(jax.value_and_grad(value))(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), logits))


def positions(row, name, group):
    return np.flatnonzero(ROWS[name][row] == group)


def groups(row, names=(STUDENT_GROUPS, TEACHER_GROUPS)):
    """Yields the positions of the student's and of the teacher's tokens of each group."""
    for group in range(1, ROWS[names[0]][row].max() + 1):
        yield tuple(positions(row, name, group) for name in names)
