"""GPUs: specifications against the published numbers, target descriptions, and the roofline of kernels."""

import dataclasses
import importlib.util
import types

import pytest

from t5x_like import metrics
from t5x_like.planning import gpu_devices, gpus, hlo, topologies
from t5x_like.planning.gpus import GPUS
from t5x_like.planning.walk import Work


@dataclasses.dataclass(frozen=True)
class Published:
    """Published specification of a GPU.

    Attributes:
      tflops: Dense bfloat16 peak in TFLOP/s.
      memory_gb: Memory in GB.
      memory_gbps: Memory bandwidth in GB/s.
      nvlink_gbps: Bandwidth to the other GPUs of a host in GB/s, both directions together.
      network_gbit: Network bandwidth per GPU in Gbit/s.
      multiprocessors: Number of streaming multiprocessors.
      flops_per_cycle: bfloat16 FLOP per cycle and multiprocessor.
    """

    tflops: float
    memory_gb: float
    memory_gbps: float
    nvlink_gbps: float
    network_gbit: float
    multiprocessors: int
    flops_per_cycle: int


# Sources: NVIDIA's data sheets of the A100, H100, H200, DGX B200 and L4, the white papers of their architectures, and
# those of DGX A100, H100, H200 and B200 for the network; for the L4, the machine type g2-standard-96 of Google Cloud.
# The data sheet of the B200 rounds the bandwidth that the device reports (7.67 TB/s) to 8 TB/s.
PUBLISHED = {
    "h100": Published(989, 80, 3350, 900, 400, 132, 4096),
    "h200": Published(989, 141, 4800, 900, 400, 132, 4096),
    "b200": Published(2250, 180, 8000, 1800, 400, 148, 8192),
    "a100-40": Published(312, 40, 1555, 600, 200, 108, 2048),
    "a100-80": Published(312, 80, 2039, 600, 200, 108, 2048),
    "l4": Published(121, 24, 300, 64, 100 / 8, 58, 1024),
}


def test_all_gpus_have_published_specifications():
    assert set(PUBLISHED) == set(GPUS)


@pytest.mark.parametrize("name", PUBLISHED)
def test_specification_equals_published_specification(name):
    gpu, published = GPUS[name], PUBLISHED[name]
    assert gpu.peak_flops == published.tflops * 1e12 == metrics.peak_flops(gpu.device_name)
    assert gpu.hbm_bandwidth == pytest.approx(published.memory_gbps * 1e9, rel=0.05)
    assert 2 * gpu.link_bandwidth == published.nvlink_gbps * 1e9
    assert gpu.dcn_bandwidth == published.network_gbit * 1e9 / 8
    assert gpu.multiprocessors == published.multiprocessors
    assert 0.98 < gpu.memory_bytes / (published.memory_gb * 1e9) < 1.08
    assert gpu.hbm_bytes < gpu.memory_bytes
    # The peak is reached below the largest clock, which is for other work.
    assert 0.9 < gpu.peak_flops / (published.multiprocessors * published.flops_per_cycle * gpu.clock) < 1.005


def test_target_description_has_the_numbers_of_the_table():
    lines = [line.strip() for line in GPUS["h100"].target_config().splitlines()]
    for line in (
        *("core_count: 132", "fpus_per_core: 128", "memory_bandwidth: 3352320000000", "l2_cache_size: 52428800"),
        *("clock_rate_ghz: 1.98", "device_memory_size: 84942979072", "shared_memory_per_core: 233472"),
        *("shared_memory_per_block_optin: 232448", "cuda_compute_capability { major: 9 minor: 0 }"),
        'device_description_str: "NVIDIA H100 80GB HBM3"',
    ):
        assert line in lines


def test_hosts_have_one_link_per_gpu_to_all_others():
    host = topologies.parse("h100:2x8")
    assert host.ici_bandwidth == host.chip.link_bandwidth == 450e9
    assert topologies.parse("h100:1").ici_bandwidth == 450e9


