"""Meshes over several slices: JAX can build every mesh that the search enumerates."""

import dataclasses
import importlib.util
import itertools

import numpy as np
import pytest
from jax.experimental import mesh_utils

from t5x_like.errors import UserError
from t5x_like.mesh import make_mesh
from t5x_like.planning import search, topologies

TOPOLOGIES = (
    *("v4:2x2x1", "v4:2x2x4", "v4:4x4x8", "v5e:1x1", "v5e:2x4", "v5e:4x4", "v5e:4x8", "v5e:16x16", "v6e:4x4"),
    *("v6e:8x16", "v5p:2x2x2", "v5p:2x2x4", "v5p:4x4x4", "v5p:4x4x12", "tpu7x:2x2x1", "tpu7x:2x2x4", "tpu7x:4x4x4"),
)
# Only a few, because libtpu takes time to describe each topology.
REAL_TOPOLOGIES = ("v4:2x2x4", "v5e:4x4", "v5p:4x4x4", "v6e:4x4", "tpu7x:2x2x2")


@dataclasses.dataclass(frozen=True)
class FakeDevice:
    """The attributes of a device that JAX reads to build a mesh."""

    id: int
    device_kind: str
    coords: tuple[int, int, int]
    core_on_chip: int
    slice_index: int
    platform: str = "tpu"
    process_index: int = 0


def fake_devices(topology: topologies.Topology) -> list[FakeDevice]:
    sides = (*topology.sides, 1)[:3]
    coordinates = itertools.product(
        range(topology.slices), *(range(side) for side in reversed(sides)), range(topology.chip.devices_per_chip)
    )
    return [
        FakeDevice(number, topology.chip.device_kinds[0], (x, y, z), core, slice_)
        for number, (slice_, z, y, x, core) in enumerate(coordinates)
    ]


def check_meshes(topology: topologies.Topology, devices: list) -> None:
    """Builds every mesh of a search and checks its sizes and that `data` spans the slices."""
    for ici in search.meshes(topology, leaves=[]):
        mesh = make_mesh(ici=ici, dcn={"data": topology.slices}, devices=devices)
        assert dict(mesh.shape) == ici | {"data": ici["data"] * topology.slices}
        assert len(set(mesh.devices.flat)) == topology.num_devices
        slices = np.vectorize(lambda device: device.slice_index)(mesh.devices)
        blocks = slices.reshape(topology.slices, -1)
        assert all(len(set(block)) == 1 for block in blocks), "an axis other than data spans slices"


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_meshes_of_a_search_can_be_built_over_two_slices(name):
    topology = topologies.parse(name, num_slices=2)
    check_meshes(topology, fake_devices(topology))


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, of the extra plan")
@pytest.mark.notf
@pytest.mark.parametrize("name", REAL_TOPOLOGIES)
def test_meshes_of_a_search_can_be_built_over_libtpu_devices(name):
    check_meshes(topologies.parse(name, num_slices=2), topologies.devices(name, num_slices=2))


@pytest.mark.parametrize(
    ("name", "ici"), [("v5e:4x4", {"fsdp": 8, "tensor": 2}), ("v5p:4x4x4", {"data": 2, "fsdp": 32})]
)
def test_mesh_axes_may_share_a_side_of_a_slice(name, ici):
    topology = topologies.parse(name, num_slices=2)
    mesh = make_mesh(ici=ici, dcn={"data": 2}, devices=fake_devices(topology))
    assert mesh.size == topology.num_devices


def test_mesh_that_jax_cannot_build_raises_user_error(monkeypatch):
    def fail(*args, **options):
        raise NotImplementedError("no assignment")

    monkeypatch.setattr(mesh_utils, "create_hybrid_device_mesh", fail)
    topology = topologies.parse("v5e:4x4", num_slices=2)
    with pytest.raises(UserError, match="'fsdp': 16.*JAX cannot build this mesh over the tpu devices: no assignment"):
        make_mesh(ici={"fsdp": 16}, dcn={"data": 2}, devices=fake_devices(topology))
