"""Errors that a command reports by their message, without a traceback."""


class UserError(ValueError):
    """Invalid user input: the command exits with code 2, and supervisors do not restart it.

    Raise it where the cause is known, with a message that says which value is wrong, why, and what to do.
    """


class RunFailed(RuntimeError):
    """A run that cannot continue: the command exits with code 1, and a supervisor may restart it.

    The message says what happened, what is saved and what to do.
    """
