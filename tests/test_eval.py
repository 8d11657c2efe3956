"""Evaluation of a checkpoint: loss, metrics of the task, several checkpoints, splits without labels."""

import json
from pathlib import Path

import numpy as np
import pytest
import recipes
import seqio
from lanes import others_are_full
from letters import CONFIG, TASK, exact, partitioner, source
from opened import call

from t5x_like import optimizers
from t5x_like.data.cooccurrences import CooccurrenceSource
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.seqio_feed.evaluation import TaskEvaluator
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.eval import evaluate
from t5x_like.loading import open_model
from t5x_like.metrics import read_metrics
from t5x_like.models.base import for_platform
from t5x_like.models.gpt import GPTConfig
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.prefix_lm import PrefixLM
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.packages import require
from t5x_like.stored import warm_start
from t5x_like.train import train
from t5x_like.training.evaluation import Evaluation, Evaluations
from t5x_like.training.predictions import Predictor
from t5x_like.training.runs import run_lock

pytestmark = pytest.mark.usefixtures("letters_run")

DECODER = GPTConfig(vocab_size=384, embed_dim=64, mlp_dim=64, num_heads=4, head_dim=16, num_layers=1, max_length=32)


def test_eval_computes_loss_and_task_metrics(letters_run, tmp_path):
    results = call(
        evaluate,
        model=CONFIG,
        objective=SequenceToSequence(),
        data=source("validation", batch_size=4),  # 6 examples: the second batch is half empty
        checkpoint_path=letters_run,
        partitioner=partitioner(),
        output_dir=str(tmp_path),
    )
    assert results["accuracy"] == 1.0 and results["loss"] < 0.2
    assert results[f"{TASK}/exact"] == 1.0
    # Each example has two target tokens: the letter and EOS.
    np.testing.assert_allclose(results[f"{TASK}/mean_score"], -2 * results["loss"], rtol=1e-4)
    (row,) = (row for row in read_metrics(letters_run) if row["split"] == "validation" and row["step"] == 60)
    assert {name: row[name] for name in results} == results  # evaluated in the same way while training
    (stored,) = json.loads((tmp_path / "results.json").read_text())
    assert stored["evaluations"] == {f"{TASK}, split validation": results}
    written = [path for path in (tmp_path / "inference_eval").rglob("*.jsonl") if TASK in path.name]
    assert sum(len(path.read_text().splitlines()) for path in written) >= 6


@pytest.mark.full
def test_predictions_of_eval_end_before_stop_strings(letters_run):
    results = call(
        evaluate,
        model=CONFIG,
        objective=SequenceToSequence(),
        data=source("validation"),
        checkpoint_path=letters_run,
        decoding=Decoding(stop_strings=("a",)),
        partitioner=partitioner(),
    )
    # Two of the six targets are the letter a, whose prediction becomes empty.
    assert results[f"{TASK}/exact"] == pytest.approx(4 / 6)


@pytest.mark.full
def test_decoder_generates_the_continuation_of_the_inputs(tmp_path):
    result = train(
        recipes.make(
            model=DECODER,
            objective=PrefixLM(causal_inputs=True),
            optimizer=optimizers.adamw(learning_rate=3e-3),
            data=source("train"),
            evaluations={"validation": Evaluation(data=source("validation"))},
            total=80,
            save=None,
            model_dir=str(tmp_path / "decoder"),
            partitioner=partitioner(),
        )
    )
    assert result.evaluation[f"{TASK}/exact"] == 1.0


def test_metrics_of_predictions_without_inputs_raise():
    message = f"task {TASK}: its metric_fns exact need predictions, but GPTConfig with CausalLM has no inputs"
    with pytest.raises(UserError, match=message):
        call(evaluate, model=DECODER, objective=CausalLM(), data=source("validation"), checkpoint_path="none")


def test_split_of_data_without_splits_raises():
    data = CooccurrenceSource(text=source("train"), batch_size=2)
    with pytest.raises(UserError, match="EVAL_SPLIT=test: the data of a CooccurrenceSource has no splits. Give"):
        Evaluation(data=data, splits="test").parts()


