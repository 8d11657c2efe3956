"""A whole program: what the TPU compiler made of a scan over three layers.

`programs/tpu_scan.hlo` is the gradient of `sum(scan(x @ w))` with w bfloat16 [3, 256, 256] split over fsdp 2 x tensor 2
and x [64, 256] split over fsdp, compiled for v5e:2x2; metadata and the compiler's own settings are left out.
"""

import textwrap
from pathlib import Path

import pytest

from t5x_like.planning import collectives, hlo, traffic, walk

PROGRAM = Path(__file__).parent / "programs" / "tpu_scan.hlo"
MESH = collectives.DeviceMesh({"fsdp": 2, "tensor": 2}, (0,) * 4)
LAYERS, ROWS, WIDTH = 3, 32, 256  # of one device
PRODUCT = 2 * ROWS * WIDTH * WIDTH
KERNEL = 2 * WIDTH * WIDTH  # bytes, bfloat16


@pytest.fixture(scope="module")
def work():
    return walk.work(hlo.parse(PROGRAM.read_text()), MESH)


def test_products_count_as_often_as_their_loop_runs(work):
    # Forward and the kernel's gradient whole, the gradient of x by halves: its sum is split over tensor.
    assert work.flops == LAYERS * (PRODUCT + PRODUCT + PRODUCT / 2)


def test_collectives_count_once_a_layer_by_kind_and_axis(work):
    assert work.by_kind() == {
        # Forward: a kernel from its quarters, first along fsdp, then along tensor. Backward: its half along fsdp alone;
        # that one runs beside the product, cut into a start, a piece and an end, and is one all the same.
        "all-gather": {"fsdp": LAYERS * 2 * KERNEL / 4, "tensor": LAYERS * KERNEL / 2},
        # The kernel's gradient over fsdp, the gradient of x over tensor.
        "all-reduce": {"fsdp": LAYERS * 2 * KERNEL / 2, "tensor": LAYERS * 2 * (2 * ROWS * WIDTH) / 2},
    }
    assert work.dcn_bytes == 0
    assert work.unknown_loops == set()


def test_a_loop_that_does_not_tell_its_length_is_counted_once_and_named():
    text = PROGRAM.read_text().replace("direction=LT", "direction=NE")
    unknown = walk.work(hlo.parse(text), MESH)
    assert len(unknown.unknown_loops) == 2
    assert unknown.flops == 2.5 * PRODUCT


def moved(text):
    module = hlo.parse(textwrap.dedent(text))
    return sum(traffic.hbm_bytes(module, module.entry, one) for one in module.entry.instructions)


def test_only_hbm_counts_as_traffic():
    assert (
        moved("""\
        ENTRY %main (a: f32[10]) -> f32[10] {
          %a = f32[10]{0} parameter(0)
          %b = f32[10]{0:T(128)S(1)} copy(%a)
          %c = f32[10]{0:T(128)S(1)} add(%b, %b)
          ROOT %d = f32[10]{0} multiply(%c, %a)
        }
        """)
        == 40 + 0 + 80
    )


def test_a_fusion_reads_the_slices_it_takes_and_writes_the_slices_it_puts():
    assert (
        moved("""\
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
