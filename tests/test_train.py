"""Training as a plain function on synthetic batches, without gin and SeqIO."""

import contextlib
import dataclasses
import json
import re
import shutil
import time
import types

import jax
import numpy as np
import pytest
from copying_run import CONFIG, Copying, losses, run

from t5x_like import optimizers, parameters, paths
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.checkpoints.stored_checkpoints import StoredCheckpoints
from t5x_like.data.cached import CachedMixture
from t5x_like.data.feed import DataMismatchError, PrefetchingFeed
from t5x_like.errors import UserError
from t5x_like.metrics import read_goodput, read_metrics, read_starts
from t5x_like.metrics.best import BestMetric
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.partitioning import Partitioner
from t5x_like.training import early_stopping, step
from t5x_like.training.evaluation import Evaluation, Evaluations
from t5x_like.training.runs import run_directory
from t5x_like.training.runs.run_directory import read_status


@contextlib.contextmanager
def compilations_logged():
    jax.config.update("jax_log_compiles", True)
    try:
        yield
    finally:
        jax.config.update("jax_log_compiles", False)


@pytest.mark.notf
def test_run_writes_metrics_status_description_and_checkpoints(tmp_path):
    logged, evaluated, saved = {}, {}, []

    def on_save(step):
        saved.append((step, StoredCheckpoints(str(tmp_path / "checkpoints")).steps()))

    result = run(tmp_path, on_log=logged.__setitem__, on_eval=evaluated.__setitem__, on_save=on_save)
    assert (result.step, result.stopped_by) == (6, None)
    train_rows = [row for row in read_metrics(str(tmp_path)) if row["split"] == "train"]
    assert [row["step"] for row in train_rows] == list(range(1, 7)) == list(logged)
    assert [row["loss"] for row in train_rows] == [row["loss"] for row in logged.values()]
    wanted = {"loss", "accuracy", "z_loss", "learning_rate", "grad_norm", "param_norm"}
    rates = {"tokens_per_second", "seconds_per_step", "step_time_deviation", "data_wait_fraction"}
    assert wanted <= set(train_rows[0]) and not rates & set(train_rows[0])  # the first step compiles
    assert wanted | rates <= set(train_rows[1]) and 0 < train_rows[1]["goodput"] < 1
    assert len(losses(tmp_path, "validation")) == 2
    assert result.evaluation["loss"] == losses(tmp_path, "validation")[-1]
    assert list(evaluated) == [3, 6] and evaluated[6] == result.evaluation
    assert saved == [(3, [3]), (6, [3, 6])]  # each is complete
    assert read_status(str(tmp_path))["state"] == "finished"
    assert "[vocab embed]" in (tmp_path / "model_info.txt").read_text()
    assert "MODEL = @t5x_like.models.t5.T5Config()" in (tmp_path / "config.gin").read_text()
    assert Checkpoints(str(tmp_path / "checkpoints")).steps() == [3, 6]
    (start,) = read_starts(str(tmp_path))
    assert (start["step"], start["devices"], start["processes"]) == (0, 1, 1)
    assert start["data"] == {split: [{"name": "rows to copy"}] for split in ("train", "validation")}
    assert "command line: " + start["command"] in (tmp_path / "log.txt").read_text()


@pytest.mark.full
def test_rows_of_metrics_have_the_epochs_of_each_cache(tmp_path, write_cache):
    rows = {"large": 30, "small": 15}
    for task, number in rows.items():
        lengths = {"inputs": 6, "targets": 4}
        write_cache(tmp_path / task / "train", lengths=lengths, shards=((0, number),), task=task, first=1)
    data = CachedMixture(
        cache_dir=[str(tmp_path / task) for task in rows], batch_size=6, rates={"large": 2, "small": 1}
    )
    run(tmp_path / "run", data=data, model=dataclasses.replace(CONFIG, vocab_size=128), evaluations={}, total=5)
    found = read_metrics(str(tmp_path / "run"))
    read = [(row["epochs/large"] * rows["large"], row["epochs/small"] * rows["small"]) for row in found]
    assert [pytest.approx(sum(numbers)) for numbers in read] == [6, 12, 18, 24, 30]
    assert read[-1] == pytest.approx((20, 10))