def test_log_names_step_and_split(letters_run, caplog):
    with caplog.at_level("INFO", logger="absl"):
        call(
            evaluate,
            model=CONFIG,
            objective=SequenceToSequence(),
            data=source("validation"),
            checkpoint_path=letters_run,
            partitioner=partitioner(),
            task_metrics=False,
        )
    assert f"step 60 of {letters_run}, {TASK}, split validation:" in caplog.text


@pytest.mark.full
def test_evaluations_equal_those_of_eval_and_are_prepared_once(letters_run, monkeypatch):
    traced, read = [], []

    class Traced(SequenceToSequence):
        def read(self, params, outputs, rows, **options):
            traced.append("terms")
            return super().read(params, outputs, rows, **options)

        def predict(self, found):
            traced.append("scores")
            return super().predict(found)

    original = SeqIOSource.eval_batches
    monkeypatch.setattr(SeqIOSource, "eval_batches", lambda *args, **kw: read.append(1) or original(*args, **kw))
    data, here = source("validation", batch_size=4), partitioner()
    config = for_platform(CONFIG, "cpu")
    evaluations = Evaluations(
        {"held_out": Evaluation(data=data, splits=("validation", "other"))}, Traced(), config, here
    )
    params = open_model(letters_run, model=CONFIG, objective=SequenceToSequence(), partitioner=here).read()
    first = evaluations(params)
    prepared = len(traced), len(read)
    assert evaluations(params) == first
    assert (len(traced), len(read)) == prepared
    assert set(first) == {"validation", "other"} and first["other"][f"{TASK}/exact"] == 1.0
    alone = call(
        evaluate,
        model=CONFIG,
        objective=SequenceToSequence(),
        data=data,
        checkpoint_path=letters_run,
        partitioner=here,
    )
    assert first["validation"] == alone


def test_metrics_of_a_task_are_known_before_an_evaluation(monkeypatch):
    task, spec = seqio.TaskRegistry.get(TASK), SequenceToSequence().features
    assert TaskEvaluator(source("validation"), spec).metric_names() is None  # one of them reads scores

    def fails(targets, predictions):
        raise TypeError("predictions are not targets")

    for metric, names in ((exact, [f"{TASK}/exact"]), (fails, None)):
        monkeypatch.setattr(task, "_all_metric_fns", ([metric], [], []))
        monkeypatch.setattr(task, "metric_objs", [metric])
        assert TaskEvaluator(source("validation"), spec).metric_names() == names


def of_an_extra():
    require("package_of_no_one", "a metric of the task", extra="eval")


def of_the_user():
    import package_of_no_one  # noqa: F401


@pytest.mark.parametrize(
    ("command", "imports"),
    others_are_full(
        [(command, imports) for command in (train, evaluate) for imports in (of_an_extra, of_the_user)],
        [(evaluate, of_an_extra), (train, of_the_user)],
    ),
)
def test_metric_without_its_package_stops_the_command_before_anything_is_computed(
    command, imports, letters_run, tmp_path, monkeypatch
):
    def needs_a_package(targets, predictions):
        imports()
        return {"value": 1.0}

    task, computed = seqio.TaskRegistry.get(TASK), []
    monkeypatch.setattr(task, "_all_metric_fns", ([needs_a_package], [], []))
    monkeypatch.setattr(task, "metric_objs", [needs_a_package])
    monkeypatch.setattr(Predictor, "predict", lambda *args: computed.append(args))
    with pytest.raises(UserError, match="a metric .*needs package_of_no_one, which is not installed"):
        if command is train:
            train(
                recipes.make(
                    model=CONFIG,
                    objective=SequenceToSequence(),
                    optimizer=optimizers.adamw(learning_rate=3e-3),
                    data=source("train"),
                    evaluations={"validation": Evaluation(data=source("validation"))},
                    total=2,
                    evaluate=2,
                    log=1,
                    model_dir=str(tmp_path),
                    partitioner=partitioner(),
                )
            )
        else:
            call(
                evaluate,
                model=CONFIG,
                objective=SequenceToSequence(),
                data=source("validation"),
                checkpoint_path=letters_run,
                partitioner=partitioner(),
            )
    assert not computed and not read_metrics(str(tmp_path))


