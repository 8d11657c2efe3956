"""Adapters in peft's files: what is written has the same outputs there, and what peft wrote has them here."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from adapted_models import bare, base_of, randomized, stacked
from families import FAMILIES, example_batch
from numerics import assert_close
from peft_models import (
    CLASSES,
    LENGTH,
    METHODS,
    MLP,
    PREFIX,
    PROMPT,
    mlp_weights,
    outputs,
    rebuilt,
    torch_outputs,
    write_base,
    write_small,
)

from t5x_like import optimizers, parameters
from t5x_like.adapters.bottleneck import BottleneckAdapter
from t5x_like.adapters.ia3 import IA3
from t5x_like.adapters.lora import LoRA
from t5x_like.adapters.lora_embedding import EmbeddingLoRA
from t5x_like.errors import UserError
from t5x_like.interop import peft, safetensors_files
from t5x_like.interop.adapter_base import Base
from t5x_like.models import construct

FROZEN = (optimizers.ParameterGroup("^model/(?!.*/adapter/)", freeze=True),)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "targets", "tied_logits"),
    [
        ("bert", ["word_embeddings"], False),
        ("gpt2", ["wte"], False),
        ("gpt2", ["wte", "lm_head"], True),
        ("llama", ["embed_tokens"], False),
    ],
)
def test_updates_of_embeddings_have_the_same_outputs_in_peft(tmp_path, family, targets, tied_logits):
    import torch

    transformers, library = pytest.importorskip("transformers"), pytest.importorskip("peft")
    config, batch = base_of(family), example_batch(FAMILIES[family])
    adapters = (*METHODS["lora"], EmbeddingLoRA(rank=4, alpha=6.0, tied_logits=tied_logits))
    model = randomized(dataclasses.replace(config, adapters=adapters))
    leaves = stacked(model)
    write_base(config, leaves, tmp_path / "base")
    peft.write(model.config, leaves, str(tmp_path / "ours"), base=str(tmp_path / "base"))
    theirs = getattr(transformers, CLASSES[family]).from_pretrained(tmp_path / "base")
    theirs = library.PeftModel.from_pretrained(theirs, tmp_path / "ours")
    expected = outputs(model, batch, family)
    assert_close({"output": torch_outputs(theirs, batch, family)}, {"output": expected}, 1e-5)
    found, read, _ = peft.read(str(tmp_path / "ours"), Base(config, bare(leaves)))
    assert found[-1] == adapters[-1]
    assert_close({"output": outputs(rebuilt(config, found, leaves, read), batch, family)}, {"output": expected}, 1e-5)

    # An update of embeddings alone, that peft made.
    torch.manual_seed(0)
    theirs = getattr(transformers, CLASSES[family]).from_pretrained(tmp_path / "base")
    settings = library.LoraConfig(
        r=3, lora_alpha=5, target_modules=targets, ensure_weight_tying=tied_logits, init_lora_weights=False
    )
    theirs = library.get_peft_model(theirs, settings)
    theirs.save_pretrained(tmp_path / "theirs")
    found, read, _ = peft.read(str(tmp_path / "theirs"), Base(config, bare(leaves)))
    output = outputs(rebuilt(config, found, leaves, read), batch, family)
    assert_close({"output": output}, {"output": torch_outputs(theirs, batch, family)}, 1e-5)


@pytest.mark.parity
@pytest.mark.parametrize("method", METHODS | PROMPT | PREFIX | MLP)
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_ten_training_steps_equal_those_of_peft(tmp_path, family, method):
    """AdamW on the added parameters: losses of ten steps, and the outputs after them."""
    import torch

    transformers, library = pytest.importorskip("transformers"), pytest.importorskip("peft")
    config, batch = base_of(family), example_batch(FAMILIES[family])
    model = randomized(dataclasses.replace(config, adapters=(METHODS | PROMPT | PREFIX | MLP)[method]))
    leaves = stacked(model)
    write_base(config, leaves, tmp_path / "base")
    peft.write(model.config, leaves, str(tmp_path / "adapter"), base=str(tmp_path / "base"))
    theirs = getattr(transformers, CLASSES[family]).from_pretrained(tmp_path / "base")
    if method not in METHODS:  # peft does not train a prompt or a prefix that it has read
        task = json.loads((tmp_path / "adapter" / peft.CONFIG).read_text())["task_type"]
        settings = {"num_virtual_tokens": LENGTH, "task_type": task}
        if method == "prompt":
            settings = library.PromptTuningConfig(**settings)
        else:
            hidden = {"prefix_projection": True, "encoder_hidden_size": 5} if method == "mlp" else {}
            settings = library.PrefixTuningConfig(**settings, **hidden)
        theirs = library.get_peft_model(theirs, settings)
        written = safetensors_files.Tensors(str(tmp_path / "adapter"), peft.WEIGHTS)["prompt_embeddings"]
        weights = mlp_weights(leaves) if method == "mlp" else {"embedding.weight": written}
        theirs.prompt_encoder["default"].load_state_dict({name: torch.tensor(x) for name, x in weights.items()})
    else:
        theirs = library.PeftModel.from_pretrained(theirs, tmp_path / "adapter", is_trainable=True)
    theirs.eval()
    weights = np.random.default_rng(4).normal(size=outputs(model, batch, family).shape).astype(np.float32)

    trained, fixed = optimizers.split({"model": model, "objective": {}}, FROZEN)
    update = optax.adamw(1e-2, weight_decay=0.0)

    def loss(trained):
        found = outputs(optimizers.merge(trained, fixed)["model"], batch, family)
        return jnp.mean(weights * found + 0.1 * found**2)

    @jax.jit
    def step(trained, state):
        value, gradient = jax.value_and_grad(loss)(trained)
        updates, state = update.update(gradient, state, trained)
        return optax.apply_updates(trained, updates), state, value

    own = [parameter for parameter in theirs.parameters() if parameter.requires_grad]
    torch_update = torch.optim.AdamW(own, lr=1e-2, weight_decay=0.0)
    state, losses, their_losses = update.init(trained), [], []
    inputs = torch.tensor(next(iter(batch.values())).astype(np.int64))
    for _ in range(10):
        trained, state, value = step(trained, state)
        losses.append(float(value))
        result = theirs(input_ids=inputs)
        found = result.last_hidden_state if CLASSES[family] == "AutoModel" else result.logits
        found = found[:, -inputs.shape[1] :]  # without the prompt
        their_loss = torch.mean(torch.tensor(weights) * found + 0.1 * found**2)
        torch_update.zero_grad()
        their_loss.backward()
        torch_update.step()
        their_losses.append(their_loss.item())
    assert losses[0] - losses[-1] > 1e-3
    np.testing.assert_allclose(losses, their_losses, rtol=2e-5, atol=2e-6)
    expected = outputs(optimizers.merge(trained, fixed)["model"], batch, family)
    found = torch_outputs(theirs, batch, family)[:, -inputs.shape[1] :]
    assert_close({"output": found}, {"output": expected}, 5e-5)


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS | PREFIX)
def test_convert_reads_and_writes_adapters_with_the_head_of_a_task(tmp_path, run_command, method):
    config = base_of("bert")
    adapted = dataclasses.replace(config, adapters=(METHODS | PREFIX)[method])
    leaves = stacked(randomized(adapted))
    write_base(config, leaves, tmp_path / "base")
    draw = np.random.default_rng(1).normal
    pooler, classifier = (f"objective/sequence_classification/{name}" for name in ("pooler", "classifier"))
    width = config.embed_dim
    leaves |= {f"{pooler}/kernel": draw(size=(width, width)), f"{pooler}/bias": draw(size=width)}
    leaves |= {f"{classifier}/kernel": draw(size=(width, 3)), f"{classifier}/bias": draw(size=3)}
    peft.write(adapted, leaves, str(tmp_path / "one"), base=str(tmp_path / "base"))
    assert json.loads((tmp_path / "one" / peft.CONFIG).read_text())["task_type"] == "SEQ_CLS"
    commands = [("one", "run"), ("run", "two", "--merge=False")]
    for source, output, *flags in [*commands, ("run", "merged")] if method in METHODS else commands:
        given = [
            f"--input={tmp_path / source}",
            f"--output={tmp_path / output}",
            f"--gin.BASE_PATH={tmp_path / 'base'}",
        ]
        code, text = run_command(["convert", *given, *flags])
        assert code == 0, text
    first, second = (safetensors_files.Tensors(str(tmp_path / each), peft.WEIGHTS) for each in ("one", "two"))
    assert set(first) == set(second)
    for name in first:
        scale = 1.0  # of LoRA's updates, which rsLoRA multiplies by another factor
        if method == "lora" and "output.dense.lora_B" in name:
            scale = first[name].max() / second[name].max()
        if first[name].shape == second[name].shape:
            np.testing.assert_allclose(first[name], scale * second[name], rtol=1e-5, atol=1e-6, err_msg=name)
    if method not in METHODS:  # a prefix is not merged
        return
    stored = json.loads((tmp_path / "merged/config.json").read_text())
    assert stored["architectures"] == ["BertForSequenceClassification"] and len(stored["id2label"]) == 3


def test_convert_without_the_base_of_adapters_raises(tmp_path, run_command):
    write_small(tmp_path / "adapter")
    code, text = run_command(["convert", f"--input={tmp_path / 'adapter'}", f"--output={tmp_path / 'run'}"])
    assert code == 2 and "the base model None is not a Hugging Face directory" in text and "BASE_PATH" in text
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_files_of_adapters_apply_to_hugging_face_directories(tmp_path, run_command):
    config = base_of("bert")
    write_base(config, stacked(randomized(config)), tmp_path / "base")
    files = ["--gin_file=runs/pretrain.gin", "--gin_file=adapters/lora.gin", "--gin.LORA_RANK=3"]
    task = ["--gin.MIXTURE_OR_TASK_NAME=python_docs_masked_lm", "--gin.TRAIN_STEPS=1"]
    task.append("--gin.TASK_FEATURE_LENGTHS={'inputs': 16, 'targets': 4}")
    code, text = run_command(["train", "--dry_run", f"--gin.HF_PATH={tmp_path / 'base'}", *files, *task])
    assert code == 2 and "vocab_size" in text and "LORA_RANK" not in text, text  # the data has more token ids


def test_invalid_directories_raise(tmp_path):
    config, leaves = write_small(tmp_path)
    settings = json.loads((tmp_path / peft.CONFIG).read_text())
    for changes, message in (
        ({"peft_type": "LOHA"}, "peft_type 'LOHA': not supported. Give LoRA"),
        ({"bias": "all"}, "bias 'all': not supported"),
        ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens .5.: not supported, only None"),
        (
            {"init_lora_weights": "pissa_niter_4"},
            "'pissa_niter_4' changes the weights of the base model: not supported",
        ),
    ):
        (tmp_path / peft.CONFIG).write_text(json.dumps(settings | changes))
        with pytest.raises(UserError, match=message):
            peft.read(str(tmp_path), Base(config, bare(leaves)))
    (tmp_path / peft.CONFIG).write_text(json.dumps(settings))
    with pytest.raises(UserError, match="no update of a projection of the base model found|neither an update of a"):
        peft.read(str(tmp_path), Base(FAMILIES["gpt2"].config, {}))
    (tmp_path / peft.WEIGHTS).rename(tmp_path / "adapter_model.bin")
    with pytest.raises(UserError, match="adapter_model.safetensors not found. Files that are pickled"):
        peft.read(str(tmp_path), Base(config, bare(leaves)))


def test_missing_tensors_and_settings_raise(tmp_path):
    config, leaves = write_small(tmp_path)
    tensors = dict(safetensors_files.Tensors(str(tmp_path), peft.WEIGHTS))
    last = max(name for name in tensors if "lora_B" in name)
    safetensors_files.write(str(tmp_path), {n: x for n, x in tensors.items() if n != last}, file=peft.WEIGHTS)
    with pytest.raises(UserError, match="lora_B' not found. Save the adapter again"):
        peft.read(str(tmp_path), Base(config, bare(leaves)))
    settings = json.loads((tmp_path / peft.CONFIG).read_text())
    del settings["lora_alpha"]
    (tmp_path / peft.CONFIG).write_text(json.dumps(settings))
    with pytest.raises(UserError, match="key 'lora_alpha' not found. Save the adapter again"):
        peft.read(str(tmp_path), Base(config, bare(leaves)))


def test_updates_of_one_matrix_may_have_several_scales(tmp_path):
    config, batch = base_of("gpt2"), example_batch(FAMILIES["gpt2"])
    adapters = (LoRA(pattern="query$", rank=2, alpha=4.0), LoRA(pattern="value$", rank=3, alpha=16.0))
    model = randomized(dataclasses.replace(config, adapters=adapters))
    leaves = stacked(model)
    peft.write(model.config, leaves, str(tmp_path))
    found, read, _ = peft.read(str(tmp_path), Base(config, bare(leaves)))
    again = construct.make(dataclasses.replace(config, adapters=found), jax.random.key(1))
    again = parameters.unstack({name.removeprefix("model/"): x for name, x in (bare(leaves) | read).items()}, again)
    assert_close({"output": outputs(again, batch, "gpt2")}, {"output": outputs(model, batch, "gpt2")}, 1e-5)


def test_adapters_that_peft_does_not_have_raise(tmp_path):
    for adapters in ((BottleneckAdapter(size=3),), (LoRA(), IA3(pattern="key$"))):
        with pytest.raises(UserError, match="peft's files have one of LoRA, DoRA, IA3, Prompt and Prefix"):
            write_small(tmp_path, adapters)
    with pytest.raises(UserError, match="EmbeddingLoRA: model/embeddings/token_type_embedder/adapter/down: not supp"):
        write_small(tmp_path, (LoRA(), EmbeddingLoRA(pattern="token_type_embedder$")))
    assert list(tmp_path.iterdir()) == []