def test_first_loss_is_the_plain_loss_of_the_first_batch(tmp_path):
    run(tmp_path, total=1, objective=SequenceToSequence(z_loss=0.1, label_smoothing=0.2))
    key = jax.random.split(jax.random.key(0))[0]
    model = CONFIG.make(key)
    batch = Copying().make(1)
    logits = np.asarray(model.unembed(model(batch).hidden), np.float64)
    log_probabilities = logits - np.log(np.sum(np.exp(logits), -1, keepdims=True))
    chosen = np.take_along_axis(log_probabilities, batch["decoder_target_tokens"][..., None], -1)[..., 0]
    weights = batch["decoder_loss_weights"]
    np.testing.assert_allclose(losses(tmp_path)[0], -(chosen * weights).sum() / weights.sum(), rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(
    "rules, ici",
    [
        pytest.param("dp", {"data": 8}, marks=pytest.mark.slow),
        pytest.param("fsdp", {"fsdp": 8}, marks=pytest.mark.slow),
        pytest.param("fsdp_tp", {"fsdp": 2, "tensor": 4}, marks=pytest.mark.slow),
        ("fsdp_tp_sp", {"fsdp": 2, "sequence": 2, "tensor": 2}),
    ],
)
def test_every_rule_set_has_the_losses_of_one_device(tmp_path, rules, ici):
    run(tmp_path / "one", total=4)
    run(tmp_path / "eight", total=4, partitioner=Partitioner(rules=rules, ici=ici))
    np.testing.assert_allclose(losses(tmp_path / "eight"), losses(tmp_path / "one"), rtol=2e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"microbatches": 4},
        pytest.param({"model": dataclasses.replace(CONFIG, scan_layers=True)}, marks=pytest.mark.full),
    ],
)
def test_microbatches_and_scanned_layers_keep_the_losses(tmp_path, changes):
    run(tmp_path / "plain", total=4)
    run(tmp_path / "other", total=4, **changes)
    np.testing.assert_allclose(losses(tmp_path / "other"), losses(tmp_path / "plain"), rtol=2e-5)


@pytest.mark.notf
def test_resume_in_another_layout_and_mesh(tmp_path, caplog):
    run(tmp_path / "whole")
    run(tmp_path / "parts", total=3)
    scanned = dataclasses.replace(CONFIG, scan_layers=True)
    with compilations_logged():
        run(tmp_path / "parts", model=scanned, partitioner=Partitioner(rules="fsdp", ici={"fsdp": 4, "data": 2}))
    np.testing.assert_allclose(losses(tmp_path / "parts"), losses(tmp_path / "whole"), rtol=2e-5)
    # The thread that compiles the step beside the preparation of the run compiles it for the arrays of the loop.
    steps = [record for record in caplog.records if "Compiling jit(train_step)" in record.getMessage()]
    assert [record.threadName for record in steps] == ["background work"]


@pytest.mark.full
def test_checkpoints_by_time_resume_with_the_same_losses(tmp_path):
    run(tmp_path / "whole")
    run(tmp_path / "parts", total=5, save=None, save_seconds=1e-9)  # always due, and agreed one step later
    checkpoints = tmp_path / "parts" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["4", "5"]  # of 2, 4 and the last step, 5
    shutil.rmtree(checkpoints / "5")
    run(tmp_path / "parts")
    assert [start["step"] for start in read_starts(tmp_path / "parts")] == [0, 4]
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


