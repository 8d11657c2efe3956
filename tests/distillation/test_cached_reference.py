"""The reference of preference losses from a cache: equal to one in the training step, and what is refused."""

import shutil

import copying_run
import pytest
from families import FAMILIES
from logits_cases import CASES, write_cache
from preference_rows import PreferenceRows

from t5x_like import optimizers
from t5x_like.cache_logits import cache_logits
from t5x_like.checkpoints import checksums
from t5x_like.data.cached import CachedSource
from t5x_like.distillation.cached_reference import CachedReference
from t5x_like.distillation.teachers import Teacher
from t5x_like.errors import UserError
from t5x_like.metrics import read_metrics
from t5x_like.objectives.completion_scores import CompletionScores
from t5x_like.objectives.kto import KTO
from t5x_like.objectives.preference_losses import DPO, SimPO
from t5x_like.objectives.preferences import Preferences
from t5x_like.train import train

pytestmark = pytest.mark.full

LLAMA = FAMILIES["llama"].config
FROZEN = (optimizers.ParameterGroup("^objective/reference/", freeze=True),)
WRITTEN = {"k": None, "dtype": "float32", "batch_size": 4}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Returns the directories of a run, of a cache of pairs, and of the log-probabilities of the run."""
    start, cache = tmp_path_factory.mktemp("start"), tmp_path_factory.mktemp("cache")
    data = PreferenceRows()
    copying_run.run(start, model=LLAMA, objective=Preferences(SimPO()), data=data, evaluations=None, total=1)
    write_cache(cache / "train", CASES["dpo"], ids=32, vocabulary="digest")
    teacher = Teacher(str(start), objective=CompletionScores(Preferences(DPO())))
    cache_logits(cache_dir=str(cache), teacher=teacher, **WRITTEN)
    return str(start), str(cache), f"{cache}/teacher_logits"


def run(directory, start, cache, objective, groups, target=None):
    settings = {"model": LLAMA, "objective": objective, "path": start, "evaluations": None, "total": 3, "seed": 1}
    settings |= {"optimizer": optimizers.adamw(learning_rate=0.01, groups=groups), "target": target}
    train(copying_run.recipe(directory, data=CachedSource(cache_dir=cache, batch_size=8), **settings))
    return read_metrics(str(directory))


def test_stored_log_probabilities_equal_those_of_a_reference_in_the_step(stored, tmp_path):
    start, cache, directory = stored
    cached = Preferences(DPO(), reference=CachedReference(start, directory))
    live = run(tmp_path / "live", start, cache, Preferences(DPO()), FROZEN, ("model", "reference"))
    found = run(tmp_path / "cached", start, cache, cached, ())
    assert len(live) == 3 and live[-1]["loss"] < live[0]["loss"] - 1e-3
    for one, other in zip(live, found, strict=True):
        for name in ("loss", "margin", "chosen_reward", "grad_norm", "accuracy"):
            assert other[name] == pytest.approx(one[name], rel=1e-6, abs=1e-5), name


def test_other_weights_caches_features_and_dtypes_are_refused(stored, tmp_path):
    start, cache, directory = stored
    other = shutil.copytree(start, tmp_path / "other")
    manifest = other / "checkpoints" / "1" / "state" / checksums.MANIFEST
    manifest.write_text(manifest.read_text() + " ")
    with pytest.raises(UserError, match=f"TEACHER_LOGITS={directory} were computed by {start} .* of this run is "):
        _ = Preferences(DPO(), reference=CachedReference(str(other), directory)).features
    # Commands that read the model alone do not need the directory.
    missing = Preferences(DPO(), reference=CachedReference(start, "gone"))
    assert missing.features == Preferences(DPO()).features
    with pytest.raises(UserError, match="TEACHER_LOGITS=gone: not found. Write the log-probabilities of completions"):
        run(tmp_path / "gone", start, cache, missing, ())
    with pytest.raises(UserError, match="the teacher read other features"):
        _ = KTO(reference=CachedReference(start, directory)).features
    features = Preferences(DPO(), reference=CachedReference(start, directory)).features
    write_cache(tmp_path / "train", CASES["dpo"], ids=32, vocabulary="digest", seed=1)
    with pytest.raises(UserError, match="the teacher logits .* belong to the rows of the cache .*, not of a_task, sp"):
        CachedSource(cache_dir=str(tmp_path), batch_size=8).check(features)
    with pytest.raises(UserError, match="REFERENCE: SimPO has no reference. Give REFERENCE=None"):
        Preferences(SimPO(), reference=CachedReference(start, directory))
    teacher = Teacher(start, objective=CompletionScores(Preferences(DPO())))
    cache_logits(cache_dir=cache, teacher=teacher, logits_dir=str(tmp_path / "half"), **WRITTEN | {"dtype": "float16"})
    with pytest.raises(UserError, match="half: no float32 log-probabilities of completions. Write them with"):
        _ = Preferences(DPO(), reference=CachedReference(start, str(tmp_path / "half"))).features
