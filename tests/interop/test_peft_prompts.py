"""Prompts and prefixes in peft's files have the same outputs there and here."""

import dataclasses
import json

import numpy as np
import pytest
from adapted_models import bare, base_of, randomized, stacked
from families import FAMILIES, example_batch, others_are_slow
from numerics import assert_close
from peft_models import (
    CLASSES,
    LENGTH,
    PREFIX,
    PROMPT,
    SELF_ATTENTION,
    outputs,
    rebuilt,
    torch_outputs,
    write_base,
    write_small,
)

from t5x_like.adapters.prefix import Prefix
from t5x_like.adapters.prompt import Prompt
from t5x_like.errors import UserError
from t5x_like.interop import peft
from t5x_like.interop.adapter_base import Base

# T5 1.0 has the layers of T5 1.1.
EACH = pytest.mark.parametrize("family", others_are_slow(CLASSES, CLASSES.keys() - {"t5_1_0"}))


@pytest.mark.parity
@EACH
def test_prompts_have_the_same_outputs_in_peft(tmp_path, family):
    import torch

    transformers, library = pytest.importorskip("transformers"), pytest.importorskip("peft")
    config, batch = base_of(family), example_batch(FAMILIES[family])
    model = randomized(dataclasses.replace(config, adapters=PROMPT["prompt"]))
    leaves = stacked(model)
    write_base(config, leaves, tmp_path / "base")
    peft.write(model.config, leaves, str(tmp_path / "ours"), base=str(tmp_path / "base"))
    theirs = getattr(transformers, CLASSES[family]).from_pretrained(tmp_path / "base")
    theirs = library.PeftModel.from_pretrained(theirs, tmp_path / "ours")
    expected = outputs(model, batch, family)
    drop = 0 if len(config.stacks) == 2 else LENGTH
    assert_close({"output": torch_outputs(theirs, batch, family)[:, drop:]}, {"output": expected}, 1e-5)
    adapters, read, head = peft.read(str(tmp_path / "ours"), Base(config, bare(leaves)))
    assert head is None and adapters == (Prompt(length=LENGTH, initialization="uniform"),)
    assert_close(
        {"output": outputs(rebuilt(config, adapters, leaves, read), batch, family)}, {"output": expected}, 1e-5
    )

    # A prompt that peft made.
    torch.manual_seed(0)
    base = getattr(transformers, CLASSES[family]).from_pretrained(tmp_path / "base")
    settings = library.PromptTuningConfig(num_virtual_tokens=LENGTH, task_type=theirs.active_peft_config.task_type)
    theirs = library.get_peft_model(base, settings)
    theirs.save_pretrained(tmp_path / "theirs")
    adapters, read, _ = peft.read(str(tmp_path / "theirs"), Base(config, bare(leaves)))
    found = outputs(rebuilt(config, adapters, leaves, read), batch, family)
    assert_close({"output": found}, {"output": torch_outputs(theirs, batch, family)[:, drop:]}, 1e-5)


@pytest.mark.parity
@EACH
def test_prefixes_have_the_same_outputs_in_peft(tmp_path, family):
    import torch

    transformers, library = pytest.importorskip("transformers"), pytest.importorskip("peft")
    config, batch = base_of(family), example_batch(FAMILIES[family])
    pattern = {"pattern": SELF_ATTENTION} if len(config.stacks) == 2 else {}
    prefix = Prefix(length=LENGTH, hidden_size=5, **pattern)
    model = randomized(dataclasses.replace(config, adapters=(prefix,)))
    leaves = stacked(model)
    write_base(config, leaves, tmp_path / "base")
    peft.write(model.config, leaves, str(tmp_path / "ours"), base=str(tmp_path / "base"))
    theirs = getattr(transformers, CLASSES[family]).from_pretrained(tmp_path / "base")
    theirs = library.PeftModel.from_pretrained(theirs, tmp_path / "ours")
    expected = outputs(model, batch, family)
    assert_close({"output": torch_outputs(theirs, batch, family)}, {"output": expected}, 1e-5)
    adapters, read, head = peft.read(str(tmp_path / "ours"), Base(config, bare(leaves)))
    assert head is None and adapters == (dataclasses.replace(prefix, hidden_size=None),)
    assert_close(
        {"output": outputs(rebuilt(config, adapters, leaves, read), batch, family)}, {"output": expected}, 1e-5
    )

    # A prefix that peft made, with fewer keys than layers in an encoder-decoder.
    torch.manual_seed(0)
    base = getattr(transformers, CLASSES[family]).from_pretrained(tmp_path / "base")
    settings = {"num_virtual_tokens": LENGTH, "task_type": theirs.active_peft_config.task_type}
    settings["token_dim"] = config.num_heads * config.head_dim if len(config.stacks) == 2 else None
    theirs = library.get_peft_model(base, library.PrefixTuningConfig(**settings))
    theirs.save_pretrained(tmp_path / "theirs")
    adapters, read, _ = peft.read(str(tmp_path / "theirs"), Base(config, bare(leaves)))
    found = outputs(rebuilt(config, adapters, leaves, read), batch, family)
    assert_close({"output": found}, {"output": torch_outputs(theirs, batch, family)}, 1e-5)


