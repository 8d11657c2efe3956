"""The settings of a run, read from the config.gin in its directory without importing or building anything."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from t5x_like import paths
from t5x_like.config.files import Setting, Statements, read_text
from t5x_like.config.values import Reference, references_in
from t5x_like.config.walk import resolved
from t5x_like.runtime import run_files

# What a run trains, and with which teachers.
_OWNERS = ("t5x_like.training.recipe.Recipe", "t5x_like.distill.distill")


@dataclasses.dataclass(frozen=True)
class StoredSettings:
    """The settings of a run. Names of classes and functions are import paths, as written.

    Attributes:
      statements: The statements of config.gin.
    """

    statements: Statements

    @classmethod
    def read(cls, model_dir: str) -> "StoredSettings":
        """Reads the settings in a run directory; there are none without a config.gin."""
        path = paths.join(model_dir, run_files.CONFIG)
        return cls(read_text(paths.read_text(path), path) if paths.is_file(path) else Statements())

    def value(self, name: str) -> Any:
        """Returns a part of the recipe, such as `data` or `update.max_grad_norm`, or for `data` else the macro `DATA`.

        Macros in it are replaced by their values, and references are not evaluated. None: it is not set.
        """
        part, _, argument = name.partition(".")
        for owner in _OWNERS:
            if (setting := self.statements.bindings.get(("", owner), {}).get(part)) is not None:
                found = resolved(setting.value, self.statements)
                if not argument:
                    return found
                return self.arguments(found).get(argument) if isinstance(found, Reference) else None
        setting = None if argument else self.statements.macros.get(name.upper())
        return None if setting is None else resolved(setting.value, self.statements)

    def arguments(self, reference: Reference, *, defaults: bool = True) -> dict[str, Any]:
        """Returns the arguments with which the settings build an object: parameter -> value; see `value`.

        Args:
          reference: The reference to its class or function.
          defaults: Whether to include the arguments that are the defaults of the code.
        """
        scopes = ("", reference.scope) if reference.scope else ("",)
        found: dict[str, Setting] = {}
        for scope in scopes:
            found |= self.statements.bindings.get((scope, reference.selector), {})
        return {
            name: resolved(setting.value, self.statements)
            for name, setting in found.items()
            if defaults or not setting.is_default
        }

    def shown(self, value: Any) -> str:
        """Returns a value as an expression: classes and functions by their names, with arguments but for defaults."""
        if isinstance(value, Reference):
            name = value.selector.rpartition(".")[2]
            given = self.arguments(value, defaults=False).items()
            return (
                f"{name}({', '.join(f'{key}={self.shown(each)}' for key, each in given)})" if value.evaluate else name
            )
        if isinstance(value, dict):
            return f"{{{', '.join(f'{key!r}: {self.shown(each)}' for key, each in value.items())}}}"
        if isinstance(value, list | tuple):
            items = ", ".join(map(self.shown, value))
            return f"[{items}]" if isinstance(value, list) else f"({items}{',' if len(value) == 1 else ''})"
        return repr(value)

    def builders(self, value: Any) -> Iterator[Reference]:
        """Yields the references to classes and functions in a value, and in their arguments."""
        for item in references_in(value):
            if isinstance(item, Reference):
                yield item
                yield from self.builders([*self.arguments(item).values()])
