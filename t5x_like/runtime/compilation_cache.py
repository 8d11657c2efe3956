"""JAX's persistent compilation cache. It is on by default: the next start reads programs instead of compiling them.

The cached executable is byte-identical to the compiled one, so a resumed run computes the same bits.
"""

import contextlib
import dataclasses
import os
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import filelock
import jax
from absl import logging
from jax.experimental.compilation_cache import compilation_cache

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.runtime import cpu

# The macro that sets the directory of the cache; None disables the cache.
MACRO = "COMPILATION_CACHE_DIR"
SUBDIRECTORY = "compilation_cache"
# Limit of a local cache: the programs of dozens of configurations. JAX removes the least recently used ones.
MAX_BYTES = 4 * 2**30
_HIT, _STORED = "/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses"


@dataclasses.dataclass
class _Use:
    """Counts the programs read and stored since `persistent` was entered, and keeps the counts last logged."""

    directory: str
    found: int = 0
    stored: int = 0
    logged: tuple[int, int] = (0, 0)

    def count(self, event: str, **_) -> None:
        self.found += event == _HIT
        self.stored += event == _STORED


_active: _Use | None = None


def choose_directory(macros: Mapping[str, Any], run_directory: str | None) -> str | None:
    """Chooses the cache directory: `COMPILATION_CACHE_DIR`, else the run's bucket, else the user's cache directory.

    Args:
      macros: The macros of the configuration.
      run_directory: The run directory, or None.

    Returns:
      A local path or URL, or None for no cache.

    Raises:
      UserError: `COMPILATION_CACHE_DIR` is not text or None.
    """
    if MACRO in macros:
        value = macros[MACRO]
        if value is not None and not (isinstance(value, str) and value):
            raise UserError(f"{MACRO}={value!r}: not a path. Give a path or URL as text, or None for no cache.")
        return str(paths.local(value).absolute()) if value and paths.is_local(value) else value
    if run_directory and not paths.is_local(run_directory):
        return paths.join(run_directory, SUBDIRECTORY)
    return paths.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "t5x_like", SUBDIRECTORY)


@contextlib.contextmanager
def persistent(directory: str | None) -> Iterator[None]:
    """Caches compiled programs in a directory while the context is active.

    On exit, the number of reused programs is logged at level debug: the last line of a command is its result.
    `JAX_COMPILATION_CACHE_DIR` in the environment takes precedence. If the directory is not writable, one warning is
    logged and nothing is cached.

    Args:
      directory: A local path or URL, see `choose_directory`. It gets a subdirectory per kind of CPU.
    """
    global _active
    cache_dir = jax.config.jax_compilation_cache_dir
    with contextlib.ExitStack() as settings:
        if directory and not cache_dir:
            cache_dir = paths.join(directory, cpu.fingerprint())
            try:
                _prepare(cache_dir)
            except Exception as error:  # file systems raise errors of many types, and a run works without a cache
                logging.warning(
                    "compilation cache %s: not writable (%s: %s). Programs are compiled at every start. Set another "
                    "directory with --gin.%s=…, or None for no cache.",
                    *(cache_dir, type(error).__name__, error, MACRO),
                )
                cache_dir = None
            else:
                _configure(cache_dir, settings)
        if not cache_dir or not jax.config.jax_enable_compilation_cache:
            yield
            return
        outer, use = _active, _Use(cache_dir)
        _active = use
        jax.monitoring.register_event_listener(use.count)
        try:
            yield
        finally:
            log_use(logging.DEBUG)
            jax.monitoring.unregister_event_listener(use.count)
            _active = outer


def log_use(level: int = logging.INFO) -> None:
    """Logs the numbers of cached and compiled programs, unless they are unchanged since the last call.

    Args:
      level: Level of the line.
    """
    if _active is None or (_active.found, _active.stored) == _active.logged:
        return
    _active.logged = (_active.found, _active.stored)
    logging.log(level, "compilation cache %s: %d programs found, %d compiled", _active.directory, *_active.logged)


def _prepare(cache_dir: str) -> None:
    """Creates the directory, checks that it is writable, and removes incomplete entries of killed processes."""
    if not paths.is_local(cache_dir):
        probe = paths.join(cache_dir, f"probe-{uuid.uuid4().hex}")
        paths.write_atomic(probe, "")
        paths.remove(probe)
        return
    local = paths.local(cache_dir)
    local.mkdir(parents=True, exist_ok=True)
    probe = local / f"probe-{uuid.uuid4().hex}"
    probe.touch()
    probe.unlink()
    # JAX writes a program and then its time of use under this lock. A program without one breaks every eviction.
    with filelock.FileLock(local / ".lockfile", timeout=10):
        for program in local.glob("*-cache"):
            if not program.with_name(program.name.removesuffix("-cache") + "-atime").exists():
                program.unlink()


def _configure(cache_dir: str, settings: contextlib.ExitStack) -> None:
    """Configures JAX to use the cache directory until `settings` is closed."""
    values = {"jax_compilation_cache_dir": cache_dir}
    if not paths.is_local(cache_dir):
        # Neither XLA's own caches nor the lock file that a size limit needs work in a bucket.
        values["jax_persistent_cache_enable_xla_caches"] = "none"
    elif jax.config.jax_compilation_cache_max_size == -1:
        values["jax_compilation_cache_max_size"] = MAX_BYTES
    before = {name: getattr(jax.config, name) for name in values}

    def configure(given):
        for name, value in given.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # JAX reads these settings only once

    settings.callback(configure, before)
    configure(values)
