"""Runs the checks of a dry run, and notes those that are not possible on this machine."""

import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from t5x_like import paths, stores
from t5x_like.errors import MachineError
from t5x_like.mesh import DeviceMismatchError

Result = TypeVar("Result")

# Packages that talk to stores.
_CLIENTS = (
    "aiohttp",
    "botocore",
    "gcsfs",
    "google.api_core",
    "google.auth",
    "google.cloud",
    "google.resumable_media",
    "requests",
    "s3fs",
    "urllib3",
)
# Errors of what this machine lacks or cannot reach.
_OF_MACHINE = (MachineError, ConnectionError, TimeoutError, stores.StoreUnreachable)

# After this time without an answer, a store is reported as not checked.
ANSWER_SECONDS = 60.0
_URL = re.compile(r"\b([a-z][a-z0-9+.-]*)://[^\s'\",;)]+")
# Schemes of local files, and of the links of messages.
_NOT_STORES = ("file", "http", "https")
_ABSOLUTE_PATH = re.compile(r"(?<![\w.:/])/[^\s'\",:;()]+")


class Checklist:
    """The checks of one dry run.

    Args:
      elsewhere: Whether the command will run on another machine. An absolute path that this machine lacks is then not
        an error, but not checked: it may exist there.
      knows_devices: Whether this process has as many devices as the command. A mesh that does not fit them is then an
        error.

    Attributes:
      elsewhere: See above.
      unchecked: Subject -> why it is not checked.
    """

    def __init__(self, *, elsewhere: bool = False, knows_devices: bool = False):
        self.elsewhere, self._knows_devices = elsewhere, knows_devices
        self.unchecked: dict[str, str] = {}

    def run(self, subject: str, check: Callable[[], Result], *, opens_store: bool = True) -> Result | None:
        """Runs a check in a thread, and returns its result; None if it is not possible here.

        Args:
          subject: What is checked.
          check: Raises an error if it is invalid.
          opens_store: Whether to wait for `ANSWER_SECONDS` only.
        """
        result, error = _call(check, ANSWER_SECONDS if opens_store else None)
        if error is None:
            return result
        if (reason := self._reason(error)) is None:
            raise error
        self.skip(subject, reason)
        return None

    def skip(self, subject: str, reason: str) -> None:
        """Notes that something is not checked. Of several reasons for one subject, the first is kept."""
        self.unchecked.setdefault(subject, reason)

    def lines(self) -> Iterator[str]:
        """Yields a line per reason for which a check was not possible, with the first subject that it concerns."""
        first = {reason: subject for subject, reason in reversed(self.unchecked.items())}
        yield from (f"not checked: {subject}: {reason}" for reason, subject in reversed(first.items()))

    def _reason(self, error: Exception) -> str | None:
        """Returns why an error of a check is not one of the command, but of this machine; None if it is."""
        text, causes = str(error), [error]
        while (cause := causes[-1].__cause__) is not None:
            causes.append(cause)
        if self._knows_devices and any(isinstance(each, DeviceMismatchError) for each in causes):
            return None
        is_of_machine = any(isinstance(each, _OF_MACHINE) or _is_of_client(each) for each in causes)
        lacks_path = self.elsewhere and any(map(_is_missing, _ABSOLUTE_PATH.findall(text)))
        stores = {match[0] for match in _URL.finditer(text) if match[1] not in _NOT_STORES}
        if not (is_of_machine or lacks_path or not all(map(_answers, stores))):
            return None
        return next(iter(text.splitlines()), type(error).__name__)


def _call(function: Callable[[], Any], seconds: float | None) -> tuple[Any, Exception | None]:
    """Calls a function in a thread. Returns its result and its error; a `TimeoutError` if it takes too long."""
    results: list[Any] = []
    errors: list[Exception] = []

    def compute() -> None:
        try:
            results.append(function())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    thread.join(seconds)
    if results:
        return results[0], None
    return None, errors[0] if errors else TimeoutError(f"no answer within {seconds:.0f} s")


def _is_of_client(error: Exception) -> bool:
    """Returns whether a library that talks to a store has raised an error of its own."""
    modules = [f"{kind.__module__}." for kind in type(error).__mro__]
    return any(module.startswith(f"{client}.") for module in modules for client in _CLIENTS)


def _answers(url: str) -> bool:
    """Returns whether a store can be read, so that what it does not have is missing."""
    scheme, _, inner = url.partition("://")
    bucket = f"{scheme}://{inner.partition('/')[0]}"
    return _call(lambda: paths.exists(bucket), ANSWER_SECONDS)[1] is None


def _is_missing(path: str) -> bool:
    """Returns whether a path, or the directory of a pattern, is missing outside of the working directory."""
    fixed = re.split(r"[*?\[]", path)[0]
    known = fixed if fixed == path else os.path.dirname(fixed)
    return not os.path.exists(known.rstrip(".")) and os.path.commonpath([os.getcwd(), known]) != os.getcwd()
