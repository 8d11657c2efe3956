"""A toy command in a module of its own, with shipped gin files of its own."""

import itertools
import sys
import textwrap

import gin
import pytest

from t5x_like import config
from t5x_like.config import files, trust

_numbers = itertools.count()

TOY = """
import dataclasses
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
    def __init__(self, *, task, split="train", seed=0):
        self.task, self.split, self.seed = task, split, seed

def keeper(directory, keep=2):
    return (directory, keep)

def anything(**options):
    return options

def train(
    *,
    model,
    schedule=("none",),
    data=None,
    eval_data=None,
    steps: int = 10,
    model_dir: str | None = None,
    mode: Literal["fast", "exact"] = "fast",
    keeper=keeper,
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
  keeper = @toy.keeper
toy.Model.dim = %DIM
toy.linear.total_steps = %TRAIN_STEPS
toy.Source.task = %TASK
eval/toy.Source.split = 'validation'
"""


class Toy:
    """A fresh module in the working directory, which the shipped `run.gin` trains with; as text, its name."""

    def __init__(self, folder, shipped):
        self.name, self.folder, self.shipped = f"toy_{next(_numbers)}", folder, shipped
        (folder / f"{self.name}.py").write_text(TOY)
        (shipped / "run.gin").write_text(RUN.replace("{toy}", self.name))

    def __str__(self):
        return self.name

    @property
    def module(self):
        return sys.modules[self.name]

    def write(self, name, text, *, shipped=False, imports=True):
        """Writes a gin file that starts, in two lines, by importing the module as `toy`."""
        path = (self.shipped if shipped else self.folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        header = f"from __gin__ import dynamic_registration\nimport {self} as toy\n" if imports else ""
        path.write_text(header + textwrap.dedent(text))

    def load(self, *bindings, files=("run.gin",), **options):
        pairs = [tuple(binding.split("=", 1)) for binding in bindings]
        return config.load(f"{self}.train", files=files, bindings=pairs, given=["run_config"], **options)

    def refused(self, *bindings, **options):
        """The message with which a configuration is refused, with the module called TOY."""
        with pytest.raises(config.ConfigError) as caught:
            self.load(*bindings, **options)
        return str(caught.value).replace(self.name, "TOY")


@pytest.fixture
def toy(tmp_path, monkeypatch):
    shipped = tmp_path / "package" / "gin_configs"
    shipped.mkdir(parents=True)
    monkeypatch.setattr(files, "SHIPPED_ROOT", shipped)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    made = Toy(tmp_path, shipped)
    monkeypatch.setenv(trust.TRUSTED_MODULES, made.name)  # as its user would, for what a run has stored
    yield made
    gin.clear_config()
    sys.modules.pop(made.name, None)
