"""Adapters of a whole model, such as a prompt: models and decoding call these functions, and name no adapter."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.layers.stacks import Stack

M = TypeVar("M")


class AdaptedModel(Protocol):
    """The attributes of the configuration of a model that adapters read; see `models.base.ModelConfig`."""

    vocab_size: int
    adapters: Iterable[Any]
    stacks: Mapping[str, Any]


class ModelAdapter:
    """An adapter of a whole model, of which a model has at most one of each class. The methods here change nothing.

    Attributes:
      plural: Name of several such adapters, for messages.
      features: Features of a batch that it reads.
    """

    plural: ClassVar[str]
    features: ClassVar[tuple[str, ...]] = ()

    def add(self, model: nnx.Module, key: jax.Array) -> None:
        """Adds the adapter to a new model, before adapters of its modules.

        Args:
          model: The model, which is changed.
          key: Random key of the adapters of the model.

        Raises:
          UserError: It does not fit the model.
        """
        raise NotImplementedError

    def count_positions(self, config: AdaptedModel) -> int:
        """Returns the number of positions of the decoder before its first token."""
        del config
        return 0

    def count_tokens(self) -> int:
        """Returns the number of tokens that `extend` puts before the tokens of a batch."""
        return 0

    def extend(
        self, config: AdaptedModel, batch: Mapping[str, Array], padding: Int[Array, " batch"] | None
    ) -> Mapping[str, Array]:
        """Returns the batch that the model reads; see the function `extend`."""
        del config, padding
        return batch

    def remove(
        self, config: AdaptedModel, hidden: Float[Array, "batch length embed"]
    ) -> Float[Array, "batch tokens embed"]:
        """Returns the hidden states of the tokens of a batch, from those of `extend`."""
        del config
        return hidden

    def collapsed(self) -> "ModelAdapter":
        """Returns the adapter of a model that has been through `computed`."""
        return self

    def check_merge(self, model: nnx.Module) -> None:
        """Raises an error, because no parameters of a bare model have the effect of the adapter.

        Raises:
          UserError: Always.
        """
        del model
        name = type(self).__name__
        raise UserError(
            f"{type(self).__module__.removeprefix('t5x_like.')}.{name}: a {name.lower()} cannot be merged into the "
            "parameters. Write it alone (MERGE=False), or use the run itself: `eval`, `infer` and `open_model` read "
            f"its {name.lower()}."
        )


def find(config: AdaptedModel) -> list[ModelAdapter]:
    """Returns the adapters of a model that are of the whole model."""
    return [each for each in config.adapters if isinstance(each, ModelAdapter)]


def count_positions(config: AdaptedModel) -> int:
    """Returns the number of positions of the decoder of a model before its first token."""
    return sum(each.count_positions(config) for each in find(config))


def count_tokens(config: AdaptedModel) -> int:
    """Returns the number of tokens that `extend` adds to a row."""
    return sum(each.count_tokens() for each in find(config))


def extend(
    config: AdaptedModel, batch: Mapping[str, Array], padding: Int[Array, " batch"] | None = None
) -> Mapping[str, Array]:
    """Returns a batch as a model with its adapters reads it; the batch itself without adapters of inputs.

    Args:
      config: Configuration of the model.
      batch: Features by name, of rows with one segment.
      padding: Number of padding tokens at the start of each row; None for no padding.

    Raises:
      UserError: The rows are too long for the model, or lack a feature that an adapter reads.
    """
    for each in find(config):
        batch = each.extend(config, batch, padding)
    return batch


def remove(config: AdaptedModel, hidden: Float[Array, "batch length embed"]) -> Float[Array, "batch tokens embed"]:
    """Returns hidden states of the last stack without those of what `extend` has added."""
    for each in reversed(find(config)):
        hidden = each.remove(config, hidden)
    return hidden


def features(config: AdaptedModel) -> tuple[str, ...]:
    """Returns the features of a batch that the adapters of a model read."""
    return tuple(name for each in find(config) for name in each.features)


def computed(model: M) -> M:
    """Returns a model in which the adapters of stacks are replaced by what they compute from parameters alone.

    Its outputs are the same. `models.construct.collapse` also changes the configuration.
    """
    paths = [path for path, module in nnx.iter_modules(model) if isinstance(module, Stack) and module.adapter]
    if not paths:
        return model
    model = jax.tree.map(lambda leaf: leaf, model)
    for path, module in list(nnx.iter_modules(model)):
        if path in paths:
            module.layers, module.adapter = nnx.data(module.run_layers), None
    return model
