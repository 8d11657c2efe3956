"""Work of a program that the TPU compiler made from a scan over three layers.

`programs/tpu_scan.hlo` is the gradient of `sum(scan(x @ w))` with w bfloat16 [3, 256, 256] sharded over fsdp 2 x
tensor 2 and x [64, 256] sharded over fsdp, compiled for v5e:2x2, without metadata and compiler settings.
"""

import textwrap
from pathlib import Path

import pytest

from t5x_like.planning import collectives, hlo, traffic, walk

PROGRAM = Path(__file__).parent / "programs" / "tpu_scan.hlo"
MESH = collectives.DeviceMesh({"fsdp": 2, "tensor": 2}, (0,) * 4)
LAYERS, ROWS, WIDTH = 3, 32, 256  # per device
PRODUCT = 2 * ROWS * WIDTH * WIDTH
KERNEL = 2 * WIDTH * WIDTH  # bytes, bfloat16


@pytest.fixture(scope="module")
def work():
    return walk.work(hlo.parse(PROGRAM.read_text()), MESH)


def test_flops_count_every_iteration(work):
    # The forward product, the gradient of the kernel, and half of the gradient of x, whose sum is sharded over tensor.
    assert work.flops == LAYERS * (PRODUCT + PRODUCT + PRODUCT / 2)


def test_collectives_count_once_per_layer_by_kind_and_axis(work):
    assert work.by_kind() == {
        # The forward pass gathers a kernel from quarters, along fsdp and then tensor. The backward pass gathers half a
        # kernel along fsdp, asynchronously: its start, piece and end count as one collective.
        "all-gather": {"fsdp": LAYERS * 2 * KERNEL / 4, "tensor": LAYERS * KERNEL / 2},
        # The gradient of the kernel over fsdp, and the gradient of x over tensor.
        "all-reduce": {"fsdp": LAYERS * 2 * KERNEL / 2, "tensor": LAYERS * 2 * (2 * ROWS * WIDTH) / 2},
    }
    assert work.dcn_bytes == 0
    assert work.unknown_loops == set()


def test_loops_of_unknown_length_count_once_and_are_listed():
    text = PROGRAM.read_text().replace("direction=LT", "direction=NE")
    unknown = walk.work(hlo.parse(text), MESH)
    assert len(unknown.unknown_loops) == 2
    assert unknown.flops == 2.5 * PRODUCT


def traffic_bytes(text):
    module = hlo.parse(textwrap.dedent(text))
    return sum(traffic.hbm_bytes(module, module.entry, one) for one in module.entry.instructions)


def test_collectives_are_asynchronous_if_instructions_run_between_start_and_end(work):
    # Only the gather in the backward pass has pieces in another fusion.
    waiting = work.by_kind("synchronous_bytes")
    assert waiting["all-gather"] == {"fsdp": LAYERS * KERNEL / 4, "tensor": LAYERS * KERNEL / 2}
    assert waiting["all-reduce"] == work.by_kind()["all-reduce"]
    assert work.by_kind("count")["all-gather"] == {"fsdp": LAYERS * 2, "tensor": LAYERS}


BRANCHES = """\
%small (p: bf16[8,8]) -> bf16[8,8] {
  %p = bf16[8,8]{1,0} parameter(0)
  ROOT %one = bf16[8,8]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%large (q: bf16[8,8]) -> bf16[8,8] {
  %q = bf16[8,8]{1,0} parameter(0)
  %two = bf16[8,8]{1,0} dot(%q, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %three = bf16[8,8]{1,0} dot(%two, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (i: s32[], a: bf16[8,8]) -> bf16[8,8] {
  %i = s32[] parameter(0)
  %a = bf16[8,8]{1,0} parameter(1)
  ROOT %c = bf16[8,8]{1,0} conditional(%i, %a, %a), branch_computations={%small, %large}
}
"""


def test_largest_branch_of_a_conditional_counts():
    assert walk.work(hlo.parse(BRANCHES), MESH).flops == 2 * 2 * 8**3


@pytest.mark.parametrize(("between", "waits"), [("add", 300.0), ("fusion", 0.0)])
def test_start_without_instructions_before_its_end_is_synchronous(between, waits):
    found = walk.work(
        hlo.parse(
            textwrap.dedent(f"""\
        %inner (p: bf16[100]) -> bf16[100] {{
          %p = bf16[100]{{0}} parameter(0)
          ROOT %n = bf16[100]{{0}} negate(%p)
        }}

        ENTRY %main (a: bf16[50], b: bf16[100]) -> bf16[100] {{
          %a = bf16[50]{{0}} parameter(0)
          %b = bf16[100]{{0}} parameter(1)
          %s = (bf16[50]{{0}}, bf16[200]{{0}}) all-gather-start(%a), channel_id=1, replica_groups={{{{0,1,2,3}}}}
          %x = bf16[100]{{0}} {between}(%b), calls=%inner
          ROOT %e = bf16[200]{{0}} all-gather-done(%s)
        }}
        """)
        ),
        MESH,
    )
    sent = found.collectives[("all-gather", "fsdp+tensor")]
    assert (sent.bytes, sent.synchronous_bytes, sent.count) == (300.0, waits, 1)
    # The gather reads its shard and writes the whole array, and the other instruction reads and writes b.
    assert found.hbm_bytes == 100 + 400 + 2 * 200


