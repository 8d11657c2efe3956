"""Compares the configuration of a start with the one that is stored in the run directory."""

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.runtime.run_files import CONFIG, has_checkpoints
from t5x_like.training.runs.run_directory import RunConfig, not_resumable

# Settings that may change when a run is resumed: directory, length, reports, checkpoints and hardware. A schedule that
# reads TRAIN_STEPS has the value as its own argument, which may not change.
_RECIPE = "t5x_like.training.recipe"
FREE_TO_CHANGE = (
    *(f"{_RECIPE}.{name}.*" for name in ("Periods", "Storage")),
    *(f"{_RECIPE}.Recipe.{name}" for name in ("periods", "storage", "evaluations", "partitioner")),
    f"{_RECIPE}.Recipe.vocabulary_path",  # the run has a copy, with which it is compared
    *(f"{_RECIPE}.Update.{name}" for name in ("microbatches", "gather_parameters", "compiler_options")),
    f"{_RECIPE}.Update.allow_batches_without_targets",
    "t5x_like.train.train.on_*",
    "t5x_like.data.seqio_feed.SeqIOSource.vocabulary_path",
    "t5x_like.data.seqio_feed.SeqIOSource.on_bad_record",  # a run that a bad record has ended resumes with `skip`
    "t5x_like.data.cached.CachedSource.vocabulary_path",
    "t5x_like.data.cached.CachedMixture.vocabulary_path",
    # How a cache is found and read. The stored data position identifies the cache itself.
    *(
        f"t5x_like.data.cached.{source}.{name}"
        for source in ("CachedSource", "CachedMixture")
        for name in ("cache_dir", "threads", "verify_checksums")
    ),
)


def check(model_dir: str, run_config: RunConfig | None) -> None:
    """Checks that the stored configuration of a run to resume agrees with the given one.

    Parameters in `FREE_TO_CHANGE` may differ. A run without checkpoints is not resumed, so all parameters may differ.

    Args:
      model_dir: the run directory.
      run_config: the given configuration; None for a run started from Python, which is not checked.

    Raises:
      UserError: the configurations differ, or the run is one of an earlier version, and `run_config.override` is False.
        Or the checkpoint is a converted one. The message lists the differences.
    """
    stored = paths.join(model_dir, CONFIG)
    if run_config is None or not has_checkpoints(model_dir) or not paths.exists(stored):
        return
    from t5x_like import config  # imported here because runs started from Python do not need gin

    text = paths.read_text(stored)
    if f"{_RECIPE}.Recipe" not in text:
        if "t5x_like.train.train" not in text:  # a converted checkpoint: the file only describes the model
            raise not_resumable(model_dir)
        if not run_config.override:
            raise UserError(
                f"MODEL_DIR={model_dir} was trained by an earlier version, with whose configuration this one cannot be "
                "compared. Resume with that version, or accept all differences with --override_config."
            )
        return
    differences = config.differences(text, run_config.text, free=FREE_TO_CHANGE, file=stored)
    if differences and not run_config.override:
        raise UserError(
            f"MODEL_DIR={model_dir} was trained with another configuration (stored → given):\n"
            + "\n".join(f"  {line}" for line in differences)
            + "\nGive another MODEL_DIR or the stored values, or accept the differences with --override_config."
        )
