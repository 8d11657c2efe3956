"""Setup before JAX and TensorFlow are imported: devices, import paths, logging, garbage collection."""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator

from t5x_like.cli.arguments import Arguments
from t5x_like.errors import UserError
from t5x_like.runtime import console_log, quiet_imports

# New objects between two collections of the youngest garbage.
COLLECT_AFTER = 50_000


def prepare(arguments: Arguments) -> None:
    """Sets up devices, imports and logging. Call this before JAX is imported for the first time."""
    if arguments.dry_run:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # a dry run does not need an accelerator
        os.environ.setdefault("NO_GCE_CHECK", "true")  # otherwise TensorFlow searches for a metadata server for minutes
    if arguments.cpu_devices is not None:
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["JAX_NUM_CPU_DEVICES"] = str(arguments.cpu_devices)
        if "jax" in sys.modules:  # in a notebook
            _configure_devices(arguments.cpu_devices)
    if arguments.debug:
        os.environ.update(JAX_DISABLE_JIT="1", JAX_DEBUG_NANS="1")
        if "jax" in sys.modules:
            sys.modules["jax"].config.update("jax_disable_jit", True)
            sys.modules["jax"].config.update("jax_debug_nans", True)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # otherwise TensorFlow logs each GPU that it cannot use
    if arguments.log_level != "debug":
        quiet_imports.install()
    try:
        working_directory = os.getcwd()
    except FileNotFoundError as error:
        raise UserError("the working directory was deleted or renamed. Change to an existing one with `cd`.") from error
    # Console scripts do not have these paths. Append, so that a directory cannot shadow an installed package.
    for directory in (working_directory, *map(os.path.abspath, arguments.search_paths)):
        if directory not in sys.path:
            sys.path.append(directory)
    log(arguments.log_level)


@contextlib.contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Collects garbage less often while the context is active.

    Collections examine all objects of JAX and TensorFlow. At Python's threshold of 700 new objects they take a third of
    the time of imports, parsing and tracing.
    """
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _configure_devices(count: int) -> None:
    """Sets the number of fake CPU devices of an imported JAX, which raises if its devices are already in use."""
    config = sys.modules["jax"].config
    for name, value in (("jax_platforms", "cpu"), ("jax_num_cpu_devices", count)):
        if getattr(config, name) != value:
            config.update(name, value)


def log(level: str) -> None:
    """Shows log lines of this project and the user's modules, and warnings of other packages."""
    import logging

    from absl import logging as absl_logging

    logging.basicConfig(level=level.upper(), handlers=[console_log.handler(everything=level == "debug")], force=True)
    absl_logging.set_verbosity(level)
