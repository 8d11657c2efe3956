"""Dual-space distillation: the states of each network in the output space of the other, whatever their tokenizers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from t5x_like.distillation.loss import ForwardPass, ModelSpec
from t5x_like.distillation.losses.across_tokenizers import AcrossTokenizers
from t5x_like.distillation.losses.hidden import last_states
from t5x_like.errors import UserError
from t5x_like.kernels import divergence
from t5x_like.kernels.chunks import Readout, map_networks
from t5x_like.kernels.masks import MASK_VALUE
from t5x_like.layers import initializers
from t5x_like.layers.projections import Projection
from t5x_like.objectives.base import Batch, Objective
from t5x_like.objectives.prediction import Scalar

QUERY, TO_STUDENT, TO_TEACHER = "query", "to_student", "to_teacher"
Vectors = Float[Array, "batch length embed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DSKD(AcrossTokenizers):
    """Dual-space distillation with cross-model attention, in nats per predicted token of the student.

    Attention between the predictions of both networks in a row, whose scores compare the embeddings of input and target
    token, moves hidden states into the space of the other network, by two learned projections. The loss is the sum of

    * the cross-entropy of the targets by the student's head from the teacher's moved states, which trains the
      projections alone;
    * the divergence of the student from the distributions of this head, without gradient, where their most probable
      token is the target;
    * KL(teacher || teacher's head from the student's moved states), summed over the teacher's predictions.

    Both divergences have the temperature T and no factor T². Heads and embeddings have no gradient, but for the
    student's head in its own distributions. A score sees the whole row, later tokens as well. A row in which one
    network predicts nothing has no loss.

    Source: Zhang et al. 2024 (Dual-Space Knowledge Distillation), arXiv:2406.17328, sections 3.2 and 3.3, and the
    released code. The code divides the teacher's vectors by their standard deviation in the whole batch; here it is
    that of the predictions of a row, so that the loss does not depend on the other rows. Biases begin with 0.
    """

    # β of the divergence in the space of the student: 0 is KL(teacher || student), as in the released scripts, and 1 is
    # KL(student || teacher); see `kernels.divergence.generalized`.
    beta: float = 0.0
    # T: the logits of both divergences are divided by it before the softmax.
    temperature: float = 1.0

    def __post_init__(self):
        if not 0 <= self.beta <= 1:
            raise UserError(f"DSKD.beta={self.beta} is out of range. Give a number in [0, 1].")
        if self.temperature <= 0:
            raise UserError(f"DSKD.temperature={self.temperature} is not positive. Give a positive number.")

    def check(self, student: ModelSpec, teacher: ModelSpec) -> None:
        """Checks that both networks have embeddings, the teacher of the size of its states; see `Loss.check`."""
        super().check(student, teacher)
        _embedding_size(student)
        size, states = _embedding_size(teacher), teacher.config.embed_dim
        if size != states:
            raise UserError(
                f"DSKD: the token embeddings of {teacher.name} have {size} features, its hidden states {states}. Give "
                "a teacher with as many in both, or another loss across tokenizers."
            )

    def captures(self, student: ModelSpec, teacher: ModelSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the last hidden states of the teacher, so that one whose logits are cached is refused."""
        return (), (last_states(teacher),)

    def init(self, key: jax.Array, student: ModelSpec, teacher: ModelSpec) -> dict[str, nnx.Module]:
        """Initializes query and projections uniformly over ±1 / √inputs, as torch does; see `Loss.init`."""
        ours, theirs = student.config.embed_dim, teacher.config.embed_dim
        sizes = {
            QUERY: (2 * _embedding_size(student), 2 * theirs),
            TO_STUDENT: (theirs, ours),
            TO_TEACHER: (ours, theirs),
        }
        return {
            name: Projection(
                (inputs,),
                (outputs,),
                axes=("embed", "mlp"),
                key=key,
                init=initializers.uniform(inputs**-0.5),
                bias=True,
            )
            for key, (name, (inputs, outputs)) in zip(jax.random.split(key, len(sizes)), sizes.items(), strict=True)
        }

    def weights(self, rows: Batch, objective: Objective) -> Float[Array, "batch positions"]:
        """Returns 1 for each prediction of the student; see `Loss.weights`."""
        return (rows["decoder_loss_weights"] > 0).astype(jnp.float32)

    def __call__(self, heads: Mapping[str, nnx.Module], student: ForwardPass, teacher: ForwardPass) -> Scalar:
        """Computes the loss; see `Loss`."""
        ours, theirs = self.readouts(student, teacher, self.temperature)
        frozen = [jax.lax.stop_gradient(forward_pass.model) for forward_pass in (student, teacher)]
        predicted = [forward_pass.batch["decoder_loss_weights"] > 0 for forward_pass in (student, teacher)]
        # Without predictions of one network, those of the other have no counterpart in the row.
        ours_exist, theirs_exist = (jnp.any(each, axis=1, keepdims=True) for each in predicted)
        predicted = [each & ours_exist & theirs_exist for each in predicted]
        (own_inputs, own_targets), (inputs, targets) = (
            _embeddings(model, forward_pass.batch)
            for model, forward_pass in zip(frozen, (student, teacher), strict=True)
        )

        # ---- the attention between the predictions of a row ----------------------------------------------------------
        queries = heads[QUERY](jnp.concatenate([own_inputs, own_targets], axis=-1))
        keys = _divided_by_deviation(jnp.concatenate([inputs, targets], axis=-1), predicted[1])
        scores = jnp.einsum("bqd,bkd->bqk", queries, keys) * keys.shape[-1] ** -0.5
        scores = jnp.where(predicted[0][:, :, None] & predicted[1][:, None], scores, MASK_VALUE)

        # ---- the states of each network in the space of the other ----------------------------------------------------
        known = jax.lax.stop_gradient(theirs.hidden).astype(jnp.float32)
        states = _divided_by_deviation(known, predicted[1]) + _divided_by_deviation(targets, predicted[1])
        of_teacher = jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), heads[TO_STUDENT](states))
        moved = heads[TO_TEACHER](ours.hidden.astype(jnp.float32))
        of_student = jnp.einsum("bqk,bqd->bkd", jax.nn.softmax(scores, axis=1), moved)

        def in_student_space(logits, targets):
            log_p = jax.nn.log_softmax(logits[1])
            of_target = jnp.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
            known = jax.nn.log_softmax(jax.lax.stop_gradient(logits[1]) / self.temperature)
            difference = divergence.generalized(self.beta)(known, jax.nn.log_softmax(logits[0]))
            return jnp.where(jnp.argmax(log_p, axis=-1) == targets, difference, 0.0) - of_target

        def in_teacher_space(logits, arrays):
            log_p = jax.nn.log_softmax(jax.lax.stop_gradient(logits[1]))
            return divergence.forward_kl(log_p, jax.nn.log_softmax(logits[0] / self.temperature))

        with_own = [ours, _readout(of_teacher, ours, frozen[0])]
        with_theirs = [_readout(of_student, theirs, frozen[1]), theirs]
        in_student = map_networks(with_own, in_student_space, student.batch["decoder_target_tokens"])
        in_teacher = map_networks(with_theirs, in_teacher_space)
        return sum(
            jnp.sum(jnp.where(mask, loss, 0.0)) for mask, loss in zip(predicted, (in_student, in_teacher), strict=True)
        )


