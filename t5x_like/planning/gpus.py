"""NVIDIA GPUs: specifications, compile-only devices, and the time of instructions by the roofline of each kernel.

Sources of the table:

* Peak compute: `metrics.PEAK_FLOPS`, from NVIDIA's data sheets.
* Multiprocessors, lanes, clock, L2 cache, memory and its bandwidth: the device descriptions of XLA
  (openxla/xla, `xla/backends/gpu/target_config/specs`), which are what the devices report; for the L4, its data sheet
  and the white paper "NVIDIA Ada GPU Architecture".
* Links: NVLink's bandwidth in the data sheets is for both directions together (A100 600, H100 and H200 900, B200 1800
  GB/s); half is one way. An L4 has no NVLink but PCIe 4.0 x16.
* Network: DGX A100, H100, H200 and B200 have one InfiniBand port per GPU, of 200, 400, 400 and 400 Gbit/s. Eight L4s
  share the 100 Gbit/s of Google's g2-standard-96.
* Attainable compute: the largest rate of bfloat16 products that the "Maximum Achievable Matmul FLOPS" table of
  stas00/ml-engineering (compute/accelerator) reports, of the peak: A100 271 of 312, H100 and H200 794 of 989, B200 1745
  of 2250 TFLOP/s. It has no L4, which gets the lowest share.
"""

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Any, ClassVar

from t5x_like.errors import UserError
from t5x_like.metrics import PEAK_FLOPS
from t5x_like.planning import elementwise, gpu_calls, gpu_devices
from t5x_like.planning.chips import Chip, CoreTime

