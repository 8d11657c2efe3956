"""Imports the modules that register tasks, and finds tasks and mixtures by name."""

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from t5x_like.errors import UserError
from t5x_like.packages import MissingPackageError

if TYPE_CHECKING:
    import seqio

# Module that registers the shipped tasks. It is imported by name, because the library does not depend on it.
SHIPPED_TASKS = "data_tasks.shipped_tasks"
_INSTALL_COMMAND = "pip install seqio tensorflow tensorflow-text tensorflow-datasets"


def import_modules(module: str | Sequence[str] | None) -> None:
    """Imports the modules that register the shipped tasks and the user's tasks.

    Args:
      module: One or several user modules; the working directory is searched too.

    Raises:
      UserError: a module does not exist or raises an error, or TensorFlow, TFDS or SeqIO is not installed.
    """
    _load_tensorflow()
    modules = [module] if isinstance(module, str) else list(module or ())
    if (directory := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.append(directory)
    for name in (SHIPPED_TASKS, *modules):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
                raise _broken(name, error) from error  # the module exists, but one of its imports does not
            raise UserError(
                f"MIXTURE_OR_TASK_MODULE={name!r}: module {error.name!r} not found in {directory} or on the Python "
                "path. Give a dotted name such as my_tasks or my_package.tasks."
            ) from error
        except UserError:
            raise
        except Exception as error:
            raise _broken(name, error) from error


def _broken(module: str, error: Exception) -> UserError:
    """Returns the error for a task module that raises an error when it is imported."""
    at = next(
        (
            f" ({frame.filename}:{frame.lineno})"
            for frame in reversed(traceback.extract_tb(error.__traceback__))
            if not frame.filename.startswith("<")
        ),
        "",
    )
    return UserError(
        f"MIXTURE_OR_TASK_MODULE={module!r}: {type(error).__name__}: {error}{at}. Correct the module; "
        "--log_level=debug shows the traceback."
    )


def _load_tensorflow() -> None:
    try:
        import seqio  # noqa: F401

        from t5x_like.data.seqio_feed import devices  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"{error.name!r} is not installed, and reading a SeqIO task needs TensorFlow, TFDS and SeqIO. Run "
            f"`{_INSTALL_COMMAND}`. Training from a cache needs none of them; see data/cached.gin."
        ) from error


def find_provider(name: str) -> "seqio.Task | seqio.Mixture":
    """Returns the task or mixture with a registered name.

    Raises:
      UserError: the name is not registered; the message lists the nearest names.
    """
    import seqio

    if not name:
        raise UserError(
            "MIXTURE_OR_TASK_NAME is not set. Give a registered task or mixture; or for text without a task, "
            "VOCABULARY_PATH."
        )
    names = [*seqio.MixtureRegistry.names(), *seqio.TaskRegistry.names()]
    if name not in names:
        if near := difflib.get_close_matches(name, names, n=5, cutoff=0.4):
            known = f"The nearest names are {', '.join(near)}."
        else:
            beginnings = dict.fromkeys(known.partition("_")[0] for known in sorted(names))
            known = f"No registered name is similar; they begin with {', '.join(beginnings)}."
        raise UserError(
            f"MIXTURE_OR_TASK_NAME={name!r} is not registered. {known} For your own task, set MIXTURE_OR_TASK_MODULE "
            "to the module that registers it."
        )
    return seqio.get_mixture_or_task(name)
