"""Imports of optional packages, which extras of setup.py install."""

import importlib
from types import ModuleType

from t5x_like.errors import MachineError


class MissingPackageError(MachineError):
    """An optional package is not installed."""


def require(module: str, purpose: str, *, extra: str) -> ModuleType:
    """Imports a module of an optional package.

    Args:
      module: full name of the module, such as `pyarrow.parquet`.
      purpose: what needs it, for the message.
      extra: name of the extra that installs the package.

    Returns:
      The module.

    Raises:
      MissingPackageError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the package is installed, and something that it needs is missing
        raise MissingPackageError(
            f"{purpose} needs {module.partition('.')[0]}, which is not installed. Run `pip install -e '.[{extra}]' -c "
            "constraints.txt`."
        ) from error
