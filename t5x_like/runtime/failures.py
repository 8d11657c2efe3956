"""Why processes of a run have failed; each tells the others through JAX's coordination service before it exits."""

import dataclasses
import json

import jax
from absl import logging

from t5x_like.errors import RunFailed, UserError
from t5x_like.runtime import protocol

_DIRECTORY = "t5x_like/failures"


@dataclasses.dataclass(frozen=True)
class Failure:
    """The failure of a process.

    Attributes:
      reason: the message of its error.
      exit_code: its exit code; see `protocol`.
    """

    reason: str
    exit_code: int


def publish(error: Exception) -> None:
    """Tells the other processes of the run why this one fails. Does nothing in a run of one process."""
    if not jax.distributed.is_initialized():
        return
    code = error.exit_code if isinstance(error, RunFailed) else protocol.FAILURE
    failure = Failure(str(error) or type(error).__name__, protocol.USER_ERROR if isinstance(error, UserError) else code)
    try:
        _client().key_value_set(f"{_DIRECTORY}/{jax.process_index()}", json.dumps(dataclasses.asdict(failure)))
    except Exception as unreachable:  # process 0, which holds the reasons, may have ended
        logging.debug("the reason of the failure is not published: %s", unreachable)


def published() -> dict[int, Failure]:
    """Returns the failure of each process that has failed, by its index."""
    try:
        found = _client().key_value_dir_get(_DIRECTORY)
    except Exception as unreachable:
        logging.debug("the reasons of other processes are not known: %s", unreachable)
        return {}
    return {int(name.rsplit("/", 1)[-1]): Failure(**json.loads(text)) for name, text in sorted(found)}


def is_connected() -> bool:
    """Returns whether the coordination service answers this process. It does not after the loss of a process."""
    try:
        _client().key_value_dir_get(_DIRECTORY)
    except Exception:
        return False
    return True


def _client():
    from orbax.checkpoint import multihost  # takes a second to import, and JAX has no public function

    return multihost.get_jax_distributed_client()
