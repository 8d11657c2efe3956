"""The recipe of a run: everything that decides what `train` computes, in a few structs that gin or Python make."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from t5x_like import optimizers, partitioning
from t5x_like.checkpoints.local_checkpoints import LocalTier
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.data.source import DataSource
from t5x_like.errors import UserError
from t5x_like.metrics import loggers
from t5x_like.models.base import ModelConfig
from t5x_like.objectives.base import Objective
from t5x_like.objectives.gathering import Gathering
from t5x_like.objectives.gradients import LossNormalization
from t5x_like.stored.loaded_teachers import LoadedTeacher
from t5x_like.stored.weight_source import InitialWeights
from t5x_like.training.batch_ramp import BatchRamp
from t5x_like.training.evaluation import Evaluation

FrozenDtype = Literal["float32", "bfloat16"]

_SETTINGS = {
    "total": "TRAIN_STEPS",
    "log": "LOG_PERIOD",
    "evaluate": "EVAL_PERIOD",
    "save": "SAVE_PERIOD",
    "save_seconds": "SAVE_SECONDS",
    "repeat": "Periods.repeat",
    "stop_after_skipped": "Periods.stop_after_skipped",
}


@dataclasses.dataclass(frozen=True)
class Periods:
    """How many steps a run has, and when it logs, evaluates, saves and ends early.

    Attributes:
      total: The step to stop at.
      log: Steps between two rows of training metrics. The first and the last step are always logged.
      evaluate: Steps between two evaluations, or None for no evaluation. The last step is always evaluated otherwise.
      save: Steps between two checkpoints, or None for none by steps. The last step is always saved, unless
        `save_seconds` is None, too.
      save_at: Steps after which a checkpoint is saved in any case, such as steps that other runs continue from.
      save_seconds: Seconds after which a checkpoint follows the last one, whatever the steps; None for no such limit.
      repeat: Steps between two steps that are computed twice, to detect hardware that computes wrongly. They need
        memory for two states. None disables the check.
      patience: Number of evaluations without improvement of the checkpointer's `best_metric` after which the run
        finishes early; None for no limit.
      stop_after_skipped: Number of consecutive non-finite updates that ends the run.

    Raises:
      UserError: A number of steps or seconds is not positive.
    """

    total: int
    log: int = 100
    evaluate: int | None = 1000
    save: int | None = 1000
    save_at: Sequence[int] = ()
    save_seconds: float | None = None
    repeat: int | None = None
    patience: int | None = None
    stop_after_skipped: int = 20

    def __post_init__(self):
        for name, setting in _SETTINGS.items():
            period = getattr(self, name)
            if period is not None and period <= 0:
                number = "number" if name == "save_seconds" else "integer"
                never = ", or None for never" if name in ("evaluate", "save", "save_seconds", "repeat") else ""
                raise UserError(f"{setting}={period} is not positive. Give a positive {number}{never}.")

        if not isinstance(self.save_at, list | tuple) or not all(type(step) is int for step in self.save_at):
            raise UserError(f"KEEP_STEPS={self.save_at!r}: not a list of steps. Give such as [1000], or [] for none.")

    def logs_at(self, step: int) -> bool:
        """Returns whether the metrics of `step` are logged."""
        return step == 1 or step == self.total or step % self.log == 0

    def evaluates_at(self, step: int) -> bool:
        """Returns whether an evaluation follows `step`."""
        return self.evaluate is not None and (step == self.total or step % self.evaluate == 0)

    def saves_at(self, step: int, stopping: bool) -> bool:
        """Returns whether a checkpoint follows `step` at any time; `stopping` means that the run ends there early."""
        if stopping or step == self.total:
            return self.save is not None or self.save_seconds is not None
        return step in self.save_at or (self.save is not None and step % self.save == 0)


@dataclasses.dataclass(frozen=True)
class Update:
    """How a training step computes its update from a batch.

    Attributes:
      microbatches: Number of microbatches that each batch is split into. They run one after the other, which lowers
        peak memory.
      max_grad_norm: Gradients with a larger global norm are scaled down to it.
      loss_normalizing_factor: What the summed loss is divided by: `"NUM_REAL_TARGET_TOKENS"` (the mean over target
        tokens), a number, or None (the sum, which is T5X's default).
      gather_parameters: When a device gathers sharded parameters and reduces their gradients. `"per_use"`: in each
        pass of each microbatch, layer by layer. `"per_step"`: once per step, which sends fewer bytes if there are
        several microbatches, and needs memory for all parameters in the dtype of the computation and for all gradients
        in float32. The mesh may then only have the axes `data` and `fsdp`. Without dropout, the result is the same.
      compiler_options: XLA options for the training step, such as those in `gin_configs/hardware`. With None, XLA's
        defaults, and the log names the file for the devices.
      frozen_dtype: Dtype in which frozen kernels and embeddings are kept, `float32` or `bfloat16`, which takes half the
        memory. Trained parameters are always float32.
      ema_decay: Decay of exponential moving averages of the trained parameters, such as 0.999; None for no averages.
        Averages are corrected for their start; see `state.update_average`. Checkpoints store them besides the
        parameters, and evaluations and all commands that read the run use them; see `InitialWeights.averaged`.
      batch_ramp: How the batch grows to its size, in whole microbatches; None for batches of one size.
      allow_batches_without_targets: Whether a batch without targets, whose loss is 0, is no error. With several
        processes, each one checks its own rows.
    """

    microbatches: int = 1
    max_grad_norm: float | None = None
    loss_normalizing_factor: LossNormalization = "NUM_REAL_TARGET_TOKENS"
    gather_parameters: Gathering = "per_use"
    compiler_options: Mapping[str, Any] | None = None
    frozen_dtype: FrozenDtype = "float32"
    ema_decay: float | None = None
    batch_ramp: BatchRamp | None = None
    allow_batches_without_targets: bool = False

    def __post_init__(self):
        if self.frozen_dtype not in get_args(FrozenDtype):
            raise UserError(f"FROZEN_DTYPE={self.frozen_dtype!r} is unknown. Give 'float32' or 'bfloat16'.")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise UserError(f"EMA_DECAY={self.ema_decay} is not between 0 and 1. Give such as 0.999, or None.")


@dataclasses.dataclass(frozen=True)
class Storage:
    """Where a run is stored, which of its checkpoints are kept, and where its metrics go.

    Attributes:
      model_dir: The run directory, a local path or a bucket. By default a new numbered directory under `./runs`.
      checkpoints: Creates the checkpointer of a directory. Its `keep_best` and `best_metric` decide which checkpoints
        are kept besides the latest.
      local: Where and how often to save on each host as well; see `TieredCheckpoints`.
      loggers: What receives the rows of metrics.jsonl as well: `tensorboard`, `wandb`, `mlflow`, or several with
        commas. The last two need the extra of the same name.
      store_base: Whether checkpoints also store the frozen parameters that equal the pretrained weights. By default
        they are read from these weights, which must then be kept; see `frozen_base`.
    """

    model_dir: str | None = None
    checkpoints: Callable[..., Checkpoints] = Checkpoints
    local: LocalTier | None = None
    loggers: str = "tensorboard"
    store_base: bool = False

    def check_loggers(self) -> None:
        """Checks that the loggers can be used on this machine.

        Raises:
          UserError: A logger is unknown or not installed.
        """
        loggers.parse(self.loggers)

    def check(self, periods: Periods) -> None:
        """Checks what can be checked on any machine.

        Raises:
          UserError: Local checkpoints are not more frequent than the others, or their directory is invalid.
        """
        if self.local is None:
            return
        self.local.check(self.model_dir)
        if self.local.save_period < 1:
            raise UserError(f"LOCAL_SAVE_PERIOD={self.local.save_period} is not positive. Give a positive integer.")
        if not periods.saves_at(periods.total, stopping=True) or self.local.save_period >= (periods.save or math.inf):
            raise UserError(
                f"LOCAL_SAVE_PERIOD={self.local.save_period} is not less than SAVE_PERIOD={periods.save}. Save more "
                "often on the hosts than in MODEL_DIR, or train without LOCAL_DIRECTORY."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a run trains, on which data, and how.

    `train` runs a recipe, and `distill` turns a student's recipe into the recipe of its distillation. `plan` and
    `bench` read the same recipes.

    Attributes:
      model: The configuration of a model family, such as `models.t5.T5Config`.
      objective: What the model learns; see `objectives.base.Objective`.
      optimizer: See `optimizers`. Its parameter groups say which parameters are frozen.
      data: Source of training batches, such as `data.seqio_feed.SeqIOSource`.
      periods: The length of the run, and how often it logs, evaluates and saves.
      evaluations: Name -> what to evaluate. The name is the split of its rows in metrics.jsonl. None or an empty
        mapping disables evaluation.
      update: How a step computes its update.
      initial: The pretrained weights to start from.
      fork: A run, or a checkpoint of one (`runs/stable/checkpoints/400`), that this run continues with other settings:
        from its parameters, optimizer state, step and random key, and from its position in the data if this run has the
        same data.
      storage: Where the run is stored.
      partitioner: Device mesh and sharding rules. By default all devices with fully sharded parameters.
      seed: Seed of initialization and dropout. Data sources have their own.
      vocabulary_path: The Hugging Face directory or SentencePiece model that `data` uses, for tasks that can use any
        vocabulary. The vocabulary of `data`, whatever setting names it, is copied to `model_dir/tokenizer`, which the
        commands that read the run use instead.
      teachers: Name -> teacher model that the objective reads at `params["teachers"][name]`; set by `distill`.
      evaluated: The objective of evaluations, which reads the same parameters; None for `objective`. Set by `distill`.
    """

    model: ModelConfig
    objective: Objective
    optimizer: optimizers.Optimizer
    data: DataSource
    periods: Periods
    evaluations: Mapping[str, Evaluation] | None = None
    update: Update = Update()
    initial: InitialWeights = InitialWeights()
    fork: str | None = None
    storage: Storage = Storage()
    partitioner: partitioning.Partitioner | None = None
    seed: int = 0
    vocabulary_path: str | None = None
    teachers: Mapping[str, LoadedTeacher] = dataclasses.field(default_factory=dict)
    evaluated: Objective | None = None

    def __post_init__(self):
        if self.fork and self.initial.path:
            raise UserError(
                f"FORK={self.fork}: INITIAL_CHECKPOINT_PATH={self.initial.path} is also given. Give FORK to continue a "
                "run, or the other to start a new run from its weights."
            )

    @property
    def held_out(self) -> DataSource:
        """The data of the first evaluation that has any; the training data without one."""
        return next((each.data for each in (self.evaluations or {}).values() if each.data is not None), self.data)

    @property
    def predicting(self) -> Objective:
        """The objective of evaluations and of the final report."""
        return self.evaluated or self.objective