@pytest.mark.full
def test_resume_in_a_store_that_cannot_append(tmp_path):
    run(tmp_path / "whole")
    url = f"memory:/{tmp_path}/run"
    began = time.time()
    run(url, total=4)  # saved at step 3 and at the last step, 4
    run(url)
    elapsed = time.time() - began
    assert losses(url) == losses(tmp_path / "whole")
    status, spent = read_status(url), read_goodput(url)
    assert status["state"] == "finished" and status["goodput"]["seconds"]["compile"] > 0
    assert [start["step"] for start in read_starts(url)] == [0, 4]
    assert paths.read_text(f"{url}/log.txt").count(" I command line: ") == 2
    assert spent.starts == 2 and spent.seconds["lost"] == spent.seconds["idle"] == 0
    assert 0.5 * elapsed < spent.total < elapsed  # the rest is before the first and after the last line of a start


@pytest.mark.full
def test_changed_metrics_are_reported_when_a_run_resumes(tmp_path, caplog):
    run(tmp_path, total=3)
    shutil.copytree(tmp_path, tmp_path.with_name("same"))
    file = tmp_path / "metrics.jsonl"
    file.write_text(
        re.sub(
            r'"loss": (\d)\.(\d)', lambda found: f'"loss": {found[1]}.{9 - int(found[2])}', file.read_text(), count=1
        )
    )
    run(tmp_path)
    assert "metrics.jsonl: changed since the run has written it" in caplog.text
    caplog.clear()
    run(tmp_path.with_name("same"))
    assert "metrics.jsonl: changed" not in caplog.text


def test_finished_run_is_reported(tmp_path, caplog):
    run(tmp_path)
    before = (tmp_path / "metrics.jsonl").read_text()
    with caplog.at_level("INFO", logger="absl"):
        assert run(tmp_path).step == 6
    assert "finished at step 6; the best checkpoint is 6 (loss " in caplog.text
    assert "to train longer, repeat the command with --gin.MODEL_DIR=" in caplog.text
    assert (tmp_path / "metrics.jsonl").read_text() == before


@pytest.mark.full
def test_frozen_parameters_are_unchanged_and_saved(tmp_path):
    group = optimizers.ParameterGroup("token_embedder", freeze=True)
    optimizer = optimizers.adamw(learning_rate=0.01, groups=(group,))
    result = run(tmp_path, optimizer=optimizer)
    fresh = parameters.named_leaves(CONFIG.make(jax.random.split(jax.random.key(0))[0]))
    trained = parameters.named_leaves(result.params["model"])
    changed = {name for name in fresh if not np.array_equal(fresh[name], trained[name])}
    assert set(fresh) - changed == {name for name in fresh if name.startswith("token_embedder")}
    stored = Checkpoints(str(tmp_path / "checkpoints")).shapes(6)
    assert any(name.startswith("params/model/token_embedder") for name in stored)
    assert not any(name.startswith("opt_state") and "token_embedder" in name for name in stored)
    assert run(tmp_path, optimizer=optimizer, total=8).step == 8


def test_evaluation_results_are_saved_with_their_checkpoint(tmp_path):
    class Recorder(Checkpoints):
        metrics = {}

        def save(self, step, tree, *, metrics=None, **kwargs):
            self.metrics[step] = metrics

    run(tmp_path, checkpoints=Recorder, evaluate=2, save=1, total=4)
    assert [step for step, metrics in Recorder.metrics.items() if metrics] == [2, 4]


def keeping_best(directory, **changes):
    return Checkpoints(directory, **{"keep_latest": 1, "keep_best": 1} | changes)


class Interrupted(Checkpoints):
    """Ends the run between the second evaluation and its checkpoint."""

    def save(self, step, tree, **kwargs):
        if step == 4:
            raise KeyboardInterrupt
        super().save(step, tree, **kwargs)


