"""Updates of microsoft/LoRA, and prompts of google-research/prompt-tuning: outputs by hand, the command, errors."""

import dataclasses

import jax
import numpy as np
import pytest
from adapted_models import bare, base_of, randomized, stacked
from families import FAMILIES, example_batch, logits
from numerics import assert_close

from t5x_like import interop, parameters
from t5x_like.adapters.bottleneck import BottleneckAdapter
from t5x_like.adapters.lora import LoRA
from t5x_like.adapters.prompt import Prompt
from t5x_like.checkpoints import weight_files
from t5x_like.errors import UserError
from t5x_like.interop import adapter_files, adapter_hub, peft, safetensors_files
from t5x_like.interop.adapter_base import Base
from t5x_like.interop.adapter_files import LoralibSettings
from t5x_like.models import construct

RANK, ALPHA = 2, 6.0
FILE, NO_SETTINGS = "lora.safetensors", LoralibSettings()
# Matrix -> which of its equal parts have an update, loralib's `enable_lora`.
MATRICES = {
    "gpt2": {"transformer.h.{i}.attn.c_attn": (True, False, True)},
    "bert": {"bert.encoder.layer.{i}.attention.self." + name: (True,) for name in ("query", "value")},
}


def write_updates(family, config, directory):
    """Writes updates and a merged base model, as loralib computes it, and returns the parameters of the base model."""
    leaves = stacked(randomized(config))
    interop.to_huggingface(leaves, config, str(directory / "base"))
    weights = dict(safetensors_files.Tensors(str(directory / "base")))
    rng, updates = np.random.default_rng(1), {}
    for layer in range(config.num_layers):
        for matrix, enabled in MATRICES[family].items():
            name = matrix.format(i=layer)
            key = next(key for key in weights if name.endswith(key.removesuffix(".weight")))
            weight = weights[key].T if family == "gpt2" else weights[key]  # [outputs, inputs]
            groups, outputs = sum(enabled), len(weight) // len(enabled)
            down = rng.normal(size=(RANK * groups, weight.shape[1])).astype(np.float32)
            up = rng.normal(size=(outputs * groups, RANK)).astype(np.float32)
            updates |= {f"{name}.lora_A": down, f"{name}.lora_B": up}
            weight, pairs = weight.copy(), zip(np.split(up, groups), np.split(down, groups), strict=True)
            for part in np.flatnonzero(enabled):
                own_up, own_down = next(pairs)
                weight[part * outputs : (part + 1) * outputs] += ALPHA / RANK * own_up @ own_down
            weights[key] = weight.T if family == "gpt2" else weight
    safetensors_files.write(str(directory), updates, file=FILE)
    (directory / "merged").mkdir()
    (directory / "merged/config.json").write_bytes((directory / "base/config.json").read_bytes())
    safetensors_files.write(str(directory / "merged"), weights)
    return leaves


def rebuilt(config, leaves):
    model = construct.make(config, jax.random.key(1))
    return parameters.unstack({name.removeprefix("model/"): leaf for name, leaf in leaves.items()}, model)


@pytest.mark.parametrize("family", MATRICES)
def test_updates_of_loralib_have_the_outputs_of_its_merged_model(tmp_path, family):
    config, batch = base_of(family), example_batch(FAMILIES[family])
    leaves = write_updates(family, config, tmp_path)
    settings = LoralibSettings(ALPHA)
    adapters, read, head = adapter_files.read(str(tmp_path / FILE), Base(config, leaves), settings)
    assert head is None and [(each.rank, each.alpha) for each in adapters] == [(RANK, ALPHA)]
    assert {name.split("/")[-3] for name in read} == {"query", "value"}
    found = rebuilt(dataclasses.replace(config, adapters=adapters), leaves | read)
    expected = rebuilt(config, interop.read(str(tmp_path / "merged"), config))
    assert_close({"logits": logits(found, batch)}, {"logits": logits(expected, batch)}, 1e-5)


