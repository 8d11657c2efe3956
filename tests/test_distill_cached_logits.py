"""Distillation from cached logits: equal to a teacher in the training step, and what it refuses."""

import shutil

import copying_run
import pytest
from logits_cases import CASES, write_cache

from t5x_like.bench import bench
from t5x_like.benchmarking import matrix_products
from t5x_like.cache_logits import cache_logits
from t5x_like.data.cached import CachedSource
from t5x_like.distill import distill
from t5x_like.distillation.losses.hidden import HiddenCosine
from t5x_like.distillation.losses.logits import ForwardKL
from t5x_like.distillation.teachers import Teacher
from t5x_like.errors import UserError
from t5x_like.metrics import read_metrics
from t5x_like.train import train

pytestmark = [pytest.mark.full, pytest.mark.notf]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Returns the directories of a teacher, of a cache, and of all logits of the teacher in float32."""
    teacher, cache = tmp_path_factory.mktemp("teacher"), tmp_path_factory.mktemp("cache")
    copying_run.run(teacher, total=1, evaluate=None)
    write_cache(cache / "train", CASES["sequence_to_sequence"], ids=32, vocabulary="digest")
    cache_logits(
        cache_dir=str(cache), teacher=Teacher(str(teacher)), k=None, dtype="float32", temperature=2.0, batch_size=8
    )
    return str(teacher), str(cache), f"{cache}/teacher_logits"


def recipe(model_dir, teacher, cache, *, losses=None, **changes):
    given = {"total": 3, "evaluate": None, "data": CachedSource(cache_dir=cache, batch_size=8), "seed": 1}
    student = copying_run.recipe(model_dir, **given | changes)
    return distill(student, teachers={"t": teacher}, losses=losses or {"kl": ForwardKL(temperature=2.0)})


def run(model_dir, teacher, cache, **changes):
    return train(recipe(model_dir, teacher, cache, **changes))


def test_cached_logits_equal_the_teacher_in_the_step(stored, tmp_path):
    teacher, cache, logits = stored
    run(tmp_path / "online", Teacher(teacher), cache)
    run(tmp_path / "stored", Teacher(teacher, logits=logits), cache, microbatches=2)
    online, without = (
        [(row["loss"], row["kl"]) for row in read_metrics(str(tmp_path / name))] for name in ("online", "stored")
    )
    assert len(online) == 3 and online[0][1] > 1e-3
    for one, other in zip(online, without, strict=True):
        assert other == pytest.approx(one, rel=2e-4)


def test_bench_reads_a_batch_with_the_cached_logits(stored, monkeypatch):
    teacher, cache, logits = stored
    monkeypatch.setattr(matrix_products, "_SECONDS", 0.0)
    found = bench(
        recipe=recipe("unused", Teacher(teacher, logits=logits), cache),
        steps=1,
        warmup_steps=1,
        measure_parts=False,
    )
    assert found.batches == f"the cache {cache}/train"
    assert found.teachers["t"].endswith(f"cached logits in {logits}")
    assert 0 < found.tokens < 8 * (6 + 6), "the rows of the cache are not full"


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (HiddenCosine(), "'loss' reads 'decoder/output' of the teacher 't', of which only predictions are cached"),
        (ForwardKL(prediction="masked_lm"), "does not predict it"),
    ],
)
def test_other_losses_are_refused_before_writing(stored, tmp_path, loss, message):
    teacher, cache, logits = stored
    with pytest.raises(UserError, match=message):
        run(tmp_path / "run", Teacher(teacher, logits=logits), cache, losses={"loss": loss})
    assert not (tmp_path / "run").exists()


def test_incomplete_logits_are_refused_before_writing(stored, tmp_path):
    teacher, cache, logits = stored
    shutil.copytree(logits, tmp_path / "logits")
    directory = tmp_path / "logits" / "a_task" / "train"
    (directory / "manifest.json").unlink()
    (directory / "unfinished").mkdir()
    (directory / "unfinished" / "plan.json").write_text("{}")
    with pytest.raises(UserError, match=f"the teacher logits {directory} are incomplete: manifest.json not found"):
        run(tmp_path / "run", Teacher(teacher, logits=str(tmp_path / "logits")), cache)
    assert not (tmp_path / "run").exists()


def test_checkpoint_of_the_teacher_that_did_not_compute_the_logits_is_refused(stored, tmp_path):
    _, cache, logits = stored
    copying_run.run(tmp_path / "other", total=1, evaluate=None, seed=5)
    with pytest.raises(UserError, match="were computed by .*, but the teacher 't' of this run is"):
        run(tmp_path / "run", Teacher(str(tmp_path / "other"), logits=logits), cache)


def test_logits_of_other_lengths_are_refused(stored, tmp_path):
    teacher, cache, logits = stored
    lengths, of_other = {"inputs": 12, "targets": 16}, tmp_path / "cache"
    write_cache(of_other / "train", CASES["sequence_to_sequence"], ids=32, vocabulary="digest", lengths=lengths)
    for directory, message in (
        (cache, "'inputs' has 8 items in the cache, 12 items in this run"),
        (str(of_other), "belong to the rows of the cache"),
    ):
        data = CachedSource(cache_dir=directory, batch_size=8, task_feature_lengths=lengths)
        with pytest.raises(UserError, match=message):
            recipe(tmp_path / "run", Teacher(teacher, logits=logits), directory, data=data)
