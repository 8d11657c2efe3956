"""The compiled step: a program that does not fit has no speed, also where its compiler returns it."""

import types

import pytest

from t5x_like.planning import collectives, compilation, topologies

PROGRAM = "ENTRY %main (a: f32[8]) -> f32[8] {\n  %a = f32[8]{0} parameter(0)\n  ROOT %b = f32[8]{0} copy(%a)\n}\n"


@pytest.mark.parametrize("part", [0.5, 1.5])
def test_program_that_does_not_fit_has_no_speed(part, monkeypatch):
    topology = topologies.parse("h100:1")
    peak = int(part * topology.chip.hbm_bytes)
    stats = types.SimpleNamespace(peak_memory_in_bytes=peak, generated_code_size_in_bytes=0)
    compiled = types.SimpleNamespace(memory_analysis=lambda: stats, as_text=lambda: PROGRAM)
    lowered = types.SimpleNamespace(compile=lambda compiler_options: compiled)
    traced = types.SimpleNamespace(lower=lambda lowering_platforms: lowered)
    state = types.SimpleNamespace(params={}, replace=lambda params: {})
    program = types.SimpleNamespace(
        abstract_arguments=lambda: (state, types.SimpleNamespace(params={}, teachers={}), {}),
        train_step=types.SimpleNamespace(trace=lambda *_: traced),
    )
    monkeypatch.setattr(compilation, "_mesh", lambda *_: collectives.DeviceMesh({"data": 1}, (0,), ((0,),)))
    monkeypatch.setattr(compilation.optimizers, "merge", lambda *_: {})
    found = compilation.compile_step(program, topology)
    assert found.memory.peak == peak
    assert found.fits == (found.work is not None) == (found.expected is not None) == (part < 1)