def test_invalid_files_of_loralib_raise(tmp_path):
    config, path = base_of("gpt2"), str(tmp_path / FILE)
    write_updates("gpt2", config, tmp_path)
    with pytest.raises(
        UserError, match="the files of loralib do not have α. Give lora_alpha of its training as LORALIB_A"
    ):
        adapter_files.read(path, Base(config, {}), NO_SETTINGS)
    with pytest.raises(UserError, match="updates of 2 of its 3 parts, of which LORALIB_PATTERN='query.' matches 1"):
        adapter_files.read(path, Base(config, {}), LoralibSettings(ALPHA, "query$"))
    with pytest.raises(UserError, match="c_attn.lora_A' is neither an update of a projection of BertConfig nor a head"):
        adapter_files.read(path, Base(base_of("bert"), {}), LoralibSettings(ALPHA))
    (pickled := tmp_path / "lora.pt").touch()
    message = weight_files.explain_missing(str(pickled))
    assert f"{pickled}: a pickled file" in message and f"}}, '{tmp_path}/lora.safetensors')\"" in message


def test_array_is_a_prompt(tmp_path):
    config, batch = base_of("gpt2"), example_batch(FAMILIES["gpt2"])
    model = randomized(dataclasses.replace(config, adapters=(Prompt(length=3, initialization="uniform"),)))
    leaves, path = stacked(model), str(tmp_path / "prompt.npy")
    (name,) = leaves.keys() - bare(leaves).keys()
    np.save(path, leaves[name])
    adapters, read, _ = adapter_files.read(path, Base(config, bare(leaves)), NO_SETTINGS)
    found = rebuilt(dataclasses.replace(config, adapters=adapters), bare(leaves) | read)
    np.testing.assert_array_equal(found(batch).hidden, model(batch).hidden)

    np.save(path, leaves[name][:, :5])
    with pytest.raises(UserError, match=r"prompt.npy: shape \(3, 5\), not \[tokens, \d+\]. Give an array"):
        adapter_files.read(path, Base(config, bare(leaves)), NO_SETTINGS)
    (tmp_path / "prompt.npy").write_text("text")
    with pytest.raises(UserError, match="prompt.npy: not an array in the format of NumPy"):
        adapter_files.read(path, Base(config, bare(leaves)), NO_SETTINGS)


def test_convert_reads_updates_of_loralib_and_an_array(tmp_path, run_command):
    config = base_of("gpt2")
    write_updates("gpt2", config, tmp_path)
    np.save(tmp_path / "prompt.npy", np.ones((2, config.embed_dim), np.float32))
    for file, flags, shown in ((FILE, ["--gin.LORALIB_ALPHA=6"], LoRA), ("prompt.npy", [], Prompt)):
        output = tmp_path / shown.__name__
        given = [f"--input={tmp_path / file}", f"--output={output}", f"--gin.BASE_PATH={tmp_path / 'base'}"]
        code, text = run_command(["convert", *given, *flags])
        assert code == 0, text
        assert f"{shown.__name__}()" in (output / "config.gin").read_text()


@pytest.mark.full
def test_heads_of_the_base_model_are_kept(tmp_path, caplog):
    config = base_of("bert")
    adapted = dataclasses.replace(config, adapters=(BottleneckAdapter(size=3),))
    leaves = stacked(randomized(adapted))
    head = {"objective/masked_lm/bias": np.ones(config.vocab_size, np.float32)}
    base = Base(config, bare(leaves) | head)
    adapter_hub.write(adapted, leaves, str(tmp_path / "blocks"))
    (tmp_path / "blocks" / "head_config.json").write_text("{}")
    np.save(tmp_path / "prompt.npy", np.ones((2, config.embed_dim), np.float32))
    peft.write(dataclasses.replace(config, adapters=(LoRA(),)), lora_leaves(config), str(tmp_path / "lora"))
    for name in ("blocks", "prompt.npy", "lora"):
        _, read, task_head = adapter_files.read(str(tmp_path / name), base, NO_SETTINGS)
        assert task_head is None and head.keys() <= read.keys(), name
    assert "the head of head_config.json is not read" in caplog.text


def lora_leaves(config):
    return stacked(randomized(dataclasses.replace(config, adapters=(LoRA(),))))
