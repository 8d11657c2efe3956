"""Static word vectors: one vector per word, whatever its context.

word2vec (Mikolov et al. 2013, arXiv:1301.3781 and arXiv:1310.4546) and GloVe (Pennington et al. 2014) train the table
with objectives of their own. The hidden state of a word is its vector. The model has a stack without layers, so that
objectives and commands read it as an encoder.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.axis_rules import VECTOR
from t5x_like.kernels.dropout import Dropout
from t5x_like.layers import captures as capturing
from t5x_like.layers import initializers
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.embeddings import Embedder
from t5x_like.models import checks
from t5x_like.models.base import BaseConfig, BaseModel, Batch, StackInfo
from t5x_like.models.outputs import Outputs

STACK = "encoder"
TOKENS = f"{STACK}_input_tokens"


@dataclasses.dataclass(frozen=True)
class WordVectorsConfig(BaseConfig):
    """Sizes of word vectors; by default word2vec's."""

    lacks = dict.fromkeys(("prompt", "prefix"), "word vectors have neither a prompt nor a prefix")
    # Rows of the table: padding, end of a sentence, unknown words, and the words.
    vocab_size: int = 30000
    # Size of a vector.
    embed_dim: int = 100
    # Further rows, which the character n-grams of fastText share.
    buckets: int = 0
    # Dropout rate of the vectors, for objectives with gradients of whole tables, such as taggers.
    dropout_rate: float = 0.0
    # New vectors are uniform in ± this value / embed_dim.
    initializer_bound: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "embed_dim")
        checks.non_negative_integers(self, "buckets")
        checks.rates(self, "dropout_rate")
        checks.positive(self, "initializer_bound")

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """A stack without layers; see `ModelConfig.stacks`."""
        return {STACK: StackInfo(0, self.embed_dim, num_heads=0, num_kv_heads=0, head_dim=0)}

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return (TOKENS,)

    @property
    def bound(self) -> float:
        """Largest absolute value of a new vector."""
        return self.initializer_bound / self.embed_dim

    def make(self, key: jax.Array) -> "WordVectors":
        """Returns word vectors with new values; see `ModelConfig.make`."""
        return WordVectors(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns 0: a lookup has no multiplications. Objectives decide how many products a word takes."""
        return 0.0


def table(config: WordVectorsConfig, key: jax.Array, init: initializers.Initializer) -> Embedder:
    """Returns a table with a vector per word, for the output of an objective."""
    return Embedder(config.vocab_size, config.embed_dim, key=key, features=VECTOR, init=init)


class WordVectors(BaseModel):
    """Static word vectors. Implements `Model` of `models/base.py`.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      token_embedder: Table `[vocab_size + buckets, embed_dim]`.
    """

    def __init__(self, config: WordVectorsConfig, *, key: jax.Array):
        self.config = config
        init = initializers.uniform(config.bound)
        rows = config.vocab_size + config.buckets
        self.token_embedder = Embedder(rows, config.embed_dim, key=key, features=VECTOR, init=init)

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Looks the words up; see `Model.embed`."""
        return {STACK: self.token_embedder(batch[TOKENS])}

    def trunk(
        self,
        embedded: Mapping[str, Hidden],
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[capturing.Edit] = (),
    ) -> Outputs:
        """Returns the vectors of the words; see `Model.trunk`."""
        del batch
        captures = capturing.parse(capture, {STACK: (0, ())}, edits)[STACK]
        dropped = Dropout(self.config.dropout_rate)(embedded[STACK], dropout_key)
        x, captured = captures.state(capturing.EMBEDDING, dropped)
        x, output = captures.state(capturing.OUTPUT, x)
        return Outputs(hidden=x, captured=captured | output)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns the inner products with the vectors of all words, in float32."""
        return self.token_embedder.attend(hidden.astype(jnp.float32))
