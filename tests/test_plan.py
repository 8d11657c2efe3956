"""`t5x_like plan`. Tests that compile are skipped if the extra `plan` is not installed."""

import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import jax
import pytest
import recipes

from t5x_like import cli, optimizers, partitioning, plan
from t5x_like.errors import UserError
from t5x_like.models.lstm import LSTMConfig
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.recurrent_lm import RecurrentLM
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.partitioning import Partitioner
from t5x_like.planning import report, search, topologies
from t5x_like.training import program

ROOT = Path(__file__).resolve().parents[1]
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu, XLA's TPU compiler, of the extra plan"
)
TINY = T5Config(
    vocab_size=512, embed_dim=128, mlp_dim=256, num_heads=2, head_dim=64, encoder_layers=2, decoder_layers=2
)


class Shapes:
    """A data source that only has the shapes of its batches."""

    def __init__(self, batch_size, continuous=False, inputs=64):
        self.batch_size, self.continuous, self.inputs = batch_size, continuous, inputs

    def batch_shapes(self, spec):
        lengths = spec.model_lengths({"inputs": self.inputs, "targets": 32})
        return {name: (self.batch_size, length) for name, length in lengths.items()}


def recipe(partitioner, batch_size=16, **settings):
    return recipes.make(
        model=TINY,
        objective=SequenceToSequence(),
        optimizer=optimizers.adafactor(learning_rate=0.01),
        data=Shapes(batch_size),
        total=1000,
        partitioner=partitioner,
        **settings,
    )


@needs_compiler
@pytest.mark.notf
def test_plan_of_a_small_model_on_a_v5e_slice(tmp_path, capsys):
    partitioner = Partitioner(ici={"fsdp": -1}, devices=topologies.devices("v5e:2x4"))
    found = plan.plan(
        recipe=recipe(partitioner),
        topology="v5e:2x4",
        price=2.0,
        json_path=str(tmp_path / "plan.json"),
    )
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["fits"] and 0 < written["hbm_bytes_per_device"] < written["hbm_capacity_bytes"]
    assert written["parameters"] == found.parameters == 919_168
    # No activation is recomputed. The model's FLOPs exclude the product for position biases.
    assert 1.0 <= written["executed_flops"] / written["model_flops"] < 1.01
    sent = written["collective_bytes"]
    assert {axis for axes in sent.values() for axis in axes} == {"fsdp"}
    # A fully sharded step gathers each kernel in bfloat16, forward and backward, and reduces its gradient.
    total = sum(bytes_ for axes in sent.values() for bytes_ in axes.values())
    assert total > 2 * 2 * found.parameters * 7 / 8 / 2
    assert written["loops_of_unknown_length"] == [] and written["kernels_without_cost"] == []
    assert all(count > 0 for axes in written["collective_counts"].values() for count in axes.values())
    waiting = sum(bytes_ for axes in written["synchronous_collective_bytes"].values() for bytes_ in axes.values())
    assert 0 < waiting <= total
    # The compiler estimates cycles for nearly everything.
    parts = written["expected_parts"]
    assert parts["without_cycles"] < 0.1 * parts["core"]
    assert parts["core"] + parts["synchronous"] + parts["exposed"] == pytest.approx(parts["seconds"])
    assert written["expected_step_seconds"] == max(parts["seconds"], written["step_seconds_bound"])
    assert written["mfu_expected"] <= written["mfu_at_bound"]
    assert written["tokens_per_second_at_bound"] == pytest.approx(16 * 96 / written["step_seconds_bound"])
    assert "fits" in capsys.readouterr().out


@needs_compiler
@pytest.mark.notf
def test_plan_counts_scores_and_thresholds_of_compression_files(tmp_path):
    def planned(file, *settings):
        if file == "int8":
            pytest.importorskip("qwix", reason="needs the extra `quantization`")
        files = ["models/bert/tiny.gin", "runs/finetune_classification.gin", f"compression/{file}.gin"]
        words = [*(f"--gin_file={each}" for each in files), "--topology=v5e:2x2", f"--json={tmp_path}/plan.json"]
        small = ("BertConfig.vocab_size=512", "BertConfig.num_layers=1", *settings)
        assert cli.main(["plan", *words, *(f"--gin.{each}" for each in small)]) == 0
        return json.loads((tmp_path / "plan.json").read_text())

    magnitude, movement = planned("magnitude", "FROZEN=None"), planned("movement", "FROZEN=None")
    kernels = 4 * 128 * 128 + 2 * 128 * 512
    assert movement["parameters"] == magnitude["parameters"] + kernels
    # Parameter, and two moments of Adam, of each score in float32 on one of four chips.
    assert movement["hbm_bytes_per_device"] > magnitude["hbm_bytes_per_device"] + 3 * 4 * kernels / 4 * 0.99
    assert planned("int8")["parameters"] == magnitude["parameters"] - 6  # a threshold per kernel


