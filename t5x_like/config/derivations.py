"""Settings that are computed from other settings, such as the model from the Hugging Face directory `HF_PATH`.

Derivations run after the files and the command line have been read, and before anything is checked or built. A derived
setting takes precedence over shipped defaults, and settings of the user or of a stored run take precedence over it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from t5x_like.config.files import COMMON, STORED, Statements
from t5x_like.config.values import REQUIRED, Macro, references_in
from t5x_like.config.walk import resolved, walk


@dataclasses.dataclass(frozen=True)
class Derived:
    """Derived settings.

    Attributes:
      source: The setting that they come from, such as `HF_PATH=bert-base-uncased`, for messages.
      text: The settings in gin syntax.
    """

    source: str
    text: str


class KnownSettings:
    """The settings that are known to a derivation.

    Args:
      root: Name of the command's function.
      statements: All statements.
      accepted: Functions that the command does not call, whose settings it accepts; they count as reached.
    """

    def __init__(self, root: str, statements: Statements, accepted: Sequence[str] = ()):
        self.root, self._statements, self._accepted = root, statements, accepted

    def value(self, macro: str) -> Any:
        """Returns the value of a macro; None if it is not set. References are not evaluated."""
        setting = self._statements.macros.get(macro)
        try:
            value = None if setting is None else resolved(setting.value, self._statements)
        except RecursionError:  # a circular macro, which `check` reports
            return None
        return None if REQUIRED in references_in(value) else value

    def is_given(self, macro: str) -> bool:
        """Returns whether a file or the command line of the user sets a macro."""
        setting = self._statements.macros.get(macro)
        return setting is not None and (setting.set_by_user or setting.origin == COMMON) and setting.value != REQUIRED

    def is_stored(self, macro: str) -> bool:
        """Returns whether the value of a macro comes from the run that the command reads."""
        setting = self._statements.macros.get(macro)
        return setting is not None and setting.origin == STORED

    def is_used(self, macro: str) -> bool:
        """Returns whether the command reaches a macro, which need not have a value."""
        reached = walk(self._statements, self.root, *self._accepted)
        values = [setting.value for group in (reached.bindings, reached.macros) for setting in group.values()]
        return any(Macro(macro) in references_in(value) for value in values)

    def is_set(self, function: str, parameter: str) -> bool:
        """Returns whether a parameter of a function is set, in any scope."""
        bindings = self._statements.bindings
        return any(name == function and parameter in settings for (_, name), settings in bindings.items())

    def users(self, macro: str) -> list[str]:
        """Returns the functions and classes that the command reaches and that have a macro as a parameter."""
        reached = walk(self._statements, self.root, *self._accepted)
        return [name for (_, name, _), setting in reached.bindings.items() if setting.value == Macro(macro)]


@dataclasses.dataclass(frozen=True)
class Derivation:
    """A computation of settings from others.

    Attributes:
      inputs: Macros that only this derivation reads. They are not part of the operative configuration.
      derive: Returns the derived settings, or None if there are none. Raises a `UserError` for invalid inputs.
    """

    inputs: tuple[str, ...]
    derive: Callable[[KnownSettings], Derived | None]
