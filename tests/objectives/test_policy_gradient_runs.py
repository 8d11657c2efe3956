"""Runs with policy gradients: rewards that rise, faulty functions, and a run that is killed while it samples."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import copying_run
import jax
import numpy as np
import pytest
import several_processes
from families import FAMILIES
from prompt_rows import PromptRows

from t5x_like import optimizers
from t5x_like.errors import UserError
from t5x_like.metrics import read_metrics
from t5x_like.objectives.policy_gradient import GRPO, RLOO
from t5x_like.objectives.ppo import PPO
from t5x_like.objectives.rewards import Rewards
from t5x_like.objectives.rollouts import Rollouts
from t5x_like.partitioning import Partitioner
from t5x_like.runtime import protocol

CONFIG = FAMILIES["llama"].config
COUNTED = Rollouts(rewards=Rewards({"counting_rewards.count": 1.0}), max_length=6, eos_id=1)
FROZEN = (optimizers.ParameterGroup("^objective/reference/", freeze=True),)


def run(directory, objective, **settings):
    groups = FROZEN if objective.beta else ()
    settings = {"total": 30, "optimizer": optimizers.adamw(learning_rate=0.02, groups=groups)} | settings
    settings = {"model": CONFIG, "data": PromptRows(batch_size=8), "evaluations": None} | settings
    copying_run.run(directory, objective=objective, **settings)
    return read_metrics(str(directory))


# An objective, and its steps.
RISING = {
    "grpo": (GRPO(dataclasses.replace(COUNTED, samples=8)), 30),
    "rloo": (RLOO(dataclasses.replace(COUNTED, samples=4), beta=0.01), 60),
    "ppo": (PPO(dataclasses.replace(COUNTED, samples=8, updates=4), beta=0.01), 80),
}


@pytest.mark.full
@pytest.mark.parametrize("name", RISING)
def test_a_countable_reward_rises(name, tmp_path):
    objective, steps = RISING[name]
    rows = run(tmp_path, objective, total=steps)
    assert rows[0]["reward"] < 0.1 and rows[-1]["reward"] > 0.6, [row["reward"] for row in rows]
    if objective.updates_per_batch > 1:
        assert all(row["clipped"] == 0 for row in rows[:: objective.updates_per_batch])
        assert any(row["clipped"] > 0 for row in rows)


FAULTY = {"fail": "raised KeyError", "nan": "returned nan", "too_few": "returned 1 rewards for 16 completions"}


@pytest.mark.full
@pytest.mark.parametrize("name", FAULTY)
def test_faulty_rewards_end_the_run_before_an_update(name, tmp_path):
    objective = GRPO(Rollouts(rewards=Rewards({f"counting_rewards.{name}": 1.0}), samples=2, max_length=2, eos_id=1))
    with pytest.raises(UserError, match=f"REWARDS: 'counting_rewards.{name}' {FAULTY[name]}"):
        run(tmp_path, objective)
    assert not (tmp_path / "checkpoints").exists() or not any((tmp_path / "checkpoints").iterdir())


@pytest.mark.full
def test_a_run_killed_while_it_rewards_samples_resumes_exactly(tmp_path):
    program = (
        "import sys, test_policy_gradient_runs as tests\n"
        "rewards = tests.Rewards({'counting_rewards.count_or_die': 1.0})\n"
        "rollouts = tests.Rollouts(rewards=rewards, samples=4, max_length=4, eos_id=1, updates=2)\n"
        "objective = tests.GRPO(rollouts)\n"
        "tests.run(sys.argv[1], objective, total=6)\n"
    )
    here = Path(__file__).parents[1]
    path = os.pathsep.join([str(here), str(here / "objectives"), os.environ.get("PYTHONPATH", "")])

    def start(name, **variables):
        environment = {**os.environ, "PYTHONPATH": path, **variables}
        command = [sys.executable, "-c", program, str(tmp_path / name)]
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode

    def rows(name):
        names = ("step", "reward", "loss", "grad_norm", "param_norm", "completion_length")
        return [[row[name] for name in names] for row in read_metrics(str(tmp_path / name))]

    assert start("killed", DIE_AT="3") == -signal.SIGKILL
    assert {step for step, *_ in rows("killed")} <= {1, 2, 3, 4}
    assert start("killed") == start("whole") == 0
    assert rows("killed") == rows("whole") and len(rows("whole")) == 6
    # Two updates have the same completions.
    rewards = [reward for _, reward, *_ in rows("whole")]
    assert rewards[::2] == rewards[1::2] and len(set(rewards)) > 1


@pytest.mark.full
def test_two_processes_reward_their_rows_as_one_and_end_by_the_name_of_a_failing_function(tmp_path):
    """The function fails on one of two devices of a process, for which the other one waits."""
    directory = tmp_path / "two"
    processes = several_processes.start(directory, gin_file="grpo.gin", special={1: {"FAIL_AT": "6"}})
    codes = several_processes.finish(processes)
    logs = [several_processes.output(directory, index) for index in (0, 1)]
    assert codes == [protocol.USER_ERROR] * 2, logs
    message = "REWARDS: 'counting_rewards.count_or_fail' raised KeyError: 'no entry' (counting_rewards.py, line "
    assert f"process 1 of 2 has failed: {message}" in logs[0] and message in logs[1]

    config = dataclasses.replace(CONFIG, num_heads=2, num_kv_heads=1, num_layers=1)
    rollouts = dataclasses.replace(COUNTED, samples=4, max_length=4, updates=2)
    partitioner = Partitioner(rules="fsdp", ici={"fsdp": 4}, devices=jax.devices()[:4])
    settings = {"optimizer": optimizers.adamw(learning_rate=0.01), "partitioner": partitioner, "model": config}
    expected = run(tmp_path / "one", GRPO(rollouts), total=4, **settings)
    found = read_metrics(str(directory))
    assert [row["step"] for row in found] == [1, 2, 3, 4]
    for name in ("reward", "loss", "grad_norm", "param_norm", "completion_length", "clipped"):
        pair = ([row[name] for row in rows] for rows in (found, expected))
        np.testing.assert_allclose(*pair, rtol=2e-5, atol=1e-6, err_msg=name)
    assert len({row["reward"] for row in found}) == 2  # of two rollouts


def test_an_unknown_eos_raises(tmp_path):
    objective = GRPO(dataclasses.replace(COUNTED, samples=2, eos_id=None))
    with pytest.raises(UserError, match="SAMPLE_EOS_ID=None: the model has no eos_token_id. Give the id that ends a"):
        run(tmp_path, objective)
