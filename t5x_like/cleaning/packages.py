"""Packages of the extra `clean`, which are imported when a step needs them."""

import importlib
from types import ModuleType

from t5x_like.errors import UserError

INSTALL = "pip install -e '.[clean]' -c constraints.txt"


def require(module: str, purpose: str) -> ModuleType:
    """Imports a module of the extra `clean`.

    Args:
      module: name of the module.
      purpose: what needs it, for the message.

    Raises:
      UserError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{purpose} needs {module.partition('.')[0]}, which is not installed. Run `{INSTALL}`."
        ) from error
