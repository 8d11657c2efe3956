"""`t5x_like eval`: evaluates a checkpoint by its loss and by the task's metrics of its predictions."""

import json
from collections.abc import Mapping

import jax
from absl import logging

from t5x_like import partitioning, paths
from t5x_like.data.features import EOS_ID
from t5x_like.data.source import DataSource
from t5x_like.decoding.greedy import greedy
from t5x_like.decoding.score import score
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.objectives.base import Objective
from t5x_like.runtime import distributed
from t5x_like.training import warm_start
from t5x_like.training.evaluation import Evaluator


@distributed.with_watchdog()
def evaluate(
    *,
    model: ModelConfig,
    objective: Objective,
    data: DataSource,
    checkpoint_path: str,
    eval_steps: int | None = None,
    generate: bool | None = None,
    num_examples: int | None = None,
    partitioner: partitioning.Partitioner | None = None,
    output_dir: str | None = None,
) -> dict[str, float]:
    """Evaluates one checkpoint.

    Args:
      model: Configuration of the model.
      objective: The objective whose loss and metrics are computed with teacher forcing.
      data: The evaluation data. SeqIO's Evaluator also evaluates tasks with metric functions.
      checkpoint_path: A run directory, one of its checkpoints, a Hugging Face directory, or a T5X checkpoint.
      eval_steps: Batches of the teacher-forced evaluation; None for all.
      generate: Whether to compute the task's metrics from greedy predictions and scores. By default, they are computed
        if the task has any and there is one process.
      num_examples: Examples to predict; None for all.
      partitioner: Mesh and rules; all devices by default.
      output_dir: Directory for metrics and predictions as JSON; by default none are written.

    Returns:
      The metrics by name. The task's metrics have names `<task>/<metric>`.

    Raises:
      UserError: `generate` is True with several processes, or with data that has no metrics.
      ProcessLost: Another process of the run has exited.
    """
    single_process = jax.process_count() == 1
    if generate and not single_process:
        raise UserError("generate=True: predictions need a single process. Give GENERATE=False, or start one process.")
    if generate and not data.has_metrics():
        raise UserError(
            "generate=True: the data has no metrics of predictions; a cache never has any. Give GENERATE=False"
        )
    generates = generate or (generate is None and single_process and data.has_metrics())
    if generates:
        _check_decodes(model, objective, data)
    partitioner = partitioner or partitioning.Partitioner()
    config = partitioning.for_platform(model, partitioner.platform)
    distributed.heartbeat(f"the parameters of {checkpoint_path}")
    params = warm_start.load_params(checkpoint_path, config, objective, partitioner)
    results: dict[str, float] = dict(Evaluator(objective, data, partitioner, eval_steps, config.vocab_size)(params))

    if generates:
        results |= _evaluate_predictions(params["model"], objective, data, partitioner, num_examples, output_dir)
    step = warm_start.find_step(checkpoint_path)
    stored = checkpoint_path if step is None else f"step {step} of {checkpoint_path}"
    logging.info("%s, split %s:", stored, getattr(data, "split", "of the data"))
    for name, value in results.items():
        logging.info("%s = %s", name, value)
    if output_dir and jax.process_index() == 0:
        paths.write_atomic(paths.join(output_dir, "metrics.json"), json.dumps(results, indent=2) + "\n")
    return results


def _check_decodes(model, objective, data) -> None:
    """Checks that the model can predict if the task has metrics of predictions, which need an encoder-decoder.

    Raises:
      UserError: The model cannot predict. The message names the task, its metrics and the model.
    """
    read = {feature.name for feature in objective.features.features}
    encodes, decodes = "encoder_input_tokens" in read, "decoder_input_tokens" in read
    if encodes and decodes:
        return
    missing = "encoder for the inputs" if decodes else "decoder to predict or score targets"
    for task in data.tasks:
        scored = task.score_metric_fns if decodes else ()
        metrics = [metric.__name__ for metric in task.metric_fns or task.metric_objs if metric not in scored]
        if metrics:
            raise UserError(
                f"task {task.name}: its metric_fns {', '.join(metrics)} need predictions, but {type(model).__name__} "
                f"with {type(objective).__name__} has no {missing}. Give --gin.GENERATE=False to compute "
                "only the loss and metrics of the objective."
            )


def _evaluate_predictions(model, objective, data, partitioner, num_examples, output_dir) -> Mapping[str, float]:
    from t5x_like.data.seqio_feed.evaluation import run_evaluator  # imports SeqIO

    length = data.task_feature_lengths["targets"]
    ids = {"bos_id": objective.features.bos_id, "eos_id": EOS_ID}
    if (eos_id := data.vocabularies()["targets"].eos_id) is not None:
        ids["eos_id"] = eos_id
    decode = partitioner.jit(lambda model, batch: greedy(model, batch, max_length=length, **ids))
    scoring = partitioner.jit(score)
    return run_evaluator(
        data,
        objective.features,
        predict=lambda batch: jax.device_get(decode(model, partitioner.put_batch(batch))).token_ids(ids["eos_id"]),
        score=lambda batch: jax.device_get(scoring(model, partitioner.put_batch(batch))),
        num_examples=num_examples,
        log_dir=paths.join(output_dir, "inference_eval") if output_dir else None,
    )
