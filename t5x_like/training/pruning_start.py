"""Thresholds of pruned kernels at the start of a run; see `adapters.pruned`."""

from t5x_like import optimizers, partitioning
from t5x_like.adapters import pruned
from t5x_like.objectives.variables import Frozen, copy
from t5x_like.training.state import TrainState


def fill(state: TrainState, frozen: Frozen, partitioner: partitioning.Partitioner) -> TrainState:
    """Returns the state of a new run with the thresholds of its pretrained weights.

    Args:
      state: the state, after pretrained weights are restored.
      frozen: the arrays that are not trained.
      partitioner: the mesh and rules that place the arrays.
    """
    if not any(pruned.pruned_projections(optimizers.merge(state.params, frozen.params))):
        return state
    shardings = partitioner.shardings(state.params)
    start = partitioner.jit(lambda own, others: pruned.update_thresholds(own, others, 0), out_shardings=shardings)
    params = start(state.params, frozen.params)
    return state.replace(params=params, average=None if state.average is None else copy(params))
