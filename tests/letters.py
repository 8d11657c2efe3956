"""The task and the model of the tests that evaluate and infer: one of four letters, which the model learns to copy."""

import contextlib

import jax
import numpy as np
import recipes
import seqio
import tensorflow as tf

from t5x_like import optimizers
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.partitioning import Partitioner
from t5x_like.train import train
from t5x_like.training.evaluation import Evaluation

TASK = "tests_eval_echo"
LENGTHS = {"inputs": 6, "targets": 4}
CONFIG = T5Config(
    vocab_size=384, embed_dim=64, mlp_dim=64, num_heads=4, head_dim=16, encoder_layers=1, decoder_layers=1
)


def _examples(split, shuffle_files=False, seed=None):
    letters = [chr(ord("a") + index % 4) for index in range(64 if split == "train" else 6)]
    return tf.data.Dataset.from_tensor_slices({"inputs": letters, "targets": letters})


def exact(targets, predictions):
    return {"exact": float(np.mean([target == guess for target, guess in zip(targets, predictions, strict=True)]))}


def likelihood(targets, scores):
    return {"mean_score": float(np.mean(scores))}


@contextlib.contextmanager
def registered():
    """Registers the task."""
    vocabulary = seqio.ByteVocabulary()
    seqio.TaskRegistry.add(
        TASK,
        source=seqio.FunctionDataSource(_examples, splits=["train", "validation", "other", "test"]),
        preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
        output_features={name: seqio.Feature(vocabulary) for name in LENGTHS},
        metric_fns=[exact, likelihood],
    )
    yield
    seqio.TaskRegistry.remove(TASK)


def source(split, **changes):
    options = dict(mixture_or_task_name=TASK, task_feature_lengths=LENGTHS, batch_size=8, split=split, pack=False)
    return SeqIOSource(**options | changes)


def partitioner():
    return Partitioner(rules="dp", ici={"data": 2}, devices=jax.devices()[:2])


def train_run(model_dir):
    """Trains a model that learns to copy its input, one of four letters."""
    result = train(
        recipes.make(
            model=CONFIG,
            objective=SequenceToSequence(),
            optimizer=optimizers.adamw(learning_rate=3e-3),
            data=source("train"),
            evaluations={"validation": Evaluation(data=source("validation", batch_size=4))},
            evaluate=30,
            total=60,
            model_dir=model_dir,
            partitioner=partitioner(),
            log=30,
            save=30,
        )
    )
    assert result.step == 60
