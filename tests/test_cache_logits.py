"""`t5x_like cache_logits`: contents, alignment with the rows of a cache, resuming, and what is refused."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lanes import others_are_full
from logits_cases import CASES, LENGTHS, PACKED, opened, teacher_of, with_attached, write_cache
from logits_cases import write_logits as write

from t5x_like import cache_logits as command
from t5x_like import cli
from t5x_like.cli import resolution
from t5x_like.data.cached import CachedMixture, CachedSource, MixtureFile, logits_writer
from t5x_like.data.cached.logits_rows import Stored
from t5x_like.distillation.cached_logits import predictions_of
from t5x_like.errors import RunFailed, UserError
from t5x_like.kernels.chunks import Readout, sum_over_positions
from t5x_like.kernels.divergence import forward_kl, from_teacher
from t5x_like.partitioning import Partitioner

ROWS = 10


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Writes shards of four rows."""
    monkeypatch.setattr(logits_writer, "_FEWEST_ROWS", 4)
    monkeypatch.setattr(logits_writer, "SHARD_BYTES", 1)


def read(case, cache_dir, cached, **settings):
    """Returns the first batch in shuffled order, with the attached arrays."""
    source = CachedSource(cache_dir=str(cache_dir), batch_size=8, **settings)
    return next(source.host_iterator(with_attached(case, cached.attached)))


def divergences(case, batch, cached, temperature=1.0, **changes):
    """Returns prediction -> divergence of a student from the teacher, with the teacher online and cached."""
    teacher = case.params(**changes)
    student = jax.tree.map(lambda x: 0.7 * x, teacher)
    rows = {name: jnp.asarray(array) for name, array in batch.items() if name in case.objective.features.dtypes}
    names = tuple(case.objective.coefficients)
    of_student, of_teacher = (
        predictions_of(case.objective, each, rows, names) for each in (student, case.params(**changes))
    )
    stored, found = cached.predictions(batch), {}
    for name in names:
        weights = of_student[name].weights
        teachers = {"online": Readout(of_teacher[name].hidden, of_teacher[name].logits), "cached": stored[name]}
        student_logits = Readout(of_student[name].hidden, of_student[name].logits)
        sums = {
            each: sum_over_positions(
                student_logits, from_teacher(forward_kl, teacher, weights, temperature=temperature)
            )
            for each, teacher in teachers.items()
        }
        assert float(weights.sum()) > 8
        found[name] = {each: float(value) / float(weights.sum()) for each, value in sums.items()}
    return found


# ---- command line ----------------------------------------------------------------------------------------------------


