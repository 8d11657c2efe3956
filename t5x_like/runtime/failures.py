"""Why processes of a run have failed; each tells the others through JAX's coordination service before it exits.

A process that learns of another's failure exits with its exit code and its message. Otherwise its supervisor would
restart it, and wait for a process that does not come back.
"""

import dataclasses
import json
import os
import sys
import threading
import time

import jax
from absl import logging

from t5x_like.errors import RunFailed, UserError
from t5x_like.runtime import protocol, terminal, watchdog

# Keys: the failure of a function, which its caller may handle; the failure that a process exits with; who has read it.
_FAILURES, _EXITS, _SEEN = "t5x_like/failures", "t5x_like/exits", "t5x_like/exits_seen"
_POLL_SECONDS = 1.0
# How long a process may take to exit by itself after the failure of another one: a failed collective ends it, too.
_GRACE_SECONDS = 10.0
# How long it may take to clean up once JAX aborts it, in a thread.
_ABORT_SECONDS = 3.0
# How long process 0, whose memory holds the reasons, waits for the others to read them.
_SEEN_SECONDS = 5.0
_REASON_CHARACTERS = 10_000
# The failures that this process has read, for when process 0 has exited.
_known: dict[int, "Failure"] = {}
# Set once JAX aborts this process: its client no longer answers then, and may hold locks.
_aborts = threading.Event()


@dataclasses.dataclass(frozen=True)
class Failure:
    """The failure of a process.

    Attributes:
      reason: The message of its error.
      exit_code: Its exit code; see `protocol`.
      names_process: Whether the reason is the failure of another process, which it names.
    """

    reason: str
    exit_code: int
    names_process: bool


def named(process: int, reason: str) -> str:
    """Returns the message of the failure of a process for the others."""
    return f"process {process} of {jax.process_count()} has failed: {reason}"


def exit_code_of(error: BaseException) -> int:
    """Returns the exit code of a command that an error ends."""
    if isinstance(error, UserError):
        return protocol.USER_ERROR
    return error.exit_code if isinstance(error, RunFailed) else protocol.FAILURE


def publish(error: Exception) -> None:
    """Tells the other processes of the run why this one fails. Does nothing in a run of one process."""
    if jax.distributed.is_initialized():
        _publish(_FAILURES, error, exit_code_of(error))


def publish_exit(error: BaseException, exit_code: int) -> None:
    """Tells the other processes that this one exits, and waits until they know: process 0 has the reasons in memory.

    Args:
      error: Why it exits.
      exit_code: Its exit code.
    """
    _publish(_EXITS, error, exit_code)
    if exit_code != protocol.LOST_PEER:
        _wait_until_seen()


def _publish(directory: str, error: BaseException, exit_code: int) -> None:
    names_process = isinstance(error, RunFailed) and error.names_process
    failure = Failure((str(error) or type(error).__name__)[:_REASON_CHARACTERS], exit_code, names_process)
    _set(f"{directory}/{jax.process_index()}", json.dumps(dataclasses.asdict(failure)))


def published() -> dict[int, Failure]:
    """Returns the failure of each process that has failed, by its index."""
    found = [entry for directory in (_FAILURES, _EXITS) for entry in _list(directory)]
    _known.update({int(name.rsplit("/", 1)[-1]): Failure(**json.loads(text)) for name, text in found})
    return dict(_known)


def of_another() -> tuple[str, int] | None:
    """Returns the message and the exit code of the failure of another process, or None if none has failed."""
    known = {process: failure for process, failure in published().items() if process != jax.process_index()}
    if not known:
        return None
    # A process that has lost another one, too, does not know the reason.
    process, failure = min(known.items(), key=lambda item: (item[1].exit_code == protocol.LOST_PEER, item[0]))
    # The reason may be that of a third process, which this one has read.
    return failure.reason if failure.names_process else named(process, failure.reason), failure.exit_code


def watch() -> None:
    """Ends this process soon after another one has told why it fails. Call it once all processes have joined."""
    threading.Thread(target=_watch, name="failures", daemon=True).start()


def _watch() -> None:
    while not _list(_EXITS):
        time.sleep(_POLL_SECONDS)
        if not jax.distributed.is_initialized():
            return
    published()  # while process 0 answers
    _acknowledge()
    time.sleep(_GRACE_SECONDS)
    if (known := of_another()) is None:  # this process exits for a reason of its own
        return
    _wait_until_seen()
    exit_because(*known)


def exit_because(message: str, exit_code: int) -> None:
    """Exits at once, with a message and an exit code, and reports them in the status of the run.

    Args:
      message: The message, such as that of `of_another`.
      exit_code: The exit code.
    """
    print(f"t5x_like: {terminal.visible(message)}", file=sys.stderr, flush=True)
    reporting = threading.Thread(target=watchdog.report, args=(message,), daemon=True)  # a store may not answer
    reporting.start()
    reporting.join(_SEEN_SECONDS)
    os._exit(exit_code)


def exit_unless(ended: threading.Event, error: Exception) -> None:
    """Exits with an error, which the other processes then know, unless a run ends soon.

    Args:
      ended: Set when it ends.
      error: The error.
    """
    if ended.wait(_GRACE_SECONDS):
        return
    if jax.distributed.is_initialized():
        publish_exit(error, exit_code_of(error))
    exit_because(str(error), exit_code_of(error))


def on_abort() -> None:
    """Exits a process that JAX aborts, if another one has told why it fails. Otherwise it returns."""
    _aborts.set()
    if (known := of_another()) is not None:
        time.sleep(_ABORT_SECONDS)
        exit_because(*known)


def _acknowledge() -> None:
    """Tells process 0 that this process knows that one exits."""
    _set(f"{_SEEN}/{jax.process_index()}", "1")


def _wait_until_seen() -> None:
    """Waits in process 0 until all processes know that one exits, or have not answered for a while."""
    deadline = time.monotonic() + _SEEN_SECONDS
    _acknowledge()
    while jax.process_index() == 0 and time.monotonic() < deadline and len(_list(_SEEN)) < jax.process_count():
        time.sleep(_POLL_SECONDS / 10)


def is_connected() -> bool:
    """Returns whether the coordination service answers this process. It does not after the loss of a process."""
    try:
        _client().key_value_dir_get(_EXITS)
    except Exception:
        return False
    return True


def _list(directory: str) -> list[tuple[str, str]]:
    """Returns the keys and values of a directory; none if process 0 does not answer."""
    if _aborts.is_set():
        return []
    try:
        return _client().key_value_dir_get(directory)
    except Exception as unreachable:
        logging.debug("%s is not known: %s", directory, unreachable)
        return []


def _set(key: str, value: str) -> None:
    if _aborts.is_set():
        return
    try:
        _client().key_value_set(key, value)
    except Exception as error:  # the key is set already, or process 0, which holds the values, has ended
        logging.debug("%s is not set: %s", key, error)


def _client():
    from orbax.checkpoint import multihost  # takes a second to import, and JAX has no public function

    return multihost.get_jax_distributed_client()
