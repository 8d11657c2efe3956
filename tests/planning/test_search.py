"""The search: cost of a row, enumeration of meshes and ranking of configurations."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import pytest
import recipes

from t5x_like import optimizers, parameters, partitioning
from t5x_like.kernels.fused_attention.attention import fused_attention
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.scoring import Scoring
from t5x_like.kernels.triton_attention.attention import triton_attention
from t5x_like.models.lstm import LSTMConfig
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.recurrent_lm import RecurrentLM
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.planning import search, topologies, tracing
from t5x_like.training import flops, program

CONFIG = T5Config(
    vocab_size=512, embed_dim=64, mlp_dim=128, num_heads=4, head_dim=16, encoder_layers=2, decoder_layers=2
)
OBJECTIVE = SequenceToSequence()
COST = tracing.RowCost(flops=1e9, residual_bytes=1e6, unsplit_residual_bytes=1e6)


class Shapes:
    continuous = False

    def batch_shapes(self, spec):
        return {name: (64, length) for name, length in spec.model_lengths({"inputs": 32, "targets": 16}).items()}


class Continuous(Shapes):
    continuous = True


@pytest.fixture(scope="module")
def planned():
    return program.make_program(
        recipes.make(
            model=dataclasses.replace(CONFIG, scan_layers=True, dtype="bfloat16"),
            objective=OBJECTIVE,
            optimizer=optimizers.adafactor(learning_rate=0.01),
            data=Shapes(),
            partitioner=partitioning.Partitioner(ici={"fsdp": 8}),
        )
    )


@pytest.fixture(scope="module")
def candidates(planned):
    """Returns `candidates(topology, gather_parameters)`, which traces the cost of a row once per way to recompute."""
    traced, compute = {}, tracing.row_cost

    def row_cost(config, *rest):
        if config not in traced:
            traced[config] = compute(config, *rest)
        return traced[config]

    @functools.cache
    def search_once(topology, gather="per_use"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tracing, "row_cost", row_cost)
            return search.candidates(planned, OBJECTIVE, topologies.parse(topology), gather)

    return search_once


def row_cost(planned, remat):
    config = dataclasses.replace(planned.config, remat=remat)
    return tracing.row_cost(config, OBJECTIVE, planned.shapes, planned.batch_shapes, CONFIG.embed_dim)


def test_flops_of_a_scan_count_every_iteration():
    def function(x, kernels):
        return jax.lax.scan(lambda x, kernel: (x @ kernel, None), x, kernels)[0]

    jaxpr = jax.make_jaxpr(function)(jnp.ones((2, 8)), jnp.ones((3, 8, 8))).jaxpr
    assert flops.jaxpr_flops(jaxpr) == 3 * 2 * 2 * 8 * 8


# Two products in the forward pass, and five in the backward pass, seven of which two kernels of GPUs compute.
@pytest.mark.parametrize(("kernel", "products"), [(fused_attention, 2 + 5), (triton_attention, 2 + 7)])
def test_flops_of_a_kernel_are_those_of_its_estimate(kernel, products):
    q = jax.ShapeDtypeStruct((3, 256, 2, 64), jnp.bfloat16)
    attend = functools.partial(kernel, scoring=Scoring(Mask()), interpret=True)
    jaxpr = jax.make_jaxpr(jax.grad(lambda q: attend(q, q, q).astype(jnp.float32).sum()))(q).jaxpr
    assert flops.jaxpr_flops(jaxpr) == products * 2 * 3 * 2 * 256 * 256 * 64


def test_memory_on_gpus_includes_the_logits_of_one_chunk(monkeypatch):
    """A chunk of GPUs has 4,096 positions, more than a row, so that the traces of a few rows would save all logits."""
    vocab, topology = 2**16, topologies.parse("l4:1")
    large = program.make_program(
        recipes.make(
            model=dataclasses.replace(CONFIG, vocab_size=vocab, dtype="bfloat16", remat="none"),
            objective=OBJECTIVE,
            optimizer=optimizers.adafactor(learning_rate=0.01),
            data=types.SimpleNamespace(
                batch_shapes=lambda spec: {
                    name: (64, 256) for name in spec.model_lengths({"inputs": 256, "targets": 256})
                }
            ),
            partitioner=partitioning.Partitioner(devices=jax.devices()[:1]),
        )
    )
    logits_of_a_row = 4 * 256 * vocab
    monkeypatch.setattr(partitioning, "bound_platform", lambda: "gpu")
    cost = tracing.row_cost(large.config, OBJECTIVE, large.shapes, large.batch_shapes, CONFIG.embed_dim)
    assert 0 < cost.residual_bytes + cost.unsplit_residual_bytes < logits_of_a_row / 4
    monkeypatch.setattr(tracing, "row_cost", lambda *_: COST)

    def estimate():
        found = search.candidates(large, OBJECTIVE, topology)
        return {one.microbatches: one.bytes for one in found if one.remat == "none"}

    on_gpu = estimate()
    monkeypatch.setattr(partitioning, "bound_platform", lambda: "tpu")
    on_tpu = estimate()
    larger = {number: on_gpu[number] - on_tpu[number] for number in (1, 4, 8, 16)}
    positions = {1: 4096, 4: 4096, 8: 2048, 16: 1024}  # at most those of a microbatch
    assert larger == {number: search.LOGITS_BYTES * vocab * (size - 1024) for number, size in positions.items()}


def test_rows_are_traced_for_the_planned_devices(planned, monkeypatch):
    bound = []
    monkeypatch.setattr(tracing, "row_cost", lambda *_: bound.append(partitioning.bound_mesh()) or COST)
    search.candidates(planned, OBJECTIVE, topologies.parse("v5e:2x4"))
    assert {mesh.devices.flat[0] for mesh in bound} == {planned.partitioner.mesh.devices.flat[0]}


def test_width_of_a_row_is_not_that_of_a_teacher(planned, monkeypatch):
    teacher = search._Leaf((("embed", 4 * CONFIG.embed_dim), ("mlp", 128)), 1.0, is_trained=False, passes=1)
    leaves, widths = search._leaves(planned), []
    monkeypatch.setattr(search, "_leaves", lambda program: [*leaves, teacher])
    monkeypatch.setattr(tracing, "row_cost", lambda *given: widths.append(given[-1]) or COST)
    search.candidates(planned, OBJECTIVE, topologies.parse("v5e:2x4"))
    assert set(widths) == {CONFIG.embed_dim}


def test_row_cost_equals_model_flops_and_remat_trades_flops_for_memory(planned):
    none, dots, full = (row_cost(planned, remat) for remat in ("none", "dots", "full"))
    model = planned.config.train_flops({name: (1, *shape[1:]) for name, shape in planned.batch_shapes.items()})
    assert none.flops == pytest.approx(model)
    assert none.flops < dots.flops < full.flops < 4 / 3 * none.flops
    saved = [one.residual_bytes + one.unsplit_residual_bytes for one in (none, dots, full)]
    assert saved[0] > saved[1] > saved[2] > 0


def test_row_cost_of_a_frozen_model_has_no_gradients(planned):
    state, frozen = planned.shapes
    trained, fixed = (
        parameters.map_named(lambda name, leaf, own=own: leaf if ("/decoder/" in name) == own else None, state.params)
        for own in (True, False)
    )
    shapes = state.replace(params=trained), frozen.replace(params=fixed)
    config = dataclasses.replace(planned.config, remat="none")
    found = tracing.row_cost(config, OBJECTIVE, shapes, planned.batch_shapes, CONFIG.embed_dim)
    assert found.flops < 0.8 * row_cost(planned, "none").flops


@pytest.mark.full
def test_candidates_divide_evenly_and_are_sorted_by_speed(candidates):
    found = candidates("v5e:2x4")
    assert found == sorted(found, key=lambda one: (round(one.seconds, 6), one.serial_seconds, one.bytes))
    assert {one.remat for one in found} == {"none", "dots", "attention", "full"}
    for one in found:
        assert one.ici["data"] * one.ici["fsdp"] * one.ici["tensor"] == 8
        assert 64 % (one.ici["data"] * one.ici["fsdp"] * one.microbatches) == 0
        assert 4 % one.ici["tensor"] == 0, "four heads are not divisible by eight"
        assert one.rules in (("fsdp_tp", "fsdp_tp_residual") if one.ici["tensor"] > 1 else ("fsdp",))


def test_split_residual_stream_needs_less_memory(candidates):
    found = candidates("v5e:2x4")
    sharded = [
        one for one in found if (one.remat, one.microbatches, one.ici["tensor"], one.ici["fsdp"]) == ("none", 1, 2, 4)
    ]
    by_rules = {one.rules: one for one in sharded}
    assert set(by_rules) == {"fsdp_tp", "fsdp_tp_residual"}
    assert by_rules["fsdp_tp_residual"].bytes < by_rules["fsdp_tp"].bytes


@pytest.mark.parametrize(("topology", "devices"), [("v5e:1x1", 1), ("tpu7x:1x1x1", 2)])
def test_single_chip_has_candidates(candidates, topology, devices):
    found = candidates(topology)
    assert found and all(one.ici["data"] * one.ici["fsdp"] * one.ici["tensor"] == devices for one in found)


def test_gathered_parameters_need_memory_and_no_tensor_parallelism(candidates):
    per_use, per_step = (candidates("v5e:2x4", gather) for gather in ("per_use", "per_step"))
    assert {one.ici["tensor"] for one in per_use} == {1, 2, 4} and {one.ici["tensor"] for one in per_step} == {1}
    sharded = [
        next(c for c in found if (c.remat, c.microbatches, c.ici["fsdp"], c.ici["tensor"]) == ("none", 4, 8, 1))
        for found in (per_use, per_step)
    ]
    assert sharded[0].bytes < sharded[1].bytes


def test_estimates_by_shards_and_microbatches(candidates):
    found = candidates("v5e:2x4")
    one, two, sharded = (
        next(c for c in found if (c.remat, c.microbatches, c.ici["data"], c.ici["fsdp"]) == settings)
        for settings in (("none", 1, 8, 1), ("none", 2, 8, 1), ("none", 1, 1, 8))
    )
    assert sharded.bytes < one.bytes
    assert two.serial_seconds > one.serial_seconds


def test_residual_stream_is_split_only_where_tensor_divides_the_lengths():
    mesh = {"data": 1, "fsdp": 2, "sequence": 1, "tensor": 4}
    assert search.rule_sets(mesh, [512, 128]) == ("fsdp_tp", "fsdp_tp_residual")
    assert search.rule_sets(mesh, [512, 114]) == ("fsdp_tp",)
    assert search.rule_sets({**mesh, "tensor": 1}, [512]) == ("fsdp",)


@pytest.mark.parametrize(("topology", "times"), [("v6e:2x4", 2 + 1), ("v6e:8x8", 2 + 2), ("v4:4x4x4", 2 + 2)])
def test_sent_bytes_of_a_fully_sharded_model(topology, times):
    """Two gathers and a reduction, which from 64 devices on is an all-reduce; with `per_step` one gather per step."""
    slice_ = topologies.parse(topology)
    devices = slice_.num_devices
    kernel = search._Leaf((("embed", 64), ("mlp", 128)), 4.0 * 64 * 128, is_trained=True, passes=2)
    program = types.SimpleNamespace(
        batch_shapes={"targets": (devices, 16)}, shapes=(types.SimpleNamespace(carry={}), None)
    )
    ici = {"data": 1, "fsdp": devices, "sequence": 1, "tensor": 1}
    one = search.COLLECTIVE_ELEMENT_BYTES * 64 * 128 * (devices - 1) / devices
    for microbatches, per_step, expected in ((1, False, times), (4, False, 4 * times), (4, True, times - 1)):
        estimate = search._Estimate(program, [kernel], COST, ici, microbatches, slice_, rules="fsdp", per_step=per_step)
        assert estimate.seconds[2] * slice_.ici_bandwidth == pytest.approx(expected * one)


def test_candidate_replaces_only_its_settings(planned):
    mesh = {"data": 4, "fsdp": 2, "sequence": 1, "tensor": 1}
    candidate = search.Candidate(2, "full", mesh, "fsdp", 3 * 2**29, 0.25, 0.5)
    assert (
        str(candidate) == "data 4 x fsdp 2, rules fsdp, microbatches 2, remat full: about 1.5 GiB and at least 250.0 ms"
    )
    recipe = recipes.make(model=CONFIG, objective=OBJECTIVE, optimizer=None, data=Shapes(), seed=3)
    changed = candidate.apply(recipe, 1, jax.devices())
    assert changed.model == dataclasses.replace(CONFIG, remat="full")
    assert (changed.update.microbatches, changed.seed) == (2, 3)
    assert dict(changed.partitioner.mesh.shape) == {"data": 4, "fsdp": 2, "sequence": 1, "tensor": 1}


@pytest.mark.full
def test_carried_state_needs_memory_on_the_devices_of_its_rows():
    def candidates(continuous):
        recipe = recipes.make(
            model=LSTMConfig(vocab_size=64, embed_dim=128, embedding_dim=128, num_layers=2, dtype="float32"),
            objective=RecurrentLM(),
            optimizer=optimizers.adamw(learning_rate=0.01),
            data=Continuous() if continuous else Shapes(),
            partitioner=partitioning.Partitioner(devices=jax.devices()[:1]),
        )
        return search.candidates(program.make_program(recipe), recipe.objective, topologies.parse("v5e:2x4"))

    def bytes_by_settings(found):
        return {(one.microbatches, one.rules, *one.ici.values()): (one.ici, one.bytes) for one in found}

    carried, without = bytes_by_settings(candidates(True)), bytes_by_settings(candidates(False))
    assert set(carried) == set(without) and len(carried) > 4
    for settings, (ici, size) in carried.items():
        rows = 64 // (ici["data"] * ici["fsdp"])
        # Hidden and cell state of two layers, and the last hidden state, in float32.
        assert size - without[settings][1] == pytest.approx(4 * rows * 5 * 128)
