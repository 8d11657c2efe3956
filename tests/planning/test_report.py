"""Roofline, cost, JSON and text of a plan with known values."""

import dataclasses
import json
import types

import jax
import pytest

from t5x_like.planning import report, roofline, topologies
from t5x_like.planning.collectives import DeviceMesh
from t5x_like.planning.compilation import CompiledStep, Memory, peak_memory, required_memory
from t5x_like.planning.operations import Operation, Share
from t5x_like.planning.schedule import Expected
from t5x_like.planning.walk import Sent, Work

V5E = topologies.parse("v5e:2x4")
# On a v5e, 394 TFLOP take two seconds and 0.819 TB take one second. Both sides of 2x4 are open, so 150 GB over two
# links of 50 GB/s take 1.5 seconds.
WORK = Work(
    flops=394e12,
    hbm_bytes=819e9,
    collectives={("all-gather", "fsdp"): Sent(bytes=150e9, synchronous_bytes=50e9, count=6)},
    unknown_kernels={"mystery"},
)
MESH = DeviceMesh({"fsdp": 8}, (0,) * 8, tuple((x, y, 0) for x in range(2) for y in range(4)))
NORM = Operation("elementwise", "fusion", "backward layers/norms.py:92 reduce_sum", "f32[8]")
EXPECTED = Expected(seconds=4.0, core=2.5, without_cycles=0.5, synchronous=1.0, exposed=0.5)
PRODUCT = Operation("matrix products", "product", "?", "f32[8]")
EXPECTED.operations = {NORM: Share(0.25, 0.0, 2e9, 48), PRODUCT: Share(2.0, 3e12, 1e9, 24)}
MEMORY = Memory(parameters=2**30, optimizer=2**20, batch=2**10, temporaries=2**31, peak=3 * 2**30 + 2**20 + 2**10)
PLAN = report.Plan(
    topology=V5E,
    mesh={"data": 1, "fsdp": 8, "sequence": 1, "tensor": 1},
    rules="fsdp",
    microbatches=2,
    model="T5Config",
    remat="full",
    parameters=1_000_000,
    model_flops=197e12,
    tokens=1000,
    batch_rows=16,
    total_steps=3600,
    compiled=CompiledStep(MEMORY, True, WORK, EXPECTED, MESH, 12.0),
    price=1.5,
    teacher_parameters=2_000_000,
)
TOO_LARGE = dataclasses.replace(
    PLAN, compiled=CompiledStep(dataclasses.replace(MEMORY, peak=20 * 2**30), False, None, None, MESH, 3.0)
)
KEYS = (
    *("parameters", "hbm_bytes_per_device", "hbm_capacity_bytes", "fits", "model_flops", "executed_flops"),
    *("collective_bytes", "step_seconds_bound", "bound_by", "tokens_per_second_at_bound", "mfu_at_bound"),
    *("compile_seconds", "tokens_per_second_expected", "expected_run_seconds", "expected_cost"),
    *("expected_step_seconds", "expected_parts", "mfu_expected", "collective_counts", "synchronous_collective_bytes"),
    *("kernels_without_cost", "teacher_parameters", "expected_largest", "expected_breakdown", "memory_note"),
)


def test_slowest_resource_bounds_a_step():
    limit = roofline.bound(WORK, V5E, MESH)
    assert limit.seconds_by_resource == {"compute": 2.0, "hbm": 1.0, "ici": 1.5, "dcn": 0.0}
    assert (limit.seconds, limit.resource) == (2.0, "compute")


def test_dcn_bytes_use_the_dcn_bandwidth():
    work = Work(flops=0, collectives={("all-reduce", "data"): Sent(bytes=6.25e9, dcn_bytes=6.25e9)})
    mesh = DeviceMesh({"data": 2, "fsdp": 4}, (0,) * 4 + (1,) * 4)
    limit = roofline.bound(work, topologies.parse("v5p:2x2x1", 2), mesh)
    assert (
        limit.seconds_by_resource["ici"] == 0
        and limit.seconds_by_resource["dcn"] == pytest.approx(1.0)
        and limit.resource == "dcn"
    )


def test_collectives_along_axes_with_other_links_overlap():
    mesh = DeviceMesh({"fsdp": 2, "tensor": 4}, (0,) * 8, MESH.coordinates)
    # 50 GB over one open side of links of 50 GB/s take one second. The axes are the sides of the slice.
    along = {axis: Work(collectives={("all-gather", axis): Sent(bytes=50e9)}) for axis in ("fsdp", "tensor")}
    assert [roofline.bound(work, V5E, mesh).seconds for work in along.values()] == [1.0, 1.0]
    both = Work(collectives=along["fsdp"].collectives | along["tensor"].collectives)
    assert roofline.bound(both, V5E, mesh).seconds == 1.0
    both.collectives[("all-reduce", "tensor")] = Sent(bytes=25e9)
    assert roofline.bound(both, V5E, mesh).seconds == 1.5


def test_expected_time_is_at_least_the_bound():
    assert (PLAN.expected_seconds, PLAN.mfu_expected) == (4.0, 0.25)
    fast = dataclasses.replace(PLAN.compiled, expected=Expected(seconds=1.0, core=1.0))
    assert dataclasses.replace(PLAN, compiled=fast).expected_seconds == PLAN.bound.seconds == 2.0


