"""Says before training what `convert` cannot export to transformers afterwards."""

from absl import logging

from t5x_like.errors import UserError
from t5x_like.interop import exports, registry
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import MODEL
from t5x_like.objectives.base import Objective
from t5x_like.stored import network_weights


def describe(config: ModelConfig, objective: Objective) -> tuple[str, bool] | None:
    """Returns what `convert` exports a run to.

    Args:
      config: The configuration of the model.
      objective: What the run predicts.

    Returns:
      A text, and whether transformers then computes what the run computes; None for a family that transformers lacks,
      unless the model is made of others that it has, such as an encoder-decoder of two decoders.
    """
    if not any(registry.find_family(each) for each in (config, *config.parts.values())):
        return None
    try:
        found = exports.describe(config, list(network_weights.origins(objective, config, MODEL)), objective)
    except UserError as error:
        return f"no class of transformers: {error}", False
    if found.problem is None:
        return f"{found.architecture} of transformers", True
    without = f" without {', '.join(found.left_out)}" if found.left_out else ""
    return (
        f"{found.architecture} of transformers{without}, and only with HEADS='supported': {found.problem}",
        False,
    )


def log(config: ModelConfig, objective: Objective) -> None:
    """Logs what `convert` exports a run to; a warning if transformers does not compute what the run computes."""
    if (found := describe(config, objective)) is not None:
        text, is_complete = found
        logging.log(logging.INFO if is_complete else logging.WARNING, "`convert` exports this run to %s", text)
