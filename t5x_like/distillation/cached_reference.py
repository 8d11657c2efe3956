"""The reference of preference objectives as numbers beside a cache, which replace its forward pass."""

import dataclasses
import functools
from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like import paths
from t5x_like.checkpoints import checkpoint_choice
from t5x_like.data.cached import logits
from t5x_like.data.cached.logits_rows import IDS, LOG_Z, VALUES
from t5x_like.data.features import FeatureSpec
from t5x_like.distillation.cached_logits import CachedLogits
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import reference
from t5x_like.objectives.base import Batch, Params
from t5x_like.objectives.completion_scores import NAME, TEXTS
from t5x_like.recorded import recorded
from t5x_like.stored import weight_digest


@recorded
@dataclasses.dataclass(frozen=True)
class CachedReference:
    """The log-probabilities of completions that `t5x_like cache_logits` computed with `CompletionScores`.

    A comment above each field documents it. See `reference.Reference`.
    """

    # The reference: a run directory or one of its checkpoints, or a Hugging Face directory.
    path: str
    # The directory of the log-probabilities.
    directory: str

    @functools.lru_cache(maxsize=1)  # noqa: B019 - a run has one
    def _open(self, spec: FeatureSpec) -> CachedLogits:
        digest = next(iter(logits.read_all(self.directory).values())).settings["teacher"]["digest"]
        if paths.exists(self.path):  # a run resumes even after the weights that it started from were deleted
            (checkpoint,) = checkpoint_choice.choose(self.path, setting="INITIAL_CHECKPOINT_PATH")
            digest = weight_digest.digest(checkpoint)
        found = CachedLogits.open(reference.NAME, self.directory, digest=digest, spec=spec)
        for manifest in found.manifests.values():
            stored = manifest.predictions.get(NAME)
            if stored is None or (stored.k, stored.dtype) != (TEXTS, "float32"):
                raise UserError(
                    f"TEACHER_LOGITS={self.directory}: no float32 log-probabilities of completions. Write them with "
                    "`t5x_like cache_logits` and --gin_file=preferences/cache_reference.gin."
                )
        return found

    def features(self, spec: FeatureSpec) -> FeatureSpec:
        """Returns the features with the stored numbers; without them if the directory is not found.

        Commands that read the model alone do not need them; `scores` does.

        Raises:
          UserError: They are incomplete, or belong to other weights or features.
        """
        if not paths.exists(self.directory):
            return spec
        return dataclasses.replace(spec, attached=self._open(spec).attached)

    def networks(self, config: ModelConfig) -> Mapping[str, NetworkSpec]:
        """Returns no network."""
        return {}

    def frozen_names(self, config: ModelConfig) -> frozenset[str]:
        """Returns no name."""
        return frozenset()

    def with_outputs(self, outputs: Outputs, params: Params, texts: Batch) -> Outputs:
        """Returns the outputs of the model alone."""
        return outputs

    def scores(
        self, params: Params, outputs: Outputs, texts: Batch, rows: Batch, side: int | None = None
    ) -> Float[Array, " texts"]:
        """Returns the stored numbers; see `reference.Reference.scores`.

        Raises:
          UserError: The rows do not have them.
        """
        names = [logits.attached_name(reference.NAME, NAME, each) for each in (VALUES, IDS, LOG_Z)]
        if names[0] not in rows:
            raise UserError(
                f"TEACHER_LOGITS={self.directory}: not found. Write the log-probabilities of completions with "
                "`t5x_like cache_logits` and --gin_file=preferences/cache_reference.gin."
            )
        values, ids, log_z = (rows[name] for name in names)
        is_class = ids[:, 0, :, None] == jnp.arange(TEXTS)
        found = jnp.sum(jnp.where(is_class, (values[:, 0] + log_z)[..., None], 0.0), axis=1)
        return found.reshape(-1) if side is None else found[:, side]
