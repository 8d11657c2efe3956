"""Derives the settings of a model from the run that training starts from, `INITIAL_CHECKPOINT_PATH`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from t5x_like import paths
from t5x_like.checkpoints import weight_files
from t5x_like.cli.derivations import huggingface
from t5x_like.errors import UserError
from t5x_like.runtime import run_files

if TYPE_CHECKING:
    from t5x_like.config import Derived, KnownSettings

_NAME = "INITIAL_CHECKPOINT_PATH"


def from_run(settings: KnownSettings) -> Derived | None:
    """Derives model, objective and vocabulary from a run, if no file describes the model.

    Settings of the recipe, such as its dropout rate, replace the run's.

    Raises:
      UserError: The configuration of the run is invalid, it does not have the network INITIAL_NETWORK, or the path is a
        Hugging Face directory, whose model HF_PATH derives.
    """
    from t5x_like.config import Derived
    from t5x_like.vocabularies import tokenizer_files

    path = settings.value(_NAME)
    if not isinstance(path, str) or settings.is_stored("MODEL_DIR") or settings.value("HF_PATH") is not None:
        return None
    if settings.value("MODEL") is not None or not settings.is_used("MODEL"):
        return None
    if weight_files.is_huggingface(path):
        raise UserError(
            f"{_NAME}={path!r}: a Hugging Face directory, and no file describes the model. Give --gin.HF_PATH={path}, "
            "which reads the model and its tokenizer as well, or the file of the model, such as models/gpt2/small.gin."
        )
    if (run := run_files.find_run(path)) is None:
        return None
    values: dict[str, object] = {}
    lines = ["from __gin__ import dynamic_registration", *_model(run, settings, values)]
    vocabulary = tokenizer_files.find(paths.join(run, run_files.TOKENIZER))
    if vocabulary is not None and settings.value("VOCABULARY_PATH") is None:
        values["VOCABULARY_PATH"] = vocabulary
    lines += huggingface.assignments(values)
    return Derived(f"{_NAME}={path}", "\n".join(lines) + "\n")


def _model(run: str, settings: KnownSettings, values: dict[str, object]) -> list[str]:
    """Returns the statements of model, objective and head, and adds the values of the macros that they use."""
    from t5x_like.data import prompts
    from t5x_like.interop import head_classes, registry
    from t5x_like.stored.network_weights import RunModel

    found = RunModel.read(run)
    network = settings.value("INITIAL_NETWORK")
    found = found if network is None else found.network(network, run)
    config = huggingface.for_vocabulary_of_data(found.model, settings)
    model, of_model = huggingface.describe_model(config, settings)
    features = getattr(found.objective, "features", None)
    of_run = {} if features is None else {"bos_id": features.first_id}
    if features is not None and prompts.encoder_bos(features) is not None:
        of_run["encoder_bos"] = True
    objective, of_objective = huggingface.describe_objective(config, settings, **of_run)
    values.update({name: value for name, value in of_model.items() if settings.value(name) is None})
    values.update({name: value for name, value in of_objective.items() if not settings.is_given(name)})

    def form(name: str) -> head_classes.HeadForm:
        family = registry.family_of(config)
        return head_classes.form_of(family, family.config_to_json(config, []), name)

    return [model, objective, huggingface.describe_head(settings, form)]
