"""Lost and hanging processes: the watchdog exits, and failed collectives are explained."""

import os
import subprocess
import sys
import time
import types

import jax
import pytest
import recipes
from opened import call

from t5x_like import errors, optimizers, train
from t5x_like import eval as eval_command
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.optimizers import schedules
from t5x_like.runtime import distributed, protocol, watchdog
from t5x_like.stored import warm_start
from t5x_like.training import evaluation
from t5x_like.vocabularies.vocabulary_digest import TextVocabulary

pytestmark = [pytest.mark.full, pytest.mark.notf]

LENGTHS = {"inputs": 8, "targets": 8}


def test_watchdog_exits_and_reports_the_stack(tmp_path):
    code = (
        "import time; from t5x_like.runtime import watchdog\n"
        "with watchdog.Watchdog(1, enabled=True) as watching:\n"
        f"  with watchdog.reports_hangs({str(tmp_path)!r}, lambda text: print('reported:', text)):\n"
        "    for step in range(4): watching.heartbeat(f'step {step}'); time.sleep(0.5)\n"
        "    time.sleep(60)\n"
    )
    started = time.monotonic()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert result.returncode == protocol.LIKELY_TO_REPEAT and time.monotonic() - started < 50
    assert "for step 3: this process, another one or the data hangs" in result.stderr
    assert 'File "<string>", line 5' in result.stderr
    assert 'File "<string>", line 5' in (tmp_path / "hang" / "process_00000.txt").read_text()
    assert "reported: all 1 processes wait at <string>:5 in <module>." in result.stdout


def test_limit_of_a_step_follows_the_longest_step(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(watchdog, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    watching, limits = watchdog.Watchdog(enabled=False), []

    def spend(seconds, activity):
        now[0] += seconds
        watching.heartbeat(activity, is_step=activity == "step")
        limits.append(watching.limit)

    for seconds in (0, 500, 4, 40, 4):  # the first step compiles for 500 s
        spend(seconds, "step")
    spend(4, "the evaluation")
    spend(900, "step")
    spend(250, "step")
    assert limits == [3600, 3600, 600, 800, 800, 3600, 800, 3600]
    monkeypatch.setenv(watchdog.STALL, "70")
    assert watchdog.Watchdog(enabled=False).limit == 70


# The message of gloo if another process does not join a collective.
NO_PARTNER = (
    "INTERNAL: Gloo context initialization failed: DEADLINE_EXCEEDED: Getting store key timed out after 30000ms"
)


def dummy_run():
    """Arguments of `train` and `evaluate`, for a model that is never run."""
    config = T5Config(
        vocab_size=32, embed_dim=16, mlp_dim=32, num_heads=4, head_dim=4, encoder_layers=1, decoder_layers=1
    )
    data = types.SimpleNamespace(
        batch_shapes=lambda spec: {name: (8, size) for name, size in spec.model_lengths(LENGTHS).items()},
        check=lambda spec: None,
        check_vocabulary=lambda size: None,
        has_metrics=lambda: False,
        name="data",
        text_vocabulary=lambda spec: TextVocabulary(),
        vocabulary_kind=lambda spec: None,
        add_eos=dict,
    )
    data.per_task = lambda: [data]
    return {"model": config, "objective": SequenceToSequence(), "data": data}


def fail_collective(monkeypatch, module, name):
    """Replaces a function by a collective that fails because another process is missing."""
    watched = []

    def fails(*_):
        watched.extend(watchdog._watching)
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        raise jax.errors.JaxRuntimeError(NO_PARTNER)

    monkeypatch.setattr(module, name, fails)
    return watched


def test_watchdog_covers_training_before_the_processes_agree(monkeypatch, tmp_path):
    watched = fail_collective(monkeypatch, distributed, "check_agreement")
    optimizer = optimizers.adamw(learning_rate=schedules.constant(0.1))
    with pytest.raises(
        distributed.ProcessLost, match="has lost another process, which has exited, hangs.*Gloo context init"
    ):
        train.train(recipes.make(**dummy_run(), optimizer=optimizer, model_dir=str(tmp_path)))
    assert len(watched) == 1 and not watchdog._watching


GLOO = "INTERNAL: Gloo AllGather failed: Connection closed by peer [10.0.0.1]:41034"


def chained():
    try:
        raise jax.errors.JaxRuntimeError(GLOO)
    except jax.errors.JaxRuntimeError as error:
        raise KeyError("step") from error


def raises(error):
    def throw():
        raise error

    return throw


@pytest.mark.parametrize(
    "fail",
    [raises(jax.errors.JaxRuntimeError(GLOO)), raises(ValueError(f"Error while saving.\n{GLOO}")), chained],
    ids=["a step", "a save", "a cause"],
)
def test_lost_process_is_explained_in_steps_saves_and_causes(fail, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(distributed.ProcessLost, match="has lost another process.*Gloo AllGather failed"):
        with distributed.explain_lost_process():
            fail()


@pytest.mark.parametrize(
    "error", [ValueError("503 Service Unavailable"), errors.UserError("gloo not found"), errors.RunFailed("gloo")]
)
def test_other_errors_are_not_converted(error, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(type(error), match=str(error)), distributed.explain_lost_process():
        raise error


def test_single_process_errors_are_not_reported_as_lost_processes():
    with pytest.raises(ValueError, match="Gloo"), distributed.explain_lost_process():
        raise ValueError(GLOO)


def test_watchdog_covers_restoring_for_evaluation(monkeypatch, tmp_path):
    Checkpoints(str(tmp_path / "checkpoints")).save(1, {"step": jax.numpy.zeros(())})
    watched = fail_collective(monkeypatch, warm_start, "load")
    with pytest.raises(distributed.ProcessLost, match="has lost another process"):
        call(eval_command.evaluate, **dummy_run(), checkpoint_path=str(tmp_path))
    assert len(watched) == 1 and not watchdog._watching


def test_each_evaluation_batch_sends_a_heartbeat(monkeypatch):
    heartbeats = []
    monkeypatch.setattr(watchdog.Watchdog, "heartbeat", lambda watchdog, activity, **_: heartbeats.append(activity))
    partitioner = types.SimpleNamespace(
        jit=lambda step: lambda params, batch, number, carry: ({"loss": (batch, 1)}, carry),
        put_batch=lambda batch, axes: batch,
        feed_shard=(0, 1),
    )
    data = types.SimpleNamespace(name="data", eval_batches=lambda features, number, **share: iter([1.0, 2.0, 6.0]))
    evaluate = evaluation.Evaluator(SequenceToSequence(), data, partitioner, None)
    evaluate(None)
    assert not heartbeats  # no watchdog is active
    with distributed.with_watchdog():
        assert evaluate(None) == {"loss": 3.0}
    assert heartbeats == ["the start", *(f"batch {number} of 3 of the evaluation" for number in (1, 2, 3))]
