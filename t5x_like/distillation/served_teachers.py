"""Teachers that are served elsewhere, of which `t5x_like import_logits` has stored texts and log-probabilities."""

import dataclasses

from t5x_like import checkpoint_paths
from t5x_like.data.cached import logits
from t5x_like.distillation.teachers import Teacher
from t5x_like.models.base import ModelConfig
from t5x_like.objectives.base import Objective
from t5x_like.stored.loaded_teachers import ServedTeacher


def find(teacher: Teacher, student: ModelConfig, objective: Objective) -> ServedTeacher | None:
    """Returns the teacher whose stored outputs are in a directory.

    Args:
      teacher: The teacher, as a configuration names it; its path may be a directory of teacher logits.
      student: Configuration of the student's model, which stands for the unknown one of the teacher, but for its
        number of classes.
      objective: Objective of the student.

    Returns:
      The teacher; None if the path is a model, or has the logits of one.

    Raises:
      UserError: The stored outputs are incomplete.
    """
    if not checkpoint_paths.is_teacher_logits(teacher.path):
        return None
    manifest = next(iter(logits.read_all(teacher.path).values()))
    if (served := manifest.served) is None:
        return None
    (stored,), found = manifest.predictions.values(), manifest.settings["teacher"]
    return ServedTeacher(
        path=teacher.path,
        config=dataclasses.replace(student, vocab_size=stored.classes),
        objective=objective,
        vocabulary=found["vocabulary"],
        weight=teacher.weight,
        logits=teacher.path,
        outputs=found["digest"],
        vocabulary_path=served["vocabulary_path"],
        lengths=served["lengths"],
    )
