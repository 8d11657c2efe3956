"""Averages of parameters: their values, exact resumption, and what reads them."""

import functools

import numpy as np
import optax
import pytest
from copying_run import CONFIG, losses, run

from t5x_like import interop, optimizers, parameters
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.errors import UserError
from t5x_like.loading import open_model
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence

DECAY = 0.75
FROZEN = optimizers.adafactor(learning_rate=0.05, groups=(optimizers.ParameterGroup("^model/encoder", freeze=True),))


def train(directory, total=6, **changes):
    kept = {"save": 1, "checkpoints": functools.partial(Checkpoints, keep_latest=9)}
    return run(directory, **{"total": total, "ema_decay": DECAY, "optimizer": FROZEN} | kept | changes)


def stacked(params):
    stacked = parameters.stack(parameters.named_leaves(params))
    return {name: np.asarray(leaf) for name, leaf in stacked.items()}


def read(path, averaged=True):
    return stacked(open_model(str(path), model=CONFIG, objective=SequenceToSequence(), averaged=averaged).read())


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, leaf in expected.items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("average") / "run"


@pytest.fixture(scope="module")
def averaged(directory):
    return stacked(train(directory).params)


def test_average_is_that_of_optax_and_skips_frozen_parameters(directory, averaged):
    ema = optax.ema(DECAY, debias=True)
    steps = [read(directory / f"checkpoints/{step}", averaged=False) for step in range(1, 7)]
    state = ema.init(steps[0])
    for each in steps:
        expected, state = ema.update(each, state)
    for name, leaf in expected.items():
        np.testing.assert_allclose(averaged[name], leaf, rtol=1e-5, atol=1e-6, err_msg=name)
        assert np.any(averaged[name] != steps[-1][name]) != name.startswith("model/encoder"), name
    names = Checkpoints(str(directory / "checkpoints"), read_only=True).shapes(6)
    assert not any(name.startswith("average/model/encoder") for name in names)
    assert any(name.startswith("average/model/decoder") for name in names)


@pytest.mark.full
def test_whatever_reads_the_run_reads_the_averages(directory, averaged, tmp_path):
    assert_equal(read(directory), averaged)
    convert(Source(str(directory), model=CONFIG), Target(str(tmp_path / "exported")))
    assert_equal(interop.read(str(tmp_path / "exported"), CONFIG), averaged)
    still = optimizers.adafactor(learning_rate=lambda step: 0.0)
    for choice in (True, False):
        warm = run(tmp_path / f"{choice}", total=1, path=str(directory), averaged=choice, optimizer=still)
        assert_equal(stacked(warm.params), read(directory, averaged=choice))


@pytest.mark.full
def test_evaluations_are_those_of_the_averages(directory, averaged, tmp_path):
    # A run that starts from the averages, and does not change them.
    still = optimizers.adafactor(learning_rate=lambda step: 0.0)
    run(tmp_path, total=1, evaluate=1, path=str(directory), optimizer=still)
    assert losses(tmp_path, "validation") == losses(directory, "validation")[-1:]


@pytest.mark.full
def test_microbatches_have_the_same_averages(averaged, tmp_path):
    for name, leaf in stacked(train(tmp_path, microbatches=4).params).items():
        np.testing.assert_allclose(leaf, averaged[name], rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.full
def test_base_records_which_parameters_it_has(directory, tmp_path):
    for choice in (True, False):
        train(tmp_path / f"{choice}", total=1, path=str(directory), averaged=choice, ema_decay=None)
        first = read(tmp_path / f"{choice}")
        train(tmp_path / f"{choice}", total=2, path=str(directory), averaged=choice, ema_decay=None)
        name = "model/encoder/layers/mlp/wo/kernel"
        np.testing.assert_array_equal(read(tmp_path / f"{choice}")[name], first[name])


@pytest.mark.full
def test_run_without_averages_raises(tmp_path):
    train(tmp_path, total=1, ema_decay=None)
    with pytest.raises(UserError, match="EMA_DECAY: checkpoint 1 has no averages"):
        train(tmp_path, total=2)
    for decay in (0, 1.0, -1):
        with pytest.raises(UserError, match=f"EMA_DECAY={decay} is not between 0 and 1"):
            train(tmp_path / "other", ema_decay=decay)
