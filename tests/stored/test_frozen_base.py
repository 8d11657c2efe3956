"""Runs on a frozen base: what their checkpoints store, and that everything which reads a run finds the rest."""

import dataclasses
import json
import re
import shutil

import numpy as np
import optax
import pytest
from copying_run import CONFIG, losses, run
from lanes import others_are_full

from t5x_like import interop, optimizers, parameters
from t5x_like.adapters.lora import LoRA
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.distillation.teachers import Teacher
from t5x_like.errors import UserError
from t5x_like.loading import open_model, open_teacher
from t5x_like.models import construct
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.optimizers import schedules
from t5x_like.stored import frozen_base, weight_source

ADAPTED = dataclasses.replace(CONFIG, adapters=(LoRA(rank=2),))
ON_BASE = (optimizers.ParameterGroup("^model/(?!.*/adapter/)", freeze=True),)


def stacked(params):
    return parameters.stack(parameters.named_leaves(params))


def stored(model_dir, step):
    shapes = Checkpoints(str(model_dir / "checkpoints"), read_only=True).shapes(step)
    return weight_source.strip_prefix(weight_source.PARAMS, shapes)


def opened(path):
    return open_model(str(path), model=ADAPTED, objective=SequenceToSequence())


def train(model_dir, base, groups=ON_BASE, model=ADAPTED, **changes):
    optimizer = optimizers.adamw(learning_rate=schedules.constant(0.01), groups=groups)
    changes = {"path": None if base is None else str(base), "optimizer": optimizer} | changes
    return run(model_dir, model=model, **changes)


