"""The checkpoints that a path and CHECKPOINT refer to."""

import jax.numpy as jnp
import pytest

from t5x_like.checkpoints.checkpoint_choice import check_is_run, choose, existing, find_step, locate
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import UserError
from t5x_like.metrics.checkpoint_evaluations import Best

pytestmark = pytest.mark.notf


def save(run, evaluations, **options):
    checkpoints = Checkpoints(str(run / "checkpoints"), keep_latest=9, **options)
    for step, metrics in evaluations.items():
        checkpoints.save(step, {"params": {"kernel": jnp.zeros(2)}}, metrics=metrics)
    checkpoints.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    save(directory, {1: {"loss": 3.0}, 2: {"loss": 1.0}, 3: {"loss": float("nan")}, 4: None})
    return directory


def test_checkpoint_selects_steps(run):
    steps = {name: [int(path.rpartition("/")[2]) for path in choose(str(run), name)] for name in ("latest", "best", 1)}
    assert steps == {"latest": [4], "best": [2], 1: [1]}
    assert (
        choose(f"{run}/", "all", several=True) == existing(str(run)) == [f"{run}/checkpoints/{n}" for n in range(1, 5)]
    )
    assert choose(str(run / "checkpoints" / "3")) == [f"{run}/checkpoints/3"]
    assert choose(str(run / "checkpoints" / "best")) == [f"{run}/checkpoints/2"]
    assert locate(f"{run}/checkpoints/best") == (f"{run}/checkpoints", 2)
    assert (find_step(str(run)), find_step(f"{run}/checkpoints/best")) == (4, 2)


@pytest.mark.parametrize(
    "checkpoint, described",
    [
        ("latest", "checkpoint 4; checkpoint 2 (loss 1) is better, and TEACHER_CHECKPOINT=best selects it"),
        ("best", "checkpoint 2 (loss 1)"),
    ],
)
def test_chosen_checkpoint_is_logged_with_a_better_one(run, caplog, checkpoint, described):
    with caplog.at_level("INFO", logger="absl"):
        choose(str(run), checkpoint, setting="TEACHER_CHECKPOINT")
    assert f"reading {run}, {described}" in caplog.messages


@pytest.mark.parametrize(
    "path, checkpoint, message",
    [
        ("", 7, r"CHECKPOINT=7: not found in .*checkpoints. Give one of \[1, 2, 3, 4\], latest or best"),
        ("", "all", "CHECKPOINT='all' is unknown. Give latest, best, or a step"),
        ("checkpoints/3", "best", "checkpoints/3 is a single checkpoint. Give a run directory, or omit CHECKPOINT"),
        ("nothing", "latest", "no checkpoint found"),
    ],
)
def test_missing_checkpoints_raise(run, path, checkpoint, message):
    with pytest.raises(UserError, match=message):
        choose(str(run / path), checkpoint)


def test_single_checkpoint_is_not_a_run(run):
    check_is_run(str(run), "watch")
    with pytest.raises(UserError, match="CHECKPOINT=watch: .*/3 is a single checkpoint. Give a run directory"):
        check_is_run(str(run / "checkpoints" / "3"), "watch")


def test_best_without_evaluations_raises(tmp_path):
    save(tmp_path, {5: None})
    with pytest.raises(UserError, match=r"CHECKPOINT=best: no checkpoint in .* \(checkpoints: \[5\]\)"):
        choose(str(tmp_path), "best")


def test_best_checkpoints_survive_a_resumed_run(tmp_path):
    """Their evaluations are stored, so that a new process keeps the same ones."""
    options = dict(keep_best=1, best_metric="a_task/accuracy")
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"), keep_latest=1, **options)
    for step, value in enumerate((0.9, 0.1, 0.2), start=1):
        if step == 3:
            checkpoints.close()
            checkpoints = Checkpoints(str(tmp_path / "checkpoints"), keep_latest=1, **options)
        checkpoints.save(step, {"kernel": jnp.zeros(2)}, metrics={"a_task/accuracy": value})
    checkpoints.wait()
    assert (checkpoints.steps(), checkpoints.best()) == ([1, 3], Best(1, "a_task/accuracy", 0.9))
    assert checkpoints.evaluation(1) == {"a_task/accuracy": 0.9}
    with pytest.raises(
        UserError, match="BEST_METRIC='a_task/accuracy': no evaluation has this metric. Give one of loss"
    ):
        checkpoints.save(4, {"kernel": jnp.zeros(2)}, metrics={"loss": 1.0})
    checkpoints.close()


@pytest.mark.parametrize("damage", ["{", '{"evaluation": {"metrics": 3}}', '{"evaluation": [1]}', "[1]"])
def test_damaged_evaluation_is_not_ignored(tmp_path, damage):
    save(tmp_path, {1: {"loss": 3.0}, 2: {"loss": 1.0}})
    (tmp_path / "checkpoints/2/about/metadata").write_text(damage)
    with pytest.raises(UserError, match="checkpoint .*/checkpoints/2 is damaged, so the best checkpoint is not known"):
        choose(str(tmp_path), "best")
    assert choose(str(tmp_path)) == [f"{tmp_path}/checkpoints/2"]  # its tensors are verified when it is read
