"""Pretrains or fine-tunes a model on an objective. The function `train` reads in the order in which data flows."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t5x_like import optimizers, partitioning
from t5x_like.data.source import DataSource
from t5x_like.models.base import ModelConfig
from t5x_like.objectives.base import Objective
from t5x_like.runtime import console_log, distributed
from t5x_like.training import gathering, loop, run, run_directory, step, weight_source
from t5x_like.training.checkpoints import Checkpoints
from t5x_like.training.evaluation import Evaluation
from t5x_like.training.local_checkpoints import LocalTier
from t5x_like.training.program import make_program
from t5x_like.training.run import TrainResult


@console_log.enabled()
@distributed.with_watchdog()
def train(
    *,
    model: ModelConfig,
    objective: Objective,
    optimizer: optimizers.Optimizer,
    data: DataSource,
    total_steps: int,
    model_dir: str | None = None,
    evaluations: Mapping[str, Evaluation] | None = None,
    partitioner: partitioning.Partitioner | None = None,
    microbatches: int = 1,
    max_grad_norm: float | None = None,
    loss_normalizing_factor: step.LossNormalization = "NUM_REAL_TARGET_TOKENS",
    gather_parameters: gathering.Gathering = "per_use",
    seed: int = 0,
    log_period: int = 100,
    eval_period: int | None = 1000,
    save_period: int | None = 1000,
    checkpoints: Callable[..., Checkpoints] = Checkpoints,
    local_checkpoints: LocalTier | None = None,
    patience: int | None = None,
    initial_checkpoint_path: str | None = None,
    initial_mapping: Sequence[tuple[str, str]] = (),
    initial_new_tokens: int = 0,
    initial_layers: Mapping[str, Sequence[int] | Callable] | None = None,
    initial_dropped: Sequence[str] = (),
    initial_truncated: Sequence[str] = (),
    initial_other_vocabulary: bool = False,
    vocabulary_path: str | None = None,
    stop_after_skipped: int = 20,
    repeat_period: int | None = None,
    compiler_options: Mapping[str, Any] | None = None,
    on_finish: Callable[..., None] | None = None,
    run_config: run_directory.RunConfig | None = None,
) -> TrainResult:
    """Trains until `total_steps`, and resumes from the latest checkpoint in `model_dir`.

    Args:
      model: The configuration of a model family, such as `models.t5.T5Config`.
      objective: What the model learns; see `objectives.base.Objective`.
      optimizer: See `optimizers`. Its parameter groups say which parameters are frozen.
      data: Source of training batches, such as `data.seqio_feed.SeqIOSource`.
      total_steps: The step to stop at.
      model_dir: The run directory, a local path or a bucket. By default a new numbered directory under `./runs`.
      evaluations: Name -> what to evaluate. The name is the split of its rows in metrics.jsonl. None or an empty
        mapping disables evaluation.
      partitioner: Device mesh and sharding rules. By default all devices with fully sharded parameters.
      microbatches: Number of microbatches that each batch is split into. They run one after the other, which lowers
        peak memory.
      max_grad_norm: Gradients with a larger global norm are scaled down to it.
      loss_normalizing_factor: What the summed loss is divided by: `"NUM_REAL_TARGET_TOKENS"` (the mean over target
        tokens), a number, or None (the sum, which is T5X's default).
      gather_parameters: When a device gathers sharded parameters and reduces their gradients. `"per_use"`: in each
        pass of each microbatch, layer by layer. `"per_step"`: once per step, which sends fewer bytes if there are
        several microbatches, and needs memory for all parameters in the dtype of the computation and for all gradients
        in float32. The mesh may then only have the axes `data` and `fsdp`. Without dropout, the result is the same.
      seed: Seed of initialization and dropout. Data sources have their own.
      log_period: Steps between two rows of training metrics.
      eval_period: Steps between two evaluations. None disables evaluation. The last step is always evaluated otherwise.
      save_period: Steps between two checkpoints. None disables checkpoints. The last step is always saved otherwise.
      checkpoints: Creates the checkpointer of a directory. Its `keep_best` and `best_metric` decide which checkpoints
        are kept besides the latest.
      local_checkpoints: Where and how often to save on each host as well; see `TieredCheckpoints`.
      patience: Number of evaluations without improvement of the checkpointer's `best_metric` after which the run
        finishes early; None for no limit.
      initial_checkpoint_path: Pretrained weights to start from: a run directory, a checkpoint, a Hugging Face
        directory, or a T5X checkpoint. Heads are restored if they match.
      initial_mapping: (regex, replacement) pairs that turn this model's tensor names into those of the checkpoint.
      initial_new_tokens: Number of token ids of the model that follow those of the pretrained vocabulary. Their rows of
        the embeddings are freshly initialized.
      initial_layers: Stack -> indices of the pretrained layers that its layers start from, such as
        `{"encoder": (0, 2, 4)}`, or a rule of `training.layer_choice`. The pretrained model may then have other numbers
        of layers. By default all layers.
      initial_dropped: Regular expressions of names of pretrained tensors that this model lacks, such as
        `("token_type_embedder",)`. Others that it lacks are an error.
      initial_truncated: Logical axes, `positions` or `vocab`, along which pretrained tables may be longer than those of
        the model, which start from their first rows.
      initial_other_vocabulary: Whether the token ids of the pretrained weights may belong to another vocabulary than
        those of `data`. This is an error otherwise, unless there are new tokens or truncated vocabularies.
      vocabulary_path: The Hugging Face directory or SentencePiece model that `data` uses, for tasks that can use any
        vocabulary. The vocabulary of `data`, whatever setting names it, is copied to `model_dir/tokenizer`, which the
        commands that read the run use instead.
      stop_after_skipped: Number of consecutive non-finite updates that ends the run.
      repeat_period: Steps between two steps that are computed twice, to detect hardware that computes wrongly. They
        need memory for two states. None disables the check.
      compiler_options: XLA options for the training step, such as those in `gin_configs/hardware`. With None, XLA's
        defaults, and the log names the file for the devices.
      on_finish: Called with `params`, `objective`, `partitioner`, `data` and `model_dir` when training has finished.
      run_config: The resolved gin configuration. It is stored in `model_dir` and compared when the run resumes.

    Returns:
      The `TrainResult`.

    Raises:
      UserError: Arguments are invalid or do not fit together. Nothing has been written.
      TrainingFailed: The loss stayed non-finite.
      ProcessLost: Another process of the run has ended.
      RunInUse: Another run writes to `model_dir`.
      SilentDataCorruption: A repeated step has given other bits.
      RunFailed: `model_dir` can no longer be written to.
      Stopped: A signal arrived before the end of the first step.
    """
    # ---- Program: everything that is known without data or arrays ------------------------------------------------
    arguments = dict(locals())
    started = time.monotonic()
    periods = loop.make_periods(
        total_steps=total_steps,
        log_period=log_period,
        eval_period=eval_period,
        save_period=save_period,
        local_checkpoints=local_checkpoints,
        model_dir=model_dir,
    )
    if local_checkpoints is not None:
        local_checkpoints.check_writable()
    initial = weight_source.initial_source(
        initial_checkpoint_path=initial_checkpoint_path,
        initial_mapping=initial_mapping,
        initial_new_tokens=initial_new_tokens,
        initial_layers=initial_layers,
        initial_dropped=initial_dropped,
        initial_truncated=initial_truncated,
        initial_other_vocabulary=initial_other_vocabulary,
    )
    program = make_program(
        model=model,
        objective=objective,
        optimizer=optimizer,
        data=data,
        partitioner=partitioner,
        microbatches=microbatches,
        max_grad_norm=max_grad_norm,
        loss_normalizing_factor=loss_normalizing_factor,
        gather_parameters=gather_parameters,
        seed=seed,
        compiler_options=compiler_options,
    )

    # ---- Run: data, state, reports, and the loop from the first batch to the last checkpoint -----------------------
    return run.run(
        program,
        objective=objective,
        evaluated=objective,
        optimizer=optimizer,
        data=data,
        periods=periods,
        model_dir=model_dir,
        evaluations=evaluations,
        microbatches=microbatches,
        seed=seed,
        checkpoints=checkpoints,
        local_checkpoints=local_checkpoints,
        patience=patience,
        initial=initial,
        vocabulary_path=vocabulary_path,
        stop_after_skipped=stop_after_skipped,
        repeat_period=repeat_period,
        on_finish=on_finish,
        run_config=run_config,
        arguments=arguments,
        started=started,
    )
