"""Expected time of programs written by hand, with cycles of a v5e (1.5 GHz)."""

import pytest

from t5x_like.planning import hlo, schedule, topologies, walk
from t5x_like.planning.collectives import DeviceMesh

V5E = topologies.parse("v5e:1x4")
MESH = DeviceMesh({"fsdp": 4}, (0,) * 4, tuple((0, y, 0) for y in range(4)))
CYCLES = 'backend_config={"window_config":{"estimated_cycles":"%d"}}'
MS = 1_500_000  # cycles per millisecond
INNER = """\
%inner (p: f32[8]) -> f32[8] {
  %p = f32[8]{0:S(1)} parameter(0)
  ROOT %n = f32[8]{0:S(1)} negate(%p)
}
"""
# Each device gathers three shards of 50 MB over one link of 50 GB/s: 3 ms.
GATHER = "channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}"


def fusion(name, operand, milliseconds):
    cycles = CYCLES % round(milliseconds * MS)
    return f"  %{name} = f32[8]{{0:S(1)}} fusion(%{operand}), kind=kLoop, calls=%inner, {cycles}\n"


def program(body, before=INNER):
    return hlo.parse(
        before + "ENTRY %main (x: f32[8], shard: bf16[25000000]) -> f32[8] {\n"
        "  %x = f32[8]{0:S(1)} parameter(0)\n"
        "  %shard = bf16[25000000]{0} parameter(1)\n" + body + "}\n"
    )


def expected(body, before=INNER, topology=V5E):
    return schedule.expected(program(body, before), MESH, topology)


def milliseconds(found):
    return [pytest.approx(1e3 * part) for part in (found.seconds, found.core, found.synchronous, found.exposed)]


def test_cycles_count_once_per_iteration():
    loop = (
        "%body (s: f32[8]) -> f32[8] {\n  %s = f32[8]{0:S(1)} parameter(0)\n" + fusion("b", "s", 2) + "}\n"
        "%condition (t: f32[8]) -> pred[] {\n  %t = f32[8]{0:S(1)} parameter(0)\n  ROOT %r = pred[] constant(true)\n}\n"
    )
    called = (
        "  %w = f32[8]{0:S(1)} while(%x), condition=%condition, body=%body, "
        'backend_config={"known_trip_count":{"n":"5"}}\n' + fusion("f", "w", 1)
    )
    assert milliseconds(expected(called, INNER + loop)) == [11, 11, 0, 0]


def test_operations_share_the_time_by_source():
    frames = (
        'FileNames\n1 "/site/t5x_like/layers/norms.py"\n2 "/site/jax/numpy.py"\nFunctionNames\n1 "norm"\n'
        "FileLocations\n1 {file_name_id=1 function_name_id=1 line=92}\n2 {file_name_id=2 function_name_id=1 line=7}\n"
        "StackFrames\n1 {file_location_id=1 parent_frame_id=1}\n2 {file_location_id=2 parent_frame_id=2}\n\n\n"
    )
    norm = 'metadata={op_name="jit(step)/transpose(jvp())/reduce_sum" stack_frame_id=2}, calls=%inner, '
    named = fusion("f", "x", 1).replace("calls=%inner, ", norm) + fusion("g", "f", 2).replace("calls=%inner, ", norm)
    gather = f"  %h = bf16[100000000]{{0}} all-gather(%shard), {GATHER}\n"
    found = expected(named + gather, frames + INNER)
    shares = {(one.kind, one.source): (round(1e3 * share.seconds), share.times) for one, share in found.largest}
    assert shares == {
        ("all-gather", "?"): (3, 1),
        ("fusion", "backward layers/norms.py:92 reduce_sum"): (3, 2),
    }
    assert sum(share.seconds for _, share in found.largest) == pytest.approx(found.seconds)


def test_slowest_branch_runs():
    branches = "".join(
        f"%{name} (s: f32[8]) -> f32[8] {{\n  %s = f32[8]{{0:S(1)}} parameter(0)\n" + fusion("b", "s", time) + "}\n"
        for name, time in (("slow", 3), ("fast", 2))
    )
    body = "  %c = f32[8]{0:S(1)} conditional(%x, %x, %x), branch_computations={%fast, %slow}\n"
    assert milliseconds(expected(body, INNER + branches)) == [3, 3, 0, 0]


def test_core_waits_for_a_synchronous_collective():
    body = f"  %g = bf16[100000000]{{0}} all-gather(%shard), {GATHER}\n" + fusion("f", "x", 1)
    assert milliseconds(expected(body)) == [4, 1, 3, 0]


