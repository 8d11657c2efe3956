"""Attention with cuDNN: what is refused, what is computed around the call, and the call as it is lowered for CUDA.

The call itself needs a GPU; `test_attention_on_gpu.py` compares it with the reference there. Here,
an einsum with cuDNN's documented semantics stands in for it.
"""

import collections
import dataclasses
import json
import re
import types

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from gpu_meshes import gpu_mesh, shapes
from jax._src.cudnn import fused_attention_stablehlo
from objective_cases import terms_of
from scorings import backend_for, by_keywords, reference

from t5x_like.kernels import attention as attention_module
from t5x_like.kernels import cudnn_attention
from t5x_like.kernels.cudnn_attention import FORWARD_PRIMITIVE
from t5x_like.kernels.dropout import Dropout
from t5x_like.kernels.masks import BlockLists, Mask
from t5x_like.kernels.score_bias import DenseBias
from t5x_like.kernels.scoring import Scoring
from t5x_like.layers.stacks import REMAT_POLICIES
from t5x_like.models.llama import LlamaConfig
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.keys import Keys
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.partitioning import Partitioner

attend = by_keywords(cudnn_attention.attention)
ROWS, LENGTH, HEADS, DIM = 2, 24, 4, 16
TOLERANCE = 2e-6  # of float32, relative to the largest element
SEGMENTS = np.repeat([[1, 2, 3, 0], [1, 1, 2, 2]], LENGTH // 4, axis=1)
VALID = np.arange(LENGTH) < np.array([[LENGTH], [LENGTH - 5]])
PREFIX = np.arange(LENGTH) < np.array([[7], [0]])


def packed(**options):
    segments = jnp.asarray(SEGMENTS)
    return Mask(query_segments=segments, key_segments=segments, **options)


# Name -> mask, and what cuDNN is told: whether the mask is causal, its window, and whether there is a matrix.
MASKS = {
    "bidirectional": (Mask(), False, None, False),
    "causal": (Mask(causal=True), True, None, False),
    "causal window": (Mask(causal=True, window=5), True, 5, False),
    "two-sided window": (Mask(window=5), False, None, True),
    "packed": (packed(), False, None, True),
    "packed causal": (packed(causal=True), True, None, True),
    "packed causal window": (packed(causal=True, window=5), True, None, True),
    "packed prefix": (packed(causal=True, prefix=jnp.asarray(PREFIX)), False, None, True),
    "invalid keys": (Mask(key_valid=jnp.asarray(VALID)), False, None, True),
    "dense": (Mask(dense=jnp.asarray(np.tri(LENGTH, dtype=bool)[None].repeat(ROWS, 0))), False, None, True),
}


def arrays(kv_heads=HEADS, q_len=LENGTH, dtype="float32"):
    """Returns queries, keys, values and a gradient of the output."""
    rng = np.random.default_rng(0)
    shapes = (q_len, HEADS), (LENGTH, kv_heads), (LENGTH, kv_heads), (q_len, HEADS)
    return [jnp.asarray(rng.normal(size=(ROWS, length, heads, DIM)), dtype) for length, heads in shapes]


def run(function, q, k, v, gradient, **options):
    """Returns the output and the gradients of queries, keys and values."""
    output, pull = jax.vjp(lambda *qkv: function(*qkv, **options), q, k, v)
    return output, *pull(gradient)


def expected(*args, **options):
    return run(lambda *qkv, **more: reference(*qkv, **more).output, *args, **options)


@pytest.fixture
def calls(monkeypatch):
    """Replaces the call of cuDNN by an einsum with its semantics, and returns the options of the calls.

    cuDNN adds a boolean mask to the scores as a large negative number, and leaves keys out that a causal mask or a
    window hides. Head h of the queries reads head h / group of the keys.
    """
    found = []

    def einsum(q, k, v, *, mask, scale, is_causal, local_window_size, implementation):
        assert implementation == "cudnn"
        found.append({"causal": is_causal, "window": local_window_size, "mask": None if mask is None else mask.shape})
        group = q.shape[2] // k.shape[2]
        k, v = (jnp.repeat(x, group, axis=2) for x in (k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale
        if mask is not None:
            scores += jnp.where(mask, 0.0, -2.0 * 2**40)
        distance = jnp.arange(q.shape[1])[:, None] - jnp.arange(k.shape[1])
        if is_causal:
            scores = jnp.where(distance >= 0, scores, -jnp.inf)
        if local_window_size is not None:
            assert is_causal and local_window_size[1] == 0
            scores = jnp.where(distance <= local_window_size[0], scores, -jnp.inf)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)

    monkeypatch.setattr(jax.nn, "dot_product_attention", einsum)
    return found


def assert_equal(found, wanted):
    for name, one, other in zip(("output", "dq", "dk", "dv"), found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE * np.abs(other).max(), err_msg=name)


@pytest.mark.parametrize("name", MASKS)
def test_masks_equal_reference(name, calls):
    mask, causal, window, matrix = MASKS[name]
    options = {"mask": mask, "scale": 0.25}
    assert_equal(run(attend, *arrays(), **options), expected(*arrays(), **options))
    window = None if window is None else (window - 1, 0)
    shape = (ROWS, 1, LENGTH, LENGTH) if matrix else None
    assert calls == [{"causal": causal, "window": window, "mask": shape}]


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_grouped_queries_equal_reference(kv_heads, calls):
    options = {"mask": packed(causal=True), "scale": 0.25}
    found = run(attend, *arrays(kv_heads), **options)
    assert_equal(found, expected(*arrays(kv_heads), **options))


def test_cross_attention_with_a_causal_mask_gives_the_mask_as_a_matrix(calls):
    mask = Mask(causal=True, window=9)
    found = run(attend, *arrays(q_len=18), mask=mask)
    assert_equal(found, expected(*arrays(q_len=18), mask=mask))
    assert calls[0] == {"causal": False, "window": None, "mask": (ROWS, 1, 18, LENGTH)}


def test_query_without_visible_keys_averages_the_values_that_a_causal_mask_leaves(calls):
    queries = jnp.asarray(SEGMENTS).at[:, 5].set(9)
    bidirectional = Mask(query_segments=queries, key_segments=jnp.asarray(SEGMENTS))
    q, k, v, gradient = arrays()
    found = run(attend, q, k, v, gradient, mask=bidirectional)
    assert_equal(found, expected(q, k, v, gradient, mask=bidirectional))
    causal = run(
        by_keywords(cudnn_attention.attention), q, k, v, gradient, mask=dataclasses.replace(bidirectional, causal=True)
    )
    np.testing.assert_allclose(causal[0][:, 5], v[:, :6].mean(1), atol=1e-6)
    assert all(np.isfinite(x).all() for x in causal)


def test_sharded_rows_and_heads_equal_reference(calls):
    options = {"mask": packed(causal=True), "scale": 0.25}
    with Partitioner(rules="fsdp_tp", ici={"data": 2, "tensor": 2}, devices=jax.devices()[:4]).bound():
        found = jax.jit(lambda *xs: run(attend, *xs, **options))(*arrays(kv_heads=2))
    assert_equal(found, expected(*arrays(kv_heads=2), **options))
    assert {call["mask"] for call in calls} == {(1, 1, LENGTH, LENGTH)}


# ---- choice ----------------------------------------------------------------------------------------------------------


ROW = jnp.ones((2, 128), jnp.int32)
PER_ROW = Mask(causal=True, query_segments=ROW, key_segments=ROW)


@pytest.mark.parametrize(
    ("options", "mask"),
    [
        ({}, Mask()),
        ({"capability": "10.0"}, PER_ROW),
        ({"q_len": 114, "kv_len": 512, "capability": "8.0"}, Mask(key_valid=jnp.ones((2, 512), bool))),
        ({"q_len": 126, "kv_len": 126, "kv_heads": 1, "dtype": "float16", "head_dim": 96}, Mask(causal=True, window=9)),
        ({"head_dim": 72}, PER_ROW),
        ({"q_len": 256, "head_dim": 128, "capability": "8.0"}, PER_ROW),
        ({"q_len": 512, "head_dim": 256}, PER_ROW),
    ],
)
def test_gpus_use_cudnn(options, mask):
    options = dict(options)
    mesh = gpu_mesh(options.pop("capability", "9.0"))
    assert backend_for(mesh, *shapes(**options), mask=mask) == "cudnn"
    with Partitioner(attention="xla").bound():
        assert backend_for(mesh, *shapes(**options), mask=mask) == "xla"


def test_long_rows_with_two_sided_windows_do_not_use_cudnn():
    given = {"mask": Mask(window=65, key_valid=jnp.ones((2, 640), bool))}
    mesh, causal = gpu_mesh("9.0"), Mask(causal=True, window=65)
    assert backend_for(mesh, *shapes(q_len=640, kv_len=640, head_dim=72), **given) == "triton"
    assert backend_for(mesh, *shapes(q_len=638, kv_len=638, head_dim=72), **given) == "cudnn"
    assert backend_for(mesh, *shapes(q_len=640, kv_len=640, head_dim=72), mask=causal) == "cudnn"


@pytest.mark.parametrize(
    ("options", "given", "reason"),
    [
        ({"capability": "7.5"}, {}, "it needs compute capability 8.0, and the device has 7.5"),
        ({"capability": "gfx942"}, {}, "the device is not a GPU of NVIDIA"),
        ({"dtype": "float32"}, {}, "not in float32"),
        ({"head_dim": 60}, {}, "the size of its heads, 60, is not a multiple of 8 up to 256"),
        (
            {"head_dim": 136, "q_len": 256, "capability": "10.0"},
            {"mask": Mask(dense=jnp.ones((2, 256, 128), bool))},
            "not a multiple of 8 up to 128",
        ),
        ({"q_len": 64}, {}, "few queries"),
        ({}, {"bias": DenseBias(jnp.zeros((1, 4, 128, 128)))}, "cuDNN would round the bias to bfloat16"),
        ({}, {"mask": Mask(blocks=BlockLists(jnp.zeros((4, 2, 2), int), 64))}, "its mask has lists of blocks"),
        ({}, {"dropout": Dropout(0.1, (-1,))}, "cuDNN would drop the same attention weights in every step"),
        (
            {"kv_len": 129},
            {"mask": Mask(dense=jnp.ones((2, 128, 129), bool))},
            "cuDNN requires even lengths, not 128 queries and 129 keys",
        ),
        ({}, {"sharded": {"sequence": 8}}, "positions are sharded"),
        ({"kv_heads": 1}, {"sharded": {"tensor": 2}}, "1 key/value heads are not divisible by the 2 shards"),
    ],
)
def test_refused_attention_uses_xla_and_logs_the_reason(options, given, reason, caplog):
    options = dict(options)
    mesh = gpu_mesh(options.pop("capability", "9.0"))
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"data": -1} | given.get("sharded", {}))
    attention_module._log_once.cache_clear()
    with partitioner.bound(), caplog.at_level("INFO"):
        arguments = {"mask": Mask()} | {name: x for name, x in given.items() if name != "sharded"}
        assert backend_for(mesh, *shapes(**options), **arguments) == "xla"
    assert len(caplog.messages) == 1 and "XLA, because" in caplog.text and reason in caplog.text


