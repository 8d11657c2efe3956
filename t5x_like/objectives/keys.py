"""The random keys of a forward pass."""

import jax
from flax import struct
from jaxtyping import Array, Int, Key

from t5x_like.kernels.dropout import FIRST_NAMED_KEY, split_key

# Index of the heads' dropout key among the keys derived from the key of a microbatch.
_HEADS = FIRST_NAMED_KEY


@struct.dataclass
class Keys:
    """The random keys of a forward pass over a batch or a microbatch.

    Attributes:
      dropout: Key of dropout; None disables it.
      rows: One key per row of the batch, before choices become rows. A draw for a position of a row folds in its number
        (`kernels.position_samples`), so that it depends neither on microbatches nor on devices nor on chunks. Only for
        an objective that `draws`, which has them at evaluation as well; otherwise None.
      step: Key that is equal for all rows of a step. Only for an objective that `draws`; otherwise None.
    """

    dropout: Key[Array, ""] | None = None
    rows: Key[Array, " batch"] | None = None
    step: Key[Array, ""] | None = None

    def of_heads(self) -> "Keys":
        """Returns the keys of the heads, which are derived from the keys of the model."""
        return self.replace(dropout=None if self.dropout is None else jax.random.fold_in(self.dropout, _HEADS))

    def split(self, count: int) -> "list[Keys]":
        """Returns the keys of each of several objectives that share a forward pass."""
        return [
            Keys(
                dropout,
                None if self.rows is None else jax.vmap(jax.random.fold_in, (0, None))(self.rows, number),
                None if self.step is None else jax.random.fold_in(self.step, number),
            )
            for number, dropout in enumerate(split_key(self.dropout, count))
        ]


# Without a key, nothing is random.
NO_KEYS = Keys()


def row_keys(key: Key[Array, ""], numbers: Int[Array, " batch"]) -> Key[Array, " batch"]:
    """Returns `Keys.rows` of the rows with the given numbers in a global batch, or in the data of an evaluation."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
