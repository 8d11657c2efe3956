"""Initial values of a prefix from the keys and values of given tokens; see `adapters.prefix.Prefix.text`."""

from absl import logging

from t5x_like import optimizers, parameters, partitioning
from t5x_like.adapters import prefix
from t5x_like.data.source import DataSource
from t5x_like.errors import UserError
from t5x_like.models import construct
from t5x_like.models.base import ModelConfig
from t5x_like.objectives.variables import Frozen, copy
from t5x_like.training.state import TrainState


def fill(
    state: TrainState, frozen: Frozen, config: ModelConfig, data: DataSource, partitioner: partitioning.Partitioner
) -> TrainState:
    """Returns the state of a new run with the initial values of its prefix, or `state` if these are random.

    Args:
      state: the state, after pretrained weights are restored.
      frozen: the arrays that are not trained.
      config: the configuration of the model.
      data: the data, whose vocabulary encodes a text.
      partitioner: the mesh and rules that place the arrays.

    Raises:
      UserError: the text has no tokens, or a token id is not in the vocabulary of the model.
    """
    found = prefix.find(config)
    if found is None or (found.text is None and found.token_ids is None):
        return state
    ids = found.token_ids or _encode(found.text, data)
    logging.info("the prefix starts from the keys and values of the tokens %s", found.ids(ids).tolist())
    model = optimizers.merge(state.params, frozen.params)["model"]
    shardings = partitioner.shardings(model)
    filled = partitioner.jit(lambda model: construct.start_prefix(model, ids), out_shardings=shardings)(model)
    leaves = parameters.named_leaves({"model": filled})
    trainable = parameters.map_named(lambda name, leaf: leaves.get(name, leaf), state.params)
    return state.replace(params=trainable, average=None if state.average is None else copy(trainable))


def _encode(text: str, data: DataSource) -> list[int]:
    vocabularies = data.vocabularies()
    ids = vocabularies.get("inputs", next(iter(vocabularies.values()))).encode(text)
    if not ids:
        raise UserError(f"Prefix.text={text!r}: has no tokens. Give a text, or PREFIX_TEXT=None.")
    return list(ids)
