"""Derives the settings of generation from a Hugging Face directory, or from the one that a run started from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from t5x_like import paths
from t5x_like.checkpoints import weight_files
from t5x_like.cli.derivations.task import TRAIN
from t5x_like.runtime import run_files

if TYPE_CHECKING:
    from t5x_like.config import Derived, KnownSettings

_LENGTHS = "TASK_FEATURE_LENGTHS"
_IMPORTS = "from __gin__ import dynamic_registration\nfrom t5x_like.decoding import settings\n"
# Fields of `Decoding` that are macros of decoding/settings.gin.
_MACROS = ("beams", "alpha", "temperature", "top_k", "top_p", "samples")
_OF_BEAMS = ("beams", "early_stopping", "samples")
_OF_SAMPLING = ("temperature", "top_k", "top_p", "samples")


def from_directory(settings: KnownSettings) -> Derived | None:
    """Derives the settings of `Decoding` that the user does not set.

    Settings of beam search are omitted if the user samples, settings of sampling if the user searches, and the maximum
    length if the user, a run or a recipe sets TASK_FEATURE_LENGTHS.

    Raises:
      UserError: A file of the directory is invalid.
    """
    from absl import logging

    from t5x_like.config import Derived
    from t5x_like.interop import generation, model_tokens

    has_encoder = _has_encoder(settings.value("OBJECTIVE"))
    if has_encoder is None or not settings.is_used("DECODING") or (directory := _directory(settings)) is None:
        return None
    file, values = model_tokens.generation_settings(directory)
    fields, ignored = generation.to_decoding(values, file, has_encoder=has_encoder)
    for message in ignored:
        logging.warning("%s", message)
    for name in _replaced(settings):
        fields.pop(name, None)
    if not fields:
        return None
    lines = [f"{name.upper()} = {value!r}" for name, value in fields.items() if name in _MACROS]
    lines += [f"settings.Decoding.{name} = {value!r}" for name, value in fields.items() if name not in _MACROS]
    return Derived(file, _IMPORTS + "\n".join(lines) + "\n")


def _has_encoder(objective: Any) -> bool | None:
    """Returns whether an encoder reads the inputs of an objective, or None if it does not predict text."""
    name = getattr(objective, "selector", "").rpartition(".")[2]
    return {"SequenceToSequence": True, "CausalLM": False, "PrefixLM": False, "PromptedLM": False}.get(name)


def _directory(settings: KnownSettings) -> str | None:
    """Returns the directory with generation settings: a Hugging Face directory, or the copy in a run.

    A run that was trained from scratch has the tokenizer of such a directory at most, not its model.
    """
    if settings.is_stored("MODEL_DIR"):
        if settings.value("TRAIN_STEPS") is not None and settings.value("INITIAL_CHECKPOINT_PATH") is None:
            return None
        return paths.join(settings.value("MODEL_DIR"), run_files.TOKENIZER)
    for name in ("HF_PATH", "CHECKPOINT_PATH", "INITIAL_CHECKPOINT_PATH"):
        path = settings.value(name)
        if isinstance(path, str) and weight_files.is_huggingface(path):
            return path
    return None


def _replaced(settings: KnownSettings) -> set[str]:
    """Returns the fields that settings of the user replace."""
    names: set[str] = set()
    if settings.root == TRAIN or settings.is_given(_LENGTHS) or settings.is_stored(_LENGTHS):
        names.add("max_length")
    if settings.is_given("EOS_ID"):
        names.add("eos_ids")
    if settings.is_given("TEMPERATURE"):
        names.update(_OF_BEAMS if settings.value("TEMPERATURE") else _OF_SAMPLING)
    elif settings.is_given("BEAMS"):
        names.update(_OF_SAMPLING)
    return names
