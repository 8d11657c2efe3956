"""The log of the first batch, NaN checks, traces, and explanations of exhausted memory."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import recipes
from jax.sharding import NamedSharding, PartitionSpec

from t5x_like import cli, optimizers
from t5x_like.cli import startup
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.optimizers import schedules
from t5x_like.partitioning import Partitioner
from t5x_like.training import debugging, program

pytestmark = pytest.mark.notf

CONFIGS = Path(__file__).resolve().parents[1] / "processes"
# The message of XLA's allocator on TPU and GPU.
EXHAUSTED = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in hbm. Used 17.20G of 15.48G.

Largest program allocations in hbm:

  1. Size: 6.00G
     Operator: op_name="jit(train_step)/dot_general" source_file="mlp.py"
     Shape: bf16[128,512,49152]{2,1,0:T(8,128)(2,1)}
     Unpadded size: 6.00G

  2. Size: 1.50G
     Shape: bf16[128,512,12288]{2,1,0}
"""


class Source:
    continuous = False

    def batch_shapes(self, spec):
        return {name: (16, length) for name, length in spec.model_lengths({"inputs": 8, "targets": 8}).items()}


def make(partitioner):
    config = T5Config(
        vocab_size=4096, embed_dim=64, mlp_dim=1024, num_heads=4, head_dim=16, encoder_layers=1, decoder_layers=1
    )
    return program.make_program(
        recipes.make(
            model=config,
            objective=SequenceToSequence(),
            optimizer=optimizers.adamw(learning_rate=schedules.constant(0.1)),
            data=Source(),
            partitioner=partitioner,
        )
    )


def test_out_of_memory_error_lists_arrays_and_settings():
    made = make(Partitioner(rules="dp", ici={"data": 8}))
    with pytest.raises(debugging.OutOfMemory) as raised, debugging.explain_out_of_memory(made, microbatches=1):
        raise jax.errors.JaxRuntimeError(EXHAUSTED)
    lines = str(raised.value).splitlines()
    assert "Used 17.20G of 15.48G" in lines[0]
    # Each device has 4096 x 64 embedding parameters of 4 bytes, and two moments per parameter.
    biggest = [line for line in lines if "token_embedder" in line]
    assert len(biggest) == 3 and all(line.startswith("  1.00 MiB  ") for line in biggest)
    assert any("opt_state" in line for line in biggest) and any("params/model" in line for line in biggest)
    assert "  6.00G  bf16[128,512,49152]{2,1,0:T(8,128)(2,1)}  op_name=" in "\n".join(lines)
    advice = "\n".join(lines[lines.index("Settings that save memory:") :])
    assert "--gin.MICROBATCHES=2 (now 1)" in advice
    assert "--gin.T5Config.remat=full (now none)" in advice
    assert "--gin.PARTITIONING=fsdp" in advice
    assert "--gin.BATCH_SIZE=… (now 16)" in advice


def test_memory_is_counted_per_device():
    whole = debugging.describe_memory(make(Partitioner(rules="dp", ici={"data": 8})), 1, "RESOURCE_EXHAUSTED: none")
    split = debugging.describe_memory(make(Partitioner(rules="fsdp", ici={"fsdp": 8})), 1, "RESOURCE_EXHAUSTED: none")
    assert "1.00 MiB  params/model/token_embedder/embedding [4096, 64] float32, shard [4096, 64]" in whole
    assert "0.12 MiB  params/model/token_embedder/embedding [4096, 64] float32, shard [4096, 8]" in split
    assert "--gin.PARTITIONING" not in split  # already sharded over all devices


def test_other_errors_are_not_converted():
    made = make(Partitioner(devices=jax.devices()[:1]))
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), debugging.explain_out_of_memory(made, 1):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")


def test_describe_batch_shows_the_first_row():
    batch = Partitioner(rules="fsdp", ici={"fsdp": 8}).put_batch(
        {"tokens": np.arange(16, dtype=np.int32).reshape(8, 2)}
    )
    spec = batch["tokens"].sharding.spec
    assert debugging.describe_batch(batch) == f"  tokens [8, 2] int32, sharding {spec}: [0 1]"


def test_first_batch_is_logged_only_without_jit(caplog):
    batch = Partitioner(devices=jax.devices()[:1]).put_batch({"tokens": np.zeros((2, 2), np.int32)})
    with caplog.at_level("INFO", logger="absl"):
        debugging.log_first_batch(batch, is_first=True)
        with jax.disable_jit():
            debugging.log_first_batch(batch, is_first=False)
        assert not caplog.messages
        with jax.disable_jit():
            debugging.log_first_batch(batch, is_first=True)
    assert "tokens [2, 2] int32" in caplog.text and "the first step, which prepares all of them" in caplog.text


def test_results_are_sharded_without_jit():
    partitioner = Partitioner(rules="fsdp", ici={"fsdp": 8})
    rows = NamedSharding(partitioner.mesh, PartitionSpec("fsdp"))
    function = partitioner.jit(lambda x: ({"x": 2 * x}, x.sum()), out_shardings=({"x": rows}, None))
    with jax.disable_jit():
        tree, total = function(np.arange(8.0, dtype=np.float32))
    assert tree["x"].sharding.is_equivalent_to(rows, 1) and float(total) == 28


def test_debug_flag_disables_jit_and_checks_for_nans(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(startup, "log", lambda level: None)
    monkeypatch.setattr(startup.quiet_imports, "install", lambda: None)
    before = jax.config.jax_disable_jit, jax.config.jax_debug_nans
    try:
        startup.prepare(cli.parse(["train", "--debug"]))
        assert jax.config.jax_disable_jit and jax.config.jax_debug_nans
        assert os.environ["JAX_DISABLE_JIT"] == os.environ["JAX_DEBUG_NANS"] == "1"
        with pytest.raises(FloatingPointError, match="nan"):
            jax.numpy.log(jax.numpy.float32(-1))
    finally:
        jax.config.update("jax_disable_jit", before[0])
        jax.config.update("jax_debug_nans", before[1])


@pytest.mark.slow
def test_debug_run_logs_its_first_batch_and_writes_a_trace(tmp_path):
    command = [*(sys.executable, "-m", "t5x_like", "train", "--debug", "--cpu_devices=1", "--profile_steps=1:1")]
    command += ["--gin_file=synthetic.gin", f"--gin_search_paths={CONFIGS}", f"--gin.MODEL_DIR={tmp_path}/run"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    command += ["--gin.TRAIN_STEPS=1", "--gin.Periods.evaluate=None", "--gin.SAVE_PERIOD=None"]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stderr.count("encoder_input_tokens [8, 8] int32") == 1
    assert len(list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))) == 1
    assert "traced steps 1 to 1" in result.stderr


def test_trace_is_copied_to_a_store(monkeypatch):
    monkeypatch.setattr(jax.profiler, "start_trace", lambda directory: Path(directory, "plugins").mkdir())
    traced = []
    with debugging.Profile("memory://bucket/run", (3, 4)) as profile:
        for step in range(1, 7):
            profile.before_step(step)
            if profile._directory and not traced:
                Path(profile._directory, "plugins", "host.xplane.pb").write_bytes(b"trace")
                monkeypatch.setattr(jax.profiler, "stop_trace", lambda: None)
            traced += [step] if profile._directory else []
            profile.after_step(step, ())
    assert traced == [3, 4]
    from t5x_like import paths

    assert paths.read_text("memory://bucket/run/profile/plugins/host.xplane.pb") == "trace"
