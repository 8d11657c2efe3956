"""Errors that a command reports by their message alone, without a traceback."""


class UserError(ValueError):
    """Invalid user input. The command exits with code 2, and supervisors do not restart it.

    Raise it where the cause is known. The message names the value, the problem and the solution:
    `<thing> <value>: <what is wrong>. <what to do>.`
    """


class RunFailed(RuntimeError):
    """A run that cannot continue. The command exits with code 1, and a supervisor may restart it.

    The message names the problem, the saved state and the solution.
    """