def test_all_checkpoints_are_evaluated_once_per_setting(letters_run, tmp_path, monkeypatch, caplog):
    loaded = []
    original = warm_start.load
    monkeypatch.setattr(warm_start, "load", lambda source, *args: loaded.append(source.path) or original(source, *args))

    def run(which, steps=1):
        return call(
            evaluate,
            model=CONFIG,
            objective=SequenceToSequence(),
            data=source("validation"),
            checkpoint_path=letters_run,
            checkpoint=which,
            eval_steps=steps,
            task_metrics=False,
            partitioner=partitioner(),
            output_dir=str(tmp_path),
            poll_seconds=0.1,
        )

    last = run("all")
    assert loaded == [f"{letters_run}/checkpoints/{step}" for step in (30, 60)]
    assert run("latest") == run("best") == run("watch") == last  # the run has finished, so watching ends
    assert len(loaded) == 2
    status = Path(letters_run, "status.json")
    finished = status.read_text()
    try:
        status.write_text(json.dumps({"state": "running"}))
        monkeypatch.setattr(run_lock, "STALE_SECONDS", 0.05)
        assert run("watch") == last
        assert f"{letters_run}: the run no longer renews its lock, so it was killed" in caplog.text
    finally:
        status.write_text(finished)
    with caplog.at_level("INFO", logger="absl"):
        run(30, steps=2)
    assert loaded[2:] == [f"{letters_run}/checkpoints/30"]
    stored = json.loads((tmp_path / "results.json").read_text())
    assert [result["step"] for result in stored] == [30, 30, 60]
    assert stored[-1]["evaluations"] == {f"{TASK}, split validation": last}
    table = (tmp_path / "results.md").read_text()
    values = f"{last['loss']:.4g} | {last['accuracy']:.4g}"
    assert f"## {TASK}, split validation" in table and f"| 60 | EVAL_STEPS=1 | {values} |" in table
    assert "| 30 | EVAL_STEPS=2 |" in table


@pytest.mark.full
def test_partial_evaluation_depends_on_the_number_of_rows_and_says_so(letters_run, caplog):
    def loss(steps, batch_size):
        with caplog.at_level("INFO", logger="absl"):
            return call(
                evaluate,
                model=CONFIG,
                objective=SequenceToSequence(),
                data=source("validation", batch_size=batch_size),
                checkpoint_path=f"{letters_run}/checkpoints/30",
                eval_steps=steps,
                task_metrics=False,
                partitioner=partitioner(),
            )["loss"]

    of_four_rows = loss(1, 4)
    assert loss(2, 2) == pytest.approx(of_four_rows, rel=1e-6)
    assert "EVAL_STEPS=2: only 4 rows are evaluated (BATCH_SIZE=2)" in caplog.text
    assert loss(1, 2) != pytest.approx(of_four_rows, rel=1e-3)


@pytest.mark.full
def test_predictions_for_a_split_without_labels_are_written(letters_run, tmp_path):
    class Letters:
        name, group, groups, unlabeled_splits = "Letters", "copy", ("copy",), ("test",)
        submitted_splits = unlabeled_splits

        def files(self, split, examples, predictions, outputs):
            return {f"{split}.txt": "".join(f"{prediction}\n" for prediction in predictions)}

    seqio.TaskRegistry.get(TASK).benchmark = Letters()
    options = dict(model=CONFIG, objective=SequenceToSequence(), checkpoint_path=letters_run, partitioner=partitioner())
    try:
        assert call(evaluate, data=source("test"), output_dir=str(tmp_path), **options) == {}
        assert (tmp_path / "test.txt").read_text().split() == list("abcdab")
        with pytest.raises(UserError, match=f"SPLIT=test: {TASK} has no labels there. Give OUTPUT_DIR"):
            call(evaluate, data=source("test"), **options)
        call(evaluate, data=source("validation"), output_dir=str(tmp_path), num_examples=4, **options)
        (result,) = json.loads((tmp_path / "results.json").read_text())
        metrics = result["evaluations"][f"{TASK}, split validation"]
        assert result["averages"] == {"Letters": (metrics[f"{TASK}/exact"] + metrics[f"{TASK}/mean_score"]) / 2}
    finally:
        del seqio.TaskRegistry.get(TASK).benchmark