def test_only_hbm_counts_as_traffic():
    assert (
        traffic_bytes("""\
        ENTRY %main (a: f32[10]) -> f32[10] {
          %a = f32[10]{0} parameter(0)
          %b = f32[10]{0:T(128)S(1)} copy(%a)
          %c = f32[10]{0:T(128)S(1)} add(%b, %b)
          ROOT %d = f32[10]{0} multiply(%c, %a)
        }
        """)
        == 40 + 0 + 80
    )


def test_asynchronous_copies_count_once():
    assert (
        traffic_bytes("""\
        ENTRY %main (a: f32[10]) -> f32[10] {
          %a = f32[10]{0} parameter(0)
          %in = (f32[10]{0:T(128)S(1)}, f32[10]{0}, u32[]{:S(2)}) copy-start(%a)
          %b = f32[10]{0:T(128)S(1)} copy-done(%in)
          %out = (f32[10]{0}, f32[10]{0:T(128)S(1)}, u32[]{:S(2)}) copy-start(%b)
          ROOT %c = f32[10]{0} copy-done(%out)
        }
        """)
        == 40 + 40
    )


def test_fusion_reads_and_writes_only_slices():
    assert (
        traffic_bytes("""\
        %inner (p: f32[4,10]) -> f32[1,10] {
          %p = f32[4,10]{1,0} parameter(0)
          %zero = s32[] constant(0)
          ROOT %s = f32[1,10]{1,0} dynamic-slice(%p, %zero, %zero), dynamic_slice_sizes={1,10}
        }

        %update (q: f32[4,10], r: f32[4,10], i: s32[]) -> f32[4,10] {
          %q = f32[4,10]{1,0} parameter(0)
          %r = f32[4,10]{1,0} parameter(1)
          %i = s32[] parameter(2)
          %nested = f32[1,10]{1,0} fusion(%r), kind=kLoop, calls=%inner
          ROOT %u = f32[4,10]{1,0} dynamic-update-slice(%q, %nested, %i, %i)
        }

        ENTRY %main (a: f32[4,10], b: f32[4,10], i: s32[]) -> f32[4,10] {
          %a = f32[4,10]{1,0} parameter(0)
          %b = f32[4,10]{1,0} parameter(1)
          %i = s32[]{:T(128)S(6)} parameter(2)
          ROOT %f = f32[4,10]{1,0} fusion(%a, %b, %i), kind=kLoop, calls=%update
        }
        """)
        == 40 + 40
    )


def test_fusion_with_another_tiling_of_an_array_in_place_reads_and_writes_only_slices():
    # As the compiler updates and slices stacks of booleans.
    assert (
        traffic_bytes("""\
        %view (input: pred[4,10]) -> pred[4,10] {
          %input = pred[4,10]{1,0:T(32,128)(4,1)} parameter(0)
          ROOT %copy = pred[4,10]{1,0:T(8,128)(4,1)} copy(%input)
        }

        %update (q: pred[4,10], r: pred[1,10], i: s32[]) -> pred[4,10] {
          %q = pred[4,10]{1,0:T(32,128)(4,1)} parameter(0)
          %r = pred[1,10]{1,0} parameter(1)
          %i = s32[] parameter(2)
          %nested = pred[4,10]{1,0:T(8,128)(4,1)} fusion(%q), output_to_operand_aliasing={{}: (0, {})}, calls=%view
          ROOT %u = pred[4,10]{1,0:T(32,128)(4,1)} dynamic-update-slice(%nested, %r, %i, %i)
        }

        ENTRY %main (a: pred[4,10], b: pred[1,10], i: s32[]) -> pred[4,10] {
          %a = pred[4,10]{1,0:T(32,128)(4,1)} parameter(0)
          %b = pred[1,10]{1,0} parameter(1)
          %i = s32[]{:T(128)S(6)} parameter(2)
          ROOT %f = pred[4,10]{1,0:T(32,128)(4,1)} fusion(%a, %b, %i), kind=kLoop, calls=%update
        }
        """)
        == 10 + 10
    )


def test_reduce_scatter_in_a_fusion_reads_its_operand():
    """The TPU compiler writes a synchronous reduce-scatter as a fusion of an all-reduce and a slice."""
    program = """\
        %all-reduce-scatter.1 (p: f32[100]) -> f32[25] {
          %p = f32[100]{0} parameter(0)
          %r = f32[100]{0} all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%sum
          %o = s32[] constant(0)
          ROOT %s = f32[25]{0} dynamic-slice(%r, %o), dynamic_slice_sizes={25}
        }

        ENTRY %main (a: f32[100]) -> f32[25] {
          %a = f32[100]{0} parameter(0)
          ROOT %f = f32[25]{0} fusion(%a), kind=kCustom, calls=%all-reduce-scatter.1
        }
        """
    assert traffic_bytes(program) == 4 * (100 + 25)


def test_ragged_all_to_all_sends_its_input_only():
    program = """\
        ENTRY %main (x: f32[100], y: f32[100], o: s64[4]) -> f32[100] {
          %x = f32[100]{0} parameter(0)
          %y = f32[100]{0} parameter(1)
          %o = s64[4]{0} parameter(2)
          ROOT %r = f32[100]{0} ragged-all-to-all(%x, %y, %o, %o, %o, %o), replica_groups={{0,1,2,3}}
        }
        """
    found = walk.work(hlo.parse(textwrap.dedent(program)), MESH)
    assert found.by_kind() == {"ragged-all-to-all": {"fsdp+tensor": 4 * 100 * 3 / 4}}


def test_iota_writes_its_result():
    assert traffic_bytes("ENTRY %main () -> s32[8] {\n  ROOT %i = s32[8] iota(), iota_dimension=0\n}\n") == 32