# ---- the call --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cudnn(monkeypatch):
    """Pretends that cuDNN is installed, so that its calls can be lowered."""
    version = types.SimpleNamespace(cudnn_get_version=lambda: 91002)
    monkeypatch.setattr(fused_attention_stablehlo, "cuda_versions", version)


def lowered_calls(mask, kv_heads=HEADS):
    """Returns the targets, the settings and the types of the calls of cuDNN, forward and backward, lowered for CUDA."""
    function = lambda *xs: run(attend, *xs, mask=mask, scale=0.25)  # noqa: E731
    traced = jax.jit(function).trace(*arrays(kv_heads, dtype="bfloat16"))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    found = re.findall(r"custom_call @(__cudnn\S+?)\(.*?backend_config = (\".*?[^\\]\").*: (\(.*)", text)
    return [
        (target, json.loads(re.sub(r"\\(..)", lambda code: chr(int(code[1], 16)), config[1:-1])), types)
        for target, config, types in found
    ]


@pytest.mark.parametrize("name", MASKS)
def test_lowered_calls_have_the_settings_of_the_mask(name, cudnn):
    mask, causal, window, matrix = MASKS[name]
    calls = lowered_calls(mask)
    kind = "__cudnn$fmha" + ("ScaleBiasSoftmax" if matrix else "Softmax")
    assert [target for target, *_ in calls] == [kind, f"{kind}Backward"]
    for _, config, operands in calls:
        settings = config["cudnn_fmha_backend_config"]
        assert settings["mask_type"] == ("CAUSAL" if causal else "NO_MASK")
        assert (settings["fmha_scale"], settings["dropout_rate"]) == (0.25, 0.0)
        assert settings["sliding_window_length"] == (window or 0)
        assert (f"tensor<{ROWS}x1x{LENGTH}x{LENGTH}xbf16>" in operands) == matrix
        assert f"x{HEADS}x{LENGTH}x{LENGTH}x" not in operands


