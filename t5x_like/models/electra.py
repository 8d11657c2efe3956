"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): the encoder of BERT, with embeddings that may be smaller than states.

Both networks of ELECTRA have this form. `objectives.replaced_tokens` trains the model as the discriminator, and builds
the generator on the model's embeddings.
"""

import dataclasses

import jax
from flax import nnx

from t5x_like.layers import initializers
from t5x_like.models.bert import Bert, BertConfig


@dataclasses.dataclass(frozen=True)
class ElectraConfig(BertConfig):
    """Sizes and hyperparameters of ELECTRA; the defaults are those of ELECTRA base."""

    # Activations of the feed-forward blocks and of the heads.
    activations: tuple[str, ...] = ("gelu_exact",)

    def make(self, key: jax.Array) -> Bert:
        """Returns an ELECTRA with newly initialized parameters; see `ModelConfig.make`.

        The released code gives the projection of the embeddings no initializer, so that its kernel is Glorot's.
        """
        model_key, projection_key = jax.random.split(key)
        model = Bert(self, key=model_key)
        if self.unembed_dim != self.embed_dim:
            kernel = model.embedding_projection.kernel
            drawn = initializers.glorot_uniform(projection_key, kernel.shape, 1)
            model.embedding_projection.kernel = nnx.Param(drawn, axes=kernel.axes)
        return model
