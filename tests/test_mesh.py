"""Meshes over eight fake CPU devices and over fake TPU slices."""

import types

import jax
import pytest

from t5x_like.mesh import equal_feed_shards, make_mesh


def test_one_mesh_axis_takes_the_remaining_devices():
    assert dict(make_mesh(ici={"fsdp": -1, "tensor": 2}).shape) == {"data": 1, "fsdp": 4, "sequence": 1, "tensor": 2}
    assert dict(make_mesh(devices=jax.devices()[:1]).shape) == {"data": 1, "fsdp": 1, "sequence": 1, "tensor": 1}


@pytest.mark.parametrize(
    "ici, message",
    [
        ({"fsdp": 3}, "does not fit 8 cpu devices: the sizes multiply to 3"),
        ({"fsdp": -1, "tensor": 3}, "does not fit 8 cpu devices"),
        ({"fsdp": -1, "data": -1}, "only one mesh axis can be -1"),
        ({"model": 8}, r"unknown mesh axes \['model'\]"),
        ({"fsdp": -1, "tensor": 0}, "invalid sizes {'tensor': 0}. Give positive integers or -1"),
    ],
)
def test_invalid_meshes_raise(ici, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(ici=ici)


def test_one_dcn_axis_takes_the_slices():
    assert dict(make_mesh(ici={"fsdp": -1}, dcn={"data": -1}).shape)["fsdp"] == 8  # all devices of the only slice
    with pytest.raises(ValueError, match="dcn={'data': 2} multiplies to 2, but the devices belong to 1 slices"):
        make_mesh(ici={"fsdp": -1}, dcn={"data": 2})
    with pytest.raises(ValueError, match="dcn=.*only one mesh axis can be -1"):
        make_mesh(dcn={"data": -1, "fsdp": -1})


def test_several_tpu_slices_require_a_dcn_axis():
    two_slices = [types.SimpleNamespace(platform="tpu", slice_index=number // 4) for number in range(8)]
    with pytest.raises(ValueError, match="belong to 2 slices, but no mesh axis spans slices. Give --gin.DCN"):
        make_mesh(ici={"fsdp": -1}, devices=two_slices)


@pytest.mark.parametrize(
    "rows_of, shares",
    [
        ({0: {0, 1}, 1: {2, 3}}, [(0, 1), (2, 3)]),
        ({0: {2, 3}, 1: {0, 1}}, [(0, 1), (2, 3)]),  # ordered by rows, not by processes
        ({0: {0}, 1: {0}, 2: {1}, 3: {1}}, [(0,), (1,)]),  # pairs of processes hold the same rows
        ({0: {0}, 1: {0}}, [(0,)]),
    ],
)
def test_processes_with_the_same_rows_read_the_same_shard(rows_of, shares):
    assert equal_feed_shards(rows_of, len(set().union(*rows_of.values()))) == shares


def test_overlapping_or_interleaved_rows_raise():
    for rows_of in ({0: {0, 2}, 1: {1, 3}}, {0: {0, 1}, 1: {1, 2}}, {0: {0, 1}, 1: {2}}):
        with pytest.raises(ValueError, match="unevenly over 2 processes"):
            equal_feed_shards(rows_of, len(set().union(*rows_of.values())))