def assert_equal(found, expected):
    found, expected = stacked(found), stacked(expected)
    assert found.keys() == expected.keys()
    for name, leaf in expected.items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Returns a base as a run and as a Hugging Face directory."""
    directory = tmp_path_factory.mktemp("base")
    params = run(directory / "run", total=3).params
    interop.to_huggingface(params, CONFIG, str(directory / "huggingface"))
    return {"run": directory / "run", "Hugging Face": directory / "huggingface"}


@pytest.fixture(scope="module")
def base(bases):
    return bases["run"]


@pytest.fixture(scope="module")
def trained(base, tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained") / "lora"
    return directory, train(directory, base)


@pytest.mark.parametrize("kind", others_are_full(["run", "Hugging Face"], ["Hugging Face"]))
def test_checkpoints_store_what_the_base_does_not_have(bases, kind, tmp_path):
    base, directory = bases[kind], tmp_path / "lora"
    result = train(directory, base)
    assert_equal(opened(directory).read(), result.params)
    names = set(stacked(result.params))
    of_base = {name for name in names if "/adapter/" not in name}
    assert set(stored(directory, 6)) == names - of_base
    record = json.loads((directory / "base.json").read_text())
    assert set(record["leaves"]) == of_base
    assert record["path"] == str(base if base.name == "huggingface" else base / "checkpoints" / "3")


@pytest.mark.full
def test_whatever_reads_the_run_reads_the_base(trained, tmp_path):
    directory, result = trained
    assert_equal(opened(directory).read(), result.params)
    teacher = open_teacher(Teacher(str(directory)))
    assert_equal(
        dataclasses.replace(teacher, config=dataclasses.replace(teacher.config, dtype="float32")).read(), result.params
    )
    # A run that starts from it: first all of it trains, then only new updates of its own base.
    warm = train(
        tmp_path / "warm", directory, groups=(), total=1, optimizer=optimizers.adamw(learning_rate=lambda _: 0.0)
    )
    assert_equal(warm.params, result.params)
    again = train(tmp_path / "again", directory, total=2)
    assert_equal(opened(tmp_path / "again").read(), again.params)
    assert set(stored(tmp_path / "again", 2)) == {name for name in stacked(result.params) if "/adapter/" in name}


def test_missing_changed_and_moved_base(base, trained, tmp_path):
    shutil.copytree(trained[0], directory := tmp_path / "lora")
    record = json.loads((directory / "base.json").read_text())

    def write(**changes):
        (directory / "base.json").write_text(json.dumps(record | changes))

    write(path="/gone/base")
    with pytest.raises(
        UserError, match=rf"base.json: base /gone/base \(digest {record['digest']}\) not found. Restore"
    ):
        opened(directory).read()
    with pytest.raises(UserError, match="base /gone/base"):
        train(directory, base, total=7)
    write(digest="0123")
    with pytest.raises(
        UserError, match=rf"has digest {record['digest']} instead of 0123. Restore it there, or write the"
    ):
        opened(directory).read()
    shutil.copytree(base, tmp_path / "moved")
    write(path=record["path"].replace(str(base), str(tmp_path / "moved")))
    assert_equal(opened(directory).read(), trained[1].params)
    (directory / "base.json").write_text("{}")
    with pytest.raises(UserError, match="base.json: damaged"):
        opened(directory).read()


@pytest.mark.full
def test_frozen_base_in_bfloat16_gives_the_same_bits_and_keeps_the_base(base, tmp_path):
    """Activations are bfloat16, to which layers cast kernels and embeddings anyway."""
    model = dataclasses.replace(ADAPTED, dtype="bfloat16")
    rows = {}
    for dtype in ("float32", "bfloat16"):
        result = train(tmp_path / dtype, base, model=model, frozen_dtype=dtype)
        rows[dtype] = losses(tmp_path / dtype) + losses(tmp_path / dtype, "validation")
        dtypes = {name: leaf.dtype for name, leaf in stacked(result.params).items()}
        rounded = {name for name, kept in dtypes.items() if kept == "bfloat16"}
        frozen = {name for name in dtypes if re.search("/(kernel|embedding)$", name) and "/adapter/" not in name}
        assert rounded == (frozen if dtype == "bfloat16" else set())
    assert rows["float32"] == rows["bfloat16"]
    digests = [json.loads((tmp_path / dtype / "base.json").read_text()) for dtype in rows]
    assert digests[0] == digests[1]
    # Commands read the base as it is stored.
    assert_equal(opened(tmp_path / "bfloat16").read(), opened(tmp_path / "float32").read())


@pytest.mark.full
def test_rounded_parameters_are_reported_and_trained_ones_refused(base, tmp_path, caplog):
    train(tmp_path / "stored", base, total=1, frozen_dtype="bfloat16", store_base=True)
    assert "checkpoints store" in caplog.text and "in bfloat16, because no base has them" in caplog.text
    still = optimizers.adamw(learning_rate=lambda _: 0.0)
    result = train(tmp_path / "trained", tmp_path / "stored", total=1, optimizer=still)
    assert all(leaf.dtype == "float32" for leaf in stacked(result.params).values())
    assert_equal(result.params, opened(tmp_path / "stored").read())
    with pytest.raises(UserError, match="FROZEN_DTYPE='bfloat16': no parameter is frozen"):
        train(tmp_path / "refused", base, total=1, optimizer=still, frozen_dtype="bfloat16")
    with pytest.raises(UserError, match="FROZEN_DTYPE='float16' is unknown"):
        train(tmp_path / "trained", base, frozen_dtype="float16")


@pytest.mark.full
def test_fresh_frozen_parameters_are_stored(base, tmp_path):
    result = train(tmp_path, base, total=1, mapping=((".*token_embedder.*", ""),))
    assert "model/token_embedder/embedding" in stored(tmp_path, 1)
    assert_equal(opened(tmp_path).read(), result.params)


@pytest.mark.full
def test_everything_is_stored_without_a_base_and_on_demand(base, tmp_path):
    for name, changes in {"random": {"base": None}, "stored": {"base": base, "store_base": True}}.items():
        result = train(tmp_path / name, total=1, **changes)
        assert set(stored(tmp_path / name, 1)) == set(stacked(result.params))
        assert (tmp_path / name / "base.json").exists() is False


@pytest.mark.full
def test_parameters_that_were_trained_meanwhile_are_stored(base, tmp_path):
    def trained_to(total, frozen):
        groups = (optimizers.ParameterGroup(frozen, freeze=True),)
        sgd = optimizers.from_optax(optax.sgd(1.0), learning_rate=schedules.constant(0.1), groups=groups)
        return train(tmp_path, base, total=total, optimizer=sgd)

    everything, others = ON_BASE[0].pattern, "^model/(?!.*/adapter/|token_embedder)"
    for total, frozen in ((3, everything), (6, others), (9, everything)):
        result = trained_to(total, frozen)
        assert ("model/token_embedder/embedding" in stored(tmp_path, total)) == (total > 3)
        assert_equal(opened(tmp_path).read(), result.params)


def test_record_of_a_start_without_checkpoint_is_removed(base, tmp_path):
    frozen_base.store(str(tmp_path), frozen_base.FrozenBase("/gone/base", "", {}))
    train(tmp_path, None, total=1)
    assert not (tmp_path / "base.json").exists()


def test_export_of_an_adapted_run_is_merged(trained, tmp_path):
    directory, result = trained
    convert(Source(str(directory), model=ADAPTED), Target(str(tmp_path / "exported")))
    exported = interop.read(str(tmp_path / "exported"), CONFIG)
    merged = stacked({"model": construct.merge(result.params["model"])})
    assert exported.keys() == merged.keys()
    for name, leaf in merged.items():
        np.testing.assert_allclose(exported[name], leaf, rtol=1e-6, atol=1e-7, err_msg=name)
        changed = bool(np.any(leaf != stacked(result.params)[name]))
        assert changed == bool(re.search("attention/(query|value)/kernel$", name)), name


@pytest.mark.full
def test_merged_export_of_the_base_has_its_weights(base, tmp_path):
    frozen = (optimizers.ParameterGroup("^model/encoder", freeze=True),)
    result = train(tmp_path / "run", base, groups=frozen, model=CONFIG, total=1)
    assert not any(name.startswith("model/encoder") for name in stored(tmp_path / "run", 1))
    convert(Source(str(tmp_path / "run"), model=CONFIG), Target(str(tmp_path / "exported")))
    leaves = interop.read(str(tmp_path / "exported"), CONFIG)
    for name, leaf in stacked(result.params).items():
        np.testing.assert_array_equal(leaves[name], leaf, err_msg=name)
