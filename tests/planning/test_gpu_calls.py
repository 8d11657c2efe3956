"""Work and parts of a program that XLA's compiler for GPUs made from a scan over three layers.

`programs/gpu_scan.hlo` is the gradient of the sum of a scan over `x + gelu(attention(x @ w1) @ w2)`, with cuDNN's
causal attention, w1 and w2 float32 [3, 128, 128] sharded over fsdp and x bfloat16 [4, 256, 128] sharded over rows,
compiled for h100:2, without metadata and most settings of the compiler.
"""

from pathlib import Path

import pytest

from t5x_like.planning import breakdown, collectives, gpu_calls, gpus, hlo, kernels, schedule, topologies, walk

PROGRAM = Path(__file__).parent / "programs" / "gpu_scan.hlo"
MESH = collectives.DeviceMesh({"fsdp": 2}, (0, 0), ((0,), (1,)))
LAYERS, ROWS, LENGTH, WIDTH, HEADS, HEAD_DIM = 3, 2, 256, 128, 2, 64  # of a device
SCORES = ROWS * HEADS * LENGTH**2 / 2  # half of them are hidden by the causal mask


@pytest.fixture(scope="module")
def module():
    return hlo.parse(PROGRAM.read_text())


@pytest.fixture(scope="module")
def work(module):
    return walk.work(module, MESH)


@pytest.fixture(scope="module")
def expected(module):
    return schedule.expected(module, MESH, topologies.parse("h100:2"))


def test_flops_are_those_of_cublas_and_cudnn(work):
    products = 6 * 2 * ROWS * LENGTH * WIDTH**2  # two products, each with two gradients
    attention = (2 + 5) * 2 * SCORES * HEAD_DIM
    assert work.flops == LAYERS * (products + attention)
    assert work.unknown_kernels == work.unknown_loops == set()


def test_collectives_are_those_of_sharded_weights(work):
    weight = 2 * WIDTH**2  # bytes in bfloat16
    assert work.by_kind() == {
        "all-gather": {"fsdp": LAYERS * 2 * 2 * weight / 2},  # two weights in two passes
        "reduce-scatter": {"fsdp": LAYERS * 2 * weight / 2},
    }
    assert work.by_kind("count") == {"all-gather": {"fsdp": LAYERS * 2}, "reduce-scatter": {"fsdp": LAYERS}}


def test_parts_sum_to_the_step(expected):
    parts = expected.by_part
    assert tuple(parts) == breakdown.PARTS
    assert sum(share.seconds for share in parts.values()) == pytest.approx(expected.seconds)
    assert parts[breakdown.PRODUCTS].times == LAYERS * 6 and parts[breakdown.ATTENTION].times == LAYERS * 2
    assert parts[breakdown.PRODUCTS].flops == LAYERS * 6 * 2 * ROWS * LENGTH * WIDTH**2
    assert min(parts[name].seconds for name in (breakdown.COPIES, breakdown.ELEMENTWISE, breakdown.COLLECTIVES)) > 0
    assert expected.without_cycles == expected.core


CALLS = """\
ENTRY %main (a: f32[8,4], b: f32[4,16]) -> f32[8,16] {
  %a = f32[8,4]{1,0} parameter(0)
  %b = f32[4,16]{1,0} parameter(1)
  %p = (f32[8,16]{1,0}, s8[1024]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config={"gemm_\
backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  ROOT %r = f32[8,16]{1,0} get-tuple-element(%p), index=0
}
"""


def test_workspace_of_a_product_is_not_traffic():
    entry = hlo.parse(CALLS).entry
    call = gpu_calls.call(entry, entry.by_name["p"])
    assert call == gpu_calls.Call(flops=2 * 8 * 16 * 4, hbm_bytes=4 * (8 * 4 + 4 * 16 + 8 * 16))
    assert gpu_calls.call(entry, entry.by_name["r"]) is None


@pytest.mark.parametrize(("dtype", "rate"), [("f32", 0.5), ("bf16", 1.0), ("f8e4m3fn", 2.0)])
def test_rate_of_products_depends_on_the_size_of_an_element(dtype, rate):
    entry = hlo.parse(CALLS.replace("f32", dtype)).entry
    assert gpu_calls.relative_rate(entry, entry.by_name["p"]) == rate
    assert gpu_calls.relative_rate(entry, entry.by_name["r"]) == 1.0


def test_attention_without_a_causal_mask_computes_all_scores(module):
    text = PROGRAM.read_text().replace('"mask_type": "CAUSAL"', '"mask_type": "NO_MASK"')
    calls = {
        one: gpu_calls.call(computation, one)
        for computation in hlo.parse(text).computations.values()
        for one in computation.instructions
        if gpu_calls.is_attention(one)
    }
    assert [call.exponentials for call in calls.values()] == [2 * SCORES] * 2
    assert sorted(map(kernels.label, calls)) == [
        "dot_product_attention_bwd (__cudnn$fmhaSoftmaxBackward)",
        "dot_product_attention_fwd (__cudnn$fmhaSoftmax)",
    ]


