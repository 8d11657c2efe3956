"""The blocks of keys that BigBird's blocks of queries see: global, window and random blocks.

Random blocks are fixed: NumPy's legacy generator draws them, with the index of the layer as its seed and one draw per
head. The released code (`bigbird/core/attention.py`) and transformers' `BigBirdModel` draw in two ways. For rows of
1,024, 2,048, 3,072 and 4,096 tokens, the plan of the paper draws for the longest row of the model among the first 1,024
tokens, and keeps the first blocks of queries. For other rows, random blocks are among the first `2 * random + 5`
blocks. transformers draws in the second way for rows of 2,048 tokens too.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from t5x_like.errors import UserError

# Lengths for which the paper's plan draws, and the tokens among which it draws.
PAPER_LENGTHS = (1024, 2048, 3072, 4096)
PAPER_LAST = 1024
# Blocks that a block of queries sees beside the random ones: the first, the last, and three of the window.
NUM_FIXED = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The layers and heads of a larger model whose random blocks the layers and heads of a pruned model keep.

    A comment above each field documents it.
    """

    # Number of heads of the larger model.
    num_heads: int
    # Per layer, its index in the larger model.
    layers: tuple[int, ...]
    # Per layer, the indices of its heads in the larger model.
    heads: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, num_layers: int, num_heads: int) -> "Plan":
        """Returns the plan of a model that is not pruned."""
        heads = (tuple(range(num_heads)),) * num_layers
        return cls(num_heads=num_heads, layers=tuple(range(num_layers)), heads=heads)

    def keep_layers(self, indices: Sequence[int]) -> "Plan":
        """Returns the plan of a model with some of the layers."""
        layers, heads = (tuple(each[index] for index in indices) for each in (self.layers, self.heads))
        return dataclasses.replace(self, layers=layers, heads=heads)

    def keep_heads(self, indices: Int[np.ndarray, "layers kept"]) -> "Plan":
        """Returns the plan of a model with some of the heads of each layer."""
        pairs = zip(self.heads, indices.tolist(), strict=True)
        return dataclasses.replace(self, heads=tuple(tuple(heads[each] for each in kept) for heads, kept in pairs))

    def select(self, lists: Int[np.ndarray, "layers heads ..."]) -> Int[np.ndarray, "kept_layers kept_heads ..."]:
        """Returns the lists of the kept layers and heads from those of the larger model."""
        return lists[np.array(self.layers)[:, None], np.array(self.heads)]


def dense_blocks(num_random: int) -> int:
    """Returns the largest number of blocks of a row whose attention is dense.

    The released code uses dense attention up to 512 tokens, and fails at 576, 640 and 704 tokens, where too few blocks
    are left to draw from. transformers uses dense attention there, as here.

    Args:
      num_random: Number of random blocks per block of queries.
    """
    return NUM_FIXED + 2 * num_random


@functools.lru_cache(maxsize=64)
def visible_blocks(
    num_layers: int,
    num_heads: int,
    length: int,
    *,
    max_length: int,
    size: int,
    num_random: int,
    count_repeated_blocks: bool = True,
) -> Int[np.ndarray, "layers heads query_blocks listed"]:
    """Returns the blocks of keys that each block of queries sees, except the first and the last, which see all.

    Block i sees {0, i - 1, i, i + 1, last} and its random blocks. A random block may be one of the others, such as the
    last one. With `count_repeated_blocks` it is listed twice, as in `block_sparse` of the released code; otherwise
    once, as in its `simulated_sparse`.

    Args:
      num_layers: Number of layers.
      num_heads: Number of heads.
      length: Number of tokens of a row.
      max_length: Number of tokens of the longest row, for which the paper's plan draws.
      size: Number of tokens of a block.
      num_random: Number of random blocks per block of queries.
      count_repeated_blocks: Whether a random block that is also one of the others is listed twice.

    Returns:
      Indices of blocks, -1 where a list is shorter, as those of the first and the last block are.
    """
    blocks = -(-length // size)
    last = blocks - 1
    lists = np.full((num_layers, num_heads, blocks, NUM_FIXED + num_random), -1, np.int32)
    for block in range(1, last):
        window = {0, block - 1, block, block + 1, last}
        lists[:, :, block, : len(window)] = sorted(window)
    if num_random:
        for layer in range(num_layers):
            drawn = random_blocks(layer, num_heads, length, max_length=max_length, size=size, num_random=num_random)
            lists[layer, :, 1:last, NUM_FIXED:] = drawn
    if not count_repeated_blocks:
        is_repeat = np.tril(lists[..., :, np.newaxis] == lists[..., np.newaxis, :], k=-1).any(axis=-1)
        lists[is_repeat] = -1
    return lists


def random_blocks(
    layer: int, num_heads: int, length: int, *, max_length: int, size: int, num_random: int
) -> Int[np.ndarray, "heads inner_blocks random"]:
    """Draws the random blocks of all blocks of queries but the first and the last; see `visible_blocks`.

    Args:
      layer: Index of the layer, the seed.
      num_heads: Number of heads.
      length: Number of tokens of a row.
      max_length: Number of tokens of the longest row.
      size: Number of tokens of a block.
      num_random: Number of random blocks per block of queries.

    Raises:
      UserError: There are fewer blocks to draw from than random blocks.
    """
    random, blocks = np.random.RandomState(layer), -(-length // size)

    def draw(candidates):
        found = random.permutation(candidates)[:num_random]
        if len(found) < num_random:
            raise UserError(
                f"num_random_blocks={num_random}: blocks of queries in rows of {length} tokens can draw only "
                f"{len(found)} blocks of {size} tokens. Lower num_random_blocks or block_size."
            )
        return found

    if blocks * size in PAPER_LENGTHS:
        in_plan = max(max_length // size, blocks)  # as in transformers; a row may be padded beyond the longest
        draws = [[draw(_paper_candidates(i, in_plan, size)) for i in range(1, in_plan - 1)] for _ in range(num_heads)]
        return np.array(draws, np.int32)[:, : blocks - 2]
    choices = dense_blocks(num_random)
    drawn = np.zeros((num_heads, blocks, num_random), np.int32)
    for block in range(1, blocks):
        excluded = {block - 1, block, block + 1, 0, choices - 1}
        # The second block would see the last but one of the blocks to draw from, and the other way round.
        excluded |= {1: {choices - 2}, choices - 2: {1}}.get(block, set())
        for head in range(num_heads):
            order = random.permutation(choices)
            drawn[head, block] = [each for each in order if each not in excluded][:num_random]
    return drawn[:, 1:-1]


def _paper_candidates(block: int, blocks: int, size: int) -> Int[np.ndarray, " candidates"]:
    """Returns the blocks that the paper's plan draws from for one block of queries, in the order of the released code.

    The two last inner blocks can draw blocks of their own window, as comments in the released code say.
    """
    inner = np.arange(1, blocks - 1, dtype=np.int32)
    last = PAPER_LAST // size - 1 if PAPER_LAST > 2 * size else blocks - 1
    if block <= 2:
        return inner[block + 1 : last]
    if block >= blocks - 3 or block - 2 > last:
        return inner[:last]
    if block + 1 == last:
        return inner[: block - 2]
    return np.concatenate([inner[: block - 2], inner[block + 1 : last]])
