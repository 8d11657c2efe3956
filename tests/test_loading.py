"""`open_model`, and predictions in memory, which are those that `infer` writes."""

import json

import gin
import pytest
import small_models

import t5x_like
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.infer import infer
from t5x_like.inference.records import read
from t5x_like.loading import open_model
from t5x_like.objectives.causal_lm import CausalLM

LENGTHS = {"inputs": 16, "targets": 4}
TEXTS = ["a list", "the return value is a long text", "no"]


def written(loaded, directory, lines, suffix="txt", **options):
    """Returns the fields that `infer` adds to the records of a file."""
    (directory / f"in.{suffix}").write_text("".join(line + "\n" for line in lines))
    paths = {"input_path": str(directory / f"in.{suffix}"), "output_path": str(directory / "out.jsonl")}
    rows = [record.values for record in read(infer(loaded, **paths, overwrite=True, batch_size=2, **options))]
    given = {"index", "inputs", "targets", "sentence"}
    return [{name: value for name, value in row.items() if name not in given} for row in rows]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    directory = tmp_path_factory.mktemp("open") / "gpt2"
    small_models.write_gpt2(directory)
    settings = {"temperature": 0.5, "do_sample": True, "top_k": 5}
    (directory / "generation_config.json").write_text(json.dumps(settings))
    return str(directory)


@pytest.mark.full
def test_predictions_of_text_are_those_of_infer(gpt2, tmp_path):
    model = t5x_like.open_model(gpt2, task_feature_lengths=LENGTHS)
    assert isinstance(model.objective, CausalLM)
    assert (model.decoding.temperature, model.decoding.top_k) == (0.5, 5)  # from the directory
    expected = written(model, tmp_path, TEXTS)
    assert model.predict(TEXTS, batch_size=2) == expected and len({row["prediction"] for row in expected}) == 3
    pairs = [{"inputs": "a", "targets": "bc"}, {"inputs": [5, 6], "targets": [7]}]
    found = model.predict(pairs, mode="score", batch_size=2)
    assert found == written(model, tmp_path, map(json.dumps, pairs), "jsonl", mode="score")
    assert [row["tokens"] for row in found] == [2, 1] and model.predict([]) == []
    (of_ids,) = model.predict([{"inputs": [98, 99]}], batch_size=2)
    assert of_ids == written(model, tmp_path, ['{"inputs": [98, 99]}'], "jsonl")[0]
    assert isinstance(of_ids["prediction"], list) and model.predict(TEXTS, batch_size=2) == expected


@pytest.mark.full
def test_predictions_of_a_head_are_those_of_infer(tmp_path):
    small_models.write_bert(tmp_path / "bert", labels=("negative", "positive"))
    data = SeqIOSource(
        mixture_or_task_name="glue_sst2_classification",
        task_feature_lengths={"inputs": 12},
        batch_size=2,
        task_arguments={"vocabulary_path": str(tmp_path / "bert")},
    )
    model = open_model(str(tmp_path / "bert"), data=data)
    expected = written(model, tmp_path, TEXTS)
    assert model.predict(TEXTS, batch_size=2) == expected
    assert model.predict([{"sentence": text} for text in TEXTS], batch_size=2) == expected
    assert list(expected[0]["probabilities"]) == ["negative", "positive"]


def test_run_is_opened_by_its_own_configuration(gpt2, tmp_path):
    run = str(tmp_path / "run")
    convert(Source(gpt2), Target(run))
    before = gin.config_str()
    for path in (run, f"{run}/checkpoints", f"{run}/checkpoints/0"):
        model = open_model(path, task_feature_lengths=LENGTHS)
        assert model.config == open_model(gpt2).config and model.decoding.top_k == 5
        assert model.checkpoint_path == f"{run}/checkpoints/0"
    assert gin.config_str() == before
    assert model.predict(TEXTS) == open_model(gpt2, task_feature_lengths=LENGTHS).predict(TEXTS)
    assert open_model(run, decoding=Decoding(beams=2)).decoding == Decoding(beams=2)
    assert set(model.params) == {"model", "objective"}


def test_path_without_a_description_raises(tmp_path):
    with pytest.raises(UserError, match=f"{tmp_path}: no checkpoint found. Give a run directory"):
        open_model(str(tmp_path))
    with pytest.raises(UserError, match="path=bert-base-uncased: not found. .* must be downloaded first: `hf download"):
        open_model("bert-base-uncased")
    (tmp_path / "checkpoint_10").mkdir()
    (tmp_path / "checkpoint_10" / "checkpoint").write_bytes(b"")
    with pytest.raises(UserError, match="is a T5X checkpoint, which does not describe its model. Give its model"):
        open_model(str(tmp_path))