GPUS_PER_HOST = 8
# Part of the memory that a program can have with XLA_PYTHON_CLIENT_MEM_FRACTION=0.95, and the part that JAX allocates
# without this variable. The rest is for CUDA, cuDNN and NCCL.
MEMORY_FRACTION, DEFAULT_MEMORY_FRACTION = 0.95, 0.75
# Part of the bandwidth of the memory that kernels attain which stream large arrays, and part of the bandwidth of links
# that NCCL's rings attain. Assumptions: on an H100, copies reach about 3.0 of 3.35 TB/s, and all-gathers over eight
# GPUs about 360 of 450 GB/s.
MEMORY_EFFICIENCY, LINK_EFFICIENCY = 0.9, 0.8
# Time between kernels, and to start a collective, in seconds (`kKernelLaunchOverhead` and `kNcclKernelLaunchOverhead`
# of openxla/xla, `xla/service/gpu/model/gpu_performance_model_base.h`).
LAUNCH_SECONDS, COLLECTIVE_SECONDS = 1e-6, 5e-6
# Exponentials per cycle and multiprocessor ("CUDA C++ Programming Guide", throughput of native instructions).
EXPONENTIALS_PER_CYCLE = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu(Chip):
    """An NVIDIA GPU. A slice is a host, whose GPUs are connected by NVLink; hosts are connected by InfiniBand.

    Attributes:
      device_name: Name of the device, and its `device_kind` in JAX.
      capability: Compute capability.
      memory_bytes: Memory of the device in bytes.
      l2_bytes: L2 cache in bytes.
      multiprocessors: Number of streaming multiprocessors.
      lanes: float32 operations per cycle and multiprocessor; a fused multiply-add counts as one.
      clock: Largest cycles per second.
      threads: Threads that a multiprocessor can hold.
      shared_bytes: Shared memory of a multiprocessor in bytes.
      attainable: Part of `peak_flops` that large products attain.
    """

    device_name: str
    capability: tuple[int, int]
    memory_bytes: int
    l2_bytes: int
    multiprocessors: int
    lanes: int
    clock: float
    threads: int
    shared_bytes: int
    attainable: float
    dimensions: int = 1
    hbm_bytes: int = dataclasses.field(init=False)

    platform: ClassVar[str] = "cuda"
    packages: ClassVar[tuple[str, ...]] = ("jax-cuda13-plugin", "nvidia-cuda-nvcc", "nvidia-cudnn-cu13")
    compiler_options: ClassVar[Mapping[str, Any]] = {
        # Autotuning measures kernels on the device. Without it, XLA takes cuBLAS's first algorithm.
        "xla_gpu_autotune_level": 0,
        # Without autotuning, Triton finds no tiles for some products, and compilation fails.
        "xla_gpu_enable_triton_gemm": False,
    }
    basis: ClassVar[str] = "the compiler's schedule, the roofline of each kernel, and communication"

    def __post_init__(self):
        object.__setattr__(self, "hbm_bytes", int(MEMORY_FRACTION * self.memory_bytes))

    @property
    def device_kinds(self) -> tuple[str, ...]:
        """`device_kind` of its JAX devices."""
        return (self.device_name,)

    def parse_sides(self, topology: str, sides: tuple[int, ...], num_slices: int) -> tuple[tuple[int, ...], int]:
        """See `Chip.parse_sides`. The numbers are GPUs of a host, or hosts and GPUs of a host."""
        hosts, per_host = (1, *sides) if len(sides) == 1 else sides if len(sides) == 2 else (0, 0)
        if hosts < 1 or not 1 <= per_host <= GPUS_PER_HOST:
            raise UserError(
                f"--topology={topology}: invalid sizes. Give 1 to {GPUS_PER_HOST} GPUs of a host, such as "
                f"{self.name}:{GPUS_PER_HOST}, or hosts and GPUs per host, such as {self.name}:2x{GPUS_PER_HOST}."
            )
        if num_slices > 1:
            raise UserError(
                f"--num_slices={num_slices}: GPUs have no slices. Give the number of hosts in the topology, such as "
                f"--topology={self.name}:{num_slices * hosts}x{per_host}."
            )
        return (per_host,), hosts

    def describe(self, sides: tuple[int, ...], slices: int) -> str:
        """Returns text such as `h100:8`, or `h100:2x8` for two hosts."""
        return f"{self.name}:{f'{slices}x' * (slices > 1)}{sides[0]}"

    def compile_only_devices(self, sides: tuple[int, ...], slices: int) -> list[Any]:
        """See `Chip.compile_only_devices`. Sets JAX's platform to CPU, so that the plugin does not look for GPUs."""
        return gpu_devices.make(self.name, self.target_config(), hosts=slices, per_host=sides[0])

    def closed(self, sides: tuple[int, ...]) -> tuple[bool, ...]:
        """See `Chip.closed`. A switch connects all GPUs of a host, so that a device has one link to all others."""
        return (False,) * len(sides)

    def transfer_seconds(self, sent_bytes: float, bandwidth: float, hops: int) -> float:
        """See `Chip.transfer_seconds`."""
        del hops
        return COLLECTIVE_SECONDS + sent_bytes / (LINK_EFFICIENCY * bandwidth)

    def core_time(self, module, computation, instruction, work) -> CoreTime:
        """See `Chip.core_time`. An instruction is a kernel, bound by its products, elementwise operations or bytes."""
        cycles = elementwise.operations(module, instruction) / self.lanes
        call = gpu_calls.call(computation, instruction)
        if call is not None:
            cycles += call.operations / self.lanes + call.exponentials / EXPONENTIALS_PER_CYCLE
        vector = cycles / (self.multiprocessors * self.clock)
        rate = self.attainable * self.peak_flops * gpu_calls.relative_rate(computation, instruction)
        if gpu_calls.is_exact(computation, instruction):  # the lanes multiply and add, instead of the tensor cores
            rate = 2 * self.lanes * self.multiprocessors * self.clock
        products = work.flops / rate
        # Exponentials and other elementwise operations wait for products, or these for them.
        compute = (products + vector) * (1.0 if call is None else call.factor)
        seconds = max(compute, work.hbm_bytes / (MEMORY_EFFICIENCY * self.hbm_bandwidth))
        return CoreTime(LAUNCH_SECONDS + seconds if seconds else 0.0)

    def memory_note(self, peak_bytes: float) -> str | None:
        """Returns the variable that a program needs whose memory is more than JAX allocates by default."""
        if peak_bytes <= DEFAULT_MEMORY_FRACTION * self.memory_bytes:
            return None
        variable = f"XLA_PYTHON_CLIENT_MEM_FRACTION={MEMORY_FRACTION}"
        return f"set {variable}: by default, JAX allocates {DEFAULT_MEMORY_FRACTION} of the memory of the GPU"

    def target_config(self) -> str:
        """Returns XLA's description of the GPU (`stream_executor.GpuTargetConfigProto`), as text."""
        major, minor = self.capability
        return textwrap.dedent(f"""\
            gpu_device_info {{
              threads_per_block_limit: 1024
              threads_per_warp: 32
              shared_memory_per_block: {48 * 2**10}
              shared_memory_per_core: {self.shared_bytes}
              threads_per_core_limit: {self.threads}
              core_count: {self.multiprocessors}
              fpus_per_core: {self.lanes}
              block_dim_limit_x: {2**31 - 1}
              block_dim_limit_y: {2**16 - 1}
              block_dim_limit_z: {2**16 - 1}
              memory_bandwidth: {self.hbm_bandwidth:.0f}
              l2_cache_size: {self.l2_bytes}
              clock_rate_ghz: {self.clock / 1e9}
              device_memory_size: {self.memory_bytes}
              shared_memory_per_block_optin: {self.shared_bytes - 2**10}
              cuda_compute_capability {{ major: {major} minor: {minor} }}
              registers_per_core_limit: 65536
              registers_per_block_limit: 65536
            }}
            platform_name: "CUDA"
            dnn_version_info {{ major: 9 minor: 10 }}
            runtime_version {{ major: 13 minor: 0 patch: 0 }}
            device_description_str: "{self.device_name}"
            """)