@pytest.mark.full
def test_patience_ends_the_run_as_if_it_had_not_been_interrupted(tmp_path, caplog):
    """Nothing improves after the first evaluation, because the learning rate is 0 after the second step."""
    arguments = dict(
        optimizer=optimizers.adamw(learning_rate=lambda step: jax.numpy.where(step < 2, 1e-2, 0.0)),
        total=40,
        evaluate=2,
        save=100,
        patience=2,
        checkpoints=keeping_best,
    )
    with caplog.at_level("INFO", logger="absl"):
        result = run(tmp_path / "whole", **arguments)
    assert (result.step, result.best_step, result.stopped_by) == (6, 2, None)
    assert Checkpoints(str(tmp_path / "whole/checkpoints"), read_only=True).steps() == [2, 6]
    status = read_status(str(tmp_path / "whole"))
    assert (status["state"], status["step"]) == ("finished", 6)
    assert "loss has not improved in 2 evaluations since step 2" in status["reason"]
    assert f"because {status['reason']}; the best checkpoint is 2" in caplog.text

    interrupted = lambda directory: Interrupted(directory, keep_latest=1, keep_best=1)  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "resumed", **arguments | {"checkpoints": interrupted})
    assert read_metrics(str(tmp_path / "resumed"))[-1]["step"] == 4  # evaluated, and not saved
    assert run(tmp_path / "resumed", **arguments).best_step == 2
    assert losses(tmp_path / "resumed", "validation") == losses(tmp_path / "whole", "validation")
    again = run(tmp_path / "resumed", **arguments)  # has nothing left to do
    assert (again.step, again.best_step) == (6, 2)
    assert run(tmp_path / "resumed", **arguments | {"patience": 3}).step == 8


class Secret(Copying):
    """A source whose labels are not published."""

    split = "test"
    tasks = (types.SimpleNamespace(benchmark=types.SimpleNamespace(unlabeled_splits=("test",))),)


def test_evaluations_without_labels_do_not_count_for_patience(tmp_path):
    evaluations = {"validation": Evaluation(data=Copying(), batches=1), "test": Evaluation(data=Secret())}
    partitioner = Partitioner(devices=jax.devices()[:1], ici={"data": 1})
    names = Evaluations(evaluations, SequenceToSequence(), CONFIG, partitioner).names
    assert names == ("validation",)
    run(tmp_path, evaluations=evaluations, total=2, evaluate=1)
    assert len(losses(tmp_path, "validation")) == 2 and not losses(tmp_path, "test")
    improvement = early_stopping.restore(BestMetric("loss"), 1, str(tmp_path), 2, names)
    assert improvement.best_step in (1, 2)


def test_each_evaluation_has_its_own_rows(tmp_path):
    evaluations = {name: Evaluation(data=Copying(), batches=number) for name, number in (("one", 1), ("two", 2))}
    best = lambda directory: keeping_best(directory, best_metric="two/accuracy")  # noqa: E731
    result = run(tmp_path, evaluations=evaluations | {"off": Evaluation(data=None)}, checkpoints=best, total=3)
    assert losses(tmp_path, "one") == [result.evaluation["one/loss"]]
    assert losses(tmp_path, "two") == [result.evaluation["two/loss"]] != losses(tmp_path, "one")
    with pytest.raises(UserError, match="the name 'train' is reserved for the training metrics"):
        run(tmp_path / "other", evaluations={"train": Evaluation(data=Copying())})
    with pytest.raises(UserError, match="PATIENCE=2: the run has no evaluation"):
        run(tmp_path / "other", evaluations=None, patience=2)


def test_unknown_best_metric_raises_before_the_first_step(tmp_path):
    best = lambda directory: keeping_best(directory, best_metric="acc")  # noqa: E731
    with pytest.raises(UserError, match="BEST_METRIC='acc': no evaluation has this metric. Give one of accuracy, loss"):
        run(tmp_path, checkpoints=best, evaluations={"validation": Evaluation(data=Copying())})
    assert not (tmp_path / "metrics.jsonl").exists()


def test_initial_checkpoint_keeps_optimizer_and_step_fresh(tmp_path):
    first = run(tmp_path / "first")
    second = run(tmp_path / "second", path=str(tmp_path / "first"), total=1, evaluations=None)
    assert second.step == 1
    assert losses(tmp_path / "second")[0] < losses(tmp_path / "first")[0]
    step_directory = tmp_path / "first" / "checkpoints" / "6"
    third = run(tmp_path / "third", path=str(step_directory), total=1, evaluations=None)
    assert losses(tmp_path / "third") == losses(tmp_path / "second")
    assert parameters.count(third.params) == parameters.count(first.params)


