"""Base class of the losses that compare arrays of mapped layers."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.distillation.layer_maps import LayerMap, Pairs, resolve
from t5x_like.distillation.loss import ForwardPass, ModelSpec
from t5x_like.errors import UserError
from t5x_like.layers.captures import of_tokens
from t5x_like.models.base import StackInfo
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Objective
from t5x_like.objectives.prediction import Scalar

# Captured arrays of a layer by their names within it.
Arrays = Mapping[str, Array]
PerToken = Float[Array, "batch length"]


def attended(batch: Batch, stack: str) -> PerToken:
    """Returns 1 for tokens and 0 for padding.

    Args:
      batch: The features of a batch.
      stack: `encoder` or `decoder`.
    """
    return (batch[f"{stack}_segment_ids"] != 0).astype(jnp.float32)


def outputs_of(loss: object, forward_pass: ForwardPass) -> Outputs:
    """Returns what a network computed.

    Raises:
      UserError: The logits of the network are cached, and nothing else is known of it.
    """
    if forward_pass.outputs is None:
        raise UserError(
            f"{type(loss).__name__} reads hidden states or attention of {forward_pass.spec.name}, whose logits are "
            "cached. Train with the teacher in memory, or use losses of logits alone."
        )
    return forward_pass.outputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerLoss:
    """A loss between mapped layers of one stack. Implements `Loss`, except for `per_token`.

    The loss is an average over the tokens that are not padding. It is summed over the pairs of layers, or averaged if
    `averages_layers`.
    """

    # Pairs (layer of the student, layer of the teacher), or a function of layer_maps that makes them.
    layers: LayerMap
    # The stack whose layers are compared: `encoder` or `decoder`.
    stack: str = "encoder"
    # Name of the only teacher that the loss reads; None for all teachers.
    teacher: str | None = None

    # Names within a layer of the arrays that the loss reads.
    reads = ("hidden",)
    # Sizes that student and teacher must share: fields of `StackInfo`.
    same_sizes = ()
    averages_layers = False

    def per_token(
        self, heads: Mapping[str, nnx.Module], student: Arrays, teacher: Arrays, batch: Batch
    ) -> Float[Array, "batch length"]:
        """Computes the loss of a pair of layers at each token, including padding, whose values are ignored.

        Args:
          heads: The projections of the loss.
          student: The arrays of the student's layer that the loss reads.
          teacher: The arrays of the teacher's layer.
          batch: The features of the batch.
        """
        raise NotImplementedError

    def sizes(self, student: ModelSpec, teacher: ModelSpec) -> tuple[StackInfo, StackInfo]:
        """Returns the sizes of the stack of both networks."""
        return _stack(student, self.stack), _stack(teacher, self.stack)

    def pairs(self, student: ModelSpec, teacher: ModelSpec) -> Pairs:
        """Returns the pairs of layers; see `layer_maps.resolve`."""
        described = (
            (f"the {self.stack} of {spec.name}", sizes.num_layers)
            for spec, sizes in zip((student, teacher), self.sizes(student, teacher), strict=True)
        )
        return resolve(self.layers, *described, setting=f"{type(self).__name__}.layers")

    def check(self, student: ModelSpec, teacher: ModelSpec) -> None:
        """Checks the layers and the sizes of both networks; see `Loss.check`."""
        self.pairs(student, teacher)
        ours, theirs = self.sizes(student, teacher)
        for name in self.same_sizes:
            if getattr(ours, name) != getattr(theirs, name):
                raise UserError(
                    f"{type(self).__name__} needs the same {name} in both networks, {self.stack}: "
                    f"the student has {getattr(ours, name)}, {teacher.name} has {getattr(theirs, name)}. Change the "
                    "student, or use a loss that does not depend on it."
                )

    def captures(self, student: ModelSpec, teacher: ModelSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the arrays of the mapped layers; see `Loss.captures`."""
        pairs = self.pairs(student, teacher)
        return tuple(
            tuple(dict.fromkeys(self._name(pair[number], what) for pair in pairs for what in self.reads))
            for number in range(2)
        )

    def _name(self, layer: int, what: str) -> str:
        return f"{self.stack}/layers/{layer}/{what}"

    def init(self, key: jax.Array, student: ModelSpec, teacher: ModelSpec) -> dict[str, nnx.Module]:
        """Returns no projections; see `Loss.init`."""
        return {}

    def weights(self, rows: Batch, objective: Objective) -> PerToken:
        """Returns 1 for tokens that are not padding; see `Loss.weights`."""
        return attended(rows, self.stack)

    def __call__(self, heads: Mapping[str, nnx.Module], student: ForwardPass, teacher: ForwardPass) -> Scalar:
        """Computes the loss of a microbatch; see `Loss`."""
        pairs = self.pairs(student.spec, teacher.spec)
        losses = [
            self.per_token(heads, self._arrays(student, ours), self._arrays(teacher, theirs), student.batch)
            for ours, theirs in pairs
        ]
        return self.weighted_sum(losses, student.batch)

    def weighted_sum(self, losses: list[PerToken], batch: Batch) -> Scalar:
        """Sums the losses of pairs of layers over the tokens that are not padding."""
        tokens = attended(batch, self.stack) > 0
        total = sum(jnp.sum(jnp.where(tokens, loss, 0.0)) for loss in losses)
        return total / len(losses) if self.averages_layers else total

    def _arrays(self, forward_pass: ForwardPass, layer: int) -> Arrays:
        captured, length = outputs_of(self, forward_pass).captured, attended(forward_pass.batch, self.stack).shape[1]
        names = {what: self._name(layer, what) for what in self.reads}
        return {what: of_tokens(name, captured[name], length).astype(jnp.float32) for what, name in names.items()}


def _stack(spec: ModelSpec, stack: str) -> StackInfo:
    """Returns the sizes of a stack of a student or a teacher."""
    stacks = spec.config.stacks
    if stack not in stacks:
        raise UserError(
            f"stack={stack!r}: {spec.name} ({type(spec.config).__name__}) does not have this stack. It has: "
            f"{' and '.join(stacks)}."
        )
    return stacks[stack]