def _readout(states: Vectors, own: Readout, model: Any) -> Readout:
    """Returns the predictions of a model from other hidden states, as float32 logits."""
    return Readout(states.astype(own.hidden.dtype), lambda hidden: model.unembed(hidden).astype(jnp.float32))


def _embedder(model: Any) -> Any:
    """Returns the embeddings of the tokens of a decoder; None without them."""
    return getattr(model, "decoder_embedder", getattr(model, "token_embedder", None))


def _embeddings(model: Any, batch: Batch) -> tuple[Vectors, Vectors]:
    """Returns the embeddings of the input and the target of each prediction of a decoder, in float32."""
    embed = _embedder(model)
    return tuple(embed(batch[f"decoder_{name}_tokens"]).astype(jnp.float32) for name in ("input", "target"))


def _embedding_size(spec: ModelSpec) -> int:
    """Returns the number of features of the token embeddings of a network.

    Raises:
      UserError: It has none.
    """

    def table():
        embedder = _embedder(spec.config.make(jax.random.key(0)))
        return None if embedder is None else embedder.table

    if (found := jax.eval_shape(table)) is None:
        raise UserError(
            f"DSKD: {spec.name} ({type(spec.config).__name__}) does not embed the tokens of a decoder in one "
            "table. Give another loss across tokenizers."
        )
    return found.shape[-1]


@jax.vmap
def _divided_by_deviation(
    x: Float[Array, "length embed"], counts: Bool[Array, " length"]
) -> Float[Array, "length embed"]:
    """Divides vectors by the standard deviation of all features of those that count, with Bessel's correction."""
    size = jnp.sum(counts) * x.shape[1]
    known = jnp.where(counts[:, None], x, 0.0)
    squares = jnp.where(counts[:, None], jnp.square(x - jnp.sum(known) / jnp.maximum(size, 1)), 0.0)
    variance = jnp.sum(squares) / jnp.maximum(size - 1, 1)
    return x * jnp.where(variance > 0, jax.lax.rsqrt(jnp.where(variance > 0, variance, 1.0)), 1.0)
