"""A fork continues another run with other settings: the same steps as in a run that was never split."""

import functools

import copying_run
import pytest

from t5x_like import optimizers
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import UserError
from t5x_like.metrics import read_metrics, read_starts
from t5x_like.optimizers import schedules


def adam(total, decay):
    schedule = schedules.wsd(1e-2, total_steps=total, decay_steps=decay, decay_power=0.5, warmup_steps=2)
    return optimizers.adamw(learning_rate=schedule)


def rows(directory):
    names = ("step", "loss", "grad_norm", "learning_rate")
    return [tuple(row[name] for name in names) for row in read_metrics(str(directory)) if row["split"] == "train"]


def run(directory, total, decay=1, **changes):
    copying_run.run(directory, total=total, optimizer=adam(total, decay), evaluations=None, **changes)


@pytest.fixture(scope="module")
def stable(tmp_path_factory):
    """Returns the run that others continue. Its schedule does not decay up to its last step."""
    directory = tmp_path_factory.mktemp("stable")
    checkpoints = functools.partial(Checkpoints, keep_latest=1, keep_steps=(4,))
    run(directory, 6, save=5, save_at=(4,), checkpoints=checkpoints)
    assert sorted(path.name for path in (directory / "checkpoints").iterdir()) == ["4", "6"]
    return directory


@pytest.mark.parametrize("step", [4, pytest.param(6, marks=pytest.mark.full)])
def test_decays_that_fork_from_a_stable_run_equal_runs_that_were_never_split(stable, tmp_path, step):
    total, source = step + 3, stable if step == 6 else stable / "checkpoints/4"
    run(tmp_path / "whole", total, 3)
    run(tmp_path / "decay", total, 3, fork=str(source))
    whole, decay = rows(tmp_path / "whole"), rows(tmp_path / "decay")
    assert decay == whole[step:]
    assert rows(stable)[:step] == whole[:step]
    assert decay[-1][-1] < decay[0][-1] == whole[step - 1][-1]
    (start,) = read_starts(str(tmp_path / "decay"))
    assert (start["step"], start["fork"]) == (step, str(source))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"total": 6}, "TRAIN_STEPS=6: the run continues from step 6 of FORK=.*. Give more steps: they are counted"),
        ({"fork": "5"}, "FORK=.*/5: checkpoint 5 not found. Give one of .4, 6., or train with this"),
        ({"fork": "none"}, "FORK=.*none: no checkpoint found. Give the directory of a run with checkpoints"),
        ({"model": copying_run.TWO_LAYERS}, r"FORK=.*: .* has shape \(1, .* there, and \(2, .* in this run"),
        pytest.param(
            {"ema_decay": 0.9},
            "FORK=.*: average/.* has shape none there, and .* Continue with the same model",
            marks=pytest.mark.full,
        ),
        ({"path": "other"}, "FORK=.*: INITIAL_CHECKPOINT_PATH=other is also given. Give FORK to continue a run"),
    ],
)
def test_forks_that_do_not_fit_raise_before_the_run_directory_exists(stable, tmp_path, changes, message):
    places = {"5": str(stable / "checkpoints/5"), "none": str(tmp_path / "none")}
    fork = places.get(changes.pop("fork", ""), str(stable))
    with pytest.raises(UserError, match=message):
        run(tmp_path / "run", changes.pop("total", 8), fork=fork, **changes)
    assert not (tmp_path / "run").exists()
