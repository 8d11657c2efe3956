"""XLNet trains with memory: microbatches, evaluation and a stop do not change the memory, and rows may be cached."""

import dataclasses

import jax
import numpy as np
import pytest
import recipes
from processes.synthetic import Rows

from t5x_like import optimizers
from t5x_like.data import batches
from t5x_like.metrics import read_metrics
from t5x_like.models.xlnet import XLNetConfig
from t5x_like.objectives.permutation_lm import PermutationLM
from t5x_like.partitioning import Partitioner
from t5x_like.train import train
from t5x_like.training.evaluation import Evaluation

pytestmark = pytest.mark.full

ROWS, LENGTH, STEPS = 4, 16, 4
# Weights are large, so that losses depend on the memory.
SIZES = {"vocab_size": 40, "embed_dim": 8, "mlp_dim": 8, "num_heads": 2, "head_dim": 4, "num_layers": 1}
SIZES |= {"initializer_range": 0.5, "memory_length": 12, "reuse_length": LENGTH // 2, "dropout_rate": 0.0}


@dataclasses.dataclass
class Permuted(Rows):
    """Continuous rows of random tokens with a permutation and targets."""

    batch_size: int = ROWS
    length: int = LENGTH
    continuous: bool = True
    name: str = "permuted rows"

    def batch_shapes(self, spec):
        return {name: (self.batch_size, self.length) for name in spec.model_lengths({"inputs": self.length})}

    def check(self, spec):
        assert spec == PermutationLM.features

    def make(self, seed):
        rng, shape = np.random.default_rng(seed), (self.batch_size, self.length)
        ranks = np.argsort(rng.random(shape), axis=1)
        rows = {"inputs": rng.integers(6, 40, shape), "ranks": ranks, "is_target": ranks >= self.length - 2}
        rows |= {"token_types": np.zeros(shape), "reversed": np.zeros(shape)}
        return batches.from_arrays(PermutationLM.features, {name: x.astype(np.int32) for name, x in rows.items()})


def losses(directory, *, total=STEPS, evaluate=1000, microbatches=1, **changes):
    """Trains a run, and returns its losses by step and split."""
    recipe = recipes.make(
        model=XLNetConfig(**SIZES | {"attention_dropout_rate": 0.0} | changes),
        objective=PermutationLM(),
        optimizer=optimizers.adamw(learning_rate=0.01),
        data=Permuted(),
        evaluations={"validation": Evaluation(data=Permuted(), batches=2)},
        partitioner=Partitioner(devices=jax.devices()[:1], ici={"data": 1}),
        total=total,
        save=2,
        log=1,
        evaluate=evaluate,
        microbatches=microbatches,
        model_dir=str(directory),
    )
    train(recipe)
    return {(row["step"], row["split"]): row["loss"] for row in read_metrics(str(directory))}


def training(found):
    return [loss for (_, split), loss in found.items() if split == "train"]


def test_a_stop_evaluation_and_microbatches_keep_the_memory(tmp_path):
    whole = losses(tmp_path / "whole", evaluate=1)
    assert len(training(whole)) == STEPS and len(whole) == 2 * STEPS
    losses(tmp_path / "stopped", total=2, evaluate=1)
    assert losses(tmp_path / "stopped", evaluate=1) == whole
    split = training(losses(tmp_path / "split", microbatches=2))
    assert split == pytest.approx(training(whole), rel=1e-5)
    forgetful = training(losses(tmp_path / "forgetful", memory_length=1))
    assert forgetful != pytest.approx(split, rel=1e-3)


def test_recipe_reads_continuous_rows_of_a_cache(tmp_path, run_command):
    task = ["--gin.MIXTURE_OR_TASK_NAME=python_docs_xlnet", "--gin.TASK_FEATURE_LENGTHS={'inputs': 16}"]
    files = ["--gin_file=models/xlnet/tiny.gin", "--gin_file=runs/xlnet.gin"]
    cache = f"--gin.CACHE_DIR={tmp_path / 'cache'}"
    code, output = run_command(["cache", *files, *task, cache, "--processes=1", "--gin.NUM_SHARDS=1"])
    assert code == 0, output
    sizes = {"embed_dim": 8, "mlp_dim": 8, "head_dim": 4, "vocab_size": 1200, "num_layers": 1}
    run = ["train", *files, "--gin_file=data/cached.gin", "--gin_file=data/continuous.gin", *task, cache]
    run += [f"--gin.t5x_like.models.xlnet.XLNetConfig.{field}={size}" for field, size in sizes.items()]
    run += ["--gin.REUSE_LENGTH=8", "--gin.MEMORY_LENGTH=12", "--gin.BATCH_SIZE=4", "--gin.WARMUP_STEPS=1"]
    run += ["--gin.TRAIN_STEPS=3", "--gin.LOG_PERIOD=1", f"--gin.MODEL_DIR={tmp_path / 'run'}", "--gin.EVAL_STEPS=2"]
    code, output = run_command(run)
    assert code == 0, output
    assert "continuous" in output and len(read_metrics(str(tmp_path / "run"))) >= 3
