"""Errors that a command reports by their message alone, without a traceback."""

from t5x_like.runtime import protocol


class UserError(ValueError):
    """Invalid user input. The command exits with code 2, and supervisors do not restart it.

    Raise it where the cause is known. The message names the value, the problem and the solution:
    `<thing> <value>: <what is wrong>. <what to do>.`
    """


class MachineError(UserError):
    """The machine lacks what a command needs, such as a package, devices or access. Another machine may have it.

    A dry run reports it as not checked.
    """


class RunFailed(RuntimeError):
    """A run that cannot continue, or output that cannot be written.

    A supervisor may restart the command. The message names the problem, the saved state and the solution.

    Attributes:
      exit_code: exit code of the command; see `runtime.protocol`.
      names_process: whether the message is the failure of another process, which it names.
    """

    exit_code: int = protocol.FAILURE
    names_process: bool = False


class RunStopped(RunFailed):
    """A run that a signal has stopped after it was saved, so that its command cannot go on.

    The command exits with the code of a run that stopped by itself; see docs/reliability.md.

    Args:
      message: The message.
      stopped_by: The signal or notice.
    """

    def __init__(self, message: str, stopped_by: str):
        super().__init__(message)
        self.stopped_by = stopped_by