def test_core_waits_for_the_rest_of_an_asynchronous_collective():
    def body(between):
        return (
            f"  %g = (bf16[25000000]{{0}}, bf16[100000000]{{0}}) all-gather-start(%shard), {GATHER}\n"
            + fusion("f", "x", between)
            + "  %h = bf16[100000000]{0} all-gather-done(%g)\n"
        )

    assert milliseconds(expected(body(1))) == [3, 1, 0, 2]
    assert milliseconds(expected(body(5))) == [5, 5, 0, 0]


@pytest.mark.parametrize(("between", "waits"), [(1, 2), (5, 0)])
def test_collective_on_a_sparse_core_runs_beside_the_core(between, waits):
    gather = (
        "%on_sparse_core (a: bf16[25000000], t: token[]) -> bf16[100000000] {\n"
        "  %t = token[] parameter(1)\n  %a = bf16[25000000]{0} parameter(0)\n"
        f'  ROOT %g = bf16[100000000]{{0}} all-gather(%a), {GATHER}\n}}, execution_thread="sparsecore"\n'
    )
    body = (
        '  %u = s32[]{:S(2)} custom-call(), custom_call_target="PrepareAsyncCallStart"\n'
        '  %v = token[] custom-call(%u), custom_call_target="PrepareAsyncCallDone"\n'
        "  %s = ((bf16[25000000]{0}, token[]), bf16[100000000]{0}) call-start(%shard, %v), "
        'async_execution_thread="sparsecore", to_apply=%on_sparse_core\n'
        + fusion("f", "x", between)
        + "  %d = bf16[100000000]{0} call-done(%s)\n"
    )
    assert milliseconds(expected(body, INNER + gather)) == [max(3, between), between, 0, waits]
    work = walk.work(program(body, INNER + gather), MESH)
    assert work.collectives == {("all-gather", "fsdp"): walk.Sent(150e6, 0.0, 0.0, 1)}
    assert work.hbm_bytes == 50e6 + 200e6 and not work.unknown_kernels


def test_collectives_on_the_same_links_follow_one_another():
    start = f"(bf16[25000000]{{0}}, bf16[100000000]{{0}}) all-gather-start(%shard), {GATHER}\n"
    done = "bf16[100000000]{0} all-gather-done"
    body = f"  %g = {start}  %h = {start}" + fusion("f", "x", 1) + f"  %i = {done}(%g)\n  %j = {done}(%h)\n"
    assert milliseconds(expected(body)) == [6, 1, 0, 5]


def test_asynchronous_copies_use_the_bandwidth_of_memory():
    # 50 MB at 819 GB/s.
    body = (
        "  %c = (bf16[25000000]{0:S(1)}, bf16[25000000]{0}, u32[]) copy-start(%shard)\n"
        "  %d = bf16[25000000]{0:S(1)} copy-done(%c)\n"
    )
    assert milliseconds(expected(body)) == [50e6 / 819e6, 0, 0, 50e6 / 819e6]


def test_small_collective_takes_a_hop_per_link():
    body = "  %r = f32[8]{0:S(1)} all-reduce(%x), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%inner\n"
    assert milliseconds(expected(body)) == [3e-3, 0, 3e-3, 0]


def test_kernel_takes_its_flops_at_the_fill_of_the_matrix_units():
    # 197 GFLOP take a millisecond at the peak of a v5e. Heads of 64 fill half of a matrix unit.
    body = (
        "  %q = bf16[4,64]{1,0:S(1)} bitcast(%x)\n"
        '  %k = bf16[4,64]{1,0:S(1)} custom-call(%q), custom_call_target="tpu_custom_call", backend_config={'
        '"custom_call_config":{"cost_estimate":{"flops":"197000000000","bytes_accessed":"8"}}}\n'
    )
    found = expected(body)
    assert milliseconds(found) == [2, 2, 0, 0]
    assert found.without_cycles == found.core


def test_kernel_takes_the_time_of_its_elementwise_work_too():
    body = (
        "  %q = bf16[4,128]{1,0:S(1)} bitcast(%x)\n"
        '  %k = bf16[4,128]{1,0:S(1)} custom-call(%q), custom_call_target="tpu_custom_call", backend_config={'
        '"custom_call_config":{"cost_estimate":{"flops":"197000000000","transcendentals":"1000000000"}}}\n'
    )
    # A billion exponentials take 3.1 million cycles, at 1.5 GHz on the core of a v5e.
    assert milliseconds(expected(body)) == pytest.approx([1 + 3.1 / 1.5, 1 + 3.1 / 1.5, 0, 0])
