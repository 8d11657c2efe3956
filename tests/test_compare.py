"""`t5x_like compare`: sizes, times and scores of stored models, what is stored of them, and errors."""

import dataclasses
import json
import shutil
import types

import copying_run
import jax
import pytest
import safetensors.numpy
import small_models

from t5x_like import cli, metrics, parameters
from t5x_like.benchmarking import comparison, prediction, scores
from t5x_like.benchmarking.scores import Evaluated
from t5x_like.compare import _names, compare
from t5x_like.conversion.settings import Changes, Source, Target
from t5x_like.convert import convert
from t5x_like.errors import UserError
from t5x_like.interop import quantized
from t5x_like.loading import open_model
from t5x_like.metrics.evaluation_table import EvaluationTable, Result
from t5x_like.partitioning import Partitioner
from t5x_like.reporting import page, runs
from t5x_like.stored import frozen_base, weight_sizes
from t5x_like.stored.frozen_base import BaseLeaf, FrozenBase

LENGTHS = {"inputs": 8}
OPTIONS = {"task_feature_lengths": LENGTHS, "rounds": 2, "warmup_rounds": 1}
TITLE = "sst2, split validation"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A classifier as a Hugging Face directory, and as runs in float32, int8 and int4."""
    pytest.importorskip("qwix", reason="needs the extra `quantization`")
    directory = tmp_path_factory.mktemp("models")
    small_models.write_bert(directory / "bert", labels=("no", "yes"))
    found = {"bert": str(directory / "bert")}
    for name, dtype in (("dense", None), ("int8", "int8"), ("int4", "int4")):
        found[name] = str(directory / name)
        convert(Source(found["bert"]), Target(found[name]), Changes(quantization=dtype))
    for name, accuracy in (("dense", 0.9), ("int8", 0.81)):
        evaluated = {TITLE: {"loss": 0.3, "accuracy": accuracy}}
        EvaluationTable(f"{found[name]}/eval").add(Result(f"{found[name]}/checkpoints/0", 0, None, None, evaluated, {}))
    return found


def test_table_has_sizes_times_and_scores_beside_the_first_model(models, tmp_path, capsys):
    names = ("dense", "int8", "int4", "bert")
    words = [models[name] for name in names]
    lengths = f"--gin.TASK_FEATURE_LENGTHS={LENGTHS}"
    json_path = tmp_path / "table.json"
    assert cli.main(["compare", *words, "--rounds=2", "--rows=1,2", f"--json={json_path}", lengths]) == 0
    printed = capsys.readouterr().out
    found = comparison.from_json(json.loads(json_path.read_text()))
    dense, int8, int4, bert = found.models
    assert [each.name for each in found.models] == list(names)
    assert len({each.parameters for each in found.models}) == 1
    assert dense.stored_bytes == dense.held_bytes == bert.stored_bytes == 4 * dense.parameters
    for name, each in (("int8", int8), ("int4", int4)):
        leaves = parameters.named_leaves(open_model(models[name]).shapes)
        assert each.stored_bytes == each.held_bytes == quantized.size(leaves)
    assert int4.stored_bytes < int8.stored_bytes < dense.stored_bytes / 2
    for each in found.models:
        assert each.held_bytes < each.peak_bytes[1] < each.peak_bytes[2]
        assert all(0 < least <= median <= most for median, least, most in each.seconds.values())
    assert f"{dense.parameters:,} (100 %)" in printed and "0.81 (90 %)" in printed
    assert "int4: no evaluation found. Run `t5x_like eval --gin.MODEL_DIR=" in printed
    assert "predictions of SequenceClassification for rows of 8 inputs" in printed

    # The page of the first model shows the table, and the models with a score that can be compared.
    (run,) = runs.read_runs([models["dense"]])
    assert run.comparison == found and run.problems == []
    shown = page.render([run], "today")
    assert "Size and speed" in shown and "0.81 (90 %)" in shown and 'alt="accuracy"' in shown
    (other,) = runs.read_runs([models["int8"]])
    assert other.comparison is None and "Size and speed" not in page.render([other], "today")


@pytest.mark.full
def test_a_pattern_is_one_model_with_several_seeds(models, tmp_path, capsys):
    for seed, accuracy in enumerate((0.7, 0.8, 0.9)):
        run = shutil.copytree(models["int8"], tmp_path / f"int8-seed_{seed}", ignore=shutil.ignore_patterns("eval"))
        evaluated = {TITLE: {"accuracy": accuracy}}
        EvaluationTable(str(run / "eval")).add(Result(str(run / "checkpoints/0"), 0, None, None, evaluated, {}))
    given, plot = [models["dense"], f"{tmp_path}/int8-seed_*"], tmp_path / "plot.png"
    found = compare(models=given, rows=1, plot_path=str(plot), **OPTIONS)
    seeds = found.models[1]
    assert (seeds.name, seeds.seeds, seeds.path) == ("int8-seed_*", 3, f"{tmp_path}/int8-seed_0/checkpoints/0")
    assert seeds.score == pytest.approx(0.8) and seeds.deviation == pytest.approx(0.1)
    printed = capsys.readouterr().out
    assert "0.8 ± 0.1 (89 %)" in printed and "int8-seed_*: mean ± standard deviation of 3 seeds" in printed
    assert plot.read_bytes().startswith(b"\x89PNG")
    (run,) = runs.read_runs([models["dense"]])
    assert run.comparison == found and "± 0.1" in page.render([run], "today")

    # Files are not runs, and different models are not seeds of one.
    (tmp_path / "int8-seed_0.log").write_text("log")
    assert compare(models=given[1], rows=1, **OPTIONS).models[0].seeds == 3
    other = shutil.copytree(models["int4"], tmp_path / "int8-seed_3")
    with pytest.raises(UserError, match="int8-seed_.*: .*int8-seed_0 and .*int8-seed_3 have different parameters"):
        compare(models=given[1], rows=1, **OPTIONS)
    shutil.rmtree(other)

    # A seed without an evaluation is named, and there is no mean.
    shutil.rmtree(tmp_path / "int8-seed_1" / "eval")
    (measured,) = compare(models=given[1:], rows=1, **OPTIONS).models
    assert measured.score is None and "int8-seed_1" in measured.problem
    with pytest.raises(UserError, match="--plot=.*plot.png: no score to draw"):
        compare(models=given[1:], rows=1, plot_path=str(plot), **OPTIONS)


def test_a_directory_with_signs_of_patterns_in_its_name_is_one_model(models, tmp_path):
    for name in ("int8[1]", "int81"):
        shutil.copytree(models["int8"], tmp_path / name)
    (measured,) = compare(models=f"{tmp_path}/int8[1]", rows=1, **OPTIONS).models
    assert (measured.name, measured.path) == ("int8[1]", f"{tmp_path}/int8[1]/checkpoints/0")


@pytest.mark.full
def test_text_is_generated_up_to_the_length_of_targets(tmp_path):
    small_models.write_gpt2(tmp_path / "gpt2")
    loaded = open_model(str(tmp_path / "gpt2"), partitioner=Partitioner(devices=jax.devices()[:1], ici={"data": 1}))
    lengths = {"inputs": 6, "targets": 5}
    made = prediction.Prediction(loaded, lengths)
    assert made.description == "greedy generation of 5 tokens for 6 tokens of input"
    texts = made.compile(made.load(), 2).call()
    assert texts.tokens.shape[0] == 2 and (texts.lengths == 5).all()


@pytest.mark.full
def test_a_training_run_has_its_own_evaluation_and_no_optimizer_in_its_size(tmp_path):
    directory = tmp_path / "trained"
    copying_run.run(directory, total=2, evaluate=1, save=2)
    found = compare(models=str(directory), rows=1, **OPTIONS | {"task_feature_lengths": {"inputs": 4, "targets": 2}})
    (measured,) = found.models
    assert measured.stored_bytes == 4 * measured.parameters == 4 * parameters.count(open_model(str(directory)).shapes)
    assert measured.evaluation == "validation, during training"
    assert found.metric == "accuracy" and 0 <= measured.score <= 1

    # Frozen parameters that are read from a base count as well.
    own = weight_sizes.stored_bytes(str(directory))
    copying_run.run(tmp_path / "base", total=1, evaluations=None)
    leaves = {"model/frozen": BaseLeaf("model/token_embedder/embedding", (32, 16))}
    frozen_base.store(str(directory), FrozenBase(str(tmp_path / "base"), "digest", leaves))
    assert weight_sizes.stored_bytes(str(directory)) == own + weight_sizes.stored_bytes(str(tmp_path / "base"))


@pytest.mark.full
def test_evaluations_have_the_hashes_of_their_data(tmp_path):
    directory = tmp_path / "trained"
    copying_run.run(directory, total=2, evaluate=1, save=2)
    (start,) = metrics.read_starts(str(directory))
    for step, digest in ((0, "of the run"), (5, "of a later start")):
        start |= {"step": step, "data": {"validation": [{"digest": digest}]}}
        with (directory / "starts.jsonl").open("a") as file:
            file.write(json.dumps(start) + "\n")
    assert [each.data for each in scores.read(open_model(str(directory)))] == [("of the run",)]


def of(directory, objective=None):
    return types.SimpleNamespace(path=str(directory), checkpoint_path=str(directory), objective=objective)


@pytest.mark.full
def test_scores_are_compared_if_they_are_of_the_same_rows(models, tmp_path):
    first, second = of(models["bert"], "classes"), of(models["bert"], "classes")
    own = Evaluated(TITLE, {"loss": 0.5, "accuracy": 0.8, "sst2/f1": 0.7})

    def problem(other, metric=None, model=second, reference=own):
        pair = scores.choose([first, model], [[reference], other], metric)
        return None if pair[1] is None else pair[1].problem

    assert scores.choose([first, second], [[own], [own]])[0].metric == "sst2/f1"
    assert problem([own]) is None
    assert problem([]) is None and scores.choose([first, second], [[own], []])[1] is None
    other_title = dataclasses.replace(own, title="mrpc, split validation")
    assert "its score is from mrpc" in problem([other_title])
    assert problem([other_title, own]) is None, "the evaluation that both have is chosen"
    of_other_rows = problem([dataclasses.replace(own, rows={"EVAL_STEPS": "5"})])
    assert "with EVAL_STEPS=5, and the first model with EVAL_STEPS=None" in of_other_rows
    hashed = dataclasses.replace(own, data=("abc",))
    assert problem([dataclasses.replace(own, data=("abc",))], reference=hashed) is None
    assert problem([dataclasses.replace(own, data=(None,))], reference=hashed) is None, "not known"
    of_other_data = problem([dataclasses.replace(own, data=("def",))], reference=hashed)
    assert of_other_data == "it was evaluated on other data: with the hash def, and the first model with abc"
    assert "loss of int and of str are different metrics" in problem([own], "loss", of(models["bert"], 3))
    assert problem([own], "sst2/f1", of(models["bert"], 3)) is None, "metrics of a task compare texts or labels"
    small_models.write_gpt2(tmp_path / "gpt2")
    assert "its vocabulary differs" in problem([own], "accuracy", of(tmp_path / "gpt2", "classes"))
    with pytest.raises(UserError, match="METRIC='bleu': no evaluation has this metric. Give one of accuracy, loss"):
        problem([own], "bleu")
    assert scores.choose([first, second], [[], [own]])[1].problem == "the first model has no score"


def test_cells_show_shares_of_the_first_model_only_if_they_can_be_compared():
    shared = {"path": "", "computed": "x", "peak_bytes": {1: 2e6}, "evaluation": TITLE}
    sizes = {"parameters": 100, "stored_bytes": 4_000_000, "held_bytes": 400, "seconds": {1: (2.0, 1.0, 3.0)}}
    first = comparison.Measured(name="a", score=0.5, problem=None, **sizes, **shared)
    second = dataclasses.replace(
        first, name="b", parameters=50, seconds={1: (0.5, 0.4, 0.6)}, score=0.25, problem="of other rows"
    )
    found = comparison.Comparison([first, second], "f1", 3, "now", {})
    cells = comparison.cells(found)
    assert cells["parameters"] == ["100", "50 (50 %)"]
    assert cells["weights in files"][0] == "4.00 MB" and cells["time, 1 row"] == ["2.00 s", "500.00 ms (25 %)"]
    assert cells["f1"] == ["0.5", "0.25"] and comparison.notes(found)[-1] == "b: of other rows"
    found = dataclasses.replace(found, models=[first, dataclasses.replace(second, score=None)])
    assert comparison.cells(found)["f1"] == ["0.5", "–"]
    assert comparison.from_json(json.loads(json.dumps(comparison.as_json(found)))) == dataclasses.replace(
        found, models=list(found.models)
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"models": ()}, "MODELS=\\(\\): no model"),
        ({"models": ("a", "a/")}, "MODELS=a: given twice"),
        ({"rows": -1}, "ROWS=-1: not a positive integer"),
        ({"rows": "1;2"}, "ROWS='1;2': not numbers separated by commas"),
        ({"rows": (2, 2)}, "ROWS=\\(2, 2\\): not different numbers"),
        ({"rounds": 0}, "--rounds=0: not a positive integer"),
        (
            {"models": "nowhere/run-seed_*"},
            "MODELS=nowhere/run-seed_\\*: no directory matches. Give a path, or a pattern",
        ),
        ({"models": "nowhere/*/checkpoints/best"}, "no directory matches"),
        ({"plot_path": "plot.pdf"}, "--plot=plot.pdf: not a .png file"),
        ({"models": "nowhere/run"}, "MODELS=nowhere/run: not found. Give a run directory"),
    ],
)
def test_invalid_settings_raise(settings, message):
    with pytest.raises(UserError, match=message):
        compare(**{"models": "a"} | settings)


def test_directory_without_a_model_or_weights_raises(models, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty: no checkpoint found. Give a run directory"):
        compare(models=str(tmp_path / "empty"))
    (tmp_path / "no_weights").mkdir()
    config = open(f"{models['int8']}/config.gin").read()
    (tmp_path / "no_weights" / "config.gin").write_text(config)
    with pytest.raises(UserError, match="no_weights: no checkpoint found"):
        compare(models=[models["dense"], str(tmp_path / "no_weights")])
    with pytest.raises(
        UserError, match=f"{models['dense']}: TASK_FEATURE_LENGTHS=.*'inputs' is not a positive integer"
    ):
        compare(models=models["dense"], task_feature_lengths={"inputs": -8})


def test_weights_of_all_models_are_read_before_anything_is_compiled(models, tmp_path, monkeypatch):
    damaged = shutil.copytree(models["bert"], tmp_path / "damaged")
    stored = safetensors.numpy.load_file(damaged / "model.safetensors")
    del stored["bert.encoder.layer.0.attention.self.query.weight"]
    safetensors.numpy.save_file(stored, damaged / "model.safetensors")
    compiled = []
    monkeypatch.setattr(prediction.Prediction, "compile", lambda *arguments: compiled.append(arguments))
    with pytest.raises(UserError, match="damaged.*query.weight"):
        compare(models=[models["dense"], str(damaged)], **OPTIONS)
    assert not compiled


def test_checkpoints_have_the_names_of_their_runs():
    assert _names(["runs/a", "hf", "runs/b/checkpoints/400", "runs/b/checkpoints/best"]) == [
        "a",
        "hf",
        "b/400",
        "b/best",
    ]
    assert _names(["x/a", "y/a"]) == ["x/a", "y/a"]