def test_command_accepts_the_recipe_of_the_student(tmp_path):
    """The gin files and settings with which `cache` and `distill` are called."""
    (tmp_path / "own.gin").write_text(
        "from __gin__ import dynamic_registration\nfrom t5x_like.models import bert\n"
        "include 'models/bert/mini.gin'\nbert.BertConfig.dropout_rate = 0.3\n"
    )
    directories = ["--cache_dir=cache", "--teacher=teacher"]
    settings = ["--gin.VOCABULARY_PATH=vocab.txt", "--gin.TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 4}"]
    settings += ["--gin.TRAIN_EPOCHS=2", "--gin.LEARNING_RATE=0.1", "--gin.MIXTURE_OR_TASK_NAME=a_task"]
    files = [f"--gin_file={tmp_path / 'own.gin'}", "--gin_file=runs/bert.gin"]
    resolved = resolution.resolve(cli.parse(["cache_logits", *files, *directories, *settings]), None)
    assert "objective = %OBJECTIVE" in resolved.text and "dropout_rate" not in resolved.text
    (tmp_path / "hub").mkdir()
    sizes = {"hidden_size": 4, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    (tmp_path / "hub/config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 99} | sizes))
    student = ["--gin_file=runs/bert.gin", f"--gin.HF_PATH={tmp_path / 'hub'}"]
    assert "MaskedLM" in resolution.resolve(cli.parse(["cache_logits", *student, *directories]), None).text
    resolution.resolve(cli.parse(["cache_logits", *directories]), None)  # the teacher has an objective of its own
    with pytest.raises(UserError, match="LEARNING_RAT is not used; did you mean LEARNING_RATE"):
        resolution.resolve(cli.parse(["cache_logits", *files, *directories, "--gin.LEARNING_RAT=1"]), None)


# ---- contents and alignment ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", others_are_full(PACKED, [*PACKED][:2]))
def test_all_logits_in_float32_equal_the_teacher_online(tmp_path, name):
    case = PACKED[name]
    write_cache(tmp_path / "train", case)
    write(case, tmp_path)
    cached = opened(case, tmp_path)
    for found in divergences(case, read(case, tmp_path, cached), cached).values():
        assert found["online"] > 0.05
        np.testing.assert_allclose(found["cached"], found["online"], rtol=2e-5)


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    """Writes a cache for a causal language model, which tests must not change."""
    directory = tmp_path_factory.mktemp("causal")
    write_cache(directory / "train", CASES["causal_lm"])
    return directory


def test_float16_is_close_to_float32(causal, tmp_path):
    case = CASES["causal_lm"]
    shutil.copytree(causal, tmp_path, dirs_exist_ok=True)
    write(case, tmp_path, dtype="float16")
    cached = opened(case, tmp_path)
    found = divergences(case, read(case, tmp_path, cached), cached)["targets"]
    np.testing.assert_allclose(found["cached"], found["online"], rtol=1e-3)


def test_fewer_logits_give_a_lower_bound_at_their_temperature(causal, tmp_path):
    case = CASES["causal_lm"]
    shutil.copytree(causal, tmp_path, dirs_exist_ok=True)
    write(case, tmp_path, k=8, temperature=2.0)
    cached = opened(case, tmp_path)
    batch = read(case, tmp_path, cached)
    found = divergences(case, batch, cached, temperature=2.0)["targets"]
    assert 0.2 * found["online"] < found["cached"] < found["online"]
    with pytest.raises(UserError, match="was summed at temperature 2.0"):
        divergences(case, batch, cached)


def test_all_predictions_and_labels_are_stored(tmp_path):
    case = CASES["pretraining"]
    write_cache(tmp_path / "train", case)
    manifest = write(case, tmp_path, k=5, predictions=("all_tokens", "next_sentence"))["a_task/train"]
    vocabulary = case.params()["model"].config.vocab_size
    assert manifest.predictions == {
        "all_tokens": Stored(LENGTHS["inputs"], vocabulary, 5, "float32"),
        "next_sentence": Stored(1, 2, 2, "float32"),
    }
    cached = opened(case, tmp_path)
    batch = read(case, tmp_path, cached)
    weights = case.objective.weights(batch)["all_tokens"]
    values = batch["teacher_logits/teacher/all_tokens/values"]
    np.testing.assert_array_equal(np.abs(values).sum(axis=-1) > 0, weights > 0)


@pytest.mark.full
def test_rows_are_aligned_in_a_mixture_on_several_processes_and_after_a_restart(tmp_path):
    case = CASES["causal_lm"]
    for task, seed in (("first", 1), ("second", 2)):
        write_cache(tmp_path / task / "train", case, seed=seed, task=task, lengths={"targets": 48})
    MixtureFile("both", ("first", "second"), {"first": 0.5, "second": 0.5}).write(str(tmp_path))
    # Rows have up to 48 tokens: the teacher reads batches of 16, 32 and 48.
    assert list(write(case, tmp_path, teacher_of(case, max_length=48))) == ["first/train", "second/train"]
    cached = opened(case, tmp_path)
    spec, source = with_attached(case, cached.attached), CachedMixture(cache_dir=str(tmp_path), batch_size=8)
    alone = source.host_iterator(spec)
    found, second = next(alone), next(alone)
    assert {name: array.shape for name, array in found.items()} == source.batch_shapes(spec)
    assert {name: array.dtype.name for name, array in found.items()} == spec.dtypes
    values = divergences(case, second, cached, max_length=48)["targets"]
    np.testing.assert_allclose(values["cached"], values["online"], rtol=2e-5)
    shares = [source.host_iterator(spec, process_index=index, process_count=2) for index in range(2)]
    for name, parts in _stacked([next(each) for each in shares]).items():
        np.testing.assert_array_equal(parts, found[name])
    resumed = source.host_iterator(spec)
    resumed.restore(shares[0].state())
    for name, rows in next(resumed).items():
        np.testing.assert_array_equal(rows, second[name])


def _stacked(parts):
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def test_devices_do_not_change_what_is_stored(causal, tmp_path):
    case, found = CASES["causal_lm"], []
    for name, mesh in (("one", {"fsdp": 1}), ("eight", {"fsdp": 2, "sequence": 2, "tensor": 2})):
        shutil.copytree(causal, tmp_path / name)
        devices = jax.devices()[: 1 if name == "one" else 8]
        write(case, tmp_path / name, k=5, partitioner=Partitioner(rules="fsdp_tp_sp", ici=mesh, devices=devices))
        found.append(read(case, tmp_path / name, opened(case, tmp_path / name)))
    for name in (name for name in found[0] if name.endswith("/values")):
        np.testing.assert_allclose(found[1][name], found[0][name], atol=2e-5)
        np.testing.assert_array_equal(found[1][name.replace("values", "ids")], found[0][name.replace("values", "ids")])


def test_bytes_per_position():
    # docs/teacher_logits.md gives 20 kB for 77 masked positions and 133 kB for 512 positions.
    stored = Stored(512, 30_522, 64, "float16")
    assert (stored.bytes_per_position, stored.ids_dtype) == (260, "uint16")
    assert (77 * 260, 512 * 260) == (20_020, 133_120)
    assert Stored(1, 2, 2, "float16").ids_dtype == "uint8"
    assert Stored(1, 2**16 + 1, 2, "float16").ids_dtype == "uint32"


# ---- resuming --------------------------------------------------------------------------------------------------------


# The command, killed when the file of its second shard is written, but before it has its final name.
KILLED = """
import os, signal, sys
import jax
jax.config.update("jax_num_cpu_devices", 8)
from logits_cases import CASES, teacher_of
from t5x_like import cache_logits as command
from t5x_like.data.cached import logits_writer, shard_files
from t5x_like.distillation.teachers import Teacher

logits_writer._FEWEST_ROWS, logits_writer.SHARD_BYTES = 4, 1
command.open_teacher = lambda *given: teacher_of(CASES["causal_lm"])
store = shard_files.store
shard_files.store = lambda local, target: (
    os.kill(os.getpid(), signal.SIGKILL) if "00001-of" in target else store(local, target)
)
command.cache_logits(cache_dir=sys.argv[1], teacher=Teacher("a/teacher"), k=5, dtype="float32", batch_size=8)
"""


@pytest.mark.full
def test_killed_command_resumes_to_the_same_bytes(causal, tmp_path, monkeypatch):
    case = CASES["causal_lm"]
    for name in ("whole", "cut"):
        shutil.copytree(causal, tmp_path / name)
    whole = write(case, tmp_path / "whole", k=5)["a_task/train"]
    written, write_shard = [], logits_writer.LogitsPlan.write_shard
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "cut")], env=environment, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    left = [path.name for path in (tmp_path / "cut" / "teacher_logits").rglob("*") if path.is_file()]
    assert [name for name in left if name.endswith("array_record")] == ["00000-of-00003.array_record"]
    assert any(name.endswith(".tmp") for name in left)
    with pytest.raises(UserError, match="are incomplete: manifest.json not found. Repeat the `t5x_like cache_logits`"):
        opened(case, tmp_path / "cut")
    with pytest.raises(UserError, match="incomplete .* with other settings .*targets: .*another TEACHER_LOGITS"):
        write(case, tmp_path / "cut", k=6)

    def recorded(plan, unit, records):
        written.append(unit)
        return write_shard(plan, unit, records)

    monkeypatch.setattr(logits_writer.LogitsPlan, "write_shard", recorded)
    assert write(case, tmp_path / "cut", k=5)["a_task/train"].fingerprint == whole.fingerprint
    assert written == ["00001", "00002"]
    # A lost file of a complete directory is written again; a complete directory is not.
    (tmp_path / "cut" / "teacher_logits" / "a_task" / "train" / whole.shards[0].file).unlink()
    write(case, tmp_path / "cut", k=5)
    write(case, tmp_path / "cut", k=5)
    assert written == ["00001", "00002", "00000"]
    whole_files, files = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "whole", tmp_path / "cut")
    )
    assert files == whole_files


def test_one_split_needs_no_tuple(causal):
    assert command.find_sources(str(causal), "train").keys() == command.find_sources(str(causal), ("train",)).keys()


def test_full_disk_ends_the_command(causal, tmp_path, monkeypatch):
    shutil.copytree(causal, tmp_path / "cache")

    def full(local, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(logits_writer.shard_files, "store", full)
    with pytest.raises(RunFailed, match="TEACHER_LOGITS=.* cannot be written: No space .* after the complete shards"):
        write(CASES["causal_lm"], tmp_path / "cache", k=5)
    assert not list((tmp_path / "cache" / "teacher_logits").rglob("*array_record*"))
