"""Specifications of chips against the published numbers per physical chip."""

import dataclasses

import pytest

from t5x_like.planning.chips import GIB
from t5x_like.planning.tpus import TPUS


@dataclasses.dataclass(frozen=True)
class Published:
    """Published specification of a physical chip.

    Attributes:
      tflops: dense bfloat16 peak in TFLOP/s.
      hbm_gib: physical memory in GiB.
      hbm_gbps: memory bandwidth in GB/s.
      ici_gbps: interconnect bandwidth in GB/s per direction, over all links.
      links: number of links to neighbors.
      dcn_gbit: data center network bandwidth in Gbit/s per direction.
      devices: number of JAX devices.
    """

    tflops: float
    hbm_gib: int
    hbm_gbps: float
    ici_gbps: float
    links: int
    dcn_gbit: float
    devices: int = 1


# Sources:
# - Compute, memory, ICI and DCN: docs.cloud.google.com/tpu/docs/v4, v5e, v5p, v6e and tpu7x, read in November 2026. ICI
#   is published for both directions together (v5e 400, v5p 1200, v6e 800, tpu7x 1200 GB/s per chip); half is one way.
# - DCN per chip: v5p 50 Gbit/s, v6e and tpu7x 100 Gbit/s. v5e: 2 NICs of 100 Gbit/s for the 8 chips of a host. v4:
#   200 Gbit/s for the 4 chips of a host (jax-ml.github.io/scaling-book, "How to Think About TPUs").
# - HBM bandwidth of v4 (1228) and v5p: "Introducing Cloud TPU v5p", Google Cloud's blog, December 2023; v5e (819) and
#   v6e (1640): their pages at release. Today's pages round them: 1200 for v4, 800 for v5e, 1600 or 1638 for v6e.
PUBLISHED = {
    "v4": Published(275, 32, 1228, 300, links=6, dcn_gbit=50),
    "v5e": Published(197, 16, 819, 200, links=4, dcn_gbit=2 * 100 / 8),
    "v5p": Published(459, 96, 2765, 600, links=6, dcn_gbit=50),
    "v6e": Published(918, 32, 1640, 400, links=4, dcn_gbit=100),
    "tpu7x": Published(2307, 192, 7380, 600, links=6, dcn_gbit=100, devices=2),
}


def test_all_chips_have_published_specifications():
    assert set(PUBLISHED) == set(TPUS)


@pytest.mark.parametrize("name", PUBLISHED)
def test_specification_per_device_equals_published_specification(name):
    chip, published = TPUS[name], PUBLISHED[name]
    assert chip.devices_per_chip == published.devices
    assert chip.peak_flops * published.devices == published.tflops * 1e12
    assert chip.hbm_bandwidth * published.devices == published.hbm_gbps * 1e9
    assert chip.link_bandwidth * published.links * published.devices == published.ici_gbps * 1e9
    assert chip.dcn_bandwidth * published.devices == published.dcn_gbit * 1e9 / 8
    # The runtime reserves part of the memory.
    assert 0.95 < chip.hbm_bytes * published.devices / (published.hbm_gib * GIB) < 1


@pytest.mark.parametrize(("name", "units"), [("v4", 8), ("v5e", 4), ("v5p", 8), ("v6e", 4), ("tpu7x", 4)])
def test_peak_is_that_of_whole_matrix_units(name, units):
    chip = TPUS[name]
    assert chip.peak_flops == pytest.approx(units * 2 * chip.matrix_unit**2 * chip.clock, rel=0.01)


def test_closed_torus_uses_all_links():
    for name, published in PUBLISHED.items():
        chip = TPUS[name]
        assert chip.ici_bandwidth((chip.wrap,) * chip.dimensions) == published.links * chip.link_bandwidth