def test_initial_checkpoint_of_another_shape_raises(tmp_path):
    run(tmp_path / "first", total=1)
    wider = dataclasses.replace(CONFIG, mlp_dim=48)
    with pytest.raises(
        ValueError, match=r"mlp/.* has shape \(1, 16, 32\), but .* of this model has shape \(1, 16, 48\)"
    ):
        run(tmp_path / "second", model=wider, path=str(tmp_path / "first"))
    with pytest.raises(UserError, match=r"INITIAL_LAYERS={'encoder': \(5,\)}: layer 5 does not exist"):
        run(tmp_path / "second", path=str(tmp_path / "first"), layers={"encoder": (5,)})
    assert not (tmp_path / "second").exists()


@pytest.mark.full
def test_mapping_of_initial_weights_selects_the_restored_tensors(tmp_path, caplog):
    run(tmp_path / "first")
    with caplog.at_level("INFO", logger="absl"):
        run(
            tmp_path / "second",
            path=str(tmp_path / "first"),
            mapping=[("^decoder/.*", "")],
            total=1,
        )
    fresh = next(record.getMessage() for record in caplog.records if "freshly initialized" in record.getMessage())
    assert "decoder/" in fresh and "encoder/" not in fresh


@pytest.mark.full
def test_checkpoint_stores_the_environment(tmp_path):
    run(tmp_path, total=3)
    about = Checkpoints(str(tmp_path / "checkpoints"), read_only=True).about(3)
    assert about["jax"] == jax.__version__ and about["rules"] == "fsdp"
    assert json.dumps(about)


@pytest.mark.full
def test_rates_of_a_resumed_run_exclude_compilation(tmp_path, monkeypatch):
    run(tmp_path, total=3)
    original = step.make_train_step

    def slow_to_trace(*args, **kwargs):
        train_step = original(*args, **kwargs)

        def traced(*args):
            time.sleep(2)  # runs only during tracing
            return train_step(*args)

        return traced

    monkeypatch.setattr(step, "make_train_step", slow_to_trace)
    run(tmp_path, total=6, log=6)
    last = [row for row in read_metrics(str(tmp_path)) if row["split"] == "train"][-1]
    assert last["step"] == 6 and last["seconds_per_step"] < 0.5


@dataclasses.dataclass
class Identified(Copying):
    """A source whose position includes the batch size, as in real sources."""

    def state(self):
        return b"%d of %d" % (self.batches_read, self.batch_size)

    def restore(self, state):
        drawn, _, rows = state.split()
        if int(rows) != self.batch_size:
            raise DataMismatchError(f"batch_size was {int(rows)}, is {self.batch_size}")
        self.batches_read = int(drawn)


@pytest.mark.full
def test_override_config_restarts_the_data_for_another_batch_size(tmp_path, caplog):
    once = dict(evaluations=None, save=2)
    run(tmp_path, data=Identified(), total=2, **once)
    with pytest.raises(DataMismatchError, match="batch_size was 8, is 4"):
        run(tmp_path, data=Identified(batch_size=4), **once)
    override = run_directory.RunConfig("t5x_like.train.train.seed = 0\n", override=True)
    drawn = Identified(batch_size=4)
    run(tmp_path, data=drawn, total=4, run_config=override, **once)
    assert "batch_size was 8, is 4: because of --override_config, the data starts from its beginning" in caplog.text
    assert Checkpoints(str(tmp_path / "checkpoints"), read_only=True).latest() == 4
    position = Checkpoints(str(tmp_path / "checkpoints"), read_only=True).restore_feed(4)
    restored = PrefetchingFeed(Identified(batch_size=4), lambda batch: batch)
    restored.restore(position)
    np.testing.assert_equal(next(restored), drawn.make(3))  # two batches of the new size have been read
    restored.close()
