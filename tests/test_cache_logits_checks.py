"""What is refused of teacher logits, and when their files are read: other rows, teachers, features, damaged files."""

import dataclasses
import json
import shutil

import pytest
from logits_cases import CASES, opened, teacher_of, with_attached, write_cache
from logits_cases import write_logits as write

from t5x_like.data.cached import CachedSource, MixtureFile, manifest
from t5x_like.data.cached.logits import LogitsManifest
from t5x_like.data.feed import DataMismatchError
from t5x_like.distillation.cached_logits import CachedLogits
from t5x_like.errors import UserError
from t5x_like.objectives.causal_lm import CausalLM


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """Writes a cache and the logits of its teacher, which tests must not change."""
    directory, case = tmp_path_factory.mktemp("complete") / "cache", CASES["causal_lm"]
    write_cache(directory / "train", case)
    write(case, directory, k=5, dtype="float16")
    return directory


def test_logits_of_another_cache_are_refused(complete, tmp_path):
    case = CASES["causal_lm"]
    write_cache(tmp_path / "train", case, seed=5)
    spec = with_attached(case, opened(case, complete).attached)
    with pytest.raises(UserError, match="belong to the rows of the cache .*, not of a_task, split train, .*CACHE_DIR"):
        CachedSource(cache_dir=str(tmp_path), batch_size=2).check(spec)


def test_logits_of_another_teacher_are_refused(complete):
    case = CASES["causal_lm"]
    with pytest.raises(UserError, match="were computed by a/teacher .digest of the teacher., but the teacher"):
        opened(case, complete, digest="another digest")
    attached = [dataclasses.replace(each, origin="another digest") for each in opened(case, complete).attached]
    with pytest.raises(UserError, match="were computed by the teacher digest of the teacher, not by another digest"):
        CachedSource(cache_dir=str(complete), batch_size=2).check(with_attached(case, attached))


def test_logits_for_other_features_are_refused(complete):
    case, other = CASES["causal_lm"], dataclasses.replace(CASES["causal_lm"], objective=CausalLM(bos_id=3))
    with pytest.raises(UserError, match="the teacher read other features .* such as another BOS"):
        opened(other, complete)
    spec = with_attached(other, opened(case, complete).attached)
    with pytest.raises(UserError, match="were computed from other features"):
        CachedSource(cache_dir=str(complete), batch_size=2).check(spec)


def test_another_k_or_vocabulary_is_refused(complete):
    case = CASES["causal_lm"]
    cached = opened(case, complete)
    attached = [dataclasses.replace(each, width=each.width and 4) for each in cached.attached]
    with pytest.raises(UserError, match="has 8 positions, k=5 and dtype float16, but this run reads 8 positions, k=4"):
        CachedSource(cache_dir=str(complete), batch_size=2).check(with_attached(case, attached))
    with pytest.raises(UserError, match="'targets' of the teacher 'teacher' has .* classes, the student has 7"):
        cached.check_classes({"targets": 7})
    with pytest.raises(UserError, match="have the predictions targets, but the student predicts masked_lm"):
        cached.check_classes({"masked_lm": 7})
    cached.check_prediction("targets")
    with pytest.raises(UserError, match="the prediction 'all_tokens' is not stored, but targets. Give a loss of"):
        cached.check_prediction("all_tokens")


