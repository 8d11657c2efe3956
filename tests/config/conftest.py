"""A toy command in a temporary module, with a temporary directory of shipped gin files."""

import itertools
import sys
import textwrap

import gin
import pytest

from t5x_like import config
from t5x_like.config import search, trust

_numbers = itertools.count()

TOY = """
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

@dataclasses.dataclass(frozen=True)
class Model:
    dim: int
    rate: float = 0.1
    name: str | None = None

def constant(value: float = 1.0):
    return ("constant", value)

def linear(total_steps: int, peak: float = 1.0):
    return ("linear", total_steps, peak)

class Source:
    continuous = False

    def __init__(self, *, task, split="train", seed=0):
        self.task, self.split, self.seed = task, split, seed

def checkpointer(directory, keep=2):
    return (directory, keep)

def anything(**options):
    return options

def sizes(rows: int | Sequence[int] = 1, lengths: Mapping[str, int] | None = None):
    return (rows, lengths)

def train(
    *,
    model,
    schedule=("none",),
    data=None,
    eval_data=None,
    steps: int = 10,
    model_dir: str | None = None,
    mode: Literal["fast", "exact"] = "fast",
    checkpointer=checkpointer,
    extra=None,
    run_config=None,
):
    return dict(locals())
"""

RUN = """
from __gin__ import dynamic_registration
import {toy} as toy

MODEL_DIR = None
TRAIN_STEPS = 100
TASK = %gin.REQUIRED
DIM = 8

toy.train:
  model = @toy.Model()
  schedule = @toy.constant()
  data = @train/toy.Source()
  eval_data = @eval/toy.Source()
  steps = %TRAIN_STEPS
  model_dir = %MODEL_DIR
  checkpointer = @toy.checkpointer
toy.Model.dim = %DIM
toy.linear.total_steps = %TRAIN_STEPS
toy.Source.task = %TASK
eval/toy.Source.split = 'validation'
"""


class Toy:
    """A new module in the working directory, and the shipped `run.gin` that configures it. `str` gives its name."""

    def __init__(self, directory, shipped):
        self.name, self.directory, self.shipped = f"toy_{next(_numbers)}", directory, shipped
        (directory / f"{self.name}.py").write_text(TOY)
        (shipped / "run.gin").write_text(RUN.replace("{toy}", self.name))

    def __str__(self):
        return self.name

    @property
    def module(self):
        return sys.modules[self.name]

    def write(self, name, text, *, shipped=False, imports=True):
        """Writes a gin file that starts, in two lines, by importing the module as `toy`."""
        path = (self.shipped if shipped else self.directory) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        header = f"from __gin__ import dynamic_registration\nimport {self} as toy\n" if imports else ""
        path.write_text(header + textwrap.dedent(text))

    def load(self, *bindings, files=("run.gin",), **options):
        pairs = [tuple(binding.split("=", 1)) for binding in bindings]
        return config.load(f"{self}.train", files=files, bindings=pairs, given=["run_config"], **options)

    def error_of(self, *bindings, **options):
        """Returns the error message for a configuration, with the name of the module replaced by TOY."""
        with pytest.raises(config.ConfigError) as caught:
            self.load(*bindings, **options)
        return str(caught.value).replace(self.name, "TOY")


@pytest.fixture
def toy(tmp_path, monkeypatch):
    shipped = tmp_path / "package" / "gin_configs"
    shipped.mkdir(parents=True)
    monkeypatch.setattr(search, "SHIPPED_ROOT", shipped)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    toy_module = Toy(tmp_path, shipped)
    monkeypatch.setenv(trust.TRUSTED_MODULES, toy_module.name)  # allows stored configurations to use it
    yield toy_module
    gin.clear_config()
    sys.modules.pop(toy_module.name, None)
