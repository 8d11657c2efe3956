"""The gin file that is suggested to a run without XLA options."""

import types
from pathlib import Path

import jax
import numpy as np
import pytest

from t5x_like import config
from t5x_like.errors import UserError
from t5x_like.planning.tpus import TPUS
from t5x_like.runtime import hardware_files

pytestmark = pytest.mark.notf


def mesh(platform, kind, size=4):
    devices = [types.SimpleNamespace(platform=platform, device_kind=kind)] * size
    return types.SimpleNamespace(devices=np.array(devices), size=size)


def test_options_for_tpus_raise_on_other_devices():
    hardware_files.check(["xla_tpu_scoped_vmem_limit_kib"], "tpu")
    hardware_files.check(["xla_gpu_enable_latency_hiding_scheduler"], "cpu")
    with pytest.raises(UserError, match=r"'xla_tpu_scoped.*an XLA option for TPUs, but .* are cpu. Omit"):
        hardware_files.check(["xla_tpu_scoped_vmem_limit_kib"], "cpu")


def test_unknown_option_raises():
    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    with pytest.raises(UserError, match=r"compiler_options\['xla_no_such'\]: XLA for cpu has no such option"):
        with hardware_files.explain_unknown_options("cpu"):
            lowered.compile(compiler_options={"xla_no_such": 1})


@pytest.mark.parametrize(
    ("found", "file"),
    [
        (mesh("tpu", "TPU v4"), "hardware/v4.gin"),
        (mesh("tpu", "TPU v5 lite"), "hardware/v5e.gin"),
        (mesh("tpu", "TPU v5"), "hardware/v5p.gin"),
        (mesh("tpu", "TPU v6 lite", 1), "hardware/v6e.gin"),
        (mesh("tpu", "TPU7x"), "hardware/tpu7x.gin"),
        (mesh("tpu", "TPU v3"), None),
        (mesh("gpu", "NVIDIA H100 80GB HBM3"), "hardware/gpu.gin"),
        (mesh("gpu", "NVIDIA H100 80GB HBM3", 1), None),
        (mesh("cpu", "cpu"), None),
    ],
    ids=lambda value: value or "none" if isinstance(value, str | None) else value.devices.flat[0].device_kind,
)
def test_file_of_a_mesh(found, file):
    assert hardware_files.file_name(found) == file
    assert file is None or (Path(config.SHIPPED_ROOT) / file).is_file()


def test_file_is_logged_once(caplog):
    hardware_files._log_once.cache_clear()
    for _ in range(2):
        hardware_files.suggest(mesh("tpu", "TPU v5 lite"))
        hardware_files.suggest(mesh("cpu", "cpu"))
        hardware_files.suggest(mesh("tpu", "TPU v4"))
    assert [record.getMessage().partition(" after")[0] for record in caplog.records] == [
        "no XLA options: give --gin_file=hardware/v5e.gin",
        "no XLA options: give --gin_file=hardware/v4.gin",
    ]


def test_all_device_kinds_of_planned_chips_have_a_file():
    kinds = {kind: f"{chip.name}.gin" for chip in TPUS.values() for kind in chip.device_kinds}
    assert kinds == hardware_files._TPUS
