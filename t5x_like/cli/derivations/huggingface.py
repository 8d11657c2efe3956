"""Derives the settings of a model from a Hugging Face directory, `HF_PATH`."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from t5x_like import paths
from t5x_like.checkpoints import weight_files
from t5x_like.cli import settings as shipped
from t5x_like.cli.derivations.task import TRAIN
from t5x_like.errors import UserError
from t5x_like.runtime import run_files

if TYPE_CHECKING:
    from t5x_like.config import Derived, KnownSettings
    from t5x_like.models.base import ModelConfig
    from t5x_like.objectives.heads import HeadForm

_IMPORTS = "from __gin__ import dynamic_registration\n"
# The objective of shipped files that do not state one for the model at hand.
_DEFAULT_OBJECTIVE = "SequenceToSequence"


def from_directory(settings: KnownSettings) -> Derived | None:
    """Derives model, objective, tokenizer and initial weights from a Hugging Face directory.

    The directory is HF_PATH, or CHECKPOINT_PATH if no file describes the model. A command without a model reads the
    tokenizer only. With a file that makes an encoder-decoder of a DECODER, the directory is that decoder, and the
    objective stays the file's.

    Raises:
      UserError: The directory is not found, its model is not supported, or its BOS is needed and not known.
    """
    from t5x_like.config import Derived
    from t5x_like.vocabularies import tokenizer_files

    name = "HF_PATH" if settings.value("HF_PATH") is not None else "CHECKPOINT_PATH"
    given = settings.value(name)
    if not isinstance(given, str) or (name == "CHECKPOINT_PATH" and not _describes_model(given, settings)):
        return None
    if settings.is_stored("MODEL_DIR"):
        raise UserError(
            f"{name}={given}: the run {settings.value('MODEL_DIR')} has its own model. Give either {name} or the run."
        )
    given = given.rstrip("/")
    directory = _directory(given, settings)
    values = {"CHECKPOINT_PATH": given, "INITIAL_CHECKPOINT_PATH": given}
    if (tokenizer := tokenizer_files.find(directory)) is not None:
        values["VOCABULARY_PATH"] = tokenizer
    lines = [_IMPORTS]
    if settings.is_used("MODEL"):
        from t5x_like import interop

        config = interop.config_from_huggingface(directory)
        macro = "DECODER" if settings.is_used("DECODER") else "MODEL"
        if macro == "MODEL":
            _check_no_model_file(name, given, settings)
        model, of_model = describe_model(for_vocabulary_of_data(config, settings), settings, macro)
        objective, of_objective = describe_objective(config, settings, directory)
        if macro == "DECODER":
            bos_id = of_objective.get("VOCABULARY_BOS_ID")
            if bos_id is None and not settings.is_given("BOS_ID"):
                raise UserError(
                    f"{name}={given}: config.json has no bos_token_id, and the decoder of an encoder-decoder reads BOS "
                    "before the targets. Give --gin.BOS_ID=…, such as the id of EOS."
                )
            objective, of_objective = "", {} if bos_id is None else {"VOCABULARY_BOS_ID": bos_id}
        values |= of_model | of_objective
        lines += [model, objective, describe_head(settings, lambda name: interop.head_form(directory, name))]
    lines += assignments(values)
    return Derived(f"{name}={given}", "\n".join(lines) + "\n")


def _check_no_model_file(name: str, given: str, settings: KnownSettings) -> None:
    """Checks that no shipped file sets another MODEL, which the directory would replace without a word."""
    if settings.value("MODEL") is not None and not settings.is_given("MODEL"):
        weights = "INITIAL_CHECKPOINT_PATH" if settings.is_used("INITIAL_CHECKPOINT_PATH") else "CHECKPOINT_PATH"
        raise UserError(
            f"{name}={given}: the directory describes the model, but a gin file sets MODEL={settings.value('MODEL')!r} "
            f"too. Remove the file of the model, or give {weights} and VOCABULARY_PATH in place of {name}."
        )


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Returns the statements that set macros to values, such as dataclasses (Longformer's global tokens)."""
    from t5x_like.config import description

    return [
        description.describe_dataclass(macro, value) if dataclasses.is_dataclass(value) else f"{macro} = {value!r}"
        for macro, value in values.items()
    ]


