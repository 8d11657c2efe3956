"""Names the gin file of `hardware/` whose XLA options a run lacks, and checks the options of a run."""

import contextlib
import functools
import re
from collections.abc import Collection, Iterator

import jax
from absl import logging
from jax.sharding import Mesh

from t5x_like.errors import UserError

# Generation -> `device_kind` of its JAX devices; versions of libtpu have different names.
TPU_KINDS = {
    "v4": ("TPU v4",),
    "v5e": ("TPU v5 lite", "TPU v5e"),
    "v5p": ("TPU v5", "TPU v5p"),
    "v6e": ("TPU v6 lite", "TPU v6e"),
    "tpu7x": ("TPU7x",),
}
# Device kind -> gin file.
_TPUS = {kind: f"{generation}.gin" for generation, kinds in TPU_KINDS.items() for kind in kinds}
# Beginnings of the names of options that only the compiler for TPUs has.
_TPU_OPTIONS = ("xla_tpu_", "xla_jf_")


def file_name(mesh: Mesh) -> str | None:
    """Returns the gin file for the devices of a mesh, or None if there is none.

    Args:
      mesh: TPUs, GPUs or CPUs. The options for GPUs configure collectives, so a single GPU has no file.
    """
    device = mesh.devices.flat[0]
    if device.platform == "gpu":
        return "hardware/gpu.gin" if mesh.size > 1 else None
    return f"hardware/{_TPUS[device.device_kind]}" if device.device_kind in _TPUS else None


def suggest(mesh: Mesh) -> None:
    """Logs which file to give to a run without XLA options, once per file.

    Args:
      mesh: As for `file_name`. Nothing is logged if there is no file for it.
    """
    if file := file_name(mesh):
        _log_once(file)


def check(options: Collection[str], platform: str) -> None:
    """Checks that options for TPUs are not set on another platform.

    Args:
      options: Their names.
      platform: Platform of the mesh, such as `cpu`.

    Raises:
      UserError: An option is one for TPUs, and the platform is another.
    """
    for name in options:
        if platform != "tpu" and name.startswith(_TPU_OPTIONS):
            raise UserError(
                f"compiler_options[{name!r}]: an XLA option for TPUs, but the devices of this run are {platform}. Omit "
                "the --gin_file=hardware/… that sets it, or run on a TPU"
            )


@contextlib.contextmanager
def explain_unknown_options(platform: str) -> Iterator[None]:
    """Converts XLA's error about an unknown option.

    Args:
      platform: Platform of the mesh.

    Raises:
      UserError: Instead of XLA's error.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not (match := re.search(r"No such compile option: '(\w+)'", str(error))):
            raise
        raise UserError(
            f"compiler_options[{match[1]!r}]: XLA for {platform} has no such option. Correct its name, or remove it"
        ) from error


@functools.cache
def _log_once(file: str) -> None:
    logging.warning(
        "no XLA options: give --gin_file=%s after the files of the run, so that collectives overlap with computation; "
        "or recipe.Update.compiler_options = {} for the defaults of XLA",
        file,
    )
