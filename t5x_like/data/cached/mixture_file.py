"""The file `mixture.json`, which lists the caches of a mixture."""

import dataclasses
import json
from collections.abc import Mapping

from t5x_like import paths
from t5x_like.data.cached.manifest import MALFORMED, MIXTURE, check_name
from t5x_like.errors import UserError

_FORMAT = "t5x_like cached mixture 1"


@dataclasses.dataclass(frozen=True)
class MixtureFile:
    """The file `mixture.json` in the directory of a mixture, next to the directories of the caches of its tasks.

    Attributes:
      name: Name of the mixture.
      tasks: Names of its tasks, which are the names of their directories.
      rates: Task -> fraction of the training examples, with which the mixture was cached.
    """

    name: str
    tasks: tuple[str, ...]
    rates: Mapping[str, float]

    def write(self, directory: str) -> None:
        """Writes the file, which completes the caches of a mixture. It replaces an earlier file of the mixture."""
        stored = {"format": _FORMAT, "name": self.name, "tasks": list(self.tasks), "rates": dict(self.rates)}
        paths.write_atomic(paths.join(directory, MIXTURE), json.dumps(stored, indent=1) + "\n")

    @classmethod
    def read(cls, directory: str) -> "MixtureFile":
        """Reads the file.

        Raises:
          UserError: the file is not found or not valid.
        """
        path = paths.join(directory, MIXTURE)
        if not paths.exists(path):
            raise UserError(
                f"{directory} is not the cache of a mixture: {MIXTURE} not found. Write the caches of a mixture with "
                "`t5x_like cache`, give a list of the caches of tasks, or read the cache of one task with "
                "--gin_file=data/cached.gin."
            )
        try:
            stored = json.loads(paths.read_text(path))
            if stored["format"] != _FORMAT:
                raise ValueError(f"its format is {stored['format']!r}, but this version reads {_FORMAT!r}")
            for task in stored["tasks"]:
                check_name(task)
            return cls(stored["name"], tuple(stored["tasks"]), dict(stored["rates"]))
        except MALFORMED as error:
            raise UserError(
                f"{path} is not a valid description of a mixture: {error}. Repeat the `t5x_like cache` command."
            ) from error
