"""Mesh axes and bytes of collectives."""

import pytest

from t5x_like.planning import collectives, hlo
from t5x_like.planning.collectives import DeviceMesh, replica_groups

MESH = DeviceMesh({"data": 2, "fsdp": 2, "tensor": 2}, (0,) * 8)


@pytest.mark.parametrize(
    ("written", "groups"),
    [
        ("{{0,1},{2,3}}", [[0, 1], [2, 3]]),
        ("[2,4]<=[8]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("[4,2]<=[2,2,2]T(0,2,1)", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("mesh['a'=2,'b'=4] {'a'}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("mesh['a'=2,'b'=4] {'b'}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("mesh['a'=2,'b'=4] {'a','b'}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("mesh['a'=8] {'a':(2)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("mesh['a'=4,'b'=1,'c'=2], device_ids=([2,4]T(1,0)) {'a'}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("mesh['a'=4,'b'=1,'c'=2], device_ids=([2,4]T(1,0)) {'b','c'}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}", [[0, 2], [1, 3]]),
        ("mesh['a'=2,'b'=4], device_ids=([8]) {'b'}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ],
)
def test_replica_groups_in_all_notations(written, groups):
    assert replica_groups(f", channel_id=1, replica_groups={written}, dimensions={{0}}", 8) == groups


def test_missing_replica_groups_mean_all_devices():
    assert replica_groups(", channel_id=1", 4) == [[0, 1, 2, 3]]


def test_empty_replica_groups_mean_all_devices():
    assert replica_groups(", channel_id=1, replica_groups={}, dimensions={0}", 4) == [[0, 1, 2, 3]]


def test_unknown_notation_of_replica_groups():
    with pytest.raises(ValueError, match=r"cannot read: .*ring\[8\]"):
        replica_groups(", channel_id=1, replica_groups=ring[8], dimensions={0}", 8)


def test_unknown_notation_of_pairs():
    with pytest.raises(ValueError, match=r"cannot read: .*ring\[8\]"):
        sent("collective-permute", "source_target_pairs=ring[8]")


@pytest.mark.parametrize(
    ("groups", "axis"),
    [
        ([[0, 1], [2, 3]], "tensor"),
        ([[0, 2], [1, 3]], "fsdp"),
        ([[0, 4]], "data"),
        ([[0, 1, 2, 3]], "fsdp+tensor"),
        ([[0], [1]], "none"),
        ([[0, 9]], "unknown"),
    ],
)
def test_axis_of_groups(groups, axis):
    assert MESH.axis_of(groups) == axis


def sent(opcode, attributes, mesh=MESH, within="main", read=1000.0):
    line = f"ENTRY %main (a: f32[8]) -> f32[8] {{\n  ROOT %c = f32[8] {opcode}(%a), {attributes}\n}}\n"
    found = collectives.collective(hlo.parse(line).entry.root, read, mesh, within=within)
    return found.kind, found.axis, found.bytes, found.dcn_bytes


PAIRS_ALONG_FSDP = "replica_groups={{0,2},{1,3},{4,6},{5,7}}"


@pytest.mark.parametrize(
    ("opcode", "attributes", "expected"),
    [
        # A group of 4 gathers 4000 bytes, of which each device sends three quarters.
        ("all-gather", "replica_groups=[2,4]<=[8]", ("all-gather", "fsdp+tensor", 3000, 0)),
        ("all-gather-start", PAIRS_ALONG_FSDP, ("all-gather", "fsdp", 1000, 0)),
        ("reduce-scatter", PAIRS_ALONG_FSDP, ("reduce-scatter", "fsdp", 500, 0)),
        ("all-reduce", PAIRS_ALONG_FSDP, ("all-reduce", "fsdp", 1000, 0)),
        ("all-to-all", PAIRS_ALONG_FSDP, ("all-to-all", "fsdp", 500, 0)),
        ("ragged-all-to-all", PAIRS_ALONG_FSDP, ("ragged-all-to-all", "fsdp", 500, 0)),
        ("collective-broadcast", PAIRS_ALONG_FSDP, ("collective-broadcast", "fsdp", 1000, 0)),
        ("collective-permute-start", "source_target_pairs={{0,1},{1,0}}", ("collective-permute", "tensor", 1000, 0)),
        ("collective-permute", "source_target_pairs={{0,0},{1,1}}", ("collective-permute", "none", 0, 0)),
    ],
)
def test_bytes_sent_by_a_device(opcode, attributes, expected):
    assert sent(opcode, attributes) == expected


def test_all_reduce_in_a_reduce_scatter_computation_is_a_reduce_scatter():
    assert sent("all-reduce", PAIRS_ALONG_FSDP, within="all-reduce-scatter.3") == ("reduce-scatter", "fsdp", 500, 0)


def test_bytes_sent_across_slices():
    mesh = DeviceMesh({"data": 2, "fsdp": 4}, (0, 0, 0, 0, 1, 1, 1, 1))
    # An all-reduce over both slices sends 2 · 3/4 within a slice, and 2 · 1/2 of a quarter across slices.
    assert sent("all-reduce", "replica_groups=[1,8]<=[8]", mesh) == ("all-reduce", "data+fsdp", 1500, 250)
    assert sent("all-reduce", "replica_groups=[4,2]<=[2,4]T(1,0)", mesh) == ("all-reduce", "data", 0, 1000)
    # In an all-to-all of 8 devices, 3/8 of the operand is for devices of the same slice, and 4/8 for the other slice.
    assert sent("all-to-all", "replica_groups=[1,8]<=[8]", mesh) == ("all-to-all", "data+fsdp", 375, 500)
    assert sent("collective-permute", "source_target_pairs={{0,4}}", mesh) == ("collective-permute", "data", 0, 1000)


def test_send_to_host_is_a_collective_across_slices():
    mesh = DeviceMesh({"data": 2, "fsdp": 4}, (0, 0, 0, 0, 1, 1, 1, 1))
    assert mesh.slice_axes == "data"
    attributes = (
        'channel_id=4, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="x",'
        '_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    line = (
        "ENTRY %m (a: f32[250]) -> f32[8] {\n  ROOT %c = (f32[250], u32[], token[]) OPCODE(%a), " + attributes + "\n}\n"
    )
    send = hlo.parse(line.replace("OPCODE", "send")).entry.root
    assert collectives.inter_slice_collective(send, 1000.0, mesh) == collectives.Collective(
        "all-reduce", "data", 0.0, 1000.0
    )
    assert (
        collectives.inter_slice_collective(hlo.parse(line.replace("OPCODE", "recv")).entry.root, 1000.0, mesh) is None
    )
    line = line.replace("ALL_REDUCE", "COLLECTIVE_BROADCAST").replace("OPCODE", "send")
    assert collectives.inter_slice_collective(hlo.parse(line).entry.root, 1000.0, mesh).dcn_bytes == 1000.0


def test_other_instructions_are_not_collectives():
    root = hlo.parse("ENTRY %m (a: f32[8]) -> f32[8] {\n  ROOT %c = f32[8] add(%a, %a)\n}\n").entry.root
    assert collectives.collective(root, 32.0, MESH) is None
