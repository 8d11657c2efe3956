"""Rows of metrics in Weights & Biases and MLflow. Without the packages, stubs record what a run sends."""

import importlib.machinery
import importlib.util
import json
import sys
import types

import pytest

from t5x_like import metrics
from t5x_like.errors import UserError
from t5x_like.metrics import loggers

pytestmark = pytest.mark.notf


@pytest.mark.parametrize(
    "names, message",
    [
        ("wandb,comet", "LOGGERS=wandb,comet: 'comet' is unknown. Give tensorboard, wandb, mlflow, or several"),
        ("wandb", r"LOGGERS=wandb: the package wandb is missing. Run `pip install 't5x_like\[wandb\]'`."),
        ("tensorboard, mlflow", "the package mlflow is missing"),
    ],
)
def test_unknown_and_missing_loggers_raise(names, message, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=message):
        loggers.parse(names)


def stub(monkeypatch, name, **attributes):
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def write(model_dir, names, steps, restored=0, **others):
    writer = metrics.MetricsWriter(str(model_dir), logger_names=names)
    writer.rewind(restored)
    for step in steps:
        writer.write(step, "train", {"loss": 1 / step, "mfu": None, **others})
    writer.flush()
    writer.close()


def test_wandb_run_is_continued(tmp_path, monkeypatch):
    rows, given = [], []
    run = types.SimpleNamespace(
        log=rows.append, finish=lambda: rows.append("finished"), define_metric=lambda *_, **__: None
    )
    stub(monkeypatch, "wandb", init=lambda **settings: given.append(settings) or run, Settings=dict)
    write(tmp_path, "wandb", (1, 2))
    write(tmp_path, "wandb,tensorboard", (2,), restored=1)
    first = [{"step": 1, "train/loss": 1.0}, {"step": 2, "train/loss": 0.5}, "finished"]
    assert rows == [*first, *first[1:]]
    assert given[0]["id"] == given[1]["id"] == json.loads((tmp_path / "loggers.json").read_text())["wandb"]
    assert given[0]["dir"] == str(tmp_path) and given[0]["name"] == "/".join(tmp_path.parts[-2:])
    assert (tmp_path / "tensorboard").is_dir()


def test_error_of_a_service_is_one_warning(tmp_path, monkeypatch, caplog):
    def fail(row):
        raise OSError("no route to host")

    finished = []
    run = types.SimpleNamespace(log=fail, define_metric=lambda *_, **__: None, finish=lambda: finished.append(True))
    stub(monkeypatch, "wandb", init=lambda **_: run, Settings=dict)
    write(tmp_path, "wandb", (1, 2, 3))
    (line,) = [line for line in caplog.messages if "wandb" in line]
    assert line == "wandb: no route to host. Training continues without it"
    assert [row["step"] for row in metrics.read_metrics(str(tmp_path))] == [1, 2, 3]
    assert finished == [True]


def test_mlflow_needs_a_server(monkeypatch):
    monkeypatch.delenv(loggers.MLFLOW_URI, raising=False)
    stub(monkeypatch, "mlflow")
    with pytest.raises(UserError, match="LOGGERS=mlflow: MLFLOW_TRACKING_URI is missing. Set it to the URL"):
        loggers.parse("mlflow")


def test_wandb_keeps_the_rows_of_two_starts_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    write(tmp_path, "wandb", (1, 2))
    write(tmp_path, "wandb", (2,), restored=1)
    identifier = json.loads((tmp_path / "loggers.json").read_text())["wandb"]
    stored = list((tmp_path / "wandb").glob(f"offline-run-*/run-{identifier}.wandb"))
    assert stored and all(b"train/loss" in file.read_bytes() for file in stored)


def test_mlflow_stores_the_rows_of_two_starts_in_one_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv(loggers.MLFLOW_URI, f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # instead of a server
    write(tmp_path / "run", "mlflow", (1, 2))
    write(tmp_path / "run", "mlflow", (2, 3), restored=1)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("t5x_like").experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(each.step, each.value) for each in history] == [(1, 1.0), (2, 0.5), (2, 0.5), (3, 1 / 3)]
    assert run.info.status == "FINISHED"


# Names that MLflow or its file store refuses, or that are a directory of others -> their names there.
REFUSED = {
    "grad_norm": "grad_norm",
    "grad_norm/draw": "grad_norm.draw",
    "precision@1 (%)": "precision_1 ___",
    "of//../labels": "of.labels",
    "..": "_",
    "x" * 300: "x" * 244,
}


def test_mlflow_stores_metrics_of_any_name(tmp_path, monkeypatch, caplog):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv(loggers.MLFLOW_URI, f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    write(tmp_path / "run", "mlflow", (1, 2), **dict.fromkeys(REFUSED, 0.5))
    assert not [line for line in caplog.messages if "mlflow:" in line]
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("t5x_like").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.metrics.keys() == {"train/loss", *(f"train/{name}" for name in REFUSED.values())}


def test_mlflow_run_ends_after_an_error(tmp_path, monkeypatch, caplog):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv(loggers.MLFLOW_URI, f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(loggers, "mlflow_name", lambda name: "@" if name.endswith("/bad") else name)
    write(tmp_path / "run", "mlflow", (1, 2, 3), bad=1.0)
    (line,) = [line for line in caplog.messages if line.startswith("mlflow:")]
    assert line.endswith("Training continues without it")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("t5x_like").experiment_id])
    assert run.info.status == "FINISHED"
