"""The logits of a teacher that are stored beside a cache: how they are computed, and how a loss reads them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array

from t5x_like.data.attached import Attached
from t5x_like.data.cached import logits
from t5x_like.data.cached.logits import LogitsManifest
from t5x_like.data.cached.logits_rows import IDS, LOG_TAIL, LOG_Z, VALUES, WEIGHTS, Stored
from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.kernels.top_k import TopK, largest_logits
from t5x_like.objectives import passes
from t5x_like.objectives.base import Batch, Objective, Params
from t5x_like.objectives.prediction import Prediction

if TYPE_CHECKING:
    from t5x_like.stored.loaded_teachers import LoadedTeacher

# ---- computing -------------------------------------------------------------------------------------------------------


def predictions_of(objective: Objective, params: Params, batch: Batch, names: Sequence[str]) -> dict[str, Prediction]:
    """Runs a teacher without dropout and returns the predictions with these names.

    Raises:
      UserError: The objective does not make a prediction.
    """
    found = passes.forward_at_evaluation(objective, params, batch).predictions
    if missing := [name for name in names if name not in found]:
        raise UserError(
            f"PREDICTIONS={list(names)}: {type(objective).__name__} does not predict {missing[0]!r}. Give one or "
            f"several of {', '.join(found)}."
        )
    return {name: found[name] for name in names}


def compute(
    objective: Objective, params: Params, batch: Batch, predictions: Mapping[str, Stored], temperature: float
) -> dict[str, dict[str, Array]]:
    """Computes what is stored of a batch.

    Log-probabilities are stored instead of logits, because the largest ones are close to 0, where float16 is exact to
    more digits. Their sum with the log of the normalizer is the logit.

    Args:
      objective: The objective of the teacher.
      params: The parameters of the teacher.
      batch: The features of a batch.
      predictions: What is stored of each prediction.
      temperature: Temperature at which the tail is summed.

    Returns:
      Prediction -> kind (`data.cached.logits_rows.KINDS` and `WEIGHTS`) -> array `[batch, positions, …]`.
    """
    found = {}
    for name, prediction in predictions_of(objective, params, batch, tuple(predictions)).items():
        stored = predictions[name]
        top, log_z = largest_logits(prediction.hidden, prediction.logits, stored.k, temperature=temperature)
        found[name] = {
            VALUES: (top.values - log_z[..., None]).astype(stored.dtype),
            IDS: top.ids.astype(stored.ids_dtype),
            LOG_TAIL: (top.log_tail - log_z / temperature).astype(stored.dtype),
            LOG_Z: log_z.astype(stored.dtype),
            WEIGHTS: prediction.weights,
        }
    return found


# ---- reading ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class CachedLogits:
    """The cached logits of a teacher, which replace the teacher in a training step.

    Attributes:
      name: Name of the teacher.
      directory: Directory that `t5x_like cache_logits` wrote.
      manifests: `TASK/SPLIT` -> manifest; all are of one teacher and have the same predictions.
    """

    name: str
    directory: str
    manifests: Mapping[str, LogitsManifest]

    @classmethod
    def open(cls, name: str, directory: str, *, digest: str, spec: FeatureSpec) -> "CachedLogits":
        """Reads the manifests of the cached logits.

        Args:
          name: Name of the teacher.
          directory: Directory that `t5x_like cache_logits` wrote.
          digest: Digest of the teacher of this run.
          spec: Features that the objective of the student reads.

        Raises:
          UserError: There are none, they are incomplete, or another teacher computed them or read other features.
        """
        found = cls(name, directory, logits.read_all(directory))
        settings = found._any.settings
        if settings["teacher"]["digest"] != digest:
            raise UserError(
                f"TEACHER_LOGITS={directory} were computed by {found._any.teacher_path} "
                f"({settings['teacher']['digest']}), but the teacher {name!r} of this run is {digest}. Give the "
                "teacher that computed them, or compute them again with `t5x_like cache_logits`."
            )
        if settings["spec"] != spec.digest:
            raise UserError(
                f"TEACHER_LOGITS={directory}: the teacher read other features ({settings['spec']}) than the objective "
                f"of the student reads ({spec.digest}), such as another BOS or other weights. Use the same objective."
            )
        return found

    @classmethod
    def open_all(cls, teachers: "Mapping[str, LoadedTeacher]", spec: FeatureSpec) -> "dict[str, CachedLogits]":
        """Reads the manifests of the teachers that have cached logits; see `open`.

        Args:
          teachers: Name -> teacher.
          spec: Features that the objective of the student reads.

        Returns:
          Name of a teacher with cached logits -> these.
        """
        return {
            name: cls.open(name, each.logits, digest=each.digest, spec=spec)
            for name, each in teachers.items()
            if each.logits is not None
        }

    @property
    def _any(self) -> LogitsManifest:
        return next(iter(self.manifests.values()))

    @property
    def attached(self) -> tuple[Attached, ...]:
        """The arrays that a batch needs, for `FeatureSpec.attached`."""
        return self._any.attached(self.name, self.directory)

    def check_classes(self, classes: Mapping[str, int]) -> None:
        """Checks that the student predicts the classes that are stored.

        Args:
          classes: Prediction of the student -> number of classes.

        Raises:
          UserError: The student does not make a prediction, or has another number of classes.
        """
        for name, stored in self._any.predictions.items():
            # The tokenizer of a served model tells fewer classes than its embeddings, which may be padded.
            is_part = self._any.served is not None and stored.classes <= classes.get(name, 0)
            if name in classes and classes[name] != stored.classes and not is_part:
                raise UserError(
                    f"TEACHER_LOGITS={self.directory}: the prediction {name!r} of the teacher {self.name!r} has "
                    f"{stored.classes} classes, the student has {classes[name]}. Use a teacher with the vocabulary "
                    "or the labels of the student."
                )
        if not set(self._any.predictions) & set(classes):
            raise UserError(
                f"TEACHER_LOGITS={self.directory} have the predictions {', '.join(self._any.predictions)}, but the "
                f"student predicts {', '.join(classes)}. Use a teacher with the objective of the student."
            )

    def check_prediction(self, prediction: str) -> None:
        """Checks that a prediction that a loss compares is stored.

        Args:
          prediction: Its name.

        Raises:
          UserError: It is not stored.
        """
        if prediction not in (stored := self._any.predictions):
            raise UserError(
                f"TEACHER_LOGITS={self.directory}: the prediction {prediction!r} is not stored, but "
                f"{', '.join(stored)}. Give a loss of a stored prediction, or store it with `t5x_like cache_logits "
                f'--gin.PREDICTIONS="({prediction!r},)"`.'
            )

    def predictions(self, batch: Batch) -> dict[str, TopK]:
        """Returns the largest logits of each prediction in a batch or a microbatch.

        Positions without a stored value have the logit 0 for k times class 0, and are to have no weight.
        """
        temperature, found = self._any.settings["temperature"], {}
        for name in self._any.predictions:
            arrays = {kind: batch[logits.attached_name(self.name, name, kind)] for kind in logits.KINDS}
            log_z = arrays[LOG_Z].astype(jnp.float32)
            found[name] = TopK(
                values=arrays[VALUES].astype(jnp.float32) + log_z[..., None],
                ids=arrays[IDS].astype(jnp.int32),
                log_tail=arrays[LOG_TAIL].astype(jnp.float32) + log_z / temperature,
                temperature=temperature,
            )
        return jax.lax.stop_gradient(found)
