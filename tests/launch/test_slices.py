"""launch/slices.py: shapes and names by the published tables, and what is refused with what is offered instead."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import slices
finally:
    sys.path.pop(0)


# Of cloud.google.com/tpu/docs/v4, v5e, v5p, v6e: accelerator type, topology, chips, VMs.
@pytest.mark.parametrize(
    ("accelerator_type", "topology", "chips", "vms"),
    [
        ("v4-8", "2x2x1", 4, 1),
        ("v4-64", "2x4x4", 32, 8),
        ("v4-512", "4x8x8", 256, 64),
        ("v4-4096", "8x16x16", 2048, 512),
        ("v5litepod-1", "1x1", 1, 1),
        ("v5litepod-4", "2x2", 4, 1),
        ("v5litepod-8", "2x4", 8, 1),
        ("v5litepod-16", "4x4", 16, 4),
        ("v5litepod-256", "16x16", 256, 64),
        ("v5p-16", "2x2x2", 8, 2),
        ("v5p-128", "4x4x4", 64, 16),
        ("v5p-1024", "8x8x8", 512, 128),
        ("v5p-12288", "16x16x24", 6144, 1536),
        ("v6e-8", "2x4", 8, 1),
        ("v6e-32", "4x8", 32, 8),
    ],
)
def test_published_configurations_from_either_side(accelerator_type, topology, chips, vms):
    by_type = slices.parse_slice(accelerator_type, None)
    assert (by_type.topology, by_type.chips, by_type.vms) == (topology, chips, vms)
    assert by_type.is_default_shape
    assert slices.parse_slice(None, f"{by_type.generation.name}:{topology}") == by_type
    assert slices.parse_slice(accelerator_type, topology) == by_type
    assert by_type.accelerator_type == accelerator_type


def test_another_shape_of_the_same_size_is_told_apart():
    long = slices.parse_slice("v4-512", "4x4x16")
    assert long.accelerator_type == "v4-512" and not long.is_default_shape
    assert slices.parse_slice("v5e-16", None) == slices.parse_slice("v5litepod-16", None)


@pytest.mark.parametrize(
    ("accelerator_type", "topology", "message"),
    [
        (None, None, "name the slice"),
        (None, "4x4", "names no generation"),
        ("v5litepod-16", "v6e:4x4", "--type=v5litepod-16 is v5e and --topology=v6e:4x4 is v6e"),
        ("v5litepod-16", "4x8", "has 16 chips and --topology=4x8 has 32: that topology is v5litepod-32"),
        ("v4-32", "4x4x4", "that topology is v4-128, and v4-32 is 2x2x4"),
        ("v5litepod-12", None, "no slice of that size .the number counts chips.; there are v5litepod-1, v5litepod-4"),
        ("v4-7", None, "cores, two a chip"),
        ("v4-16384", None, "no slice of that size"),
        ("v9-8", None, "no TPU 'v9' here; there are v4, v5e, v5p, v6e. `t5x_like plan` takes more chips"),
        (None, "tpu7x:4x4x4", "no TPU 'tpu7x' here; there are .* `t5x_like plan` takes more chips"),
        (None, "v5e:4x2", "v5e has no slice 4x2; .* `t5x_like plan` takes more chips and shapes than can be launched"),
        ("v5e", None, "write a generation and a size"),
        (None, "v5e:4x4x4", "v5e has no slice 4x4x4; there are 1x1, 2x2"),
        (None, "v5p:4x6x8", "in multiples of 4 up to 6144 chips"),
        (None, "v5p:16x16x28", "up to 6144 chips"),
        (None, "v4:four", "write the sides in chips, such as 2x4x4"),
    ],
)
def test_what_is_no_slice_is_refused_with_what_is(accelerator_type, topology, message):
    with pytest.raises(slices.LaunchError, match=message):
        slices.parse_slice(accelerator_type, topology)


def test_zones():
    v5e = slices.GENERATIONS["v5e"]
    slices.check_zone("us-west4-a", v5e)
    slices.check_zone("us-new9-z", v5e, unlisted=True)
    slices.check_zone("us-new9-z")
    for zone, message in [
        (None, "--zone is missing; v5e is in europe-west4-b"),
        ("us-west4", "is no zone .that is a region: add its zone."),
        ("west", "--zone=west is no zone"),
        ("us-west4-c", "not known to have v5e .did you mean us-west4-"),
        ("us-central2-b", "If it has come since: --unlisted_zone"),
    ]:
        with pytest.raises(slices.LaunchError, match=message):
            slices.check_zone(zone, v5e)


@pytest.mark.parametrize("name", ["", "First", "1st", "first-", "a_b", "a" * 51, "a\n"])
def test_names_that_a_cloud_refuses(name):
    with pytest.raises(slices.LaunchError, match="write lower-case letters"):
        slices.check_name("the TPU's name", name, 50)
    slices.check_name("the TPU's name", "a" * 50, 50)
