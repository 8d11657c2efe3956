"""Costs of custom calls."""

import textwrap

import pytest

from t5x_like.planning import collectives, hlo, kernels, walk

# A Pallas call with `cost_estimate=pl.CostEstimate(flops=1000, bytes_accessed=500, transcendentals=7)` as the compiler
# of libtpu 0.0.50 writes it, without the body.
ESTIMATE = (
    '"cost_estimate":{"flops":"1000","transcendentals":"7","bytes_accessed":"500","remote_bytes_transferred":"0"},'
)
CALL = """\
ENTRY %main (q: bf16[2,10,64], k: bf16[2,10,64]) -> bf16[2,10,64] {
  %q = bf16[2,10,64]{2,1,0} parameter(0)
  %k = bf16[2,10,64]{2,1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %my_kernel.3 = bf16[2,10,64]{2,1,0} custom-call(%q, %k), custom_call_target="TARGET", \
backend_config={"flag_configs":[],"custom_call_config":{"body":"abc",ESTIMATE"serialization_format":"1"}}
}
"""
ARRAY = 2 * 2 * 10 * 64  # bytes


def module(target="tpu_custom_call", estimate=ESTIMATE):
    return hlo.parse(textwrap.dedent(CALL.replace("TARGET", target).replace("ESTIMATE", estimate)))


def only(parsed):
    return parsed.entry, parsed.entry.root


def work(parsed):
    return walk.work(parsed, collectives.DeviceMesh({"fsdp": 1}, (0,)))


def test_cost_estimate_counts_without_arrays_on_the_chip():
    larger = ESTIMATE.replace('"500"', f'"{5 * ARRAY}"')
    assert kernels.kernel(*only(module(estimate=larger))) == kernels.Kernel(1000.0, 4.0 * ARRAY, estimated=True)
    found = work(module(estimate=larger))
    assert (found.flops, found.hbm_bytes, found.unknown_kernels) == (1000.0, 4.0 * ARRAY, set())


def test_kernel_without_estimate_is_listed():
    found = work(module(estimate=""))
    assert (found.flops, found.hbm_bytes, found.unknown_kernels) == (0.0, 2 * ARRAY, {"my_kernel"})


def test_unknown_target_is_listed_with_its_target():
    assert work(module("Mystery", "")).unknown_kernels == {"my_kernel (Mystery)"}


def test_marker_does_no_work():
    assert kernels.kernel(*only(module("ConcatBitcast", ""))) is None
    assert work(module("ConcatBitcast", "")) == walk.Work()


@pytest.mark.parametrize(("unit", "fill"), [(128, 0.5), (256, 0.25), (64, 1.0)])
def test_small_heads_fill_a_part_of_the_matrix_unit(unit, fill):
    assert kernels.fill(*only(module()), unit) == fill


def test_number_per_row_does_not_count_as_a_matrix():
    text = CALL.replace("TARGET", "tpu_custom_call").replace("ESTIMATE", ESTIMATE)
    text = text.replace("k: bf16[2,10,64]", "k: bf16[2,10,1]").replace("%k = bf16[2,10,64]", "%k = bf16[2,10,1]")
    assert kernels.fill(*only(hlo.parse(textwrap.dedent(text))), 64) == 1.0


@pytest.mark.parametrize(("positions", "fill"), [(256, 1.0), (384, 0.75), (512, 1.0)])
def test_positions_of_the_fused_attention_are_padded_to_matrix_units(positions, fill):
    """The last dimension of its operands is positions, so that heads of 64 do not count as padding.

    For two heads of 64 and 384 positions on a v6e, that is 1,106 cycles forward and 1,394 backward with the elementwise
    work. The compiler's schedule for a step of the grid has 1,313 and 1,967 bundles of instructions.
    """
    text = CALL.replace("TARGET", "tpu_custom_call").replace("ESTIMATE", ESTIMATE).replace("10,64", f"128,{positions}")
    assert kernels.fill(*only(hlo.parse(textwrap.dedent(text))), 256) == fill
