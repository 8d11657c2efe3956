"""A small run of `train` on synthetic batches, without gin and SeqIO."""

import dataclasses

import jax
import numpy as np
import recipes

from t5x_like import optimizers
from t5x_like.data import batches, specs
from t5x_like.data.vocabulary_digest import TextVocabulary
from t5x_like.metrics import read_metrics
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.optimizers import schedules
from t5x_like.partitioning import Partitioner
from t5x_like.train import train
from t5x_like.training.evaluation import Evaluation

CONFIG = T5Config(vocab_size=32, embed_dim=16, mlp_dim=32, num_heads=4, head_dim=4, encoder_layers=2, decoder_layers=2)


@dataclasses.dataclass
class Copying:
    """A source of rows whose targets equal their inputs. The position is the number of batches drawn."""

    batch_size: int = 8
    length: int = 6
    drawn: int = 0
    name: str = "rows to copy"

    def describe(self):
        return ["rows to copy"]

    def batch_shapes(self, spec):
        lengths = spec.model_lengths({"inputs": self.length, "targets": self.length})
        return {name: (self.batch_size, length) for name, length in lengths.items()}

    def host_iterator(self, spec, *, process_index, process_count):
        return dataclasses.replace(self)

    def __next__(self):
        self.drawn += 1
        return self.make(self.drawn)

    def make(self, seed):
        rng = np.random.default_rng(seed)
        tokens = rng.integers(2, 30, size=(self.batch_size, self.length)).astype(np.int32)
        tokens[:, -1] = np.where(rng.random(self.batch_size) < 0.5, 0, 1)  # some rows are shorter
        return batches.from_arrays(specs.ENCODER_DECODER, {"inputs": tokens, "targets": tokens})

    def state(self):
        return b"%d" % self.drawn

    def restore(self, state):
        self.drawn = int(state)

    def has_metrics(self):
        return False

    def check(self, spec):
        assert spec == specs.ENCODER_DECODER

    def vocabulary_kind(self, spec):
        return None

    def add_eos(self):
        return {}

    def text_vocabulary(self, spec):
        return TextVocabulary("digest")

    def check_vocabulary(self, embeddings):
        assert embeddings >= 30

    def eval_batches(self, spec, number, *, process_index, process_count):
        return iter([self.make(10_000 + seed) for seed in range(number)])


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