def test_attention_with_a_window_computes_the_scores_of_its_keys():
    text = PROGRAM.read_text().replace('"mask_type": "CAUSAL"', '"mask_type": "CAUSAL", "sliding_window_length": 16')
    calls = [
        one
        for computation in hlo.parse(text).computations.values()
        for one in computation.instructions
        if gpu_calls.is_attention(one)
    ]
    visible = sum(min(query + 1, 16) for query in range(LENGTH))
    assert [gpu_calls.scores(one) for one in calls] == [ROWS * HEADS * visible] * 2


TRITON = """\
ENTRY %main (a: bf16[8,4]) -> bf16[8,4] {
  %a = bf16[8,4]{1,0} parameter(0)
  ROOT %pallas_call.1 = bf16[8,4]{1,0} custom-call(%a), custom_call_target="__gpu$xla.gpu.triton", backend_config={\
ir = "tt", name = "triton_attention_forward", serialized_metadata = "{\\22cost\\22: \\22flops=132000000 \
exponentials=1000 operations=2000 bytes=40\\22}"}
}
"""


def test_kernel_of_triton_has_the_cost_that_it_declares():
    module = hlo.parse(TRITON)
    call, found = module.entry.by_name["pallas_call.1"], walk.work(module, MESH)
    assert kernels.label(call) == "triton_attention_forward"
    assert (found.flops, found.hbm_bytes, found.unknown_kernels) == (132e6, 40, set())
    chip = topologies.parse("h100:1").chip
    seconds = chip.core_time(module, module.entry, call, found).seconds - gpus.LAUNCH_SECONDS
    products = found.flops / (chip.attainable * chip.peak_flops)
    others = (1000 / 16 + 2000 / chip.lanes) / (chip.multiprocessors * chip.clock)
    assert seconds == pytest.approx(1.25 * (products + others))  # measured
    without = hlo.parse(TRITON.replace("flops=132000000", ""))
    assert walk.work(without, MESH).unknown_kernels == {"triton_attention_forward"}


SOURCES = """\
FileNames
1 "/site/t5x_like/kernels/chunks.py"
2 "/site/t5x_like/kernels/contraction.py"
3 "/site/optax/transform.py"
4 "/site/t5x_like/optimizers/adamw.py"
FunctionNames
1 "f"
FileLocations
1 {file_name_id=1 function_name_id=1 line=1}
2 {file_name_id=2 function_name_id=1 line=2}
3 {file_name_id=3 function_name_id=1 line=3}
4 {file_name_id=4 function_name_id=1 line=4}
StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=4 parent_frame_id=1}
4 {file_location_id=3 parent_frame_id=4}


"""
FUSIONS = """\
%moved (p: f32[8,8], i: s32[]) -> bf16[1,8] {
  %p = f32[8,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %next = s32[] add(%i, %i)
  %s = f32[1,8]{1,0} dynamic-slice(%p, %next, %i), dynamic_slice_sizes={1,8}
  ROOT %c = bf16[1,8]{1,0} convert(%s)
}

%computed (q: f32[8,8]) -> f32[8,8] {
  %q = f32[8,8]{1,0} parameter(0)
  ROOT %n = f32[8,8]{1,0} negate(%q), metadata={op_name="jit(step)/neg" stack_frame_id=4}
}

ENTRY %main (a: f32[8,8], i: s32[]) -> f32[8,8] {
  %a = f32[8,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %copy = bf16[1,8]{1,0} fusion(%a, %i), kind=kLoop, calls=%moved
  %loss = f32[8,8]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
metadata={op_name="jit(step)/dot_general" stack_frame_id=2}
  %plain = f32[8,8]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %update = f32[8,8]{1,0} fusion(%a), kind=kLoop, calls=%computed
}
"""


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("copy", breakdown.COPIES),  # computes an index only, and another dtype
        ("loss", breakdown.LOSS),  # a product that the chunks of logits call
        ("plain", breakdown.PRODUCTS),
        ("update", breakdown.OPTIMIZER),  # within a library that the optimizer calls
    ],
)
def test_part_follows_from_the_whole_stack(name, part):
    module = hlo.parse(SOURCES + FUSIONS)
    instruction = module.entry.by_name[name]
    work = walk.Walk(module, MESH).of(module.entry, instruction)
    assert breakdown.part_of(module, instruction, work, is_transfer=False) == part


def test_source_is_the_innermost_line_of_the_package():
    module = hlo.parse(SOURCES + FUSIONS)
    assert module.sources.of(module.entry.by_name["loss"].attributes) == "kernels/contraction.py:2 dot_general"
    update = module.computations["computed"].by_name["n"].attributes
    assert module.sources.of(update) == "optimizers/adamw.py:4 neg"
