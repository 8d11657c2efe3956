"""Names the gin file of `hardware/` whose XLA options a run lacks."""

from absl import logging
from jax.sharding import Mesh

# Device kind -> gin file.
_TPUS = {
    "TPU v4": "v4.gin",
    **dict.fromkeys(("TPU v5 lite", "TPU v5e"), "v5e.gin"),
    **dict.fromkeys(("TPU v5", "TPU v5p"), "v5p.gin"),
    **dict.fromkeys(("TPU v6 lite", "TPU v6e"), "v6e.gin"),
    "TPU7x": "tpu7x.gin",
}
_suggested: set[str] = set()


def file_name(mesh: Mesh) -> str | None:
    """Returns the gin file for the devices of a mesh, or None if there is none.

    Args:
      mesh: TPUs, GPUs or CPUs. The options for GPUs are those of collectives, so a single GPU has no file.
    """
    device = mesh.devices.flat[0]
    if device.platform == "gpu":
        return "hardware/gpu.gin" if mesh.size > 1 else None
    return f"hardware/{_TPUS[device.device_kind]}" if device.device_kind in _TPUS else None


def suggest(mesh: Mesh) -> None:
    """Logs the file, once per file, for a run without XLA options. Nothing is logged if there is no file."""
    file = file_name(mesh)
    if file is None or file in _suggested:
        return
    _suggested.add(file)
    logging.warning(
        "no XLA options: give --gin_file=%s after the files of the run, so that collectives overlap with computation; "
        "or train.train.compiler_options = {} for the defaults of XLA",
        file,
    )
