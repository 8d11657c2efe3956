"""Evaluation and inference with a checkpoint: loss, metrics of the task, predictions, scores, interruptions."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
import seqio
import tensorflow as tf

from data_tasks.vocabularies import PYTHON_DOCS_MODEL
from t5x_like import optimizers
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.eval import evaluate
from t5x_like.infer import infer
from t5x_like.inference import codec
from t5x_like.metrics import read_metrics
from t5x_like.models.base import for_platform
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.prefix_lm import PrefixLM
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.partitioning import Partitioner
from t5x_like.train import train
from t5x_like.training import run_lock, warm_start
from t5x_like.training.evaluation import Evaluation, Evaluations

TASK = "tests_eval_echo"
LENGTHS = {"inputs": 6, "targets": 4}
CONFIG = T5Config(
    vocab_size=384, embed_dim=64, mlp_dim=64, num_heads=4, head_dim=16, encoder_layers=1, decoder_layers=1
)

DECODER = GPTConfig(vocab_size=384, embed_dim=64, mlp_dim=64, num_heads=4, head_dim=16, num_layers=1, max_length=32)


def _examples(split, shuffle_files=False, seed=None):
    letters = [chr(ord("a") + index % 4) for index in range(64 if split == "train" else 6)]
    return tf.data.Dataset.from_tensor_slices({"inputs": letters, "targets": letters})


def exact(targets, predictions):
    return {"exact": float(np.mean([target == guess for target, guess in zip(targets, predictions, strict=True)]))}


def likelihood(targets, scores):
    return {"mean_score": float(np.mean(scores))}


@pytest.fixture(scope="module", autouse=True)
def task():
    vocabulary = seqio.ByteVocabulary()
    seqio.TaskRegistry.add(
        TASK,
        source=seqio.FunctionDataSource(_examples, splits=["train", "validation", "other", "test"]),
        preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
        output_features={name: seqio.Feature(vocabulary) for name in LENGTHS},
        metric_fns=[exact, likelihood],
    )
    yield
    seqio.TaskRegistry.remove(TASK)


def source(split, **changes):
    options = dict(mixture_or_task_name=TASK, task_feature_lengths=LENGTHS, batch_size=8, split=split, pack=False)
    return SeqIOSource(**options | changes)


def partitioner():
    return Partitioner(rules="dp", ici={"data": 2}, devices=jax.devices()[:2])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, task):
    """Returns a model that has learned to copy its input, one of four letters."""
    directory = tmp_path_factory.mktemp("echo")
    result = train(
        model=CONFIG,
        objective=SequenceToSequence(),
        optimizer=optimizers.adamw(learning_rate=3e-3),
        data=source("train"),
        evaluations={"validation": Evaluation(data=source("validation", batch_size=4))},
        eval_period=30,
        total_steps=60,
        model_dir=str(directory / "run"),
        partitioner=partitioner(),
        log_period=30,
        save_period=30,
    )
    assert result.step == 60
    return str(directory / "run")


def test_eval_computes_loss_and_task_metrics(checkpoint, tmp_path):
    results = evaluate(
        model=CONFIG,
        objective=SequenceToSequence(),
        data=source("validation", batch_size=4),  # 6 examples: the second batch is half empty
        checkpoint_path=checkpoint,
        partitioner=partitioner(),
        output_dir=str(tmp_path),
    )
    assert results["accuracy"] == 1.0 and results["loss"] < 0.2
    assert results[f"{TASK}/exact"] == 1.0
    # Each example has two target tokens: the letter and EOS.
    np.testing.assert_allclose(results[f"{TASK}/mean_score"], -2 * results["loss"], rtol=1e-4)
    (row,) = (row for row in read_metrics(checkpoint) if row["split"] == "validation" and row["step"] == 60)
    assert {name: row[name] for name in results} == results  # evaluated in the same way while training
    (stored,) = json.loads((tmp_path / "results.json").read_text())
    assert stored["evaluations"] == {f"{TASK}, split validation": results}
    written = [path for path in (tmp_path / "inference_eval").rglob("*.jsonl") if TASK in path.name]
    assert sum(len(path.read_text().splitlines()) for path in written) >= 6


def test_predictions_of_eval_end_before_stop_strings(checkpoint):
    results = evaluate(
        model=CONFIG,
        objective=SequenceToSequence(),
        data=source("validation"),
        checkpoint_path=checkpoint,
        decoding=Decoding(stop_strings=("a",)),
        partitioner=partitioner(),
    )
    # Two of the six targets are the letter a, whose prediction becomes empty.
    assert results[f"{TASK}/exact"] == pytest.approx(4 / 6)


def infer_lines(checkpoint, tmp_path, lines, suffix="txt", **changes):
    path = tmp_path / f"input.{suffix}"
    path.write_text("".join(line + "\n" for line in lines))
    options = dict(data=source("validation"), batch_size=4, partitioner=partitioner())
    output = infer(
        model=CONFIG,
        checkpoint_path=checkpoint,
        input_path=str(path),
        output_path=str(tmp_path / "output.jsonl"),
        overwrite=True,
        **options | changes,
    )
    return [json.loads(line) for line in open(output)]


def test_infer_predicts_text(checkpoint, tmp_path):
    rows = infer_lines(checkpoint, tmp_path, ["a", "d", "c", "b", "a"])
    assert [(row["index"], row["inputs"], row["prediction"]) for row in rows] == [
        *((0, "a", "a"), (1, "d", "d"), (2, "c", "c"), (3, "b", "b"), (4, "a", "a"))
    ]
    assert all(-0.5 < row["log_probability"] < 0 for row in rows)


def test_token_ids_need_no_vocabulary(checkpoint, tmp_path):
    a = 3 + ord("a")
    lines = [json.dumps({"inputs": [a + offset, 1]}) for offset in range(3)]
    rows = infer_lines(checkpoint, tmp_path, lines, "jsonl", data=None, task_feature_lengths=LENGTHS)
    assert [row["prediction"] for row in rows] == [[a], [a + 1], [a + 2]]


def test_scores_of_learned_targets_are_higher(checkpoint, tmp_path):
    lines = [json.dumps({"inputs": "b", "targets": target}) for target in ("b", "c")]
    right, wrong = infer_lines(checkpoint, tmp_path, lines, "jsonl", mode="score")
    assert wrong["score"] < -3 < right["score"] < 0
    assert (right["greedy"], wrong["greedy"], right["tokens"]) == (True, False, 1)


def test_sum_of_scores_is_the_loss_of_all_tokens(checkpoint, tmp_path):
    here = partitioner()
    results = evaluate(
        model=CONFIG,
        objective=SequenceToSequence(),
        data=source("other"),
        checkpoint_path=checkpoint,
        partitioner=here,
        task_metrics=False,
    )
    lines = [json.dumps({"inputs": text, "targets": text}) for text in "abcdab"]
    rows = infer_lines(checkpoint, tmp_path, lines, "jsonl", mode="score", score_eos=True)
    assert [row["tokens"] for row in rows] == [2] * 6
    np.testing.assert_allclose(-sum(row["score"] for row in rows), 12 * results["loss"], rtol=1e-4)


def test_interrupted_infer_resumes_after_finished_parts(checkpoint, tmp_path, monkeypatch):
    from t5x_like.inference import windows as module

    monkeypatch.setattr(module, "_BATCHES_PER_WINDOW", 1)
    written = []
    original = module.PartFiles.write

    def write(self, start, rows):
        if len(written) == 1:
            raise KeyboardInterrupt
        written.append(start)
        original(self, start, rows)

    monkeypatch.setattr(module.PartFiles, "write", write)
    lines = ["a", "b", "c", "d", "a", "b"]
    with pytest.raises(KeyboardInterrupt):
        infer_lines(checkpoint, tmp_path, lines)
    assert not (tmp_path / "output.jsonl").exists()
    with pytest.raises(UserError, match="unfinished output of another command"):
        infer_lines(checkpoint, tmp_path, lines, decoding=Decoding(beams=2))
    with pytest.raises(UserError, match="unfinished output of another command"):
        infer_lines(checkpoint, tmp_path, lines, data=source("validation", vocabulary_path="other"))
    monkeypatch.setattr(
        module.PartFiles, "write", lambda self, start, rows: (written.append(start), original(self, start, rows))
    )
    rows = infer_lines(checkpoint, tmp_path, lines)
    assert written == [0, 4]
    assert [row["prediction"] for row in rows] == lines


@pytest.mark.parametrize("option", ["per_position", "score_eos"])
def test_option_of_scoring_raises_without_it(tmp_path, option):
    with pytest.raises(UserError, match=f"{option.upper()}=True: only affects scoring. Give MODE=score"):
        infer_lines("none", tmp_path, ["a"], **{option: True})


def test_directory_without_checkpoint_raises(tmp_path):
    with pytest.raises(ValueError, match="no checkpoint found"):
        infer_lines(str(tmp_path / "nothing"), tmp_path, ["a"])


def test_decoder_generates_the_continuation_of_the_inputs(tmp_path):
    result = train(
        model=DECODER,
        objective=PrefixLM(causal_inputs=True),
        optimizer=optimizers.adamw(learning_rate=3e-3),
        data=source("train"),
        evaluations={"validation": Evaluation(data=source("validation"))},
        total_steps=80,
        save_period=None,
        model_dir=str(tmp_path / "decoder"),
        partitioner=partitioner(),
    )
    assert result.evaluation[f"{TASK}/exact"] == 1.0


def test_metrics_of_predictions_without_inputs_raise():
    message = f"task {TASK}: its metric_fns exact need predictions, but GPTConfig with CausalLM has no inputs"
    with pytest.raises(UserError, match=message):
        evaluate(model=DECODER, objective=CausalLM(), data=source("validation"), checkpoint_path="none")


def test_log_names_step_and_split(checkpoint, caplog):
    with caplog.at_level("INFO", logger="absl"):
        evaluate(
            model=CONFIG,
            objective=SequenceToSequence(),
            data=source("validation"),
            checkpoint_path=checkpoint,
            partitioner=partitioner(),
            task_metrics=False,
        )
    assert f"step 60 of {checkpoint}, {TASK}, split validation:" in caplog.text


def test_token_ids_as_inputs_give_token_ids(checkpoint, tmp_path):
    """No vocabulary is loaded, even if a task is given."""
    for data in (source("validation"), source("validation", mixture_or_task_name=None)):
        (row,) = infer_lines(checkpoint, tmp_path, ['{"inputs": [100, 1]}'], "jsonl", data=data)
        assert row["prediction"] == [100]
        (tmp_path / "output.jsonl").unlink()
    without_task = source("validation", mixture_or_task_name=None)
    with pytest.raises(UserError, match="INPUT_PATH: contains text, but neither a task nor VOCABULARY_PATH"):
        codec.vocabularies_for(without_task, [{"inputs": "a"}])
    (row,) = infer_lines(checkpoint, tmp_path, ["a"], data=without_task)  # the run stores its vocabulary
    assert isinstance(row["prediction"], str)


def test_vocabulary_that_is_larger_than_the_model_raises(checkpoint, tmp_path):
    data = source("validation", mixture_or_task_name="", vocabulary_path=str(PYTHON_DOCS_MODEL))
    with pytest.raises(UserError, match=rf"{PYTHON_DOCS_MODEL}: the vocabulary of 'targets' has .* Set vocab_size="):
        infer_lines(checkpoint, tmp_path, ["a"], data=data)


def test_infer_with_unsupported_model_raises(checkpoint, tmp_path):
    path = tmp_path / "input.jsonl"
    path.write_text('{"inputs": [100, 1]}')
    options = dict(checkpoint_path=checkpoint, input_path=str(path), output_path=str(tmp_path / "out"))
    with pytest.raises(UserError, match="GPTConfig does not fit sequence-to-sequence generation.*objectives/"):
        infer(model=DECODER, task_feature_lengths=LENGTHS, partitioner=partitioner(), **options)
    with pytest.raises(UserError, match="no length for inputs. Give both; for a decoder, inputs are prompts"):
        infer(model=DECODER, task_feature_lengths={"targets": 4}, **options)


def test_evaluations_equal_those_of_eval_and_are_prepared_once(checkpoint, monkeypatch):
    traced, read = [], []

    class Traced(SequenceToSequence):
        def terms(self, params, batch, *, dropout_key=None):
            traced.append("terms")
            return super().terms(params, batch, dropout_key=dropout_key)

        def predictions_of(self, params, outputs, batch):
            traced.append("scores")
            return super().predictions_of(params, outputs, batch)

    original = SeqIOSource.eval_batches
    monkeypatch.setattr(SeqIOSource, "eval_batches", lambda *args, **kw: read.append(1) or original(*args, **kw))
    data, here = source("validation", batch_size=4), partitioner()
    config = for_platform(CONFIG, "cpu")
    evaluations = Evaluations(
        {"held_out": Evaluation(data=data, splits=("validation", "other"))}, Traced(), config, here
    )
    params = warm_start.load_params(checkpoint, config, SequenceToSequence(), here)
    first = evaluations(params)
    prepared = len(traced), len(read)
    assert evaluations(params) == first
    assert (len(traced), len(read)) == prepared
    assert set(first) == {"validation", "other"} and first["other"][f"{TASK}/exact"] == 1.0
    alone = evaluate(
        model=CONFIG,
        objective=SequenceToSequence(),
        data=data,
        checkpoint_path=checkpoint,
        partitioner=here,
    )
    assert first["validation"] == alone


def test_all_checkpoints_are_evaluated_once_per_setting(checkpoint, tmp_path, monkeypatch, caplog):
    loaded = []
    original = warm_start.load_params
    monkeypatch.setattr(warm_start, "load_params", lambda path, *args: loaded.append(path) or original(path, *args))

    def run(which, steps=1):
        return evaluate(
            model=CONFIG,
            objective=SequenceToSequence(),
            data=source("validation"),
            checkpoint_path=checkpoint,
            checkpoint=which,
            eval_steps=steps,
            task_metrics=False,
            partitioner=partitioner(),
            output_dir=str(tmp_path),
            poll_seconds=0.1,
        )

    last = run("all")
    assert loaded == [f"{checkpoint}/checkpoints/{step}" for step in (30, 60)]
    assert run("latest") == run("best") == run("watch") == last  # the run has finished, so watching ends
    assert len(loaded) == 2
    status = Path(checkpoint, "status.json")
    finished = status.read_text()
    try:
        status.write_text(json.dumps({"state": "running"}))
        monkeypatch.setattr(run_lock, "STALE_SECONDS", 0.05)
        assert run("watch") == last
        assert f"{checkpoint}: the run no longer renews its lock, so it was killed" in caplog.text
    finally:
        status.write_text(finished)
    run(30, steps=2)
    assert loaded[2:] == [f"{checkpoint}/checkpoints/30"]
    stored = json.loads((tmp_path / "results.json").read_text())
    assert [result["step"] for result in stored] == [30, 30, 60]
    assert stored[-1]["evaluations"] == {f"{TASK}, split validation": last}
    table = (tmp_path / "results.md").read_text()
    assert f"## {TASK}, split validation" in table and f"| 60 | {last['loss']:.4g} | {last['accuracy']:.4g} |" in table


def test_predictions_for_a_split_without_labels_are_written(checkpoint, tmp_path):
    class Letters:
        name, group, groups, unlabeled_splits = "Letters", "copy", ("copy",), ("test",)
        submitted_splits = unlabeled_splits

        def files(self, split, examples, predictions, outputs):
            return {f"{split}.txt": "".join(f"{prediction}\n" for prediction in predictions)}

    seqio.TaskRegistry.get(TASK).benchmark = Letters()
    options = dict(model=CONFIG, objective=SequenceToSequence(), checkpoint_path=checkpoint, partitioner=partitioner())
    try:
        assert evaluate(data=source("test"), output_dir=str(tmp_path), **options) == {}
        assert (tmp_path / "test.txt").read_text().split() == list("abcdab")
        with pytest.raises(UserError, match=f"SPLIT=test: {TASK} has no labels there. Give OUTPUT_DIR"):
            evaluate(data=source("test"), **options)
        evaluate(data=source("validation"), output_dir=str(tmp_path), num_examples=4, **options)
        (result,) = json.loads((tmp_path / "results.json").read_text())
        metrics = result["evaluations"][f"{TASK}, split validation"]
        assert result["averages"] == {"Letters": (metrics[f"{TASK}/exact"] + metrics[f"{TASK}/mean_score"]) / 2}
    finally:
        del seqio.TaskRegistry.get(TASK).benchmark