def for_vocabulary_of_data(config: ModelConfig, settings: KnownSettings) -> ModelConfig:
    """Returns the configuration for the token ids of the data.

    INITIAL_NEW_TOKENS are added to its vocabulary. With INITIAL_OTHER_VOCABULARY, its special tokens are ids of another
    vocabulary: without them, `convert` writes those of the tokenizer.
    """
    if settings.value("INITIAL_OTHER_VOCABULARY") is True:
        config = dataclasses.replace(config, special_tokens=None)
    new = settings.value("INITIAL_NEW_TOKENS")
    return dataclasses.replace(config, vocab_size=config.vocab_size + new) if type(new) is int and new > 0 else config


def _describes_model(checkpoint: str, settings: KnownSettings) -> bool:
    """Returns whether CHECKPOINT_PATH is a Hugging Face directory whose model no file describes."""
    return settings.value("MODEL") is None and weight_files.is_huggingface(checkpoint)


def _directory(path: str, settings: KnownSettings) -> str:
    """Returns the directory to read. A run that resumes has a copy of the files that describe model and tokenizer."""
    if paths.exists(paths.join(path, "config.json")):
        return path
    model_dir = settings.value("MODEL_DIR")
    if settings.root == TRAIN and isinstance(model_dir, str) and run_files.has_checkpoints(model_dir):
        copy = paths.join(model_dir, run_files.TOKENIZER)
        if paths.exists(paths.join(copy, "config.json")):
            return copy
    if (run := run_files.find_run(path)) is not None:
        setting = "INITIAL_CHECKPOINT_PATH" if settings.is_used("INITIAL_CHECKPOINT_PATH") else "MODEL_DIR"
        raise UserError(
            f"HF_PATH={path}: the run {run} of t5x_like, not a Hugging Face directory. Give --gin.{setting}={run}, "
            "whose config.gin describes the model."
        )
    wanted = "a local or mounted directory as `save_pretrained` writes it"
    if not paths.exists(path):
        raise weight_files.not_found("HF_PATH", path, wanted)
    if not paths.is_file(path) and weight_files.is_adapter(path):
        raise UserError(f"HF_PATH={weight_files.explain_missing(path)} as MODEL_DIR.")
    raise UserError(f"HF_PATH={path}: config.json not found. Give {wanted}.")


def describe_model(config: ModelConfig, settings: KnownSettings, model: str = "MODEL") -> tuple[str, dict[str, Any]]:
    """Returns the statements of the model, and the values of the macros that they use.

    The macros come from the family's gin files, such as DROPOUT_RATE. A macro of the user replaces the published
    values of all its fields. Fields of one macro with different published values do not use it otherwise.

    Args:
      config: The model.
      settings: The settings.
      model: The macro of the model.
    """
    from t5x_like.config import description

    fields: dict[str, str] = {}
    values: dict[str, Any] = {}
    for macro, of_macro in _family_macros(type(config)).items():
        published = [getattr(config, field) for field in of_macro]
        if settings.is_given(macro) or all(value == published[0] for value in published):
            fields |= dict.fromkeys(of_macro, macro)
            # A file of adapters sets ADAPTERS, which no directory has.
            if of_macro != ["adapters"] or settings.value(macro) is None:
                values[macro] = published[0]
    return description.describe_dataclass(model, config, fields), values


