"""The teachers of a distillation that read the text of the student in tokens of their own."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from t5x_like.data import text_vocabulary
from t5x_like.data.features import FeatureSpec
from t5x_like.data.retokenized import NO_ID, Retokenizer
from t5x_like.data.source import DataSource, stores_rows
from t5x_like.distillation import features
from t5x_like.distillation.loss import Loss
from t5x_like.distillation.losses.across_tokenizers import AcrossTokenizers
from t5x_like.errors import UserError
from t5x_like.objectives.base import Batch
from t5x_like.runtime import host_functions
from t5x_like.stored.loaded_teachers import LoadedTeacher, ServedTeacher
from t5x_like.vocabularies import stored
from t5x_like.vocabularies.base import Vocabulary
from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.late import LateVocabulary
from t5x_like.vocabularies.token_bytes import TokenBytes
from t5x_like.vocabularies.tokenizer_folder import has_tokenizer


def make(
    data: DataSource,
    spec: FeatureSpec,
    *,
    teachers: Mapping[str, LoadedTeacher],
    losses: Mapping[str, Loss],
    lengths: Mapping[str, Mapping[str, int] | None],
) -> dict[str, Retokenizer]:
    """Makes the retokenizers of the teachers that losses across tokenizers read.

    Args:
      data: The data of the student.
      spec: Features of the student's own objective.
      teachers: Name -> teacher.
      losses: Name -> loss.
      lengths: Name of a teacher -> maximum length of each task feature in its tokens; None for the student's lengths.

    Returns:
      Name of a teacher -> its retokenizer; empty without a loss across tokenizers.

    Raises:
      UserError: A tokenizer is not found, or its pieces do not determine the bytes of a text.
    """
    across = [loss for loss in losses.values() if isinstance(loss, AcrossTokenizers)]
    if not across:
        return {}
    named = {loss.teacher for loss in across}
    student = TokenBytes(vocabulary_of_data(data, spec))
    shapes = data.batch_shapes(spec)
    given = _lengths(spec, shapes) if (known := getattr(data, "task_feature_lengths", None)) is None else known
    return {
        name: Retokenizer(
            name,
            student,
            tokens := TokenBytes(vocabulary_of_teacher(name, teacher)),
            spec,
            _with_bos(teacher, spec, tokens.vocabulary),
            lengths[name] or getattr(teacher, "lengths", None) or given,
            predictions=shapes["decoder_target_tokens"][1] if "decoder_target_tokens" in shapes else 0,
        )
        for name, teacher in teachers.items()
        if name in named or None in named
    }


def of_samples(retokenizers: Mapping[str, Retokenizer], batch: Batch, sampled: Batch) -> dict[str, Array]:
    """Computes the features of teachers for sampled texts, on the host from within a compiled program.

    The host decodes and encodes all rows of the batch if one of them has changed, while the devices wait; see
    `host_functions.call`.

    Args:
      retokenizers: Name of a teacher -> what computes its features.
      batch: The global batch before sampling, with these features.
      sampled: The batch with samples in place of targets.

    Returns:
      The sampled batch, with the features that `RetokenizedSource` would give its rows.
    """
    old = {array.name: batch[array.name] for each in retokenizers.values() for array in each.attached}
    given = {name: features.select(sampled, each.student_spec) for name, each in retokenizers.items()}

    def retokenize(rows: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return {name: x for teacher, each in retokenizers.items() for name, x in each(rows[teacher]).items()}

    def compute() -> dict[str, Array]:
        return host_functions.call(retokenize, old, given)

    changed = [jnp.any(x != batch[name]) for name, x in sampled.items() if x is not batch[name]]
    return {**sampled, **jax.lax.cond(jnp.any(jnp.stack(changed)), compute, lambda: old)}


def vocabulary_of_data(data: DataSource, spec: FeatureSpec) -> Vocabulary:
    """Returns the vocabulary of the text of data; of a cache without its task, if the files of the vocabulary exist.

    Args:
      data: The data.
      spec: Features of the objective.

    Raises:
      UserError: The vocabulary is not known.
    """
    if stores_rows(data) and (kind := data.vocabulary_kind(spec)) is not None:
        location = data.text_vocabulary(spec).location
        for found in stored.candidates(kind.name, kind.ids, location, guess=False):
            if found.vocab_size == kind.ids:
                return found
    found = data.vocabularies().get(text_vocabulary.text_feature(spec))
    if found is None:
        raise UserError(f"{data.name}: its vocabulary is not known. Set VOCABULARY_PATH to it.")
    return found


def vocabulary_of_teacher(name: str, teacher: LoadedTeacher) -> Vocabulary:
    """Returns the vocabulary of a run or of a Hugging Face directory.

    Args:
      name: Name of the teacher.
      teacher: The teacher.

    Raises:
      UserError: It has none.
    """
    if isinstance(teacher, ServedTeacher):
        return LateVocabulary(lambda: teacher.vocabulary_path, extra_ids=0).vocabulary
    found = from_folder(teacher.path) if has_tokenizer(teacher.path) else teacher.tokenizer
    if found is None:
        raise UserError(
            f"teacher {name!r}: {teacher.path} has no tokenizer, which a loss across tokenizers needs. Give a "
            "directory with tokenizer.json, or a run that stores its vocabulary."
        )
    return found


def _with_bos(teacher: LoadedTeacher, student: FeatureSpec, vocabulary: Vocabulary) -> FeatureSpec:
    """Returns the features of a teacher. A decoder without an objective of its own reads its tokenizer's BOS first."""
    spec = teacher.objective.features
    bos = next((found for found in (vocabulary.bos_id, vocabulary.eos_id) if found not in NO_ID), None)
    is_own = spec != student
    if (
        is_own
        or spec.first_id is None
        or bos is None
        or any(each.name.startswith("encoder_") for each in spec.features)
    ):
        return spec
    return dataclasses.replace(spec, bos_id=bos)


def _lengths(spec: FeatureSpec, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Returns the lengths of the task features that a model feature reads alone."""
    return {each.sources[0]: shapes[each.name][1] for each in spec.features if len(each.sources) == 1}
