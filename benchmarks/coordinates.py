"""The coordinate check of muP: how much activations change in the first steps of models of growing width.

python benchmarks/coordinates.py
python benchmarks/coordinates.py --family t5 --learning_rate 0.01 --widths 64 128 256 512

Prints the root mean square of the change of activations after some steps of Adam on one batch of random tokens, with
and without `optimizers.mup_groups`, means over seeds. With muP, it does not depend on the width; without, it grows.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like import optimizers
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.llama import LlamaConfig
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.objectives.variables import assemble
from t5x_like.partitioning import Partitioner
from t5x_like.training.program import make_program
from t5x_like.training.recipe import Periods, Recipe

ROWS, LENGTH, VOCABULARY, HEAD_DIM, LAYERS = 8, 32, 97, 32, 2
WIDTHS, STEPS, SEEDS = (64, 128, 256, 512), 4, 2
CAPTURED = ("decoder/embedding", "decoder/layers/0/hidden", "decoder/layers/1/hidden", "decoder/output")
LOGITS = "logits"


@dataclasses.dataclass(frozen=True)
class _Family:
    """A family: its configuration without widths, its objective, and whether kernels start with one range."""

    make: Any
    options: Mapping[str, Any]
    objective: Any
    constant_range: bool


_DECODER = {"num_layers": LAYERS, "max_length": LENGTH, "attention_dropout_rate": 0.0}
FAMILIES = {
    "llama": _Family(LlamaConfig, _DECODER, CausalLM(), True),
    "gpt": _Family(GPTConfig, _DECODER, CausalLM(), True),
    "t5": _Family(
        T5Config, {"encoder_layers": LAYERS, "decoder_layers": LAYERS}, SequenceToSequence(z_loss=0.0), False
    ),
}


class _Data:
    """A data source that only has the shapes of its batches."""

    def batch_shapes(self, spec):
        return {name: (ROWS, *shape) for name, shape in spec.row_shapes({"inputs": LENGTH, "targets": LENGTH}).items()}


def changes(
    family: str, width: int, base_width: int | None, *, learning_rate: float, steps: int = STEPS, seed: int = 0
) -> dict[str, float]:
    """Trains a model, and returns the root mean square of the change of each activation.

    Args:
      family: A key of `FAMILIES`.
      width: `embed_dim`; `mlp_dim` is twice, and the number of heads a 32nd of it.
      base_width: The base width of muP; None for the standard parametrization.
      learning_rate: Learning rate of Adam.
      steps: Number of steps.
      seed: Seed of the parameters and the batch.
    """
    found = FAMILIES[family]
    config = found.make(
        vocab_size=VOCABULARY,
        embed_dim=width,
        mlp_dim=2 * width,
        num_heads=width // HEAD_DIM,
        head_dim=HEAD_DIM,
        dropout_rate=0.0,
        tied_embeddings=False,
        dtype="float32",
        **found.options,
    )
    groups = ()
    if base_width is not None:
        groups = optimizers.mup_groups(width=width, base_width=base_width, constant_range=found.constant_range)
    recipe = Recipe(
        model=config,
        objective=found.objective,
        optimizer=optimizers.adamw(learning_rate=learning_rate, weight_decay=0.0, groups=groups),
        data=_Data(),
        periods=Periods(total=steps),
        partitioner=Partitioner(devices=jax.devices()[:1]),
        seed=seed,
    )
    program = make_program(recipe)
    state, frozen = program.init(jax.random.key(seed))
    rng = np.random.default_rng(seed)
    batch = {
        name: rng.integers(2, VOCABULARY, shape).astype(np.int32)
        if name.endswith("tokens")
        else np.broadcast_to(np.arange(LENGTH, dtype=np.int32), shape)
        if name.endswith("positions")
        else np.ones(shape, np.int32)
        for name, shape in program.batch_shapes.items()
    }
    batch = program.partitioner.put_batch(batch, program.batch_axes)

    @jax.jit
    def activations(params, batch):
        model = assemble(params, frozen)["model"]
        outputs = model(batch, capture=CAPTURED)
        return dict(outputs.captured) | {LOGITS: model.unembed(outputs.hidden)}

    before = activations(state.params, batch)
    for _ in range(steps):
        state, _ = program.train_step(state, frozen, batch)
    after = activations(state.params, batch)
    return {name: float(jnp.sqrt(jnp.mean((after[name] - before[name]) ** 2))) for name in before}


def table(family: str, widths: Sequence[int], base_width: int | None, **options: Any) -> list[str]:
    """Returns lines of a table: an activation and its change at each width, means over seeds."""
    found = [[changes(family, width, base_width, seed=seed, **options) for seed in range(SEEDS)] for width in widths]
    kind = "standard" if base_width is None else "muP"
    lines = []
    for name in found[0][0]:
        means = [np.mean([one[name] for one in of_width]) for of_width in found]
        lines.append(f"| {kind} | {name} | {' | '.join(f'{x:.3g}' for x in means)} | {means[-1] / means[0]:.2f} |")
    return lines


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=FAMILIES, default="llama")
    parser.add_argument("--widths", nargs="+", type=int, default=WIDTHS)
    parser.add_argument("--learning_rate", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    widths = arguments.widths
    print(
        f"| | activation | {' | '.join(map(str, widths))} | last / first |", "|---" * (len(widths) + 3) + "|", sep="\n"
    )
    for base_width in (None, widths[0]):
        lines = table(
            arguments.family, widths, base_width, learning_rate=arguments.learning_rate, steps=arguments.steps
        )
        print(*lines, sep="\n", flush=True)


if __name__ == "__main__":
    main()