KERNELS = """\
%gelu (p: f32[1000,1000]) -> f32[1000,1000] {
  %p = f32[1000,1000]{1,0} parameter(0)
  ROOT %t = f32[1000,1000]{1,0} tanh(%p)
}

ENTRY %main (a: f32[1000,1000]) -> f32[1000,1000] {
  %a = f32[1000,1000]{1,0} parameter(0)
  %b = f32[1000,1000]{1,0} bitcast(%a)
  ROOT %f = f32[1000,1000]{1,0} fusion(%b), kind=kLoop, calls=%gelu
}
"""


def seconds(name, work):
    module = hlo.parse(KERNELS)
    return GPUS["h100"].core_time(module, module.entry, module.entry.by_name[name], work).seconds


def test_kernel_is_bound_by_its_products_its_bytes_or_its_elementwise_operations():
    bandwidth, peak = gpus.MEMORY_EFFICIENCY * 3352.32e9, 0.803 * 989e12
    elementwise = 24 * 1e6 / (132 * 128 * 1.98e9)  # a tanh has 24 instructions per element
    assert seconds("f", Work(hbm_bytes=8e9)) == pytest.approx(gpus.LAUNCH_SECONDS + 8e9 / bandwidth)
    assert seconds("f", Work()) == pytest.approx(gpus.LAUNCH_SECONDS + elementwise)
    assert seconds("f", Work(flops=1e12, hbm_bytes=8e6)) == pytest.approx(
        gpus.LAUNCH_SECONDS + 1e12 / peak + elementwise
    )
    assert seconds("b", Work()) == 0.0


PRODUCT = """\
ENTRY %main (a: f32[1000,1000], b: f32[1000,1000]) -> f32[1000,1000] {
  %a = f32[1000,1000]{1,0} parameter(0)
  %b = f32[1000,1000]{1,0} parameter(1)
  ROOT %p = f32[1000,1000]{1,0} custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", backend_config={\
"precision_config":{"operand_precision":["HIGHEST","HIGHEST"],"algorithm":"ALG_UNSET"}}
}
"""


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        (PRODUCT, 132 * 128 * 2 * 1.98e9),  # on the lanes
        (PRODUCT.replace("HIGHEST", "DEFAULT"), 0.5 * 0.803 * 989e12),  # in TF32
        (PRODUCT.replace("f32", "bf16"), 0.803 * 989e12),
    ],
)
def test_float32_products_of_the_highest_precision_do_not_use_tensor_cores(text, rate):
    module = hlo.parse(text)
    time = GPUS["h100"].core_time(module, module.entry, module.entry.by_name["p"], Work(flops=1e12))
    assert time.seconds == pytest.approx(gpus.LAUNCH_SECONDS + 1e12 / rate)


def test_memory_beyond_the_default_of_jax_needs_a_variable():
    h100 = GPUS["h100"]
    assert h100.memory_note(0.7 * h100.memory_bytes) is None
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.95" in h100.memory_note(0.8 * h100.memory_bytes)


def test_missing_compiler_names_the_package_and_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(topologies.PlanError, match=r"jax-cuda13-plugin.* pip install -e '.\[plan-gpu\]'"):
        topologies.devices("h100:8")


@pytest.mark.parametrize(
    ("file", "package"),
    [("bin/ptxas", "nvidia-cuda-nvcc"), ("nvvm/libdevice/libdevice.10.bc", "nvidia-nvvm")],
)
def test_missing_file_of_cuda_names_its_package(file, package, monkeypatch, tmp_path):
    for each in gpu_devices._FILES:
        path = tmp_path / "cu13" / each
        path.parent.mkdir(parents=True)
        path.touch()
    (tmp_path / "cu13" / file).unlink()
    spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path / "cu13")])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(gpu_devices, "CUDA_HOME", tmp_path / "cuda")
    with pytest.raises(topologies.PlanError, match=f"^{package}, a part of .* is not installed"):
        topologies.devices("h100:8")
