"""XLA options in `gin_configs/hardware`: a file per TPU generation and one for GPUs, with a reason for each option."""

import importlib.util
import json
from pathlib import Path

import pytest

from t5x_like import config
from t5x_like.config.operative import flatten
from t5x_like.planning.chips import CHIPS

SHARED = "tpu"  # options that the files of several generations include
ALL_FILES = sorted((Path(config.SHIPPED_ROOT) / "hardware").glob("*.gin"))
GPU = Path(config.SHIPPED_ROOT) / "hardware/gpu.gin"
FILES = [file for file in ALL_FILES if file.stem != SHARED and file != GPU]
SLICES = {chip.name: f"{chip.name}:{'x'.join(['2'] * chip.dimensions)}" for chip in CHIPS.values()}


def options(file):
    resolved = config.load(
        "t5x_like.train.train",
        files=["models/t5_1_1/small.gin", "runs/pretrain.gin", f"hardware/{file.name}"],
        bindings=[("MIXTURE_OR_TASK_NAME", "a_task"), ("TRAIN_STEPS", "10")],
        given=("run_config",),
    )
    written = flatten(resolved.text)["t5x_like.train.train.compiler_options"]
    return json.loads(written.replace("'", '"').replace("True", "true"))


def test_all_generations_have_a_file():
    assert {file.stem for file in FILES} == set(CHIPS)


@pytest.mark.parametrize("file", [*FILES, GPU], ids=lambda file: file.stem)
def test_training_run_receives_the_options(file):
    assert all(name.startswith("xla_") for name in options(file))


@pytest.mark.parametrize(
    "file", [file for file in ALL_FILES if f"hardware/{SHARED}.gin" not in file.read_text()], ids=lambda file: file.stem
)
def test_options_have_a_reason(file):
    lines = file.read_text().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("    'xla_")]
    groups = [number for number in starts if not lines[number - 1].startswith("    'xla_")]
    assert groups and all(lines[number - 1].lstrip().startswith("#") for number in groups)


def test_compiler_accepts_the_options_for_gpus():
    # XLA parses the options of all platforms on each of them, and raises an error for unknown ones.
    import jax

    jax.jit(lambda x: 2 * x, compiler_options=options(GPU)).lower(1.0).compile()
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        jax.jit(lambda x: 2 * x, compiler_options={"xla_gpu_enable_nothing": True}).lower(1.0).compile()


@pytest.mark.notf
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install 't5x_like[plan]'")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_compiler_accepts_the_options(file):
    import jax
    import jax.numpy as jnp

    from t5x_like.partitioning import Partitioner
    from t5x_like.planning import topologies

    partitioner = Partitioner(devices=topologies.devices(SLICES[file.stem]))
    doubled = partitioner.jit(lambda x: 2 * x, compiler_options=options(file))
    doubled.lower(jax.ShapeDtypeStruct((8, 128), jnp.float32, sharding=partitioner.replicated)).compile()