def _family_macros(model: type) -> Mapping[str, list[str]]:
    """Returns macro -> fields of a configuration that the gin files of its family set to the macro."""
    found: dict[str, list[str]] = {}
    for file in sorted(shipped.GIN_ROOT.glob("models/*/family.gin")):
        for (name, field), value in _bindings(str(file.relative_to(shipped.GIN_ROOT))).items():
            if name == f"{model.__module__}.{model.__qualname__}" and value.startswith("%"):
                found.setdefault(value[1:], [])
                found[value[1:]] += [field] if field not in found[value[1:]] else []
    return found


@functools.cache
def _bindings(file: str) -> Mapping[tuple[str, str], str]:
    return shipped.read([file]).bindings


def describe_objective(
    config: ModelConfig,
    settings: KnownSettings,
    directory: str | None = None,
    bos_id: int | None = None,
    *,
    encoder_bos: bool = False,
) -> tuple[str, dict[str, Any]]:
    """Returns the statements of the objective, and the values of the macros that they use.

    An objective that the files choose is kept. Their default is replaced by the objective of the directory's head of a
    downstream task, or else, unless the model is an encoder-decoder, by the usual objective of the model. For decoders,
    that is DECODER_OBJECTIVE if the files set it.

    Args:
      config: The model.
      settings: The settings.
      directory: The Hugging Face directory, which may have a head.
      bos_id: The first token of the rows of a decoder; None for BOS of the special tokens of the model.
      encoder_bos: Whether the encoder reads BOS first; the tokenizer of a directory says it, too.

    Raises:
      UserError: BOS is an id of another vocabulary than the data's, and BOS_ID is not given.
    """
    from t5x_like import interop
    from t5x_like.config import description
    from t5x_like.config.values import Reference

    usual, parameters = description.usual_objective(config, directory)
    if bos_id is not None:
        parameters = {**parameters, "bos_id": bos_id}
    if encoder_bos:
        parameters = {**parameters, "encoder_bos": True}
    _check_bos(parameters.get("bos_id"), settings)
    values = {name.upper(): value for name, value in parameters.items()}
    if "bos_id" in parameters:
        values["VOCABULARY_BOS_ID"] = parameters["bos_id"]
    current = settings.value("OBJECTIVE")
    is_default = isinstance(current, Reference) and current.selector.endswith(f".{_DEFAULT_OBJECTIVE}")
    if settings.is_given("OBJECTIVE") or not (current is None or is_default):
        return "", values
    if settings.root != TRAIN and directory is not None and (head := interop.task_head(directory)) is not None:
        return description.describe_head(head), values | {"PACK": False}
    if isinstance(chosen := settings.value("DECODER_OBJECTIVE"), Reference) and usual.__name__ == "CausalLM":
        return f"import {chosen.selector.rpartition('.')[0]}\nOBJECTIVE = {chosen!r}\n", values
    return description.describe_objective(usual, {name: f"%{name.upper()}" for name in parameters}), values


def _check_bos(bos_id: int | None, settings: KnownSettings) -> None:
    """Checks that BOS of pretrained weights is a token of the data's vocabulary. 0 is padding in both."""
    if bos_id and settings.value("INITIAL_OTHER_VOCABULARY") is True:
        if settings.is_used("BOS_ID") and not settings.is_given("BOS_ID"):
            raise UserError(
                f"BOS_ID={bos_id}: of the vocabulary of the pretrained weights, but INITIAL_OTHER_VOCABULARY=True. "
                "Give --gin.BOS_ID=…, the first input of the decoder in the vocabulary of the data."
            )


def describe_head(settings: KnownSettings, form: Callable[[str], HeadForm]) -> str:
    """Returns the statements of the head in the form that transformers has for the model and the objective.

    Args:
      settings: The settings.
      form: Returns the form of a head, given its name.
    """
    from t5x_like.config import description

    users = settings.users("HEAD")
    if not users or settings.is_given("HEAD"):
        return ""
    # The module of an objective of t5x_like has the name of its head; the module of a user's objective may not.
    name = getattr(sys.modules.get(users[0].rpartition(".")[0]), "NAME", None)
    return "" if name is None else description.describe_dataclass("HEAD", form(name))
