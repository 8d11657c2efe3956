"""What is set before JAX and TensorFlow are imported: devices, import paths, logging."""

import os
import sys

from t5x_like import console_log
from t5x_like.cli import quiet_imports
from t5x_like.cli.arguments import Arguments


def prepare(arguments: Arguments) -> None:
    """Sets up devices, imports and logging. To be called before JAX is imported for the first time."""
    if arguments.dry_run:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing is computed, so no accelerator is taken
        os.environ.setdefault("NO_GCE_CHECK", "true")  # or TensorFlow looks for a metadata server for minutes
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
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # or TensorFlow reports each GPU that it may not use
    if arguments.log_level != "debug":
        quiet_imports.install()
    # A console script does not have these. Last, so that a folder named like an installed package hides nothing.
    for folder in (os.getcwd(), *map(os.path.abspath, arguments.search_paths)):
        if folder not in sys.path:
            sys.path.append(folder)
    log(arguments.log_level)


def _configure_devices(count: int) -> None:
    """Sets the number of fake CPU devices of an imported JAX, which refuses a change once devices are in use."""
    config = sys.modules["jax"].config
    for name, value in (("jax_platforms", "cpu"), ("jax_num_cpu_devices", count)):
        if getattr(config, name) != value:
            config.update(name, value)


def log(level: str) -> None:
    """Reports what this project and a user's modules log; other packages only when they warn."""
    import logging

    from absl import logging as absl_logging

    logging.basicConfig(level=level.upper(), handlers=[console_log.handler(everything=level == "debug")], force=True)
    absl_logging.set_verbosity(level)
