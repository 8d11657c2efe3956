"""Pipelines of Apache Beam, and the errors of their options and workers."""

import contextlib
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from t5x_like import packages
from t5x_like.errors import RunFailed, UserError
from t5x_like.runtime import background, protocol

if TYPE_CHECKING:
    import apache_beam as beam

# Beam appends the name of the transform to the message of an error.
_WHILE = re.compile(r" \[while running .*", re.DOTALL)
_ENDED = re.compile(r"Worker subprocess exited with return code (-?\d+)")


def check_options(options: Sequence[str] | None) -> None:
    """Checks that the setting BEAM has options of a pipeline.

    Raises:
      UserError: it is not a list of strings.
    """
    if options is None or (isinstance(options, list | tuple) and all(isinstance(option, str) for option in options)):
        return
    raise UserError(
        f"BEAM={options!r} is not a list of pipeline options. Give one such as "
        "--gin.BEAM=\"['--runner=DataflowRunner', …]\", or omit it to run on this machine."
    )


def make_pipeline(options: Sequence[str], **flags: bool) -> "beam.Pipeline":
    """Makes a pipeline with the options of the setting BEAM.

    Args:
      options: options such as `--runner=DataflowRunner`; () for a pipeline in this process.
      **flags: further options, by their names in Beam.

    Raises:
      UserError: the runner is unknown, or a package that it needs is not installed.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    if is_dask(options):
        packages.require("distributed", "BEAM with DaskRunner", extra="dask")
    try:
        return beam.Pipeline(options=PipelineOptions(list(options), **flags))
    except (AttributeError, ImportError, ValueError) as error:  # of the name of the runner, and of values
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise UserError(
            f"BEAM={list(options)}: {reason}. Give a runner of Beam, such as "
            "--runner=DataflowRunner or --runner=apache_beam.runners.dask.dask_runner.DaskRunner, and its options."
        ) from error


def run(pipeline: "beam.Pipeline") -> None:
    """Runs a pipeline and waits for its end.

    Args:
      pipeline: the pipeline.

    Raises:
      UserError: a worker has raised one.
      RunFailed: a worker has raised one, workers were killed again and again, or no scheduler answers.
    """
    with explained():
        result = pipeline.run()
        try:
            result.wait_until_finish()
        finally:
            if (client := getattr(result, "client", None)) is not None:  # of Dask, which reports lost connections
                client.close()


def is_dask(options: Sequence[str] | None) -> bool:
    """Returns whether the setting BEAM names the runner on Dask."""
    return any("DaskRunner" in option for option in options or ())


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raises the `UserError` or `RunFailed` of a worker with its own message, and other errors as they are.

    If a worker process of this machine ends, such as by SIGKILL, the process exits with a message: the runner of Beam
    would wait for the worker forever.
    """
    hook = threading.excepthook
    threading.excepthook = _exit_if_worker_ended(hook)
    try:
        yield
    except Exception as error:
        if (original := _original(error)) is None:
            raise
        raise original from error
    finally:
        threading.excepthook = hook


def _exit_if_worker_ended(otherwise):
    """Returns a hook for errors in threads: a thread of Beam waits for each worker process."""

    def hook(args):
        found = _ENDED.fullmatch(str(args.exc_value))
        if found is None:
            return otherwise(args)
        print(
            f"t5x_like: a worker process of Apache Beam ended with code {found[1]} (137: killed, such as for lack of "
            "memory). Repeat the command; for less memory, with fewer workers.",
            file=sys.stderr,
        )
        background.exit_without_waiting(protocol.FAILURE)

    return hook


def _original(error: Exception) -> UserError | RunFailed | None:
    """Returns the error of a worker, None for errors of other kinds.

    Within this process, Beam raises the error with a longer message. Runners with other processes raise an error whose
    message is the traceback of the worker.
    """
    if type(error).__name__ == "KilledWorker":  # of Dask
        return RunFailed(
            f"workers of Dask were killed several times, such as for lack of memory: {error} Repeat the command; for "
            "less memory, with fewer threads per worker."
        )
    if isinstance(error, OSError) and "trying to connect to" in str(error):  # of Dask
        return RunFailed(f"BEAM: {error}. Start the scheduler, or correct its address in --dask_client_address.")
    for kind in (UserError, RunFailed):
        if isinstance(error, kind):
            return kind(_WHILE.sub("", str(error)))
        if found := re.findall(rf"^{re.escape(kind.__module__)}\.{kind.__name__}: (.*)$", str(error), re.MULTILINE):
            return kind(_WHILE.sub("", found[-1]))
    return None
