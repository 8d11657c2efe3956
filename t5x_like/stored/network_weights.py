"""The networks in the weights of a run, each of them complete and named like the model of a run of its own."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.models import build, networks
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import MODEL
from t5x_like.objectives.base import Objective
from t5x_like.runtime import run_files

OBJECTIVE = "objective"
# The number of choices, which a run that was converted from a directory lacks. No parameter depends on it.
_PLACEHOLDERS = {"NUM_CHOICES": "2"}
Read = Callable[[Mapping[str, jax.ShapeDtypeStruct]], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Weights:
    """Weights that are open for reading.

    Attributes:
      shapes: stored name, `model/…` or `objective/…` -> shape.
      read: reads the wanted arrays, given their shapes with dtype and sharding.
      tensors: stored name -> name of the tensor in the files that the array equals. Arrays that are computed from
        several tensors are missing.
    """

    shapes: Mapping[str, tuple[int, ...]]
    read: Read
    tensors: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class RunModel:
    """What a run trains, as the config.gin in its directory describes it.

    Attributes:
      model: configuration of the model.
      objective: what it predicts, and further networks.
    """

    model: ModelConfig
    objective: Objective

    @classmethod
    def read(cls, path: str) -> "RunModel":
        """Reads the configuration of a run.

        Args:
          path: the run directory, or one of its checkpoints.

        Raises:
          UserError: it has no config.gin, or the file is invalid.
        """
        from t5x_like import config  # imported here because runs started from Python do not need gin

        run = run_files.find_run(path)
        if run is None:
            raise UserError(f"{path}: its networks are not known, because it is not a run directory with a config.gin.")
        root = f"{__name__}.{run_model.__name__}"
        bindings = [(f"{root}.{field.name}", f"%{field.name.upper()}") for field in dataclasses.fields(cls)]
        resolved = config.load(root, bindings=bindings, run_directory=run, placeholder_macros=_PLACEHOLDERS)
        return run_model(**resolved.build())

    def network(self, name: str, path: str) -> "RunModel":
        """Returns a network as the model of a run of its own.

        Args:
          name: name of the network.
          path: the run, for messages.

        Raises:
          UserError: the run does not have the network, or no objective reads it alone.
        """
        spec = networks.find(self.objective, self.model, name, path)
        objective = self.objective if name == MODEL else spec.objective
        if objective is None:
            raise UserError(f"network {name!r} of {path}: no objective reads it alone. Give another network.")
        return RunModel(spec.config, objective)


def run_model(*, model: ModelConfig, objective: Objective) -> RunModel:
    """Returns what a run trains; its arguments are those that the configuration of a run sets.

    Args:
      model: see `RunModel`.
      objective: see `RunModel`.
    """
    return RunModel(model, objective)


def origins(objective: Objective, config: ModelConfig, name: str) -> dict[str, tuple[str, ...]]:
    """Returns where the parameters of a complete network and of the heads that read it are stored.

    Args:
      objective: the objective of the run.
      config: configuration of its model.
      name: name of the network.

    Returns:
      Name of a parameter, `model/…` or `objective/HEAD/…` -> its stored name in the run. A parameter of a module that
      `Shared.combine` makes has two, one of each module.
    """
    spec = networks.specs(objective, config)[name]
    found = {}
    for path in parameters.named_leaves(build.stacked_shapes(spec.config)):
        module, _, rest = path.partition("/")
        own, shared = f"{_root(name)}/{path}", spec.shares.get(module)
        if shared is None:
            found[f"{MODEL}/{path}"] = (own,)
            continue
        owner, _, shared_module = shared.path.partition("/")
        there = f"{_root(owner)}/{shared_module}/{rest}"
        found[f"{MODEL}/{path}"] = (there,) if shared.combine is None else (there, own)
    heads = build.params_shapes(dataclasses.replace(config, scan_layers=True), objective)[OBJECTIVE]
    read = networks.heads_of(objective, config, name, heads)
    of_heads = [f"{OBJECTIVE}/{path}" for path in parameters.named_leaves({head: heads[head] for head in read})]
    return found | {path: (path,) for path in of_heads}


def _root(name: str) -> str:
    return MODEL if name == MODEL else f"{OBJECTIVE}/{name}"


def select(weights: Weights, run: RunModel, name: str) -> Weights:
    """Returns the weights of a complete network and of the heads that read it.

    Args:
      weights: the weights of the run.
      run: what the run trains.
      name: name of the network.
    """
    found = {
        own: stored
        for own, stored in origins(run.objective, run.model, name).items()
        if all(each in weights.shapes for each in stored)
    }

    def read(wanted):
        needed = {stored: shape for own, shape in wanted.items() for stored in found[own]}
        leaves = weights.read(needed)
        if all(len(found[own]) == 1 for own in wanted):
            return {own: leaves[found[own][0]] for own in wanted}
        # Modules are combined within the tree of the run. The shapes in place of the other arrays are not used.
        like = build.params_shapes(dataclasses.replace(run.model, scan_layers=True), run.objective)
        tree = parameters.map_named(lambda path, shape: leaves.get(path, shape), like)
        complete = {MODEL: networks.exported(run.objective, tree)[name], OBJECTIVE: tree[OBJECTIVE]}
        combined = parameters.named_leaves(complete)
        return {own: jax.device_put(combined[own], shape.sharding) for own, shape in wanted.items()}

    return Weights(
        {own: weights.shapes[stored[-1]] for own, stored in found.items()},
        read,
        {own: weights.tensors[stored[0]] for own, stored in found.items() if len(stored) == 1},
    )


def with_shared_modules(weights: Weights, wanted: Collection[str], path: str) -> Weights:
    """Returns the weights of a run, with the modules of its model that other networks store, or a part of them.

    Args:
      weights: the weights.
      wanted: stored names of parameters. If the networks of the run are among them, a part of a module is read as it is
        stored. The configuration of the run is only read if the model may lack a module, or a part of one.
      path: the run, or one of its checkpoints.
    """
    modules = {name.split("/")[1] for name in wanted if name.startswith(f"{MODEL}/")}
    stored = {name.split("/")[1] for name in weights.shapes if name.startswith(f"{MODEL}/")}
    others = {tuple(name.split("/")[1:3]) for name in weights.shapes if name.startswith(f"{OBJECTIVE}/")}
    alike = {network for network, module in others if module in stored}
    reads_networks = any(name.split("/")[1] in alike for name in wanted if name.startswith(f"{OBJECTIVE}/"))
    may_lack_a_part = modules and alike and not reads_networks
    if not (may_lack_a_part or (modules - stored and others)) or run_files.find_run(path) is None:
        return weights
    model = select(weights, RunModel.read(path), MODEL)
    from_others = model.shapes.keys() - weights.shapes.keys()
    if may_lack_a_part:
        from_others |= model.shapes.keys() - model.tensors.keys()

    def read(names):
        raw = {name: shape for name, shape in names.items() if name not in from_others}
        shared = {name: shape for name, shape in names.items() if name in from_others}
        return (weights.read(raw) if raw else {}) | (model.read(shared) if shared else {})

    tensors = {name: tensor for name, tensor in weights.tensors.items() if name not in from_others}
    return Weights({**model.shapes, **weights.shapes}, read, {**model.tensors, **tensors})
