"""Losses between hidden states of student and teacher."""

import dataclasses
from collections.abc import Collection, Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.distillation.layer_maps import LayerMap, Pairs
from t5x_like.distillation.loss import ForwardPass, ModelSpec
from t5x_like.distillation.losses.layerwise import Arrays, LayerLoss, PerToken, attended, outputs_of
from t5x_like.errors import UserError
from t5x_like.layers import captures, initializers
from t5x_like.layers.projections import Projection
from t5x_like.objectives.base import Batch, Objective
from t5x_like.objectives.prediction import Scalar

States = Float[Array, "batch length embed"]
PROJECTION = "projection"
# Added to the squared norms of both vectors by torch's CosineEmbeddingLoss, which DistilBERT's code uses.
_COSINE_EPSILON = 1e-12
# Smallest norm that torch's `normalize` divides by, which the code of PKD uses.
_MIN_NORM = 1e-12


@dataclasses.dataclass(frozen=True, kw_only=True)
class HiddenMSE(LayerLoss):
    """Mean squared error of hidden states, per token, summed over the pairs of layers.

    The error of a token is the mean over the features of (W · student + b - teacher)². One projection W, b is shared by
    all layers and the embeddings; without it, the states are compared directly. Source: TinyBERT (Jiao et al. 2020,
    equations 8 and 9). Its released code has the bias and the shared projection, and averages over padding as well;
    here padding does not count.
    """

    # See LayerLoss; () for the embeddings alone.
    layers: LayerMap
    # Whether the inputs of the first layers are compared as well: the embeddings, after their norm and dropout.
    embeddings: bool = False
    # Whether to learn a projection; None to learn one if the widths differ. TinyBERT's code always has one.
    project: bool | None = None

    def pairs(self, student: ModelSpec, teacher: ModelSpec) -> Pairs:
        """Returns the pairs of layers, which may be empty if the embeddings are compared."""
        if self.embeddings and not callable(self.layers) and not self.layers:
            return ()
        return super().pairs(student, teacher)

    def check(self, student: ModelSpec, teacher: ModelSpec) -> None:
        """Checks the layers, and the widths if there is no projection; see `Loss.check`."""
        super().check(student, teacher)
        ours, theirs = self.sizes(student, teacher)
        if self.project is False and ours.embed_dim != theirs.embed_dim:
            raise UserError(
                f"HiddenMSE.project=False: the hidden states of the student have {ours.embed_dim} features, those of "
                f"{teacher.name} have {theirs.embed_dim}. Give None or True."
            )

    def captures(self, student: ModelSpec, teacher: ModelSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the hidden states of the mapped layers, and the embeddings; see `Loss.captures`."""
        embedding = (f"{self.stack}/embedding",) if self.embeddings else ()
        ours, theirs = super().captures(student, teacher)
        return embedding + ours, embedding + theirs

    def init(self, key: jax.Array, student: ModelSpec, teacher: ModelSpec) -> dict[str, nnx.Module]:
        """Initializes the projection, with the standard deviation 0.02 of TinyBERT's code; see `Loss.init`."""
        ours, theirs = self.sizes(student, teacher)
        if not (ours.embed_dim != theirs.embed_dim if self.project is None else self.project):
            return {}
        axes, init = ("embed", "mlp"), initializers.normal(0.02)
        return {
            PROJECTION: Projection((ours.embed_dim,), (theirs.embed_dim,), axes=axes, key=key, init=init, bias=True)
        }

    def per_token(self, heads: Mapping[str, nnx.Module], student: Arrays, teacher: Arrays, batch: Batch) -> PerToken:
        """Computes the loss of a pair of layers; see `LayerLoss.per_token`."""
        return self._error(heads, student["hidden"], teacher["hidden"])

    def __call__(self, heads: Mapping[str, nnx.Module], student: ForwardPass, teacher: ForwardPass) -> Scalar:
        """Computes the loss of a microbatch; see `Loss`."""
        value = super().__call__(heads, student, teacher) if self.pairs(student.spec, teacher.spec) else 0.0
        if self.embeddings:
            name, length = f"{self.stack}/embedding", attended(student.batch, self.stack).shape[1]
            states = [
                captures.of_tokens(name, outputs_of(self, forward_pass).captured[name], length).astype(jnp.float32)
                for forward_pass in (student, teacher)
            ]
            value += self.weighted_sum([self._error(heads, *states)], student.batch)
        return value

    def _error(self, heads: Mapping[str, nnx.Module], student: States, teacher: States) -> PerToken:
        if PROJECTION in heads:
            student = heads[PROJECTION](student)
        return jnp.mean(jnp.square(student - teacher), axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HiddenCosine:
    """1 - cosine of the last hidden states of student and teacher, per token.

    The last hidden states are those from which logits are computed, after the final norm if there is one. Source:
    DistilBERT (Sanh et al. 2019), whose code averages over the tokens that are not padding. Implements `Loss`.
    """

    # Name of the only teacher that the loss reads; None for all teachers.
    teacher: str | None = None

    def check(self, student: ModelSpec, teacher: ModelSpec) -> None:
        """Checks that the hidden states have the same number of features; see `Loss.check`."""
        ours, theirs = student.config.embed_dim, teacher.config.embed_dim
        if ours != theirs:
            raise UserError(
                f"HiddenCosine: the hidden states of the student have {ours} features, those of {teacher.name} have "
                f"{theirs}. Use HiddenMSE, which learns a projection."
            )

    def captures(self, student: ModelSpec, teacher: ModelSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the last hidden states of both networks; see `Loss.captures`."""
        return (last_states(student),), (last_states(teacher),)

    def init(self, key: jax.Array, student: ModelSpec, teacher: ModelSpec) -> dict[str, nnx.Module]:
        """Returns no projections."""
        return {}

    def weights(self, rows: Batch, objective: Objective) -> PerToken:
        """Returns 1 for tokens that are not padding; see `Loss.weights`."""
        return attended(rows, _last_stack(rows))

    def __call__(self, heads: Mapping[str, nnx.Module], student: ForwardPass, teacher: ForwardPass) -> Scalar:
        """Computes the loss of a microbatch; see `Loss`."""
        is_token = attended(student.batch, _last_stack(student.batch))
        states = (
            (last_states(forward_pass.spec), outputs_of(self, forward_pass)) for forward_pass in (student, teacher)
        )
        ours, theirs = (
            captures.of_tokens(name, outputs.captured[name], is_token.shape[1]).astype(jnp.float32)
            for name, outputs in states
        )
        squares = [jnp.sum(jnp.square(x), axis=-1) + _COSINE_EPSILON for x in (ours, theirs)]
        cosine = jnp.sum(ours * theirs, axis=-1) * jax.lax.rsqrt(squares[0] * squares[1])
        return jnp.sum((1.0 - cosine) * is_token)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatientCLS(LayerLoss):
    """Mean squared error of the first token's hidden states, per row, averaged over features and pairs of layers.

    Source: Patient-KD (Sun et al. 2019, arXiv:1908.09355), equation 7. The paper sums squared distances over layers and
    divides by the number of rows; the released code averages over features and layers as well, and so does this loss.
    Its coefficients of 10 to 1000 belong to the average.
    """

    # Whether the hidden states are divided by their norms, as in the paper.
    normalize: bool = True

    same_sizes = ("embed_dim",)

    def weights(self, rows: Batch, objective: Objective) -> Float[Array, "batch 1"]:
        """Returns 1 for rows that are not padding; see `Loss.weights`."""
        return attended(rows, self.stack)[:, :1]

    def __call__(self, heads: Mapping[str, nnx.Module], student: ForwardPass, teacher: ForwardPass) -> Scalar:
        """Computes the loss of a microbatch; see `Loss`."""
        pairs = self.pairs(student.spec, teacher.spec)
        rows = attended(student.batch, self.stack)[:, 0]
        total = sum(
            jnp.sum(jnp.mean(jnp.square(self._first(student, ours) - self._first(teacher, theirs)), axis=-1) * rows)
            for ours, theirs in pairs
        )
        return total / len(pairs)

    def _first(self, forward_pass: ForwardPass, layer: int) -> Float[Array, "batch embed"]:
        first = self._arrays(forward_pass, layer)["hidden"][:, 0]
        if not self.normalize:
            return first
        # The root of a clipped square, because the gradient of a norm is undefined at 0.
        return first * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(first), axis=-1, keepdims=True), _MIN_NORM**2))


def _last_stack(batch: Collection[str]) -> str:
    """Returns the stack whose output the logits are computed from, given the features that a model reads."""
    return "decoder" if "decoder_segment_ids" in batch else "encoder"


def last_states(spec: ModelSpec) -> str:
    """Returns the name of the last hidden states of a network, after the final norm."""
    return f"{_last_stack(spec.objective.features.dtypes)}/{captures.OUTPUT}"
