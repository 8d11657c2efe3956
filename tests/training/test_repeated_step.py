"""Repeated steps: a result that differs in one bit names the step, the array and the device."""

import copying_run
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax.sharding import NamedSharding, PartitionSpec

from t5x_like.errors import UserError
from t5x_like.partitioning import Partitioner
from t5x_like.training.repeated_step import RepeatedStep, SilentDataCorruption

pytestmark = pytest.mark.notf


@struct.dataclass
class State:
    step: jax.Array
    params: dict[str, jax.Array]


@pytest.fixture(scope="module")
def mesh():
    return Partitioner(rules="fsdp", ici={"data": 2, "fsdp": 4}).mesh


def shardings(mesh):
    replicated = NamedSharding(mesh, PartitionSpec())
    return State(replicated, {"kernel": NamedSharding(mesh, PartitionSpec("fsdp")), "scale": replicated})


def fresh(mesh):
    params = {"kernel": jnp.arange(8.0), "scale": jnp.ones(3, jnp.bfloat16)}
    return jax.device_put(State(jnp.array(2), params), shardings(mesh))


class Step:
    """A step that doubles the parameters; call number `faulty` flips a bit of one array on one device."""

    def __init__(self, mesh, faulty=0, array="kernel", device=6):
        self._double = jax.jit(
            lambda state, factor: State(state.step + 1, jax.tree.map(lambda x: x * factor, state.params)),
            donate_argnums=0,
            out_shardings=shardings(mesh),
        )
        self.calls, self._faulty, self._array, self._device = 0, faulty, array, device

    def __call__(self, state, frozen, batch):
        self.calls += 1
        state = self._double(state, batch)
        if self.calls == self._faulty:
            array = state.params[self._array]
            shards = [np.array(shard.data) for shard in array.addressable_shards]
            bits = shards[self._device].view(f"uint{8 * array.dtype.itemsize}")
            bits[-1] ^= 1
            devices = [shard.device for shard in array.addressable_shards]
            placed = [jax.device_put(shard, device) for shard, device in zip(shards, devices, strict=True)]
            faulty = jax.make_array_from_single_device_arrays(array.shape, array.sharding, placed)
            state = state.replace(params=state.params | {self._array: faulty})
        return state, {}


def test_only_every_nth_step_is_repeated_and_its_result_is_kept(mesh):
    step = Step(mesh)
    repeated, state = RepeatedStep(step, mesh, shardings(mesh), period=3), fresh(mesh)
    for _ in range(5):  # steps 3 to 7, after a checkpoint of step 2
        state, _ = repeated(state, None, 2.0)
    assert step.calls == 5 + 2  # steps 3 and 6
    np.testing.assert_array_equal(state.params["kernel"], 32 * np.arange(8.0))


@pytest.mark.parametrize("faulty", [1, 2])
@pytest.mark.parametrize("array", ["kernel", "scale"])
def test_one_other_bit_names_step_array_and_device(mesh, faulty, array):
    repeated = RepeatedStep(Step(mesh, faulty, array), mesh, shardings(mesh), period=3)
    message = rf"step 3: .* in 1 of 3 arrays, such as params/{array}, on 1 of 8 devices, of the processes \[0\]: \[6\]"
    with pytest.raises(SilentDataCorruption, match=message):
        repeated(fresh(mesh), None, 2.0)


@pytest.mark.full
def test_run_with_repeated_steps_has_the_same_losses(tmp_path, caplog):
    copying_run.run(tmp_path / "plain", total=4)
    with caplog.at_level("INFO", logger="absl"):
        copying_run.run(tmp_path / "repeated", total=4, repeat=2)
    assert copying_run.losses(tmp_path / "repeated") == copying_run.losses(tmp_path / "plain")
    assert [line[:7] for line in caplog.messages if "repetition gave the same bits" in line] == ["step 2:", "step 4:"]


def test_period_must_be_positive(tmp_path):
    with pytest.raises(UserError, match="Periods.repeat=0 is not positive"):
        copying_run.run(tmp_path / "run", repeat=0)
    assert not (tmp_path / "run").exists()
