"""The networks of a run: the model, and those that an objective declares beside it, which may share modules.

The parameters of a network NAME are stored as `objective/NAME`. A module that it shares with another network is stored,
counted and updated once, where it belongs. `resolve` puts it in its place before a network runs.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
from flax import nnx

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.models import construct
from t5x_like.models.base import ModelConfig

MODEL = "model"
_TARGETS = "decoder_target_tokens"
Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Shared:
    """A module of another network.

    Attributes:
      path: `NETWORK/MODULE`, where NETWORK is `model` or the name of a declared network. The module is one that NETWORK
        stores.
      combine: None if the module itself is used; otherwise a function of it and of the own module, which is stored as
        well, such as embeddings that add a table of their own. If the result has the parameters of the own module, the
        network can be read from a run by itself.
      initial: None if the own module starts with its usual values; otherwise a function of it that returns the module
        that a run starts with, such as one with a table of zeros.
    """

    path: str
    combine: Callable[[nnx.Module, nnx.Module], nnx.Module] | None = None
    initial: Callable[[nnx.Module], nnx.Module] | None = None


@dataclasses.dataclass(frozen=True)
class NetworkSpec:
    """A network of an objective.

    Attributes:
      config: Configuration of the network. Fields that are left to the platform are those of the model. None for the
        model itself, which an objective declares if it shares modules or reads some of the features alone.
      shares: Module of this network, such as `embeddings` -> the module in its place.
      features: Names of the features that the network reads, for its floating-point operations; None for all.
      passes: Forward passes per training step that its floating-point operations equal: 3 with a backward pass, 1 for a
        network that is never trained.
      targets: Name of the feature that holds the tokens to predict, for the floating-point operations of their logits;
        None for `decoder_target_tokens`, if the objective has it.
      objective: What the network predicts by itself, such as masked language modeling. Its heads are those of the same
        names that the objective of the run has. None: nothing; for the model, the objective of the run.
    """

    config: ModelConfig | None = None
    shares: Mapping[str, Shared] = dataclasses.field(default_factory=dict)
    features: tuple[str, ...] | None = None
    targets: str | None = None
    passes: float = 3.0
    objective: "HasNetworks | None" = None

    def train_flops(self, shapes: Shapes) -> float:
        """Returns the floating-point operations of the network in a training step; see `ModelConfig.train_flops`."""
        names = shapes if self.features is None else [name for name in shapes if name in self.features]
        read = {name: shapes[name] for name in names}
        read = read if self.targets is None else read | {_TARGETS: shapes[self.targets]}
        return self.config.train_flops(read) * (self.passes / 3)


class HasNetworks(Protocol):
    """An objective, as far as this module reads it."""

    def networks(self, config: ModelConfig) -> Mapping[str, NetworkSpec]:
        """Returns the networks by name; see `Objective.networks`."""

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Returns the heads by name; see `Objective.init`."""


def specs(objective: HasNetworks, config: ModelConfig) -> dict[str, NetworkSpec]:
    """Returns all networks of a run by name, the model first.

    Args:
      objective: Declares further networks.
      config: Configuration of the model, resolved by `models.base.for_platform`.

    Raises:
      UserError: A network has no configuration.
    """
    declared = dict(objective.networks(config))
    found = {MODEL: dataclasses.replace(declared.pop(MODEL, NetworkSpec()), config=config)}
    for name, each in declared.items():
        if each.config is None:
            raise UserError(f"network {name!r}: NetworkSpec.config is None. Give the configuration of the network.")
        fields = ("dtype", "scan_layers")
        unset = {field: getattr(config, field) for field in fields if getattr(each.config, field) is None}
        found[name] = dataclasses.replace(each, config=dataclasses.replace(each.config, **unset))
    return found


def make(objective: HasNetworks, config: ModelConfig, key: jax.Array) -> dict[str, Any]:
    """Makes the parameters of a run.

    Args:
      objective: Makes the heads and declares further networks.
      config: Configuration of the model, resolved by `models.base.for_platform`.
      key: Random key of the initialization.

    Returns:
      `{"model": …, "objective": {HEAD or NETWORK: …}}`, in which each shared module exists once.

    Raises:
      UserError: A network has the name of a head, or a shared module does not exist or has other shapes.
    """
    model_key, objective_key = jax.random.split(key)
    model = construct.make(config, model_key)
    heads, found = objective.init(objective_key, model), specs(objective, config)
    for number, (name, each) in enumerate(found.items()):
        if name == MODEL:
            continue
        if name in heads:
            raise UserError(f"network {name!r}: the objective has a head of this name. Rename the network.")
        heads[name] = construct.make(each.config, jax.random.fold_in(objective_key, number))
    made = {MODEL: model, **{name: heads[name] for name in found if name != MODEL}}
    _check_paths(found, made)
    stored = {}
    for name, each in found.items():
        changed = {}
        for module, shared in each.shares.items():
            if shared.combine is None:
                _check_fit(name, module, made[name], _module(made, shared.path))
                changed[module] = None
            elif shared.initial is not None:
                changed[module] = shared.initial(getattr(made[name], module))
        stored[name] = _with_modules(made[name], changed)
    return {MODEL: stored.pop(MODEL), "objective": heads | stored}


