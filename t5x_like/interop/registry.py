"""The families and formats whose weights are imported and exported, discovered in the modules of this package."""

import contextlib
import functools
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields, tensor_mapping
from t5x_like.interop.formats import Format
from t5x_like.models.base import ModelConfig


@functools.cache
def families() -> tuple[tensor_mapping.Family, ...]:
    """Returns the `FAMILY` constants of the modules of this package."""
    return _constants("FAMILY")


@functools.cache
def formats() -> tuple[Format, ...]:
    """Returns the `FORMAT` constants of the modules of this package."""
    return _constants("FORMAT")


def _constants(name: str) -> tuple[Any, ...]:
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    modules = [importlib.import_module(f"{__package__}.{module.name}") for module in found]
    return tuple(getattr(module, name) for module in modules if hasattr(module, name))


def find_format(path: str) -> Format | None:
    """Returns the published format of the weights at a path, or None if they have none of `formats`."""
    return next((each for each in formats() if each.is_input(path)), None)


def format_of(config: ModelConfig) -> Format | None:
    """Returns the published format of a family, or None if it is that of transformers, or there is none."""
    return next((each for each in formats() if each.config_class is type(config)), None)


def find_family(config: ModelConfig) -> tensor_mapping.Family | None:
    """Returns the family of a model, or None if transformers does not have it."""
    return next((family for family in families() if family.config_class is type(config)), None)


def family_of(config: ModelConfig) -> tensor_mapping.Family:
    """Returns the family of a model.

    Raises:
      UserError: transformers does not have it.
    """
    if (family := find_family(config)) is not None:
        return family
    raise UserError(
        f"{type(config).__name__}: not supported by transformers. Read the run with t5x_like. The table of families in "
        "README.md shows which ones are exported (HF out)."
    )


def family_of_type(model_type: Any, file: str) -> tensor_mapping.Family:
    """Returns the family of a `model_type` of transformers.

    Args:
      model_type: the value in config.json.
      file: path of config.json, for messages.

    Raises:
      UserError: no family has this type.
    """
    known = {name: family for family in families() for name in family.model_types}
    with file_in_errors(file):
        return fields.choice({"model_type": model_type}, "model_type", dict(sorted(known.items())))


@contextlib.contextmanager
def file_in_errors(file: str) -> Iterator[None]:
    """Adds the file to the message of a UserError that does not contain it."""
    try:
        yield
    except UserError as error:
        raise error if file in str(error) else UserError(f"{file}: {error}") from None
