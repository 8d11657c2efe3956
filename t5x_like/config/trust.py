"""Names that the configuration stored in a run directory may use: someone else may have written the file.

It may build models, adapters, objectives, optimizers and data sources, and nothing else. Code outside this package only
runs if the user names its module. See docs/security.md.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any

TRUSTED_MODULES = "T5X_LIKE_TRUSTED_MODULES"
# The macro and the parameters whose value is a module to import.
TASK_MODULE = "MIXTURE_OR_TASK_MODULE"
MODULE_PARAMETER = "module"
# Packages that may always be imported: importing them has no side effects.
SAFE_PACKAGES = ("t5x_like", "data_tasks", "optax")
# Objects that a stored configuration may refer to, by the module that defines them.
BUILDERS = (
    "t5x_like.adapters",
    "t5x_like.checkpoints.array_files.ArrayFiles",
    "t5x_like.checkpoints.manager.Checkpoints",
    "t5x_like.training.evaluation.Evaluation",
    "t5x_like.checkpoints.local_checkpoints.LocalTier",
    "t5x_like.data.cached.mixture.CachedMixture",
    "t5x_like.data.cached.source.CachedSource",
    "t5x_like.data.cooccurrences.CooccurrenceSource",
    "t5x_like.data.mixing.Rates",
    "t5x_like.data.mixing.Stages",
    "t5x_like.data.mixing.UniMax",
    "t5x_like.data.seqio_feed.source.SeqIOSource",
    "t5x_like.decoding.settings.Decoding",
    "t5x_like.distillation",
    "t5x_like.layers.initializers",
    "t5x_like.layers.rope_scaling",
    "t5x_like.models",
    "t5x_like.objectives",
    "t5x_like.optimizers",
    "t5x_like.partitioning.Partitioner",
    "t5x_like.optimizers.schedules",
    "t5x_like.stored.layer_choice",
    "t5x_like.reporting.quickstart_report",
    "t5x_like.training.batch_ramp",
    "optax",  # only pure functions that build optimizers, schedules and losses
)
# Macros that are never read from a stored configuration, because they tell a command where to read and write.
PER_COMMAND_MACROS = (
    *("COMPILATION_CACHE_DIR", "INPUT_PATH", "OUTPUT_PATH", "OVERWRITE", "OUTPUT_DIR", "JSON_PATH", "CHECKPOINT"),
)


class Trust:
    """The modules outside this package that a stored configuration may use."""

    def __init__(self, modules: Iterable[str] = ()):
        """Trusts `modules`, the modules in `T5X_LIKE_TRUSTED_MODULES`, and their submodules."""
        listed = os.environ.get(TRUSTED_MODULES, "").split(",")
        self._modules = tuple(name for name in (*modules, *(name.strip() for name in listed)) if name)

    def may_import(self, module: str) -> bool:
        """Returns whether a module may be imported because a stored configuration names it."""
        return _is_below(module, (*SAFE_PACKAGES, *self._modules))

    def may_refer_to(self, function: Any) -> bool:
        """Returns whether a stored configuration may call a function or class, or pass it as an argument."""
        module = getattr(function, "__module__", None) or ""
        name = f"{module}.{getattr(function, '__qualname__', '')}"
        return _is_below(name, (*BUILDERS, *self._modules))

    def may_set(self, function: Any) -> bool:
        """Returns whether a stored configuration may set parameters of a function or class."""
        return _is_below(getattr(function, "__module__", None) or "", (*SAFE_PACKAGES, *self._modules))


def _is_below(name: str, roots: Sequence[str]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def refusal(where: str, name: str) -> str:
    """Returns the message for a name that a stored configuration may not use."""
    module = name.rpartition(".")[0] or name
    return (
        f"{where}: {name}: a stored configuration may only use t5x_like's models, adapters, objectives, optimizers and "
        f"data sources, and optax. If you trust {module}, set {TRUSTED_MODULES}={module}"
    )


def module_refusal(where: str, module: str) -> str:
    """Returns the message for a task module that a stored configuration may not import."""
    return (
        f"{where}: {TASK_MODULE}={module}: only the stored configuration names this module, and importing it executes "
        f"its code. If you trust it, add --gin.{TASK_MODULE}={module} (or set {TRUSTED_MODULES}={module})"
    )
