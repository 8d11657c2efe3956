"""Pretrained weights to start from: where they are, which of them are read, and how they fit a model."""

import contextlib
import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t5x_like import interop, parameters, paths
from t5x_like.checkpoints import checkpoint_choice, weight_files
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import UserError
from t5x_like.interop import t5x
from t5x_like.models import build, construct, networks
from t5x_like.models.base import ModelConfig
from t5x_like.stored import frozen_base, layer_choice, network_weights, weight_agreement
from t5x_like.stored.frozen_base import FrozenBase
from t5x_like.stored.network_weights import RunModel, Weights

MODEL, OBJECTIVE, PARAMS, AVERAGE = "model/", "objective/", "params/", "average/"
VOCAB = "vocab"
HUGGINGFACE = "Hugging Face"
Shapes = dict[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """Pretrained weights to start from, and the changes that adapt them to this model.

    Attributes:
      path: A run directory, its `checkpoints` directory, one checkpoint in it (`checkpoints/400`, or `checkpoints/best`
        for the best by its evaluation), a Hugging Face directory with safetensors, or a T5X checkpoint of T5. Heads are
        restored if they match. None: all weights are fresh.
      network: name of the network of the run at `path` to start from, such as `generator`; None for its model.
      target: name of the network of this run that starts from it, with the heads that read it, or names of several of
        the same sizes; None for the model.
      mapping: (regex, replacement) pairs that turn a tensor name of this model or its heads, without the leading
        `model/` or `objective/`, into the name at `path`. They are applied in order. A tensor whose name becomes empty
        stays freshly initialized.
      new_tokens: Number of token ids that this model has after the ids of `path`. Their rows in the tables over the
        vocabulary stay freshly initialized; the other rows are restored.
      layers: Stack -> indices of the pretrained layers that its layers start from, such as `{"encoder": (0, 2, 4)}`, or
        a rule of `layer_choice`. The pretrained model may then have other numbers of layers. None: all layers.
      dropped: Regular expressions of names of tensors at `path` that this model does not have, such as
        `("token_type_embedder",)`. Others that it lacks are an error.
      truncated: Logical axes, `positions` or `vocab`, along which tables at `path` may be longer than the tables of the
        model, which start from their first rows.
      rows: Logical axis -> for each row of the tables over it, the row at `path` that it starts from. UniLM's six token
        types start from BERT's two by `{"token_types": (0, 1, 0, 0, 0, 1)}`. Tables at `path` that have the size of the
        model's are restored as they are. None: none.
      tiled: Whether the model at `path` may have fewer features, hidden units and heads. Its parameters are then
        repeated from the middle outwards, as ModernBERT large starts from the base model. Heads of the objective are
        not repeated.
      other_vocabulary: Whether the token ids of `path` may belong to another vocabulary than the data's. This is
        an error otherwise, unless there are new tokens or truncated vocabularies.
      averaged: Whether to read the averages of the parameters of a run with `Update.ema_decay`, and not its parameters.
      others: Further weights, whose parameters replace those of `path`: an encoder's beside a decoder's.

    Raises:
      UserError: A value is invalid.
    """

    path: str | None = None
    network: str | None = None
    target: str | Sequence[str] | None = None
    mapping: Sequence[tuple[str, str]] = ()
    new_tokens: int = 0
    layers: Mapping[str, Sequence[int] | layer_choice.Rule] | None = None
    dropped: Sequence[str] = ()
    truncated: Sequence[str] = ()
    rows: Mapping[str, Sequence[int]] | None = None
    tiled: bool = False
    other_vocabulary: bool = False
    averaged: bool = True
    others: Sequence["InitialWeights"] = ()

    def __post_init__(self):
        if self.new_tokens < 0:
            raise UserError(f"INITIAL_NEW_TOKENS={self.new_tokens} is negative. Give the number of new token ids.")
        for setting, value in (("INITIAL_DROPPED", self.dropped), ("INITIAL_TRUNCATED", self.truncated)):
            if isinstance(value, str):
                raise UserError(f"{setting}={value!r}: is not a sequence. Give {(value,)!r}.")

    @property
    def targets(self) -> tuple[str | None, ...]:
        """The names of the networks of this run that start from the weights; None for the model."""
        return (self.target,) if self.target is None or isinstance(self.target, str) else tuple(self.target)

    @property
    def sources(self) -> tuple["InitialWeights", ...]:
        """All weights, in the order in which they are read."""
        return (self, *(source for other in self.others for source in other.sources))

    @property
    def given_settings(self) -> tuple[str, ...]:
        """The settings beside the path that have a value."""
        settings = {
            "INITIAL_NETWORK": self.network,
            "INITIAL_TARGET": self.target,
            "INITIAL_LAYERS": self.layers,
            "INITIAL_DROPPED": self.dropped,
            "INITIAL_TRUNCATED": self.truncated,
            "INITIAL_NEW_TOKENS": self.new_tokens,
            "INITIAL_TILED": self.tiled,
            "INITIAL_OTHER_VOCABULARY": self.other_vocabulary,
        }
        return tuple(name for name, value in settings.items() if value)

    @property
    def has_other_sizes(self) -> bool:
        """Whether the stored model has other sizes than this one, so that it is read by its own configuration."""
        return bool(self.layers or self.dropped or self.truncated or self.rows or self.tiled)

    @property
    def has_vocabulary_of_run(self) -> bool:
        """Whether the token ids of `path` must match the data's."""
        return not (self.other_vocabulary or self.new_tokens or VOCAB in self.truncated)

    def is_dropped(self, name: str) -> bool:
        """Returns whether a tensor at `path` is one that this model does not have."""
        return any(re.search(pattern, name) for pattern in self.dropped)


def renamed(name: str, mapping: Sequence[tuple[str, str]]) -> str:
    """Returns the name of a parameter at a source; see `InitialWeights.mapping`."""
    root, _, name = name.partition("/")
    for pattern, replacement in mapping:
        name = re.sub(pattern, replacement, name)
    return f"{root}/{name}"


def model_shapes(source: InitialWeights, config: ModelConfig, wanted: Collection[str] = ()) -> Shapes:
    """Returns the shapes of the tensors of the model at a source by stored name, without reading a tensor.

    Args:
      source: the source.
      config: the configuration of this model, with which the source must agree.
      wanted: the stored names of the parameters to read; see `open_source`.

    Raises:
      UserError: the source is not found, or does not agree.
    """
    bare = construct.without_adapters(config)
    if (other := _of_other_library(source)) is None:
        with open_run(source.path, network=source.network, wanted=wanted, verify=False) as weights:
            return {name: shape for name, shape in weights.shapes.items() if name.startswith(MODEL)}
    if other == HUGGINGFACE:
        return interop.model_shapes(source.path, bare, other_sizes=source.has_other_sizes)
    t5x.check(other, bare)
    stacked = build.stacked_shapes(bare)
    return {MODEL + name: leaf.shape for name, leaf in parameters.named_leaves(stacked).items()}


@contextlib.contextmanager
def open_source(source: InitialWeights, config: ModelConfig, wanted: Collection[str] = ()) -> Iterator[Weights]:
    """Opens the weights at a source.

    Args:
      source: the source.
      config: the configuration of this model, with which the source must agree.
      wanted: the stored names of the parameters to read. If the model of a run lacks one of them, because it shares a
        module with another network, it is read from there.

    Yields:
      The weights.

    Raises:
      UserError: the source is not found, does not agree, cannot be read, or differs between processes.
    """
    weight_agreement.check(source.path)
    bare = construct.without_adapters(config)
    if (other := _of_other_library(source)) is None:
        with open_run(source.path, network=source.network, wanted=wanted, averaged=source.averaged) as weights:
            yield weights
        return
    if other == HUGGINGFACE:
        leaves = interop.read(source.path, bare, other_sizes=source.has_other_sizes)
    else:
        leaves = t5x.read(other, bare)
    yield Weights(
        {name: leaf.shape for name, leaf in leaves.items()},
        lambda wanted: {name: _put(leaves[name], shape) for name, shape in wanted.items()},
        {name: name for name in leaves},
    )


def _of_other_library(source: InitialWeights) -> str | None:
    """Returns `HUGGINGFACE`, the index of a T5X checkpoint, or None for a run."""
    found = HUGGINGFACE if weight_files.is_huggingface(source.path) else weight_files.find_t5x(source.path)
    if found is not None and source.network not in (None, networks.MODEL):
        raise UserError(f"network {source.network!r}: {source.path} has a model only. Give the directory of a run.")
    if found not in (None, HUGGINGFACE):
        _check_t5x(source)
    return found


def read_base(base: FrozenBase, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Reads parameters of a run from its base.

    Args:
      base: the base.
      wanted: stored name of a parameter in `base.leaves` -> its shape, with dtype and sharding.

    Raises:
      UserError: the base is missing, has changed, or cannot be read.
    """
    base.check()
    tensors = {name: base.leaves[name].name for name in wanted}
    if weight_files.is_huggingface(base.path):
        # The model may have other sizes than the model of the run.
        leaves = interop.read(base.path, interop.config_from_huggingface(base.path))
        return {name: _put(leaves[tensors[name]], shape) for name, shape in wanted.items()}
    with open_run(base.path, averaged=base.averaged) as weights:
        found = weights.read({tensors[name]: shape for name, shape in wanted.items()})
    return {name: found[tensors[name]] for name in wanted}


def resolve(path: str) -> str:
    """Returns the path of the checkpoint that a run directory stands for; other paths stay as they are."""
    step = checkpoint_choice.find_step(path)
    return path if step is None else paths.join(checkpoint_choice.locate(path)[0], str(step))


def stored_names(path: str, network: str | None = None) -> set[str]:
    """Returns the stored names of the parameters of a checkpoint of a run, `model/…` and `objective/…`.

    Args:
      path: the checkpoint.
      network: name of the network whose parameters and heads are meant; None for all.
    """
    with open_run(path, network=network, verify=False) as weights:
        return set(weights.shapes)


@contextlib.contextmanager
def open_run(
    path: str,
    *,
    network: str | None = None,
    wanted: Collection[str] = (),
    verify: bool = True,
    averaged: bool = True,
) -> Iterator[Weights]:
    """Opens the weights of a run, and of its base.

    Args:
      path: the run directory, or one of its checkpoints.
      network: name of the network to open; None for all parameters under their stored names.
      wanted: see `open_source`.
      verify: whether to compare the checkpoint with its checksums.
      averaged: see `InitialWeights.averaged`.

    Yields:
      The weights.

    Raises:
      UserError: the checkpoint or the network is not found.
    """
    directory, step = checkpoint_choice.locate(path)
    base = frozen_base.of_run(checkpoint_choice.run_of(path))
    reader = Checkpoints(directory, read_only=True)
    try:
        step = reader.latest() if step is None else step
        if step is None:
            raise UserError(weight_files.explain_missing(path))
        shapes = reader.shapes(step, verify=verify)
        stored, averages = strip_prefix(PARAMS, shapes), strip_prefix(AVERAGE, shapes) if averaged else {}
        lacking = base.without(stored) if base is not None else None
        of_base = lacking.leaves if lacking is not None else {}

        def read(wanted):
            own = {
                (AVERAGE if name in averages else PARAMS) + name: shape
                for name, shape in wanted.items()
                if name not in of_base
            }
            others = {name: shape for name, shape in wanted.items() if name in of_base}
            leaves = reader.read(step, own) if own else {}
            found = strip_prefix(PARAMS, leaves) | strip_prefix(AVERAGE, leaves)
            return found | read_base(lacking, others) if others else found

        shapes = stored | {name: leaf.shape for name, leaf in of_base.items()}
        weights = Weights(shapes, read, {name: name for name in shapes})
        if network is None:
            yield network_weights.with_shared_modules(weights, wanted, path)
        else:
            run = RunModel.read(path)
            networks.find(run.objective, run.model, network, path)
            yield network_weights.select(weights, run, network)
    finally:
        reader.close()


def _check_t5x(source: InitialWeights) -> None:
    if source.has_other_sizes:
        raise UserError(
            f"{source.path}: a T5X checkpoint does not describe its model, of which a part cannot be read. Convert it "
            "with t5x_like convert and give the result."
        )


def _put(leaf: np.ndarray, shape: jax.ShapeDtypeStruct) -> jax.Array:
    return jax.make_array_from_callback(
        shape.shape, shape.sharding, lambda index: np.asarray(leaf[index], shape.dtype), dtype=shape.dtype
    )


def strip_prefix(prefix: str, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the leaves whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if name.startswith(prefix)}