def test_lowered_calls_read_grouped_keys_without_copies(cudnn):
    for _, _, operands in lowered_calls(packed(), kv_heads=2):
        assert operands.count(f"tensor<{ROWS}x{LENGTH}x2x{DIM}xbf16>") == 2


@pytest.mark.parametrize(("remat", "forward_passes"), [("none", 1), ("dots", 1), ("attention", 1), ("full", 2)])
def test_rematerialization_that_saves_products_does_not_repeat_the_forward_pass(remat, forward_passes, cudnn):
    q, k, v, _ = arrays(dtype="bfloat16")
    loss = lambda q: jnp.sum(jnp.sin(cudnn_attention.attention(q, k, v, Scoring(packed()))))  # noqa: E731
    if remat != "none":
        loss = jax.checkpoint(loss, policy=REMAT_POLICIES[remat])
    program = jax.make_jaxpr(jax.grad(loss))(q).jaxpr
    assert calls_of(program, FORWARD_PRIMITIVE) == forward_passes


SMALL = {"vocab_size": 64, "embed_dim": 32, "mlp_dim": 32, "num_heads": 2, "head_dim": 16}
LOWERED = {"dtype": "bfloat16", "scan_layers": True, "remat": "dots"}


@pytest.mark.parametrize(
    ("config", "objective"),
    [
        (LlamaConfig(**SMALL, num_layers=2, num_kv_heads=1, **LOWERED), CausalLM()),
        # Self-attention has biases, so only the decoder's attention to the encoder uses cuDNN.
        (T5Config(**SMALL, encoder_layers=2, decoder_layers=2, **LOWERED), SequenceToSequence()),
    ],
    ids=["llama", "t5"],
)
def test_models_call_cudnn_once_per_scanned_stack(config, objective, cudnn, monkeypatch):
    monkeypatch.setattr(attention_module.partitioning, "bound_mesh", lambda: gpu_mesh("8.0"))
    parameters = jax.eval_shape(lambda: {"model": config.make(jax.random.key(0)), "objective": {}})
    spec = objective.features.row_shapes({"inputs": 40, "targets": 40})
    batch = {name: jax.ShapeDtypeStruct((ROWS, *shape), jnp.int32) for name, shape in spec.items()}

    def loss(parameters, batch):
        return sum(terms_of(objective, parameters, batch, keys=Keys(dropout=jax.random.key(1))).sums.values())

    program = jax.make_jaxpr(jax.grad(loss))(parameters, batch).jaxpr
    assert calls_of(program, FORWARD_PRIMITIVE) == 1


def calls_of(program, name):
    """Counts the calls of a primitive whose results are used, in a jaxpr and the jaxprs that it calls."""
    used = {id(x) for equation in program.eqns for x in equation.invars} | set(map(id, program.outvars))
    count = collections.Counter()
    for equation in program.eqns:
        count[equation.primitive.name] += any(id(x) in used for x in equation.outvars)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            count[name] += calls_of(inner, name)
    return count[name]