@needs_compiler
@pytest.mark.notf
def test_plan_counts_the_state_of_a_recurrent_network():
    partitioner = Partitioner(ici={"fsdp": -1}, devices=topologies.devices("v5e:2x2"))
    carried, without = (
        plan.plan(
            recipe=recipes.change(
                recipe(partitioner),
                model=LSTMConfig(vocab_size=512, embed_dim=128, embedding_dim=128, num_layers=2),
                objective=RecurrentLM(),
                optimizer=optimizers.adamw(learning_rate=0.01),
                data=Shapes(16, continuous=continuous),
            ),
            topology="v5e:2x2",
        ).compiled
        for continuous in (True, False)
    )
    # The rows of each of 4 chips have hidden and cell state of two layers and a last hidden state, in float32.
    assert carried.memory.optimizer - without.memory.optimizer == 4 * (16 // 4) * 5 * 128


@needs_compiler
@pytest.mark.notf
def test_plan_expects_the_attention_of_packed_rows():
    partitioner = Partitioner(ici={"fsdp": -1}, devices=topologies.devices("v5e:2x2"))
    long = recipes.change(recipe(partitioner), data=Shapes(16, inputs=2048))
    whole, packed = (plan.plan(recipe=long, topology="v5e:2x2", segments_per_row=n) for n in (1, 8))
    # A pair of blocks has two products forward and five backward, in two layers of two heads of 64, for 4 of 16 rows.
    # Of 16 pairs, the 10 of neighbors nearly always share a segment.
    pair = 2 * 512**2 * 64 * (2 + 5) * 2 * 2 * 4
    assert 3 * pair < whole.compiled.work.flops - packed.compiled.work.flops < 6 * pair
    assert packed.expected_seconds < whole.expected_seconds
    assert packed.compiled.memory.peak == whole.compiled.memory.peak
    assert report.as_json(packed)["segments_per_row"] == 8 and "; 8 segments per row" in report.text(packed)


@needs_compiler
@pytest.mark.notf
def test_plan_with_parameters_that_are_gathered_once_per_step():
    partitioner = Partitioner(ici={"fsdp": -1}, devices=topologies.devices("v5e:2x2"))
    per_use, per_step = (
        plan.plan(
            recipe=recipe(partitioner, microbatches=4, gather_parameters=gather_parameters),
            topology="v5e:2x2",
        )
        for gather_parameters in ("per_use", "per_step")
    )
    assert sum(per_step.compiled.work.by_kind("count")["all-gather"].values()) < sum(
        per_use.compiled.work.by_kind("count")["all-gather"].values()
    )


@needs_compiler
@pytest.mark.notf
def test_search_compiles_the_best_candidates_and_prints_the_settings(tmp_path, capsys):
    partitioner = Partitioner(ici={"fsdp": -1}, devices=topologies.devices("v5e:2x2"))
    best = plan.plan(
        recipe=recipe(partitioner, batch_size=2),  # that mesh has four parts; those that are searched have fewer
        topology="v5e:2x2",
        json_path=str(tmp_path / "plan.json"),
        search_for=2,
    )
    searched = json.loads((tmp_path / "plan.json").read_text())["searched"]
    assert len(searched) == 2 and all(one["fits"] for one in searched)
    assert best.expected_seconds == min(one["expected_step_seconds"] for one in searched)
    printed = capsys.readouterr().out
    assert f"--gin.MICROBATCHES={best.microbatches} --gin.PARTITIONING={best.rules}" in printed
    assert f""".remat="'{best.remat}'"\n""" in printed and printed.count("--gin.MICROBATCHES=") == 2


def test_search_skips_invalid_candidates(monkeypatch):
    def mesh(tensor):
        return {"data": 8 // tensor, "fsdp": 1, "sequence": 1, "tensor": tensor}

    def make_mesh(*, ici=None, **others):
        if ici and ici["tensor"] == 2:
            raise UserError("JAX cannot lay this mesh out")
        return original(ici=ici, **others)

    def compiled(changed, *others):
        seconds = float(changed.partitioner.mesh.shape["tensor"])
        if seconds == 4:
            raise jax.errors.JaxRuntimeError("the compiler cannot place a gradient in VMEM")
        return types.SimpleNamespace(compiled=types.SimpleNamespace(fits=True), expected_seconds=seconds)

    original = partitioning.make_mesh
    found = [search.Candidate(1, None, mesh(tensor), "fsdp_tp", 2**30, 0.1 * tensor, 0.1) for tensor in (2, 4, 1, 8)]
    monkeypatch.setattr(search, "candidates", lambda *given: found)
    monkeypatch.setattr(partitioning, "make_mesh", make_mesh)
    monkeypatch.setattr(plan, "_compiled", compiled)
    plans = plan._searched(recipe(None), topologies.parse("v5e:2x4"), jax.devices(), 3, None, None)
    assert [one.expected_seconds for one in plans] == [1.0, 8.0], "those that compile, the fastest first"


def test_search_does_not_create_the_configured_mesh(monkeypatch):
    """On two slices, a mesh without DCN is invalid. A search creates its own meshes."""
    seen = {}

    def searched(recipe, slice_, devices, *others):
        seen.update(has_mesh="mesh" in vars(recipe.partitioner), devices=devices)
        raise UserError("enough")

    words = ["plan", "--gin_file=models/t5_1_1/tiny.gin", "--gin_file=runs/pretrain.gin", "--topology=v5e:4x4"]
    monkeypatch.setattr(topologies, "devices", lambda topology, num_slices: [topology] * num_slices)
    monkeypatch.setattr(plan, "_searched", searched)
    arguments = cli.parse([*words, "--num_slices=2", "--search"])
    with pytest.raises(UserError, match="enough"):
        cli.run(arguments)
    assert seen == {"has_mesh": False, "devices": ["v5e:4x4", "v5e:4x4"]}


@needs_compiler
@pytest.mark.notf
def test_dtype_and_scan_depend_on_the_planned_chips():
    partitioner = Partitioner(ici={"fsdp": -1}, devices=topologies.devices("v5e:2x4"))
    made = program.make_program(recipe(partitioner, batch_size=8))
    assert jax.default_backend() == "cpu"
    assert (made.config.dtype, made.config.scan_layers) == ("bfloat16", True)


def test_indivisible_batch_raises():
    with pytest.raises(ValueError, match="BATCH_SIZE=12 must be a multiple of 16: .*8 shards, .*Give BATCH_SIZE=16"):
        plan.plan(
            recipe=recipe(Partitioner(ici={"fsdp": 8}), batch_size=12, microbatches=2),
            topology="v5e:2x4",
        )


def test_mesh_of_other_devices_raises():
    with pytest.raises(
        ValueError, match="the mesh has 8 devices .cpu, slices: 1., and the topology has 16 .TPU v5 lite, slices: 1."
    ):
        plan.plan(recipe=recipe(Partitioner()), topology="v5e:4x4")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"search_for": -2}, "--search=-2"),
        ({"price": -3.0}, "--price=-3.0"),
        ({"segments_per_row": 0}, "--segments_per_row=0: not positive"),
    ],
)
def test_negative_number_raises(given, message):
    with pytest.raises(ValueError, match=message):
        plan.plan(recipe=recipe(Partitioner()), topology="v5e:2x4", **given)


def command(*arguments, cwd, **environment):
    return subprocess.run(
        [sys.executable, "-m", "t5x_like", "plan", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.full
def test_invalid_topology_is_a_user_error(tmp_path):
    result = command("--topology=v5e-8", cwd=tmp_path)
    assert result.returncode == 2
    assert "t5x_like plan: --topology='v5e-8' is not a topology. Give a chip and the sides" in result.stderr


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed")
def test_missing_compiler_error_names_the_extra(tmp_path):
    result = command("--topology=v5e:2x4", cwd=tmp_path)
    assert result.returncode == 2
    assert "pip install -e '.[plan]' -c constraints.txt" in result.stderr