_HOPPER = {
    "capability": (9, 0),
    "peak_flops": PEAK_FLOPS["NVIDIA H100"],
    "attainable": 0.803,
    "link_bandwidth": 450e9,
    "dcn_bandwidth": 50e9,
    "l2_bytes": 50 * 2**20,
    "multiprocessors": 132,
    "lanes": 128,
    "clock": 1.98e9,
    "threads": 2048,
    "shared_bytes": 228 * 2**10,
}
_A100 = {
    "capability": (8, 0),
    "peak_flops": PEAK_FLOPS["NVIDIA A100"],
    "attainable": 0.869,
    "link_bandwidth": 300e9,
    "dcn_bandwidth": 25e9,
    "l2_bytes": 40 * 2**20,
    "multiprocessors": 108,
    "lanes": 64,
    "clock": 1.41e9,
    "threads": 2048,
    "shared_bytes": 164 * 2**10,
}
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="h100",
            device_name="NVIDIA H100 80GB HBM3",
            memory_bytes=84942979072,
            hbm_bandwidth=3352.32e9,
            **_HOPPER,
        ),
        Gpu(name="h200", device_name="NVIDIA H200", memory_bytes=151397597184, hbm_bandwidth=4800e9, **_HOPPER),
        Gpu(
            name="b200",
            device_name="NVIDIA B200",
            capability=(10, 0),
            peak_flops=PEAK_FLOPS["NVIDIA B200"],
            attainable=0.776,
            memory_bytes=191514411008,
            hbm_bandwidth=7672.32e9,
            link_bandwidth=900e9,
            dcn_bandwidth=50e9,
            l2_bytes=132644864,
            multiprocessors=148,
            lanes=128,
            clock=1.965e9,
            threads=2048,
            shared_bytes=228 * 2**10,
        ),
        Gpu(
            name="a100-40",
            device_name="NVIDIA A100-SXM4-40GB",
            memory_bytes=42331013120,
            hbm_bandwidth=1555.2e9,
            **_A100,
        ),
        Gpu(
            name="a100-80",
            device_name="NVIDIA A100-SXM4-80GB",
            memory_bytes=85100068864,
            hbm_bandwidth=2039.04e9,
            **_A100,
        ),
        Gpu(
            name="l4",
            device_name="NVIDIA L4",
            capability=(8, 9),
            peak_flops=PEAK_FLOPS["NVIDIA L4"],
            attainable=0.776,
            memory_bytes=23034 * 2**20,
            hbm_bandwidth=300e9,
            link_bandwidth=32e9,
            dcn_bandwidth=100e9 / 8 / 8,
            l2_bytes=48 * 2**20,
            multiprocessors=58,
            lanes=128,
            clock=2.04e9,
            threads=1536,
            shared_bytes=100 * 2**10,
        ),
    )
}
