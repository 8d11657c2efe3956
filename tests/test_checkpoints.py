"""Checkpoints: round trips across layouts and meshes, what is kept, torn writes, stores that Orbax cannot write."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like import parameters
from t5x_like.checkpoints import Checkpoints
from t5x_like.partitioning import Partitioner


class Layer(nnx.Module):
    def __init__(self, key):
        self.kernel = nnx.Param(jax.random.normal(key, (8, 4)), axes=("embed", "mlp"))


class Net(nnx.Module):
    def __init__(self, key, scanned):
        keys = jax.random.split(key, 3)
        self.layers = jax.vmap(Layer)(keys) if scanned else nnx.List([Layer(k) for k in keys])
        self.scale = nnx.Param(jnp.arange(8.0), axes=("embed",))


def tree(scanned, seed=0):
    return {"params": {"model": Net(jax.random.key(seed), scanned)}, "step": jnp.asarray(7, jnp.int32)}


def assert_equal(a, b):
    left = parameters.stack(parameters.named_leaves(a))
    right = parameters.stack(parameters.named_leaves(b))
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


@pytest.fixture
def partitioner():
    return Partitioner(rules="fsdp", ici={"fsdp": -1})


def test_the_options_of_a_reader_contradict_nothing(tmp_path, caplog):
    with caplog.at_level("WARNING", logger="absl"):
        Checkpoints(str(tmp_path), read_only=True).close()
    assert not [line for line in caplog.messages if "CheckpointManagerOptions" in line]


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("read", [False, True])
def test_restores_into_either_layout_and_another_mesh(tmp_path, partitioner, written, read):
    checkpoints = Checkpoints(str(tmp_path / "c"))
    checkpoints.save(7, tree(written), feed=b"position", about={"versions": {"jax": jax.__version__}})
    checkpoints.close()
    reader = Checkpoints(str(tmp_path / "c"), read_only=True)
    restored = reader.restore(7, jax.eval_shape(lambda: tree(read, seed=1)), partitioner)
    assert_equal(restored, tree(written))
    name = "params/model/layers/kernel" if read else "params/model/layers/1/kernel"
    kernel = parameters.named_leaves(restored)[name]
    assert kernel.sharding.spec[-2] == "fsdp"
    assert reader.restore_feed(7) == b"position"
    assert reader.about(7)["versions"] == {"jax": jax.__version__}
    scale = {"params/model/scale": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=partitioner.replicated)}
    np.testing.assert_array_equal(reader.read(7, scale)["params/model/scale"], np.arange(8.0))


def test_saved_arrays_may_be_donated_at_once(tmp_path, partitioner):
    checkpoints = Checkpoints(str(tmp_path))
    state = tree(False)
    expected = jax.tree.map(np.array, state)
    checkpoints.save(1, state)
    bump = jax.jit(lambda t: jax.tree.map(lambda x: x + 1, t), donate_argnums=0)
    for _ in range(3):
        state = bump(state)
    checkpoints.wait()
    assert_equal(checkpoints.restore(1, jax.eval_shape(lambda: tree(False)), partitioner), expected)


def test_keeps_latest_every_and_best_and_never_loses_the_newest(tmp_path):
    checkpoints = Checkpoints(str(tmp_path), keep_latest=1, keep_every=4, keep_best=1)
    for step, loss in enumerate([5.0, 1.0, 2.0, 3.0, 4.0, 6.0], start=1):
        checkpoints.save(step, tree(True), metrics={"loss": loss})
        checkpoints.wait()
    assert checkpoints.steps() == [2, 4, 6]  # best, every fourth, newest though it is the worst
    checkpoints.close()


def test_a_torn_checkpoint_is_never_chosen(tmp_path):
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save(1, tree(True))
    checkpoints.close()
    torn = tmp_path / "2.orbax-checkpoint-tmp"
    (torn / "state").mkdir(parents=True)
    assert Checkpoints(str(tmp_path)).latest() == 1
    deadline = time.monotonic() + 30
    while torn.exists() and time.monotonic() < deadline:  # it is removed in the background
        time.sleep(0.05)
    assert not torn.exists()


def test_refuses_other_shapes_and_missing_tensors_by_name(tmp_path, partitioner):
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save(1, {"w": jnp.zeros((2, 3))})
    checkpoints.wait()
    with pytest.raises(ValueError, match=r"w has shape \(2, 3\), this run's has \(2, 4\)"):
        checkpoints.restore(1, {"w": jax.ShapeDtypeStruct((2, 4), jnp.float32)}, partitioner)
    with pytest.raises(ValueError, match="no tensor 'v'"):
        checkpoints.restore(1, {"v": jax.ShapeDtypeStruct((2, 4), jnp.float32)}, partitioner)
    with pytest.raises(ValueError, match=r"no complete checkpoint 9 .* there are \[1\]"):
        checkpoints.about(9)


def test_a_store_that_orbax_cannot_write(partitioner):
    url = "memory://bucket/run/checkpoints"
    checkpoints = Checkpoints(url, keep_latest=1)
    for step in (1, 2):
        checkpoints.save(step, tree(True, seed=step), feed=b"%d" % step)
        checkpoints.wait()
    checkpoints.close()
    checkpoints._mirror._filesystem.pipe_file("/bucket/run/checkpoints/3/half", b"written")
    reopened = Checkpoints(url)
    assert reopened.steps() == [2]
    assert_equal(reopened.restore(2, jax.eval_shape(lambda: tree(False)), partitioner), tree(True, seed=2))
    reopened.save(4, tree(True, seed=4))
    reopened.close()
    assert Checkpoints(url).steps() == [2, 4]
    assert not reopened._mirror._filesystem.exists("/bucket/run/checkpoints/3")
