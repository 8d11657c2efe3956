"""State that networks carry from one batch to the next: the state of an LSTM, the memory of XLNet.

Row i of a batch continues row i of the batch before. In a batch, the arrays of a carry are features
`carry/NETWORK/NAME`, so that they are split into microbatches and over devices, and joined again, like their rows.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from jaxtyping import Array

from t5x_like.axis_rules import CARRY
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import MODEL
from t5x_like.models.outputs import Outputs

# Network -> name -> array `[batch, …]`.
Carry = Mapping[str, Mapping[str, Array]]
# Prefix of the names of teachers among the networks.
TEACHER = "teachers/"


class CarryingObjective(Protocol):
    """What `initial` reads of an objective; see `objectives.base.Objective`."""

    prepare: Any

    def initial_carry(self, config: ModelConfig, batch_size: int) -> Carry:
        """Returns the state of the networks before the first batch."""


def initial(objective: CarryingObjective, config: ModelConfig, batch_size: int) -> dict[str, Array]:
    """Returns what networks carry into the first batch of continuous data, as features of a batch.

    Args:
      objective: The objective.
      config: Configuration of the model, resolved by `models.base.for_platform`.
      batch_size: Rows of a global batch.

    Raises:
      UserError: The objective changes batches, so that a row no longer continues the row before.
    """
    found = as_features(objective.initial_carry(config, batch_size))
    if found and objective.prepare is not None:
        raise UserError(
            f"{type(objective).__name__} prepares its batches (`prepare`), so rows do not continue the rows of the "
            "batch before, for which the networks carry state. Omit data/continuous.gin, or give another objective."
        )
    return found


def as_features(carry: Carry) -> dict[str, Array]:
    """Returns the arrays of a carry by their names in a batch."""
    return {f"{CARRY}{network}/{name}": x for network, arrays in carry.items() for name, x in arrays.items()}


def separate(batch: Mapping[str, Array]) -> tuple[dict[str, Array], Carry]:
    """Returns the features of a batch and its carry, which is empty for networks without state."""
    features, carry = {}, {}
    for name, x in batch.items():
        if name.startswith(CARRY):
            network, _, array = name.removeprefix(CARRY).rpartition("/")
            carry.setdefault(network, {})[array] = x
        else:
            features[name] = x
    return features, carry


def next_carry(outputs: Outputs, carry: Carry) -> Carry:
    """Returns the carry for the next batch.

    Args:
      outputs: What the networks computed.
      carry: The carry of this batch, which has the same networks.
    """
    return {name: (outputs if name == MODEL else outputs.networks[name]).carry for name in carry}
