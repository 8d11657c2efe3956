"""Steps that XLA's compiler for GPUs compiles on a host without GPUs. Skipped without the extra `plan-gpu`."""

import dataclasses
import importlib.util
import json
import types

import pytest
import recipes

from t5x_like import optimizers, plan
from t5x_like.models.llama import LlamaConfig
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.partitioning import Partitioner
from t5x_like.planning import breakdown, topologies

pytestmark = [
    pytest.mark.notf,
    pytest.mark.full,
    pytest.mark.skipif(
        importlib.util.find_spec("jax_cuda13_plugin") is None, reason="needs XLA's compiler for GPUs, of plan-gpu"
    ),
]
MODEL = LlamaConfig(
    vocab_size=512, embed_dim=256, mlp_dim=512, num_heads=4, num_kv_heads=2, head_dim=64, num_layers=2, max_length=256
)
ROWS, LENGTH = 16, 256


T5 = T5Config(vocab_size=512, embed_dim=256, mlp_dim=512, num_heads=4, head_dim=64, encoder_layers=2, decoder_layers=2)


def recipe(topology, model=MODEL, objective=None, **partitioner):
    objective = objective or CausalLM()
    shapes = {feature: (ROWS, LENGTH) for feature in objective.features.dtypes}
    return recipes.make(
        model=model,
        objective=objective,
        optimizer=optimizers.adamw(learning_rate=1e-3),
        data=types.SimpleNamespace(batch_shapes=lambda features: shapes),
        partitioner=Partitioner(devices=topologies.devices(topology), **partitioner),
    )


def test_plan_of_two_hosts(tmp_path, capsys):
    given = recipe("h100:2x2", ici={"fsdp": 2}, dcn={"data": 2})
    found = plan.plan(recipe=given, topology="h100:2x2", json_path=str(tmp_path / "plan.json"))
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["fits"] and written["chips"] == 4 and written["mesh"]["data"] == written["mesh"]["fsdp"] == 2
    # The embeddings of tokens are looked up, and cuDNN skips what the causal mask hides.
    assert 0.9 < written["executed_flops"] / written["model_flops"] < 1.05
    assert written["loops_of_unknown_length"] == [] and written["kernels_without_cost"] == []
    sent = written["collective_bytes"]
    assert sent["all-gather"]["fsdp"] > 2 * found.parameters * 2 * 0.5 * 0.5  # kernels in bfloat16, in two passes
    assert 0 < written["dcn_bytes"] < sum(count for axes in sent.values() for count in axes.values())
    parts = written["expected_breakdown"]
    assert set(parts) == set(breakdown.PARTS) and all(share["seconds"] > 0 for share in parts.values())
    assert parts[breakdown.ATTENTION]["flops"] > 0 and parts[breakdown.LOSS]["flops"] > 0
    assert written["expected_parts"]["seconds"] == pytest.approx(sum(share["seconds"] for share in parts.values()))
    assert "jax-cuda13-plugin" in written["versions"]
    text = capsys.readouterr().out
    assert "h100:2x2: 4 chips, mesh data 2 x fsdp 2" in text and "the roofline of each kernel" in text


@pytest.mark.parametrize("gpu", ["h200", "b200", "a100-40", "a100-80", "l4"])
def test_compiler_knows_the_other_gpus(gpu):
    found = plan.plan(recipe=recipe(f"{gpu}:1"), topology=f"{gpu}:1")
    assert found.compiled.fits and found.compiled.expected.by_part[breakdown.ATTENTION].flops > 0
    assert found.compiled.memory.peak > found.compiled.memory.parameters + found.compiled.memory.optimizer


@pytest.mark.parametrize("gpus", [1, 2])
def test_self_attention_of_t5_uses_the_triton_kernels(gpus, tmp_path):
    model = dataclasses.replace(T5, dtype="bfloat16")
    given = recipe(f"h100:{gpus}", model, SequenceToSequence(), ici={"data": gpus})
    found = plan.plan(recipe=given, topology=f"h100:{gpus}", json_path=str(tmp_path / "plan.json"))
    kinds = {each["kind"] for each in json.loads((tmp_path / "plan.json").read_text())["expected_largest"]}
    assert {"triton_attention_forward", "triton_attention_backward_keys"} <= kinds
    assert not found.compiled.work.unknown_kernels


def test_search():
    found = plan.plan(recipe=recipe("h100:2"), topology="h100:2", search_for=1)
    assert found.mesh["data"] * found.mesh["fsdp"] * found.mesh["tensor"] == 2 and found.mfu_expected > 0
