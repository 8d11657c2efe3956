"""`t5x_like coordinates`: the coordinate check of muP, how much activations change in the first steps at each width."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from t5x_like import optimizers, paths
from t5x_like.benchmarking import synthetic
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.objectives import passes
from t5x_like.objectives.base import Objective
from t5x_like.objectives.variables import assemble
from t5x_like.partitioning import Partitioner
from t5x_like.reporting import plots
from t5x_like.runtime import console_log
from t5x_like.training.program import make_program
from t5x_like.training.recipe import Periods, Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOGITS = "logits"
STANDARD, MUP = "standard", "muP"
# The fields of a configuration that grow with the width, and those that count layers.
_GROWING = ("mlp_dim", "num_heads", "num_kv_heads")
_LAYERS = ("num_layers", "encoder_layers", "decoder_layers")
_FIXED = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0, "tied_embeddings": False, "dtype": "float32"}

Changes = Mapping[str, Mapping[str, list[float]]]
"""`standard` or `muP` -> activation -> the root mean square of its change at each width."""


@console_log.enabled()
def coordinates(
    *,
    model: ModelConfig,
    objective: Objective,
    widths: str | Sequence[int] = (64, 128, 256),
    learning_rate: float = 0.01,
    steps: int = 4,
    seeds: int = 2,
    layers: int = 2,
    rows: int = 8,
    length: int = 32,
    constant_range: bool = True,
    json_path: str | None = None,
    plot_path: str | None = None,
) -> Changes:
    """Trains small models of several widths, and prints how much their activations change (Yang et al. 2021).

    A model has `width` as its `embed_dim`. `mlp_dim` and the numbers of heads grow with it, the size of a head stays,
    and the logits have a kernel of their own. It makes some steps of Adam on one batch of random tokens, without
    dropout. With muP, whose base width is the first one, changes do not depend on the width; without it, they grow
    (arXiv:2203.03466, appendix D.1).

    Args:
      model: The configuration whose family and proportions the models have.
      objective: The objective.
      widths: The widths, in a list or separated by commas, at least two in ascending order.
      learning_rate: Learning rate of Adam.
      steps: Number of steps.
      seeds: Number of seeds of parameters and batches, over which changes are averaged.
      layers: Largest number of layers of a stack.
      rows: Rows of the batch.
      length: Length of a row.
      constant_range: Whether the family draws kernels with one standard deviation at all widths; see `mup_groups`.
      json_path: A file to write the changes to, as JSON.
      plot_path: A file to draw them to, as PNG.

    Returns:
      The changes.

    Raises:
      UserError: A setting is invalid, the heads do not divide a width, or muP does not fit the model.
    """
    widths = _numbers(widths)
    positive = {"steps": steps, "seeds": seeds, "layers": layers, "rows": rows, "length": length}
    for name, value in positive.items():
        if value < 1:
            raise UserError(f"COORDINATES_{name.upper()}={value}: not positive. Give 1 or more.")
    if plot_path and not plot_path.endswith(".png"):
        raise UserError(f"--plot={plot_path}: not a .png file, which is what is drawn. Give a name that ends in .png.")
    sizes = {"steps": steps, "rows": rows, "length": length, "learning_rate": learning_rate}
    models = [resized(model, width, layers) for width in widths]
    found: dict[str, dict[str, list[float]]] = {}
    for kind in (STANDARD, MUP):
        for config in models:
            groups = ()
            if kind == MUP:
                options = {"base_width": widths[0], "constant_range": constant_range}
                groups = optimizers.mup_groups(width=config.embed_dim, **options)
            logging.info("%s, width %d", kind, config.embed_dim)
            of_seeds = [changes(config, objective, groups, seed=seed, **sizes) for seed in range(seeds)]
            for name in of_seeds[0]:
                mean = float(np.mean([each[name] for each in of_seeds]))
                found.setdefault(kind, {}).setdefault(name, []).append(mean)
    print(table(found, widths))
    if json_path:
        text = json.dumps({"widths": widths, "changes": found}, indent=2)
        paths.write_output("JSON_PATH", json_path, text + "\n")
    if plot_path:
        paths.write_output("PLOT_PATH", plot_path, plots.png(draw(found, widths)))
    return found


def resized(model: ModelConfig, width: int, layers: int) -> ModelConfig:
    """Returns the configuration of a model with another width, without dropout and with fewer layers.

    Args:
      model: The configuration.
      width: The new `embed_dim`; `mlp_dim` and the numbers of heads grow by the same factor.
      layers: Largest number of layers of a stack.

    Raises:
      UserError: A size would not be an integer.
    """
    fields = {field.name for field in dataclasses.fields(model)}
    if not {"embed_dim", "num_heads"} <= fields:
        raise UserError(
            f"{type(model).__name__}: has no attention heads, whose number grows with the width. Give a Transformer."
        )
    found = {name: value for name, value in _FIXED.items() if name in fields} | {"embed_dim": width}
    for name in [name for name in _GROWING if name in fields]:
        size, rest = divmod(getattr(model, name) * width, model.embed_dim)
        if rest:
            raise UserError(
                f"--widths: a width of {width} would have {getattr(model, name) * width / model.embed_dim:g} {name}, "
                f"since {type(model).__name__}.{name}={getattr(model, name)} with embed_dim={model.embed_dim}. Give "
                f"multiples of {model.embed_dim // np.gcd(getattr(model, name), model.embed_dim)}."
            )
        found[name] = size
    found |= {name: min(getattr(model, name), layers) for name in fields.intersection(_LAYERS)}
    return dataclasses.replace(model, **found)


class _Data:
    """A data source that only has the shapes of its batches."""

    def __init__(self, rows: int, length: int):
        self.rows, self.length = rows, length

    def batch_shapes(self, spec: Any) -> dict[str, tuple[int, ...]]:
        lengths = dict.fromkeys(spec.length_keys, self.length)
        return {name: (self.rows, *shape) for name, shape in spec.row_shapes(lengths).items()}


def changes(
    config: ModelConfig,
    objective: Objective,
    groups: Sequence[optimizers.ParameterGroup],
    *,
    learning_rate: float,
    steps: int,
    rows: int,
    length: int,
    seed: int = 0,
) -> dict[str, float]:
    """Trains a model, and returns the root mean square of the change of each activation.

    Args:
      config: Configuration of the model.
      objective: The objective.
      groups: Parameter groups of the optimizer.
      learning_rate: Learning rate of Adam.
      steps: Number of steps.
      rows: Rows of the batch.
      length: Length of a row.
      seed: Seed of the parameters and the batch.
    """
    recipe = Recipe(
        model=config,
        objective=objective,
        optimizer=optimizers.adamw(learning_rate=learning_rate, weight_decay=0.0, groups=groups),
        data=_Data(rows, length),
        periods=Periods(total=steps),
        partitioner=Partitioner(devices=jax.devices()[:1]),
        seed=seed,
    )
    program = make_program(recipe)
    state, frozen = program.init(jax.random.key(seed))
    batch = synthetic.make_batch(objective.features, program.batch_shapes, config.vocab_size, seed=seed)
    batch = program.partitioner.put_batch(batch, program.batch_axes)
    names = [
        f"{stack}/{name}"
        for stack, info in config.stacks.items()
        for name in ("embedding", *(f"layers/{layer}/hidden" for layer in range(info.num_layers)), "output")
    ]

    @jax.jit
    def activations(params, batch):
        found = passes.forward(objective, assemble(params, frozen), batch, capture=names)
        prediction = next(iter(found.predictions.values()))
        return dict(found.outputs.captured) | {LOGITS: prediction.logits(prediction.hidden)}

    before = activations(state.params, batch)
    for _ in range(steps):
        state, _ = program.train_step(state, frozen, batch)
    after = activations(state.params, batch)
    return {name: float(jnp.sqrt(jnp.mean((after[name] - before[name]) ** 2))) for name in before}


def table(found: Changes, widths: Sequence[int]) -> str:
    """Returns the changes as a table: an activation, its change at each width, and the last over the first."""
    lines = [f"| | activation | {' | '.join(map(str, widths))} | last / first |", "|---" * (len(widths) + 3) + "|"]
    for kind, of_kind in found.items():
        for name, values in of_kind.items():
            shown = " | ".join(f"{value:.3g}" for value in values)
            lines.append(f"| {kind} | {name} | {shown} | {values[-1] / max(values[0], 1e-12):.2f} |")
    return "\n".join(lines)


def draw(found: Changes, widths: Sequence[int]) -> "Figure":
    """Draws the changes over the width: a panel for the standard parametrization, and one for muP."""
    figure = plots.new_figure((9.2, 3.6))
    for axes, (kind, of_kind) in zip(figure.subplots(1, len(found), sharey=True), found.items(), strict=True):
        for name, values in of_kind.items():
            axes.plot(widths, values, marker="o", markersize=3, linewidth=1.2, label=plots.plain(name))
        axes.set(title=kind, xlabel="width", xscale="log", yscale="log")
        axes.set_xticks(widths, map(str, widths))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("root mean square of the change")
    figure.axes[-1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _numbers(widths: str | Sequence[int]) -> list[int]:
    try:
        found = [int(width) for width in (widths.split(",") if isinstance(widths, str) else widths)]
    except (TypeError, ValueError) as error:
        raise UserError(f"--widths={widths}: not numbers separated by commas. Give several, as 64,128,256") from error
    if len(found) < 2 or found[0] < 1 or found != sorted(set(found)):
        raise UserError(f"--widths={widths}: not several widths in ascending order. Give some, such as 64,128,256")
    return found
