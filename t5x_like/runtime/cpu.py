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
    with contextlib.suppress(OSError):
        first = pathlib.Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
        for line in first.splitlines():
            name, _, value = (field.strip() for field in line.partition(":"))
            if name in _FIELDS:
                described[name] = " ".join(sorted(value.split()))
    return "cpu-" + hashlib.sha256(repr(sorted(described.items())).encode()).hexdigest()[:12]
