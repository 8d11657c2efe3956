"""Which attentions of GPUs the Triton kernels compute, and why they do not compute the others."""

import jax.numpy as jnp
import pytest
from gpu_meshes import gpu_mesh, shapes
from scorings import backend_for

from t5x_like.kernels import attention as attention_module
from t5x_like.kernels.dropout import Dropout
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.relative_bias import RelativeBias
from t5x_like.kernels.score_bias import DenseBias
from t5x_like.partitioning import Partitioner

ROW = jnp.ones((2, 128), jnp.int32)
PER_ROW = Mask(causal=True, query_segments=ROW, key_segments=ROW)
BIAS = RelativeBias(jnp.zeros((4, 255)))


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({}, {"bias": BIAS}),
        ({"kv_heads": 2, "capability": "8.0"}, {"mask": PER_ROW, "bias": BIAS, "dropout": Dropout(0.1, (-2,))}),
        ({"head_dim": 96}, {"dropout": Dropout(0.1)}),
        ({"q_len": 512, "kv_len": 512, "head_dim": 256, "capability": "10.0"}, {"softcap": 50.0}),
        ({"kv_len": 129}, {"mask": Mask(key_valid=jnp.ones((2, 129), bool))}),
    ],
)
def test_what_cudnn_does_not_compute_exactly_uses_triton(options, given):
    options = dict(options)
    mesh = gpu_mesh(options.pop("capability", "9.0"))
    given = {"mask": Mask()} | given
    assert backend_for(mesh, *shapes(**options), **given) == "triton"
    for setting, expected in (("xla", "xla"), ("cudnn", "xla"), ("triton", "triton")):
        with Partitioner(attention=setting).bound():
            assert backend_for(mesh, *shapes(**options), **given) == expected


@pytest.mark.parametrize(
    ("options", "mask", "backend"),
    [
        ({}, Mask(causal=True), "triton"),
        ({}, PER_ROW, "triton"),
        ({}, Mask(key_valid=ROW > 0), "triton"),
        ({}, Mask(), "cudnn"),
        ({"head_dim": 72}, PER_ROW, "cudnn"),
        ({"capability": "8.0"}, PER_ROW, "cudnn"),
        ({"capability": "8.0", "q_len": 127, "kv_len": 127}, Mask(causal=True), "triton"),  # odd lengths
    ],
)
def test_the_faster_kernel_is_used_on_hopper(options, mask, backend):
    options = dict(options)
    mesh = gpu_mesh(options.pop("capability", "9.0"))
    assert backend_for(mesh, *shapes(**options), mask=mask) == backend
    with Partitioner(attention="cudnn").bound():
        even = options.get("q_len", 0) % 2 == 0
        assert backend_for(mesh, *shapes(**options), mask=mask) == ("cudnn" if even else "xla")


def test_a_config_may_prefer_triton_to_cudnn():
    with Partitioner(attention="triton").bound():
        assert backend_for(gpu_mesh(), *shapes(), mask=PER_ROW) == "triton"


@pytest.mark.parametrize(
    ("options", "given", "reason"),
    [
        ({"capability": "gfx942"}, {}, "the device is not a GPU of NVIDIA"),
        ({"dtype": "float32"}, {}, "not in float32"),
        ({"head_dim": 512, "q_len": 1024}, {}, "the size of its heads, 512, is not a multiple of 8 from 16 to 256"),
        ({}, {"bias": DenseBias(jnp.zeros((1, 4, 128, 128)))}, "the bias is not a value per head and distance"),
        ({}, {"mask": Mask(dense=jnp.ones((2, 128, 128), bool))}, "does not read these conditions of the mask: dense"),
        ({}, {"dropout": Dropout(0.1, (-1,))}, "dropout shares its decisions along the dimensions (-1,)"),
    ],
)
def test_refused_attention_uses_xla_and_logs_the_reason(options, given, reason, caplog):
    options = dict(options)
    mesh = gpu_mesh(options.pop("capability", "9.0"))
    attention_module._log_once.cache_clear()
    with Partitioner(attention="triton").bound(), caplog.at_level("INFO"):
        assert backend_for(mesh, *shapes(**options), **({"mask": Mask()} | given)) == "xla"
    assert len(caplog.messages) == 1 and "XLA, because" in caplog.text and reason in caplog.text
