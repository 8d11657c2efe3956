"""Arrays that are attached to the rows of a cache: shapes, axes, and data that cannot have them."""

import dataclasses

import pytest
from jax.sharding import PartitionSpec

from t5x_like.data import specs
from t5x_like.data.attached import Attached, refuse_attached
from t5x_like.errors import UserError
from t5x_like.objectives.joint import merge_features
from t5x_like.partitioning import Partitioner

STORED = {"directory": "logits", "positions": 8, "dtype": "float16", "origin": "a"}
VALUES = Attached(name="teacher_logits/t/targets/values", width=3, **STORED)
TAIL = Attached(name="teacher_logits/t/targets/log_tail", **STORED)
SPEC = dataclasses.replace(specs.CAUSAL_LM, attached=(VALUES, TAIL))


def test_attached_arrays_are_features_of_a_batch():
    shapes = SPEC.row_shapes({"targets": 8})
    assert (shapes[VALUES.name], shapes[TAIL.name]) == ((8, 3), (8,))
    assert SPEC.dtypes[VALUES.name] == "float16"
    assert SPEC.digest == specs.CAUSAL_LM.digest != dataclasses.replace(SPEC, bos_id=5).digest
    assert merge_features([SPEC, specs.CAUSAL_LM]).attached == (VALUES, TAIL)


def test_positions_are_sharded_as_tokens_are():
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"fsdp": 2, "sequence": 4})
    shapes = {name: (4, *shape) for name, shape in SPEC.row_shapes({"targets": 8}).items()}
    found = partitioner.batch_specs(shapes, SPEC.axes)
    assert found[VALUES.name] == PartitionSpec("fsdp", "sequence", None)
    assert found[TAIL.name] == found["decoder_input_tokens"] == PartitionSpec("fsdp", "sequence")


def test_live_data_refuse_attached_arrays():
    refuse_attached((), "a_task")
    with pytest.raises(UserError, match="logits belongs to the rows of a cache, but a_task is a live task. Write the"):
        refuse_attached(SPEC.attached, "a_task")