def resolve(objective: HasNetworks, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns parameters in which every network is complete.

    Args:
      objective: Declares the networks.
      params: `{"model": …, "objective": …}` and others, as `make` returns them.
    """
    found = specs(objective, params[MODEL].config)
    if not any(each.shares for each in found.values()):
        return params
    stored = {MODEL: params[MODEL], **params["objective"]}
    complete = dict(stored)
    for name, each in found.items():
        modules = {}
        for module, shared in each.shares.items():
            source = _module(stored, shared.path)
            own = getattr(stored[name], module)
            modules[module] = source if shared.combine is None else shared.combine(source, own)
        complete[name] = _with_modules(stored[name], modules)
    return {**params, MODEL: complete.pop(MODEL), "objective": complete}


def find(objective: HasNetworks, config: ModelConfig, name: str, where: str) -> NetworkSpec:
    """Returns a network of a run.

    Args:
      objective: Declares the networks.
      config: Configuration of the model.
      name: Name of the network.
      where: The run, for the message.

    Raises:
      UserError: The run does not have the network.
    """
    found = specs(objective, config)
    if name not in found:
        raise UserError(f"network {name!r}: {where} does not have it. Give one of its networks: {', '.join(found)}.")
    return found[name]


def heads_of(objective: HasNetworks, config: ModelConfig, name: str, heads: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the heads that read a network.

    Args:
      objective: Declares the networks.
      config: Configuration of the model.
      name: Name of the network.
      heads: The heads and networks of the objective by name, as in `make`.

    Returns:
      The heads of `NetworkSpec.objective`. Without it, the model has the heads that no other network has.
    """
    found = specs(objective, config)

    def own(each: NetworkSpec) -> set[str]:
        if each.objective is None:
            return set()
        key = jax.random.key(0)
        return set(jax.eval_shape(lambda: each.objective.init(key, construct.make(each.config, key))))

    if name != MODEL or found[MODEL].objective is not None:
        return tuple(head for head in heads if head in own(found[name]))
    others = set(found).union(*(own(each) for each in found.values()))
    return tuple(head for head in heads if head not in others)


def exported(objective: HasNetworks, params: Mapping[str, Any]) -> dict[str, nnx.Module]:
    """Returns the complete networks of a run by name, the model first."""
    complete = resolve(objective, params)
    names = specs(objective, params[MODEL].config)
    return {name: complete[MODEL] if name == MODEL else complete["objective"][name] for name in names}


def _module(networks: Mapping[str, nnx.Module], path: str) -> nnx.Module:
    name, _, module = path.partition("/")
    return getattr(networks[name], module)


def _with_modules(network: nnx.Module, modules: Mapping[str, nnx.Module | None]) -> nnx.Module:
    """Returns a copy of a network with other modules in some places."""
    if not modules:
        return network
    copy = jax.tree.unflatten(jax.tree.structure(network), jax.tree.leaves(network))
    for name, module in modules.items():
        setattr(copy, name, nnx.data(module))
    return copy


def _check_paths(found: Mapping[str, NetworkSpec], made: Mapping[str, nnx.Module]) -> None:
    """Checks that the modules of `NetworkSpec.shares` exist, and that the network of each path stores the module."""
    for name, each in found.items():
        for module, shared in each.shares.items():
            source, _, path = shared.path.partition("/")
            about = f"network {name!r}: shares {module!r}, path {shared.path!r}"
            if source not in made:
                raise UserError(f"{about}: unknown network {source!r}. The networks are {', '.join(made)}.")
            for owner, attribute in ((name, module), (source, path)):
                modules = [str(key) for key, child in nnx.iter_children(made[owner]) if isinstance(child, nnx.Module)]
                if attribute not in modules:
                    raise UserError(
                        f"{about}: {owner!r} has no module {attribute!r}. Its modules are {', '.join(modules)}."
                    )
            stored_elsewhere = found[source].shares.get(path)
            if stored_elsewhere is not None and stored_elsewhere.combine is None:
                raise UserError(
                    f"{about}: {source!r} does not store this module, but shares {stored_elsewhere.path!r}. Give the "
                    "path in the network that stores it."
                )


def _check_fit(name: str, module: str, network: nnx.Module, source: nnx.Module) -> None:
    own, theirs = (
        {key: leaf.shape for key, leaf in parameters.named_leaves(each).items()}
        for each in (getattr(network, module), source)
    )
    for key in own.keys() | theirs.keys():
        if own.get(key) != theirs.get(key):
            raise UserError(
                f"network {name!r}: its {module}/{key} has shape {own.get(key)}, but that of the shared module has "
                f"shape {theirs.get(key)}. Give both networks the same sizes."
            )
