"""The errors whose message is all that a user needs: a command prints them without a traceback."""


class UserError(ValueError):
    """The user's input cannot be used; the command exits with 2, and supervisors do not restart it.

    Raised at the place that knows the cause. The message names the thing, its value, what is wrong and what to do.
    """


class RunFailed(RuntimeError):
    """The run cannot continue; the command exits with 1, and a supervisor may start it again.

    The message says what happened, what is kept and what to do.
    """
