"""Relations between queries, keys or values of different tokens (MiniLM and MiniLMv2)."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.distillation.loss import ModelSpec
from t5x_like.distillation.losses.attention import Scores, compare
from t5x_like.distillation.losses.layerwise import Arrays, LayerLoss, PerToken
from t5x_like.errors import UserError
from t5x_like.kernels import divergence
from t5x_like.kernels.masks import MASK_VALUE
from t5x_like.objectives.base import Batch

VECTORS = ("query", "key", "value")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relations(LayerLoss):
    """KL(teacher || student) of self-relations, in nats per token, summed over the kinds and the pairs of layers.

    The self-relation of vectors x [length, d] is softmax(x xᵀ / √d), over the tokens of the same segment. The vectors
    of all attention heads are joined and split into relation heads again, over which the divergence is averaged. The
    networks may differ in widths and in attention heads.

    Sources: MiniLMv2 (Wang et al. 2021, arXiv:2012.15828, equations 4 to 6) with queries, keys and values and 48 or 64
    relation heads. MiniLM (Wang et al. 2020, arXiv:2002.10957, equations 7 and 8) is `of=("value",)` with one relation
    head per attention head, beside `AttentionKL`. Both are for the last layer, or a given layer of a large teacher.
    """

    # The vectors that are compared: some of "query", "key" and "value".
    of: Sequence[str] = ("query", "key", "value")
    # Number of relation heads, a divisor of the joined widths of both networks; None for the student's number of heads,
    # or of key and value heads if they are fewer.
    relation_heads: int | None = None

    def __post_init__(self):
        if not self.of or not set(self.of) <= set(VECTORS):
            raise UserError(f"Relations.of={self.of!r} is not valid. Give some of {', '.join(VECTORS)}.")
        if self.relation_heads is not None and self.relation_heads < 1:
            raise UserError(
                f"Relations.relation_heads={self.relation_heads} is not positive. Give a positive integer, or None for "
                "the number of heads of the student."
            )

    @property
    def reads(self) -> tuple[str, ...]:
        """Names within a layer of the vectors."""
        return tuple(f"attention/{name}" for name in self.of)

    def check(self, student: ModelSpec, teacher: ModelSpec) -> None:
        """Checks the layers, and that the relation heads divide the widths; see `Loss.check`."""
        super().check(student, teacher)
        ours, theirs = self.sizes(student, teacher)
        relation_heads = self.relation_heads or (ours.num_heads if tuple(self.of) == ("query",) else ours.num_kv_heads)
        for spec, sizes in ((student, ours), (teacher, theirs)):
            for name in self.of:
                width = sizes.head_dim * (sizes.num_heads if name == "query" else sizes.num_kv_heads)
                if width % relation_heads:
                    raise UserError(
                        f"Relations.relation_heads={relation_heads} does not divide the {width} features of the "
                        f"{name} vectors of {spec.name}. Give a common divisor of the widths of both networks."
                    )

    def per_token(self, heads: Mapping[str, nnx.Module], student: Arrays, teacher: Arrays, batch: Batch) -> PerToken:
        """Computes the loss of a pair of layers; see `LayerLoss.per_token`."""
        segments = batch[f"{self.stack}_segment_ids"]
        visible = (segments[:, :, None] == segments[:, None, :])[:, None]
        relation_heads = self.relation_heads or min(student[name].shape[2] for name in self.reads)

        def relate(arrays: Arrays, name: str) -> Scores:
            return relation_scores(arrays[name], relation_heads) + jnp.where(visible, 0.0, MASK_VALUE)

        return sum(compare(divergence.forward_kl, relate(student, name), relate(teacher, name)) for name in self.reads)


def relation_scores(vectors: Float[Array, "batch length heads kv"], relation_heads: int) -> Scores:
    """Returns the scaled inner products of the vectors of all pairs of tokens.

    Args:
      vectors: Queries, keys or values.
      relation_heads: Number of heads into which the joined vectors of a token are split.
    """
    batch, length = vectors.shape[:2]
    vectors = vectors.reshape(batch, length, relation_heads, -1)
    return jnp.einsum("bqhd,bkhd->bhqk", vectors, vectors) * vectors.shape[-1] ** -0.5
