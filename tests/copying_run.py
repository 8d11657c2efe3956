"""A small run of `train` on synthetic batches, without gin and SeqIO."""

import dataclasses

import jax
import recipes
from processes.synthetic import Rows

from t5x_like import optimizers
from t5x_like.metrics import read_metrics
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.optimizers import schedules
from t5x_like.partitioning import Partitioner
from t5x_like.train import train
from t5x_like.training.evaluation import Evaluation

CONFIG = T5Config(vocab_size=32, embed_dim=16, mlp_dim=32, num_heads=4, head_dim=4, encoder_layers=1, decoder_layers=1)
TWO_LAYERS = dataclasses.replace(CONFIG, encoder_layers=2, decoder_layers=2)


@dataclasses.dataclass
class Copying(Rows):
    """Rows whose targets equal their inputs."""

    length: int = 6
    name: str = "rows to copy"


def recipe(model_dir, **changes):
    """Returns the recipe of a run, with other settings; see `recipes`."""
    made = recipes.make(
        model=CONFIG,
        objective=SequenceToSequence(),
        optimizer=optimizers.adafactor(learning_rate=schedules.rsqrt(1.0, warmup_steps=100)),
        data=Copying(),
        evaluations={"validation": Evaluation(data=Copying(), batches=2)},
        total=6,
        model_dir=str(model_dir),
        partitioner=Partitioner(devices=jax.devices()[:1], ici={"data": 1}),
        log=1,
        evaluate=3,
        save=3,
    )
    return recipes.change(made, **changes)


def run(model_dir, run_config=None, **changes):
    callbacks = {name: changes.pop(name) for name in [*changes] if name.startswith("on_")}
    return train(recipe(model_dir, **changes), run_config=run_config, **callbacks)


def losses(model_dir, split="train"):
    return [row["loss"] for row in read_metrics(str(model_dir)) if row["split"] == split]
