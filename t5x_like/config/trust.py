"""What the configuration stored in a run directory may name: such a file may come from somebody else.

It describes a run, so it may build models, objectives, optimizers and data sources, and nothing that acts on the
machine. Code outside this package runs only where the user names its module. docs/security.md explains this.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any

TRUSTED_MODULES = "T5X_LIKE_TRUSTED_MODULES"
# The macro and the parameters whose value is a module to import.
TASK_MODULE = "MIXTURE_OR_TASK_MODULE"
MODULE_PARAMETER = "module"
# Imported without asking; that alone changes nothing.
OWN_PACKAGES = ("t5x_like", "data_tasks")
# What a stored configuration may refer to, by the module in which it is defined.
BUILDERS = (
    "t5x_like.checkpoints.Checkpoints",
    "t5x_like.data.cached.source.CachedSource",
    "t5x_like.data.seqio_feed.source.SeqIOSource",
    "t5x_like.layers.rope_scaling",
    "t5x_like.models",
    "t5x_like.objectives",
    "t5x_like.optimizers",
    "t5x_like.partitioning.Partitioner",
    "t5x_like.schedules",
    "t5x_like.showcase",
)
# Macros of one command line: a stored value would make another command read or write where nobody asked it to.
OF_ONE_COMMAND = ("COMPILATION_CACHE_DIR", "INPUT_PATH", "OUTPUT_PATH", "OUTPUT_DIR", "JSON_PATH")


class Trust:
    """The modules that a stored configuration may use besides this package's own."""

    def __init__(self, modules: Iterable[str] = ()):
        """Trusts `modules`, those in the environment variable `T5X_LIKE_TRUSTED_MODULES`, and what they contain."""
        listed = os.environ.get(TRUSTED_MODULES, "").split(",")
        self._modules = tuple(name for name in (*modules, *(name.strip() for name in listed)) if name)

    def may_import(self, module: str) -> bool:
        """Whether a module may be imported because a stored configuration names it."""
        return _is_below(module, (*OWN_PACKAGES, *self._modules))

    def may_refer_to(self, function: Any) -> bool:
        """Whether a stored configuration may call a function or class, or hand it to what is called."""
        module = getattr(function, "__module__", None) or ""
        name = f"{module}.{getattr(function, '__qualname__', '')}"
        return _is_below(name, (*BUILDERS, *self._modules))

    def may_set(self, function: Any) -> bool:
        """Whether a stored configuration may set parameters of a function or class."""
        return _is_below(getattr(function, "__module__", None) or "", (*OWN_PACKAGES, *self._modules))


def _is_below(name: str, roots: Sequence[str]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def refusal(where: str, name: str) -> str:
    """The message for a name that a stored configuration may not use."""
    module = name.rpartition(".")[0] or name
    return (
        f"{where}: {name}: a configuration stored with a run may not use code outside t5x_like's models, objectives, "
        f"optimizers and data sources. If you trust {module}, set {TRUSTED_MODULES}={module}"
    )


def module_refusal(where: str, module: str) -> str:
    """The message for a module of tasks that a stored configuration asks to import."""
    return (
        f"{where}: {TASK_MODULE}={module}: the Python module {module} is named by a stored configuration alone, and "
        f"importing it runs its code. If you trust it, add --gin.{TASK_MODULE}={module} (or set "
        f"{TRUSTED_MODULES}={module})"
    )
