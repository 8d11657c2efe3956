"""Identifies the kind of CPU, because compiled programs may not run on another kind. Imports no JAX."""

import contextlib
import hashlib
import pathlib
import platform

# Fields of /proc/cpuinfo that determine which instructions a CPU supports, on x86 and Arm.
_FIELDS = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part")


def fingerprint() -> str:
    """Returns a name for the kind of this machine's CPU, such as `cpu-0123456789ab`.

    Machines that share a home directory may have different CPUs, so caches of compiled programs use it as a
    subdirectory.
    """
    described = {"machine": platform.machine(), "processor": platform.processor()}
    described |= {name: " ".join(sorted(value.split())) for name, value in _cpuinfo().items() if name in _FIELDS}
    return "cpu-" + hashlib.sha256(repr(sorted(described.items())).encode()).hexdigest()[:12]


def model_name() -> str:
    """Returns the name of this machine's CPU, such as `AMD EPYC 9554`."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def _cpuinfo() -> dict[str, str]:
    """Returns the fields of the first CPU in /proc/cpuinfo; empty on systems without this file."""
    with contextlib.suppress(OSError):
        first = pathlib.Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
        fields = (line.partition(":") for line in first.splitlines())
        return {name.strip(): value.strip() for name, _, value in fields}
    return {}
