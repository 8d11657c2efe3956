"""Tests for launch/slices.py: published shapes, and errors for invalid shapes, zones and names."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import slices
finally:
    sys.path.pop(0)


# Accelerator type, topology and chips from cloud.google.com/tpu/docs/v4, v5e, v5p and v6e.
@pytest.mark.parametrize(
    ("accelerator_type", "topology", "chips"),
    [
        ("v4-8", "2x2x1", 4),
        ("v4-64", "2x4x4", 32),
        ("v4-512", "4x8x8", 256),
        ("v4-4096", "8x16x16", 2048),
        ("v5litepod-1", "1x1", 1),
        ("v5litepod-4", "2x2", 4),
        ("v5litepod-8", "2x4", 8),
        ("v5litepod-16", "4x4", 16),
        ("v5litepod-256", "16x16", 256),
        ("v5p-16", "2x2x2", 8),
        ("v5p-128", "4x4x4", 64),
        ("v5p-1024", "8x8x8", 512),
        ("v5p-12288", "16x16x24", 6144),
        ("v6e-8", "2x4", 8),
        ("v6e-32", "4x8", 32),
        ("tpu7x-16", "2x2x2", 8),
        ("tpu7x-128", "4x4x4", 64),
    ],
)
def test_published_configurations_parse_from_type_and_topology(accelerator_type, topology, chips):
    by_type = slices.parse_slice(accelerator_type, None)
    assert (by_type.topology, by_type.chips) == (topology, chips)
    assert by_type.is_default_shape
    assert slices.parse_slice(None, f"{by_type.generation.name}:{topology}") == by_type
    assert slices.parse_slice(accelerator_type, topology) == by_type
    assert by_type.accelerator_type == accelerator_type


def test_shapes_of_same_size_differ():
    long = slices.parse_slice("v4-512", "4x4x16")
    assert long.accelerator_type == "v4-512" and not long.is_default_shape
    assert slices.parse_slice("v5e-16", None) == slices.parse_slice("v5litepod-16", None)


@pytest.mark.parametrize(
    ("accelerator_type", "topology", "message"),
    [
        (None, None, "no slice given"),
        (None, "4x4", "TPU generation missing"),
        ("v5litepod-16", "v6e:4x4", "--type=v5litepod-16 is v5e and --topology=v6e:4x4 is v6e"),
        ("v5litepod-16", "4x8", "has 16 chips and --topology=4x8 has 32: that topology is v5litepod-32"),
        ("v4-32", "4x4x4", "that topology is v4-128, and v4-32 is 2x2x4"),
        (
            "v5litepod-12",
            None,
            "does not have a slice of this size .the number counts chips.. Available: v5litepod-1, v5litepod-4",
        ),
        ("v4-7", None, "cores, two per chip"),
        ("v4-16384", None, "does not have a slice of this size"),
        (
            "v9-8",
            None,
            "unknown TPU generation 'v9'. Available: v4, v5e, v5p, v6e, tpu7x. `t5x_like plan` supports more chips",
        ),
        (
            None,
            "v5e:4x2",
            "v5e does not have a slice 4x2. .* `t5x_like plan` supports more chips and shapes than can be launched",
        ),
        ("v5e", None, "not a generation and a size"),
        (None, "v5e:4x4x4", "v5e does not have a slice 4x4x4. Available: 1x1, 2x2"),
        (None, "v5p:4x6x8", "in multiples of 4 up to 6144 chips"),
        (None, "v5p:16x16x28", "up to 6144 chips"),
        (None, "v4:four", "Write the sides in chips, such as 2x4x4"),
    ],
)
def test_invalid_slice_raises_with_alternatives(accelerator_type, topology, message):
    with pytest.raises(slices.LaunchError, match=message):
        slices.parse_slice(accelerator_type, topology)


def test_invalid_zone_raises_with_alternatives():
    v5e = slices.GENERATIONS["v5e"]
    slices.check_zone("us-west4-a", v5e)
    slices.check_zone("us-new9-z", v5e, unlisted=True)
    slices.check_zone("us-new9-z")
    for zone, message in [
        (None, "--zone is missing. v5e is available in europe-west4-b"),
        ("us-west4", "is not a zone. It is a region: append the letter of a zone."),
        ("west", "--zone=west is not a zone"),
        ("us-west4-c", "not known to have v5e .did you mean us-west4-"),
        ("us-central2-b", "If the zone is new, add --unlisted_zone"),
    ]:
        with pytest.raises(slices.LaunchError, match=message):
            slices.check_zone(zone, v5e)


@pytest.mark.parametrize("name", ["", "First", "1st", "first-", "a_b", "a" * 51, "a\n"])
def test_invalid_name_raises(name):
    with pytest.raises(slices.LaunchError, match="Use lower-case letters"):
        slices.check_name("TPU name", name, 50)
    slices.check_name("TPU name", "a" * 50, 50)