def test_speed_at_the_bound_and_expected_time_and_cost_of_the_run():
    assert (PLAN.tokens_per_second_at_bound, PLAN.mfu_at_bound) == (500, 0.5)
    assert PLAN.run_seconds == 3600 * 4.0
    assert PLAN.cost == pytest.approx(8 * 4 * 1.5)


def test_json_has_documented_keys():
    found = json.loads(json.dumps(report.as_json(PLAN)))
    assert found["versions"]["jax"] == jax.__version__
    assert set(KEYS) <= set(found)
    assert found["collective_bytes"] == {"all-gather": {"fsdp": 150e9}}
    assert found["synchronous_collective_bytes"] == {"all-gather": {"fsdp": 50e9}}
    assert (found["expected_step_seconds"], found["kernels_without_cost"]) == (4.0, ["mystery"])
    assert (found["fits"], found["bound_by"], found["executed_flops"]) == (True, "compute", 394e12)
    assert [one["seconds"] for one in found["expected_largest"]] == [2.0, 0.25]
    assert found["expected_breakdown"]["matrix products"] == {"seconds": 2.0, "flops": 3e12, "hbm_bytes": 1e9}
    assert found["expected_breakdown"]["collectives"]["seconds"] == 0.0
    assert found["expected_largest"][1] == dataclasses.asdict(NORM) | dataclasses.asdict(EXPECTED.operations[NORM])


def test_text_contains_the_numbers():
    text = report.text(PLAN)
    for part in (
        "v5e:2x4: 8 chips, mesh fsdp 8",
        "peak                              3.00 GiB of 15.75 GiB: fits",
        "394.000 TFLOP, 2.000 of the model's",
        "all-gather along fsdp             150,000.0 MB sent in 6 collectives, 50,000.0 MB while the core waits",
        "1,000,000 parameters, and 2,000,000 of teachers;",
        "FLOPs of kernels that do not state them: mystery",
        "4,000.00 ms (ms: core 2,500.00, synchronous collectives 1,000.00, waiting for transfers 500.00)",
        "MFU expected                      25.0 %",
        "2,000.00 ms, bound by compute",
        "matrix products                     2,000.00 ms   50.0 %       3.000 TFLOP       1.00 GB",
        "    250.00 ms  48 x fusion, backward layers/norms.py:92 reduce_sum, f32[8]",
        "50.0 %",
        "48.00 (32.00 chip-hours at 1.5)",
        "tokens/s                          250, 31 per chip",
    ):
        assert part in text, text


def test_ranking_contains_bound_expected_time_and_flags():
    rows = report.ranking([PLAN, dataclasses.replace(PLAN, microbatches=4)]).splitlines()
    assert rows[0].split() == ["mesh", "rules", "microbatches", "remat", "peak", "bound", "expected", "MFU"]
    assert rows[1].split() == "fsdp 8 fsdp 2 full 3.00 GiB 2,000.00 ms 4,000.00 ms 25.0 %".split()
    assert rows[-1].split()[:2] == ["--gin.MICROBATCHES=4", "--gin.PARTITIONING=fsdp"]
    assert rows[-1].endswith(""" --gin.T5Config.remat="'full'\"""")


def test_small_costs_keep_digits_and_unknown_length_has_no_cost():
    assert "cost                              0.013 (0.0089 chip-hours at 1.5)" in report.text(
        dataclasses.replace(PLAN, total_steps=1)
    )
    unknown = dataclasses.replace(PLAN, total_steps=None)
    assert "give --gin.TRAIN_STEPS=…" in report.text(unknown) and "cost " not in report.text(unknown)
    found = report.as_json(unknown)
    assert found["total_tokens"] is found["expected_run_seconds"] is found["expected_cost"] is None


def test_memory_that_needs_a_variable_is_noted():
    one = topologies.parse("h100:1")
    memory = dataclasses.replace(MEMORY, peak=0.9 * one.chip.memory_bytes)
    plan = dataclasses.replace(PLAN, topology=one, compiled=dataclasses.replace(PLAN.compiled, memory=memory))
    found = report.as_json(plan)["memory_note"]
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.95" in found and found in report.text(plan)
    assert report.as_json(PLAN)["memory_note"] is None


def test_step_that_does_not_fit_is_reported_with_remedies():
    text = report.text(TOO_LARGE)
    assert "20.00 GiB of 15.75 GiB: DOES NOT FIT" in text and "MICROBATCHES" in text
    assert "tokens/s" not in text and "speed of a step that does not fit is unknown" in text
    found = report.as_json(TOO_LARGE)
    assert found["fits"] is False and found["executed_flops"] is None and found["tokens_per_second_expected"] is None


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (200.00G) exceeds available HBM (15.75G). HLO module: jit__lambda.",
            200 * 2**30,
        ),
        ("Ran out of memory in memory space hbm. Used 17.50G of 15.75G hbm. Exceeded by 1.75G.", 17.5 * 2**30),
        ("INTERNAL: something else (3.00G)", None),
        ("Ran out of memory in memory space vmem. Used 16.25M of 16.00M vmem. Exceeded by 256.0K.", None),
    ],
)
def test_required_memory_is_parsed_from_the_compiler_error(message, expected):
    assert required_memory(message) == expected


def test_peak_memory_includes_the_program():
    stats = types.SimpleNamespace(peak_memory_in_bytes=90, generated_code_size_in_bytes=5, temp_size_in_bytes=200)
    assert peak_memory(stats) == 95
    stats.total_allocation_bytes = 100
    assert peak_memory(stats) == 105
