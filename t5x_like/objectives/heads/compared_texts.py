"""A head on the vectors of two texts that the model reads apart (Tai et al. 2015; Kiros et al. 2015, section 3)."""

import dataclasses
import types
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.data import choices, specs
from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.layers import initializers
from t5x_like.objectives.base import Batch, HeadConfig
from t5x_like.objectives.heads import Hidden, last_token
from t5x_like.objectives.heads.head_modules import ClassifierHead, Layers, States

Pooling = Literal["last", "mean"]
_SMALLEST_NORM = 1e-12


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """The sizes that the classifier has; see `HeadConfig`."""

    embed_dim: int
    compute_dtype: str
    dropout_rate: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparedTexts:
    """A linear classifier of the features |u - v| and u · v, by element, of the vectors u and v of two texts.

    The task gives the texts as `inputs_0` and `inputs_1`. The kernel is drawn from Glorot's uniform distribution.
    """

    each_token = False
    pretrained = types.MappingProxyType({})

    # The vector of a text: the hidden state of its last token, or the mean of all.
    pooling: Pooling = "last"
    # Whether vectors are scaled to length 1, as in the released code of skip-thoughts.
    normalize: bool = True

    def __post_init__(self):
        if self.pooling not in get_args(Pooling):
            raise UserError(
                f"pooling={self.pooling!r} of ComparedTexts: must be one of {', '.join(get_args(Pooling))}."
            )

    @property
    def inputs(self) -> FeatureSpec:
        """The features that the model reads."""
        return choices.with_choices(specs.ENCODER_INPUTS, 2)

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> ClassifierHead:
        """Creates the head; see `heads.HeadForm.make`."""
        sizes = _Sizes(2 * config.embed_dim, config.compute_dtype)
        return ClassifierHead(sizes, outputs, Layers(init=initializers.glorot_uniform), rate=0.0, key=key)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the features of each pair; see `heads.HeadForm.read`."""
        vectors = self._vectors(hidden.astype(jnp.float32), batch["encoder_segment_ids"])
        if self.normalize:
            squared = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
            vectors = vectors * jax.lax.rsqrt(jnp.maximum(squared, _SMALLEST_NORM**2))
        first, second = jnp.moveaxis(vectors.reshape(-1, 2, 1, vectors.shape[-1]), 1, 0)
        return jnp.concatenate([jnp.abs(first - second), first * second], axis=-1)

    def _vectors(self, hidden: Hidden, segments: Array) -> Float[Array, "rows embed"]:
        if self.pooling == "last":
            return last_token(hidden, segments)[:, 0]
        real = (segments != 0).astype(jnp.float32)
        return jnp.einsum("ble,bl->be", hidden, real) / jnp.maximum(jnp.sum(real, axis=1), 1)[:, None]