def test_damaged_or_missing_logits_are_refused(complete, tmp_path):
    case = CASES["causal_lm"]
    spec = with_attached(case, opened(case, complete).attached)
    with pytest.raises(
        UserError, match="TEACHER_LOGITS=.*none: no teacher logits found. Write them with `t5x_like cache_logits`"
    ):
        CachedLogits.open("teacher", str(tmp_path / "none"), digest="", spec=spec)
    shutil.copytree(complete, tmp_path / "copy")
    own = tmp_path / "copy" / "teacher_logits"
    spec = dataclasses.replace(
        spec, attached=tuple(dataclasses.replace(each, directory=str(own)) for each in spec.attached)
    )

    def check():
        source = CachedSource(cache_dir=str(tmp_path / "copy"), batch_size=2, verify_checksums=True)
        source.check(spec)

    check()
    file = own / "a_task" / "train" / LogitsManifest.read(str(own / "a_task" / "train")).shards[0].file
    contents = bytearray(file.read_bytes())
    contents[-1] ^= 1
    file.write_bytes(contents)
    with pytest.raises(UserError, match="in the teacher logits .* does not match its checksum"):
        check()
    file.write_bytes(contents[:-1])
    with pytest.raises(UserError, match="is truncated or altered: .* repeat the `t5x_like cache_logits` command"):
        check()
    path = own / "a_task" / "train" / "manifest.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"shards": [stored["shards"][0] | {"file": "../../x"}]}))
    with pytest.raises(UserError, match=r"is not a valid manifest of teacher logits: '\.\./\.\./x' is not a file in"):
        check()
    path.write_text(json.dumps(stored | {"predictions": {}}))
    with pytest.raises(UserError, match="is not a valid manifest of teacher logits: its contents have the hash"):
        check()


def test_files_are_read_once_per_start(complete, monkeypatch):
    checked, original = [], manifest.check_files
    monkeypatch.setattr(manifest, "check_files", lambda *args, **kw: checked.append(args[0]) or original(*args, **kw))
    case = CASES["causal_lm"]
    spec = with_attached(case, opened(case, complete).attached)
    source = CachedSource(cache_dir=str(complete), batch_size=2, verify_checksums=True)
    source.check(spec)
    next(source.host_iterator(spec))
    assert checked == [f"{complete}/train", f"{complete}/teacher_logits/a_task/train"]


def test_manifests_do_not_name_other_directories(complete, tmp_path):
    shutil.copytree(complete / "train", tmp_path / "cache" / "train")
    path = tmp_path / "cache" / "train" / "manifest.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"settings": stored["settings"] | {"task": "../../../x"}}))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=r"manifest.json is not a valid manifest of a cache: '\.\./\.\./\.\./x' is not"):
        write(CASES["causal_lm"], tmp_path / "cache")
    MixtureFile("both", ("first", "../x"), {"first": 0.5, "../x": 0.5}).write(str(tmp_path / "cache"))
    with pytest.raises(UserError, match=r"not a valid description of a mixture: '\.\./x' is not the name"):
        write(CASES["causal_lm"], tmp_path / "cache")
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "cache" / "mixture.json"])


def test_position_with_other_logits_is_refused(complete, tmp_path):
    case = CASES["causal_lm"]
    spec, source = case.objective.features, CachedSource(cache_dir=str(complete), batch_size=2)
    state = source.host_iterator(with_attached(case, opened(case, complete).attached)).state()
    shutil.copytree(complete / "train", tmp_path / "train")
    write(case, tmp_path, k=4)
    other = CachedSource(cache_dir=str(tmp_path), batch_size=2)
    with pytest.raises(DataMismatchError, match="teacher_logits was"):
        other.host_iterator(dataclasses.replace(spec, attached=opened(case, tmp_path).attached)).restore(state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 0}, "K=0 is not a positive integer"),
        ({"dtype": "bfloat16"}, "LOGITS_DTYPE='bfloat16' is not supported"),
        ({"temperature": 0.0}, "SOFTMAX_TEMPERATURE=0.0 is not positive"),
        ({"splits": ("test",)}, "test is not a cache"),
        ({"predictions": ("label",)}, "CausalLM does not predict 'label'. Give one or several of targets"),
        ({"teacher": teacher_of(CASES["causal_lm"], vocabulary="x")}, "its vocabulary .x. is not the cache's"),
        (
            {"teacher": teacher_of(CASES["masked_lm"])},
            "MaskedLM reads 'inputs', 'masked_positions', 'targets', but the cache .* has 'targets'",
        ),
    ],
)
def test_invalid_settings_raise_before_writing(complete, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        write(CASES["causal_lm"], complete, logits_dir=str(tmp_path / "logits"), **changes)
    assert not (tmp_path / "logits").exists()
