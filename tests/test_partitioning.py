"""Rules, shardings and their errors on eight fake CPU devices."""

import ast

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from t5x_like import partitioning
from t5x_like.kernels import head_exchange
from t5x_like.objectives import gradients
from t5x_like.partitioning import Partitioner, shard


def test_mesh_axis_shards_one_dimension_only():
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"fsdp": 2, "sequence": 2, "tensor": 2})
    assert partitioner.spec(("batch", "length", "embed")) == P("fsdp", "sequence", None)
    assert partitioner.spec(("vocab", "embed")) == P("tensor", ("fsdp", "sequence"))
    assert partitioner.spec(("embed", "heads", "kv")) == P(("fsdp", "sequence"), "tensor", None)
    # A length that is not sharded leaves its mesh axis to no other dimension.
    assert partitioner.spec(("batch", "length", "embed"), (4, 1, 8)) == P("fsdp", None, None)


def test_indivisible_sizes_raise():
    partitioner = Partitioner(rules="fsdp_tp", ici={"fsdp": 2, "tensor": 4})
    with pytest.raises(ValueError, match=r"w: heads=6 is not divisible by the 4 shards of mesh axes tensor=4"):
        partitioner.shardings({"w": nnx.Param(jnp.zeros((8, 6, 4)), axes=("embed", "heads", "kv"))})
    with pytest.raises(ValueError, match="batch=3 is not divisible by the 2 shards"):
        partitioner.put_batch({"x": np.zeros((3, 4), np.int32)})


def test_error_gives_rules_that_replicate_the_dimension():
    partitioner = Partitioner(rules="fsdp_tp", ici={"fsdp": 2, "tensor": 4})
    with pytest.raises(ValueError, match="without 'heads' as PARTITIONING: {'batch'") as raised:
        partitioner.spec(("heads",), (6,), "w")
    rules = ast.literal_eval(str(raised.value).rpartition("PARTITIONING: ")[2])
    partitioner = Partitioner(rules=rules, ici={"fsdp": 2, "tensor": 4})
    assert partitioner.spec(("vocab", "heads"), (8, 6)) == P("tensor", None)


def test_few_heads_of_keys_are_replicated_and_copied_for_each_shard():
    partitioner = Partitioner(rules="fsdp_tp", ici={"fsdp": 2, "tensor": 4})
    assert partitioner.spec(("embed", "kv_heads", "kv"), (8, 8, 4)) == P("fsdp", "tensor", None)
    assert partitioner.spec(("embed", "kv_heads", "kv"), (8, 2, 4)) == P("fsdp", None, None)
    with partitioner.bound():
        assert [head_exchange.kv_head_copies(kv_heads) for kv_heads in (8, 4, 3, 2, 1)] == [1, 1, 1, 2, 4]
    assert head_exchange.kv_head_copies(2) == 1
    # A mapping without a rule for `kv_heads` shards them like the heads of queries.
    assert Partitioner(rules={"heads": "tensor"}, ici={"data": 8}).rules["kv_heads"] == ("tensor",)


def test_heads_within_attention_are_sharded_like_heads_and_positions():
    for length, expected in (("sequence", ("tensor", "sequence")), ("tensor", ("tensor",))):
        partitioner = Partitioner(rules={"heads": "tensor", "length": length}, ici={"data": 8})
        assert partitioner.rules["attention_heads"] == expected


def test_only_features_with_the_length_of_tokens_are_sharded_along_length():
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"fsdp": 2, "sequence": 4})
    shapes = {
        "encoder_input_tokens": (8, 128),
        "token_types": (8, 128),
        "masked_targets": (8, 20),  # divisible by 4, but not the length of tokens
        "next_sentence_label": (8, 1),
    }
    specs = partitioner.batch_specs(shapes)
    assert [spec[1] for spec in specs.values()] == ["sequence", "sequence", None, None]
    assert all(spec[0] == "fsdp" for spec in specs.values())
    batch = partitioner.put_batch({name: np.zeros(shape, np.int32) for name, shape in shapes.items()})
    assert batch["masked_targets"].sharding.shard_shape((8, 20)) == (4, 20)
    with pytest.raises(ValueError, match="decoder_input_tokens: length=114 is not divisible by the 4 shards"):
        partitioner.batch_specs(shapes | {"decoder_input_tokens": (8, 114)})


def test_choices_of_a_row_stay_on_one_device():
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"fsdp": 2, "sequence": 4})
    shapes = {"encoder_input_tokens": (8, 4, 16), "position": (8, 4, 1), "label": (8, 1), "example": (8,)}
    specs = partitioner.batch_specs(shapes)
    assert specs["encoder_input_tokens"] == P("fsdp", None, "sequence") and specs["position"] == P("fsdp", None, None)
    assert specs["label"] == P("fsdp", None) and specs["example"] == P("fsdp")
    with pytest.raises(ValueError, match="encoder_input_tokens: length=18 is not divisible by the 4 shards"):
        partitioner.batch_specs({"encoder_input_tokens": (8, 4, 18)})

    batch = partitioner.put_batch({"encoder_input_tokens": np.arange(8 * 4 * 16, dtype=np.int32).reshape(8, 4, 16)})
    split = partitioner.jit(lambda batch: gradients.split_batch(batch, 2))(batch)["encoder_input_tokens"]
    assert split.sharding.shard_shape(split.shape) == (2, 2, 4, 4)
    np.testing.assert_array_equal(split[1], batch["encoder_input_tokens"][1::2])


def test_axes_of_a_feature_replace_those_of_its_dimensions():
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"fsdp": 2, "sequence": 4})
    rows = {"decoder_input_tokens": np.zeros((8, 16), np.int32), "values": np.ones((8, 16, 6), np.float16)}
    axes = {"values": ("batch", "length", None)}
    assert partitioner.batch_specs({name: x.shape for name, x in rows.items()}, axes)["values"] == P(
        "fsdp", "sequence", None
    )
    batch = partitioner.put_batch(rows, axes)
    split = partitioner.jit(lambda batch: gradients.split_batch(batch, 2, axes))(batch)["values"]
    assert split.sharding.shard_shape(split.shape) == (2, 2, 4, 6) and split.dtype == np.float16
    with pytest.raises(ValueError, match="values has 3 dimensions, but the axes"):
        partitioner.batch_specs({"values": (8, 16, 6)}, {"values": ("batch", "length")})


def test_activations_of_indivisible_length_are_replicated_along_length():
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"fsdp": 2, "sequence": 4})
    assert partitioner.spec(("batch", "length", "embed"), (8, 18, 16)) == P("fsdp", None, None)
    assert (partitioner.axis_size("length", 18), partitioner.axis_size("length", 16)) == (1, 4)


def test_unknown_rules_raise():
    with pytest.raises(ValueError, match="PARTITIONING='zero3' is unknown"):
        Partitioner(rules="zero3")
    with pytest.raises(ValueError, match="rule 'embed': unknown mesh axes"):
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


def test_batches_are_sharded_over_data_axes():
    partitioner = Partitioner(rules="dp", ici={"data": 2, "fsdp": 4})
    batch = partitioner.put_batch({"tokens": np.arange(16, dtype=np.int32).reshape(8, 2)})
    assert batch["tokens"].sharding.is_equivalent_to(NamedSharding(partitioner.mesh, P(("data", "fsdp"))), 2)
    np.testing.assert_array_equal(batch["tokens"], np.arange(16).reshape(8, 2))


def test_single_process_reads_all_rows():
    assert Partitioner(rules="fsdp", ici={"fsdp": 8}).feed_shard == (0, 1)