@pytest.mark.parity
def test_peft_reads_a_head_with_a_prefix(tmp_path):
    import torch

    transformers, library = pytest.importorskip("transformers"), pytest.importorskip("peft")
    config, batch = base_of("bert"), example_batch(FAMILIES["bert"])
    model = randomized(dataclasses.replace(config, adapters=PREFIX["prefix"]))
    leaves, draw, width = stacked(model), np.random.default_rng(1).normal, config.embed_dim
    write_base(config, leaves, tmp_path / "base")
    head = {
        "pooler/kernel": (width, width),
        "pooler/bias": width,
        "classifier/kernel": (width, 3),
        "classifier/bias": 3,
    }
    head = {name: draw(size=size).astype(np.float32) for name, size in head.items()}
    leaves |= {f"objective/sequence_classification/{name}": x for name, x in head.items()}
    peft.write(model.config, leaves, str(tmp_path / "ours"))
    base = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=3)
    theirs = library.PeftModel.from_pretrained(base, tmp_path / "ours").eval()
    pooled = np.tanh(model(batch).hidden[:, 0] @ head["pooler/kernel"] + head["pooler/bias"])
    expected = pooled @ head["classifier/kernel"] + head["classifier/bias"]
    with torch.no_grad():
        found = theirs(input_ids=torch.tensor(batch["encoder_input_tokens"].astype(np.int64))).logits
    assert_close({"logits": found.numpy()}, {"logits": expected}, 1e-5)


def test_prompts_that_do_not_fit_raise(tmp_path):
    prompt = PROMPT["prompt"]
    config, leaves = write_small(tmp_path, prompt)
    table = "model/embeddings/token_embedder/embedding"
    with pytest.raises(UserError, match=r"'prompt_embeddings' has shape \(3, 12\), not \(3, 5\), which its settings"):
        peft.read(str(tmp_path), Base(config, bare(leaves) | {table: leaves[table][:, :5]}))
    head = "objective/token_classification/classifier"
    leaves |= {f"{head}/kernel": np.ones((config.embed_dim, 3)), f"{head}/bias": np.ones(3)}
    with pytest.raises(UserError, match="objective/.*: peft's heads read the positions of a prompt"):
        peft.write(dataclasses.replace(config, adapters=prompt), leaves, str(tmp_path / "other"))


def test_prefixes_that_do_not_fit_raise(tmp_path):
    config, leaves = write_small(tmp_path, PREFIX["prefix"])
    file = tmp_path / peft.CONFIG
    settings = json.loads(file.read_text())
    for changes, message in (
        ({"num_layers": 3}, "'prompt_embeddings' has shape .* with 3 layers and 2 heads .* do not fit 2 layers"),
        ({"num_attention_heads": 3}, "with 2 layers and 3 heads .* do not fit"),
        ({"token_dim": None}, "key 'token_dim' not found. Save the adapter again"),
    ):
        file.write_text(json.dumps(settings | changes))
        with pytest.raises(UserError, match=message):
            peft.read(str(tmp_path), Base(config, bare(leaves)))
    for family, adapters, message in (
        (
            "bart",
            PREFIX["prefix"],
            r"has a prefix of decoder/layers/self_attention alone, not of decoder/layers/cross_",
        ),
        ("distilbert", PREFIX["prefix"], "Prefix is not written for peft: a distilbert takes no prefix there"),
        ("mistral", PREFIX["prefix"], "Prefix is not written for peft: windows hide it there"),
    ):
        config = dataclasses.replace(base_of(family), adapters=adapters)
        with pytest.raises(UserError, match=message):
            peft.write(config, stacked(randomized(config)), str(tmp_path / "other"))
