"""`t5x_like eval`: how good a checkpoint is, by its loss and by what it generates."""

import json
import os
from collections.abc import Mapping
from typing import Any

import jax
from absl import logging
from etils import epath

from t5x_like import partitioning
from t5x_like.data.features import EOS_ID
from t5x_like.decoding.greedy import greedy
from t5x_like.decoding.score import score
from t5x_like.errors import UserError
from t5x_like.runtime import distributed
from t5x_like.training import warm_start
from t5x_like.training.evaluation import Evaluator


@distributed.with_watchdog()
def evaluate(
    *,
    model: Any,
    objective: Any,
    data: Any,
    checkpoint_path: str,
    eval_steps: int | None = None,
    generate: bool | None = None,
    num_examples: int | None = None,
    partitioner: partitioning.Partitioner | None = None,
    output_dir: str | None = None,
) -> dict[str, float]:
    """Evaluates one checkpoint.

    Args:
      model: the family's configuration.
      objective: whose loss and metrics are computed with teacher forcing.
      data: the evaluation source; a task with metric functions is evaluated by SeqIO's Evaluator too.
      checkpoint_path: a run folder, one of its checkpoints, or a Hugging Face folder.
      eval_steps: batches of the teacher-forced evaluation; None for all.
      generate: whether to compute the task's own metrics from greedy predictions and scores; by default, where it has
        any and one process runs.
      num_examples: examples of that generative evaluation; None for all.
      partitioner: mesh and rules; all devices by default.
      output_dir: where the metrics and every prediction are written as JSON; nowhere by default.

    Returns:
      The metrics by name; the task's own as `<task>/<metric>`.

    Raises:
      UserError: predictions are asked for, of several processes or of data without metrics of its own.
      ProcessLost: another process of the run has gone.
    """
    alone = jax.process_count() == 1
    if generate and not alone:
        raise UserError("generate=True: predictions are collected by one process; several compute the loss alone")
    if generate and not data.has_metrics():
        raise UserError(
            "generate=True: the data has no metrics of its own to compute from predictions (a cache never has)"
        )
    generates = generate or (generate is None and alone and data.has_metrics())
    if generates:
        _check_decodes(model, objective, data)
    partitioner = partitioner or partitioning.Partitioner()
    config = partitioning.for_platform(model, partitioner.platform)
    distributed.heartbeat(f"the parameters of {checkpoint_path}")
    params = warm_start.load_params(checkpoint_path, config, objective, partitioner)
    results: dict[str, float] = dict(Evaluator(objective, data, partitioner, eval_steps, config.vocab_size)(params))

    if generates:
        results |= _generative(params["model"], objective, data, partitioner, num_examples, output_dir)
    step = warm_start.find_step(checkpoint_path)
    stored = checkpoint_path if step is None else f"step {step} of {checkpoint_path}"
    logging.info("%s, split %s:", stored, getattr(data, "split", "of the data"))
    for name, value in results.items():
        logging.info("%s = %s", name, value)
    if output_dir and jax.process_index() == 0:
        folder = epath.Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.json").write_text(json.dumps(results, indent=2) + "\n")
    return results


def _check_decodes(model, objective, data) -> None:
    """Checks that the model can predict if the task has metrics of predictions, which need an encoder-decoder.

    Raises:
      UserError: naming the task, its metrics and the model.
    """
    read = {feature.name for feature in objective.features.features}
    encodes, decodes = "encoder_input_tokens" in read, "decoder_input_tokens" in read
    if encodes and decodes:
        return
    lacking = "encoder for the inputs that predictions answer" if decodes else "decoder that predicts or scores targets"
    for task in data.tasks:
        scored = task.score_metric_fns if decodes else ()
        metrics = [metric.__name__ for metric in task.metric_fns or task.metric_objs if metric not in scored]
        if metrics:
            raise UserError(
                f"task {task.name}: its metric_fns {', '.join(metrics)} need predictions, but {type(model).__name__} "
                f"with {type(objective).__name__} has no {lacking}. Give --gin.GENERATE=False to evaluate the "
                "objective's own loss and metrics alone"
            )


def _generative(network, objective, data, partitioner, num_examples, output_dir) -> Mapping[str, float]:
    from t5x_like.data.seqio_feed.evaluation import run_evaluator  # SeqIO is loaded only where it is needed

    length = data.task_feature_lengths["targets"]
    ids = {"bos_id": objective.features.bos_id, "eos_id": EOS_ID}
    if (eos_id := data.vocabularies()["targets"].eos_id) is not None:
        ids["eos_id"] = eos_id
    decode = partitioner.jit(lambda network, batch: greedy(network, batch, max_length=length, **ids))
    scoring = partitioner.jit(score)
    return run_evaluator(
        data,
        objective.features,
        predict=lambda batch: jax.device_get(decode(network, partitioner.put_batch(batch))).token_ids(ids["eos_id"]),
        score=lambda batch: jax.device_get(scoring(network, partitioner.put_batch(batch))),
        num_examples=num_examples,
        log_dir=os.path.join(output_dir, "inference_eval") if output_dir else None,
    )
