"""Exits with `LOST_PEER` where JAX aborts this process because another process of the run is lost or did not join.

JAX's client ends the process by SIGABRT, as a failed check in C++ does, so the exit code does not tell them apart.
After the loss of a peer, the coordination service no longer answers this process.
"""

import ctypes
import os
import signal
import sys
import threading

from t5x_like.runtime import failures
from t5x_like.runtime.protocol import LOST_PEER

# How long the coordination service may take to answer before it counts as lost.
_ANSWER_SECONDS = 5.0


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _on_abort(number: int) -> None:
    failures.on_abort()
    # In a thread of its own: the aborting thread may hold locks of the client.
    answered = threading.Event()
    threading.Thread(target=lambda: failures.is_connected() and answered.set(), daemon=True).start()
    if not answered.wait(_ANSWER_SECONDS):
        print(
            "t5x_like: another process of the run is lost, or has not joined. To resume from the latest checkpoint, "
            "start the same command in all processes",
            file=sys.stderr,
            flush=True,
        )
        os._exit(LOST_PEER)


def explain_aborts() -> None:
    """Examines each SIGABRT from now on. Other aborts end the process as before, after this handler has returned."""
    # Python's own handlers run in the main thread only, which may never return from a collective.
    ctypes.CDLL(None).signal(signal.SIGABRT, _on_abort)
