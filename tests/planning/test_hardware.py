"""XLA options in `gin_configs/hardware`: a file per TPU generation and one for GPUs, with a reason for each option.

`T5X_LIKE_UPDATE_GOLDENS=1 pytest -m notf tests/planning/test_hardware.py` updates the golden of compiled steps.
"""

import importlib.metadata
import importlib.util
import json
import os
import types
from pathlib import Path

import pytest
import recipes

from t5x_like import config, optimizers
from t5x_like.config.operative import flatten
from t5x_like.models.llama import LlamaConfig
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.planning.tpus import TPUS

ALL_FILES = sorted((Path(config.SHIPPED_ROOT) / "hardware").glob("*.gin"))
GPU = Path(config.SHIPPED_ROOT) / "hardware/gpu.gin"
FILES = [file for file in ALL_FILES if file != GPU]
SLICES = {chip.name: f"{chip.name}:{'x'.join(['2'] * chip.dimensions)}" for chip in TPUS.values()}


def options(file):
    resolved = config.load(
        "t5x_like.train.train",
        files=["commands/train.gin", "models/t5_1_1/small.gin", "runs/pretrain.gin", f"hardware/{file.name}"],
        bindings=[("MIXTURE_OR_TASK_NAME", "a_task"), ("TRAIN_STEPS", "10")],
        given=("run_config",),
    )
    written = flatten(resolved.text)["t5x_like.training.recipe.Update.compiler_options"]
    return json.loads(written.replace("'", '"').replace("True", "true"))


def test_all_generations_have_a_file():
    assert {file.stem for file in FILES} == set(TPUS)


@pytest.mark.parametrize("file", ALL_FILES, ids=lambda file: file.stem)
def test_training_run_receives_the_options(file):
    written = [line.split("'")[1] for line in file.read_text().splitlines() if line.startswith("    'xla_")]
    assert list(options(file)) == written != []


@pytest.mark.parametrize("file", ALL_FILES, ids=lambda file: file.stem)
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
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, of the extra plan")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_compiler_accepts_the_options(file):
    import jax
    import jax.numpy as jnp

    from t5x_like.partitioning import Partitioner
    from t5x_like.planning import topologies

    partitioner = Partitioner(devices=topologies.devices(SLICES[file.stem]))
    doubled = partitioner.jit(lambda x: 2 * x, compiler_options=options(file))
    doubled.lower(jax.ShapeDtypeStruct((8, 128), jnp.float32, sharding=partitioner.replicated)).compile()


GOLDEN = Path(__file__).parents[1] / "goldens" / "compiled_steps.txt"
# Slices that compile in seconds. A chip of TPU7x is two devices.
COMPILED = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}
MESHES = [
    *((name, {"fsdp": 4 * TPUS[name].devices_per_chip}) for name in COMPILED),
    ("v5e", {"data": 2, "fsdp": 2}),
]
# Attention of so few queries is computed by XLA.
MODEL = LlamaConfig(
    vocab_size=512,
    embed_dim=512,
    mlp_dim=1024,
    num_heads=4,
    num_kv_heads=2,
    head_dim=128,
    num_layers=2,
    max_length=64,
)
ROWS, LENGTH = 16, 64


def compiled_work(name, ici):
    """Compiles a train step with the options of a generation, and returns its work as lines of the golden."""
    from t5x_like.partitioning import Partitioner
    from t5x_like.planning import topologies
    from t5x_like.planning.compilation import compile_step
    from t5x_like.training.program import make_program

    objective = CausalLM()
    step = ", ".join([name, *(f"{axis} {size}" for axis, size in ici.items())])
    shapes = {feature: (ROWS, LENGTH) for feature in objective.features.dtypes}
    program = make_program(
        recipes.make(
            model=MODEL,
            objective=objective,
            optimizer=optimizers.adamw(learning_rate=1e-3),
            data=types.SimpleNamespace(batch_shapes=lambda features: shapes),
            partitioner=Partitioner(ici=ici, devices=topologies.devices(COMPILED[name])),
            compiler_options=options(Path(f"{name}.gin")),
        )
    )
    compiled = compile_step(program, topologies.parse(COMPILED[name]))
    work = compiled.work
    yield f"{step}: {work.flops:,.0f} FLOPs, {work.hbm_bytes:,.0f} bytes to and from HBM"
    yield f"{step}: {compiled.memory.peak / 2**20:,.0f} MiB at the peak"
    for (kind, axis), sent in sorted(work.collectives.items()):
        counted = f"{sent.count} collectives, {sent.bytes:,.0f} bytes"
        yield f"{step}: {kind} over {axis}: {counted}, the core waits for {sent.synchronous_bytes:,.0f}"


@pytest.mark.notf
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, of the extra plan")
def test_work_of_compiled_steps_equals_the_golden():
    """Times are not part of the golden. Another version of the compiler may compile other collectives."""
    version, golden = f"libtpu {importlib.metadata.version('libtpu')}", GOLDEN.read_text()
    update = os.environ.get("T5X_LIKE_UPDATE_GOLDENS")
    made_with = golden.splitlines()[0]
    if made_with != version and not update:
        pytest.skip(f"the golden was made with {made_with}, and this is {version}")
    text = "\n".join([version, *(line for step in MESHES for line in compiled_work(*step))]) + "\n"
    if update:
        GOLDEN.write_text(text)
    else:
        assert text == golden
