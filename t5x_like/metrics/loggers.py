"""Where the rows of a run go besides metrics.jsonl: TensorBoard, Weights & Biases and MLflow."""

import contextlib
import importlib.util
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from absl import logging

from t5x_like import paths
from t5x_like.errors import MachineError, UserError
from t5x_like.metrics.events import EventFiles

TENSORBOARD, WANDB, MLFLOW = "tensorboard", "wandb", "mlflow"
_NAMES = (TENSORBOARD, WANDB, MLFLOW)
# Identifiers of the run by logger, so that a start that resumes the run continues its curves.
_IDS = "loggers.json"
_PROJECT = "t5x_like"
MLFLOW_URI = "MLFLOW_TRACKING_URI"
_MLFLOW_NAME_LENGTH = 250  # `MAX_ENTITY_KEY_LENGTH` of MLflow


class Logger(Protocol):
    """Receives the rows of one run. Errors of the storage or the network only log a warning."""

    def rewind(self, step: int) -> None:
        """Called at each start of the run, before the first row. Later rows replace those after `step`."""

    def append(self, step: int, split: str, scalars: Mapping[str, float]) -> None:
        """Adds the scalars of a step."""

    def flush(self) -> None:
        """Called before each checkpoint."""

    def close(self) -> None:
        """Called at the end of the start."""


def parse(names: str) -> tuple[str, ...]:
    """Returns the loggers of the setting LOGGERS, after checking that their packages are installed.

    Args:
      names: Names with commas, such as `wandb,tensorboard`; empty for none.

    Raises:
      UserError: A name is unknown, its package is not installed, or MLflow's server is not known.
    """
    found = tuple(filter(None, (name.strip() for name in names.split(","))))
    if unknown := [name for name in found if name not in _NAMES]:
        raise UserError(
            f"LOGGERS={names}: {unknown[0]!r} is unknown. Give {', '.join(_NAMES)}, or several with commas."
        )
    for name in found:
        if name != TENSORBOARD and importlib.util.find_spec(name) is None:
            raise MachineError(f"LOGGERS={names}: the package {name} is missing. Run `pip install 't5x_like[{name}]'`.")
    if MLFLOW in found and not os.environ.get(MLFLOW_URI):
        raise MachineError(f"LOGGERS={names}: {MLFLOW_URI} is missing. Set it to the URL of your tracking server.")
    return found


def make(names: str, model_dir: str) -> list[Logger]:
    """Returns the loggers of a run; see `parse`."""
    kinds = {TENSORBOARD: EventFiles, WANDB: WandbLogger, MLFLOW: MlflowLogger}
    return [kinds[name](model_dir) for name in parse(names)]


class _Tracker:
    """A logger that sends rows to a service. After an error, it logs one warning and sends no more.

    Args:
      model_dir: The run directory, local or in a bucket. Its last two parts are the name of the run.
    """

    name: str

    def __init__(self, model_dir: str):
        self._model_dir, self._is_open, self._is_opened = model_dir, False, False
        self._title = "/".join(model_dir.rstrip("/").split("/")[-2:])

    def rewind(self, step: int) -> None:
        """Opens the run, or continues it. The rows that a start repeats have the values of the earlier ones."""
        if not self._is_open:
            self._is_open = True
            self._try(lambda: self._open(self._stored_id()))
            self._is_opened = self._is_open

    def append(self, step: int, split: str, scalars: Mapping[str, float]) -> None:
        """Adds the scalars of a step."""
        self._try(lambda: self._send(step, {f"{split}/{name}": float(value) for name, value in scalars.items()}))

    def flush(self) -> None:
        """Does nothing: the service's client sends in the background."""

    def close(self) -> None:
        """Sends the last rows, and ends the run there, also after an error that stopped the rows."""
        if self._is_open:
            self._try(self._finish)
        elif self._is_opened:
            with contextlib.suppress(Exception):  # the first error has been logged
                self._finish()
        self._is_open = self._is_opened = False

    def _open(self, stored: str | None) -> None:
        raise NotImplementedError

    def _send(self, step: int, scalars: Mapping[str, float]) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError

    def _stored_id(self) -> str | None:
        return self._read_ids().get(self.name)

    def _store_id(self, value: str) -> None:
        ids = self._read_ids() | {self.name: value}
        paths.write_atomic(paths.join(self._model_dir, _IDS), json.dumps(ids) + "\n")

    def _read_ids(self) -> dict[str, str]:
        path = paths.join(self._model_dir, _IDS)
        return dict(json.loads(paths.read_text(path))) if paths.exists(path) else {}

    def _try(self, call: Callable[[], None]) -> None:
        if not self._is_open:
            return
        try:
            call()
        except Exception as error:  # each service raises its own errors
            self._is_open = False
            logging.warning("%s: %s. Training continues without it", self.name, str(error) or type(error).__name__)


class WandbLogger(_Tracker):
    """Sends rows to Weights & Biases, whose environment variables set everything else, such as WANDB_PROJECT.

    With WANDB_MODE=offline, the rows are kept in `MODEL_DIR/wandb`, or in `./wandb` if MODEL_DIR is in a bucket, for
    `wandb sync`.
    """

    name = WANDB

    def _open(self, stored: str | None) -> None:
        import wandb

        identifier = stored or secrets.token_hex(4)
        local = str(paths.local(self._model_dir)) if paths.is_local(self._model_dir) else None
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=os.environ.get("WANDB_NAME", self._title),
            id=identifier,
            resume="allow",
            dir=os.environ.get("WANDB_DIR", local),
            settings=wandb.Settings(console="off"),  # log.txt has it
        )
        # W&B drops rows before its own latest step, and a run that resumes repeats some.
        self._run.define_metric("*", step_metric="step")
        self._store_id(identifier)

    def _send(self, step: int, scalars: Mapping[str, float]) -> None:
        self._run.log({"step": step, **scalars})

    def _finish(self) -> None:
        self._run.finish()


def mlflow_name(name: str) -> str:
    """Returns the name of a metric in MLflow, which refuses a row with any name that it does not accept.

    MLflow accepts letters, digits and `_-. :`. Its file store has a file per metric, so that `grad_norm` cannot be
    beside `grad_norm/draw`: only the first slash, after the split, is kept.

    Args:
      name: The split, a slash, and the name of the scalar.
    """
    split, _, scalar = re.sub(r"[^\w.\- :/]", "_", name).partition("/")
    parts = [part for part in scalar.split("/") if part.strip(".")]
    return f"{split}/{'.'.join(parts) or '_'}"[:_MLFLOW_NAME_LENGTH]


class MlflowLogger(_Tracker):
    """Sends rows to the MLflow server of MLFLOW_TRACKING_URI, to the experiment of MLFLOW_EXPERIMENT_NAME."""

    name = MLFLOW

    def _open(self, stored: str | None) -> None:
        import mlflow

        self._client, self._pending = mlflow.MlflowClient(), None
        if stored is not None:
            self._run_id = stored
            self._client.update_run(stored, status="RUNNING")
            return
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        self._run_id = self._client.create_run(number, run_name=self._title).info.run_id
        self._store_id(self._run_id)

    def _send(self, step: int, scalars: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(mlflow_name(name), value, now, step) for name, value in scalars.items()]
        self._wait()
        self._pending: Any = self._client.log_batch(self._run_id, metrics=metrics, synchronous=False)

    def _wait(self) -> None:
        """Raises an error of the last batch, which has been sent since."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.wait()

    def _finish(self) -> None:
        self._wait()
        self._client.set_terminated(self._run_id)
