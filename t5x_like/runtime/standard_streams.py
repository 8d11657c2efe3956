"""Standard input, output and error of a process that was started without some of them. Does not import JAX."""

import os
import select
import sys


def open_missing() -> None:
    """Opens the null device in place of closed standard streams, as after `t5x_like train >&-`.

    Python sets such a stream to None, which many libraries do not expect. The next file that the process opens would
    have the number of the stream, so that native libraries, which log to file descriptor 2, would write into it.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if not _is_open(descriptor):
            null_device = os.open(os.devnull, os.O_RDWR)
            os.dup2(null_device, descriptor)  # also inherited by child processes, if it already has this number
            os.set_inheritable(descriptor, True)
            if null_device != descriptor:
                os.close(null_device)
        if getattr(sys, name) is None:
            stream = open(descriptor, "w" if descriptor else "r", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def discard_unread() -> bool:
    """Replaces a standard output whose reader has left, such as `head`, by the null device.

    Returns:
      Whether its reader has left.
    """
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    if not any(events & select.POLLERR for _, events in output.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes its buffer when it exits
    return True


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
