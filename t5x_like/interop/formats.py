"""Formats of weights that are not those of transformers: files that a family's authors published.

A module of this package has a constant `FORMAT`, which `registry.formats` discovers.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from t5x_like.models.base import ModelConfig


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of the weights of one family.

    Attributes:
      config_class: the configuration of the family.
      is_input: returns whether a path has weights of the format: a directory, or the path of a TensorFlow checkpoint
        without `.index`.
      read: reads a path, and returns the configuration of the model, its parameters by stored name, and the class and
        the settings of its usual objective. Raises a UserError for invalid files.
      write: writes a configuration and the parameters by stored name to a directory. Parameters of heads that the
        format lacks are left out with a warning.
    """

    config_class: type[ModelConfig]
    is_input: Callable[[str], bool]
    read: Callable[[str], tuple[ModelConfig, dict[str, Any], tuple[type, Mapping[str, Any]]]]
    write: Callable[[ModelConfig, Mapping[str, Any], str], None]
