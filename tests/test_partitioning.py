"""Meshes, rules, and errors with the numbers, on eight pretended devices."""

import ast
import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from t5x_like import partitioning
from t5x_like.partitioning import Partitioner, make_mesh, shard


def test_one_axis_is_filled_in_with_what_is_left():
    assert dict(make_mesh(ici={"fsdp": -1, "tensor": 2}).shape) == {"data": 1, "fsdp": 4, "sequence": 1, "tensor": 2}
    assert dict(make_mesh(devices=jax.devices()[:1]).shape) == {"data": 1, "fsdp": 1, "sequence": 1, "tensor": 1}


@pytest.mark.parametrize(
    "ici, message",
    [
        ({"fsdp": 3}, "does not fit 8 cpu devices: the sizes multiply to 3"),
        ({"fsdp": -1, "tensor": 3}, "does not fit 8 cpu devices"),
        ({"fsdp": -1, "data": -1}, "only one mesh axis can be -1"),
        ({"model": 8}, r"names the mesh axes \['model'\]"),
        ({"fsdp": -1, "tensor": 0}, "a mesh axis has a size of at least 1, or -1, not {'tensor': 0}"),
    ],
)
def test_meshes_that_do_not_fit_are_refused(ici, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(ici=ici)


def test_slices_are_filled_in_too():
    assert dict(make_mesh(ici={"fsdp": -1}, dcn={"data": -1}).shape)["fsdp"] == 8  # all of one slice
    with pytest.raises(ValueError, match="dcn={'data': 2} multiplies to 2, but the devices belong to 1 slices"):
        make_mesh(ici={"fsdp": -1}, dcn={"data": 2})
    with pytest.raises(ValueError, match="dcn=.*only one mesh axis can be -1"):
        make_mesh(dcn={"data": -1, "fsdp": -1})


def test_several_tpu_slices_need_an_axis_between_them():
    of_two = [types.SimpleNamespace(platform="tpu", slice_index=number // 4) for number in range(8)]
    with pytest.raises(ValueError, match="belong to 2 slices, and no mesh axis is said to cross them: give --gin.DCN"):
        make_mesh(ici={"fsdp": -1}, devices=of_two)


def test_a_mesh_axis_serves_one_dimension_only():
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"fsdp": 2, "sequence": 2, "tensor": 2})
    assert partitioner.spec(("batch", "length", "embed")) == P("fsdp", "sequence", None)
    assert partitioner.spec(("vocab", "embed")) == P("tensor", "fsdp")
    assert partitioner.spec(("embed", "heads", "kv")) == P("fsdp", "tensor", None)


def test_what_does_not_divide_is_refused_with_the_numbers():
    partitioner = Partitioner(rules="fsdp_tp", ici={"fsdp": 2, "tensor": 4})
    with pytest.raises(ValueError, match=r"w: heads=6 does not divide by the 4 parts of mesh axes tensor=4"):
        partitioner.shardings({"w": nnx.Param(jnp.zeros((8, 6, 4)), axes=("embed", "heads", "kv"))})
    with pytest.raises(ValueError, match="batch=3 does not divide by the 2 parts"):
        partitioner.put_batch({"x": np.zeros((3, 4), np.int32)})


def test_the_error_says_how_to_leave_a_dimension_whole():
    partitioner = Partitioner(rules="fsdp_tp", ici={"fsdp": 2, "tensor": 4})
    with pytest.raises(ValueError, match="without 'heads' as PARTITIONING: {'batch'") as raised:
        partitioner.spec(("heads",), (6,), "w")
    rules = ast.literal_eval(str(raised.value).rpartition("PARTITIONING: ")[2])
    partitioner = Partitioner(rules=rules, ici={"fsdp": 2, "tensor": 4})
    assert partitioner.spec(("vocab", "heads"), (8, 6)) == P("tensor", None)


def test_tokens_are_split_along_length_and_what_has_another_length_is_whole():
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"fsdp": 2, "sequence": 4})
    shapes = {
        "encoder_input_tokens": (8, 128),
        "token_types": (8, 128),
        "masked_targets": (8, 20),  # divides by 4, and still is no row of tokens
        "next_sentence_label": (8, 1),
    }
    specs = partitioner.batch_specs(shapes)
    assert [spec[1] for spec in specs.values()] == ["sequence", "sequence", None, None]
    assert all(spec[0] == "fsdp" for spec in specs.values())
    batch = partitioner.put_batch({name: np.zeros(shape, np.int32) for name, shape in shapes.items()})
    assert batch["masked_targets"].sharding.shard_shape((8, 20)) == (4, 20)
    with pytest.raises(ValueError, match="decoder_input_tokens: length=114 does not divide by the 4 parts"):
        partitioner.batch_specs(shapes | {"decoder_input_tokens": (8, 114)})


def test_activations_are_whole_along_a_length_that_does_not_divide():
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"fsdp": 2, "sequence": 4})
    assert partitioner.spec(("batch", "length", "embed"), (8, 18, 16)) == P("fsdp", None, None)
    assert (partitioner.axis_size("length", 18), partitioner.axis_size("length", 16)) == (1, 4)


def test_unknown_rules_are_refused():
    with pytest.raises(ValueError, match="no rule set 'zero3'"):
        Partitioner(rules="zero3")
    with pytest.raises(ValueError, match="rule 'embed' names the mesh axes"):
        Partitioner(rules={"embed": "model"})


def test_shard_constrains_within_jit_and_is_the_identity_outside():
    partitioner = Partitioner(rules="fsdp", ici={"fsdp": 8})
    x = np.arange(32.0).reshape(8, 4)
    assert shard(x, "batch", "embed") is x
    y = partitioner.jit(lambda x: shard(x * 2, "batch", "embed"))(x)
    assert y.sharding.is_equivalent_to(NamedSharding(partitioner.mesh, P("fsdp")), 2)
    np.testing.assert_array_equal(y, x * 2)
    assert partitioning.batch_shards() == 1
    with partitioner.bound():
        assert partitioning.batch_shards() == 8


def test_batches_are_split_over_the_data_axes():
    partitioner = Partitioner(rules="dp", ici={"data": 2, "fsdp": 4})
    batch = partitioner.put_batch({"tokens": np.arange(16, dtype=np.int32).reshape(8, 2)})
    assert batch["tokens"].sharding.is_equivalent_to(NamedSharding(partitioner.mesh, P(("data", "fsdp"))), 2)
    np.testing.assert_array_equal(batch["tokens"], np.arange(16).reshape(8, 2))


def test_platform_defaults_fill_only_what_is_left_open():
    @dataclasses.dataclass(frozen=True)
    class Config:
        dtype: str | None = None
        scan_layers: bool | None = None

    assert partitioning.for_platform(Config(), "cpu") == Config("float32", False)
    assert partitioning.for_platform(Config(dtype="float32"), "tpu") == Config("float32", True)
    assert partitioning.for_platform(Config(), "cuda") == Config("bfloat16", True)
