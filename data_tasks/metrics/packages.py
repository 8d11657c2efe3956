"""Imports of the packages that compute metrics, which the extra `eval` installs."""

import importlib
from types import ModuleType

from t5x_like.errors import UserError


def require(name: str) -> ModuleType:
    """Imports a module of a package that the extra `eval` installs.

    Args:
      name: the full name of the module, such as `sklearn.metrics`.

    Returns:
      The module.

    Raises:
      UserError: the package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the package is installed, and something that it needs is missing
        raise UserError(
            f"{name}: not installed, but a metric of the task computes with it. Install the extra `eval`: "
            "pip install -e '.[eval]' -c constraints.txt."
        ) from error
