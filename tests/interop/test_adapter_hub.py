"""Bottleneck adapters in the files of the library adapters, in both directions."""

import dataclasses
import json

import numpy as np
import pytest
from adapted_models import bare, base_of, randomized, stacked
from families import FAMILIES, example_batch
from numerics import assert_close

from t5x_like import interop
from t5x_like.adapters.bottleneck import BottleneckAdapter
from t5x_like.adapters.lora import LoRA
from t5x_like.adapters.pfeiffer import PfeifferAdapter
from t5x_like.errors import UserError
from t5x_like.interop import adapter_hub

CLASSES = {
    "bert": "AutoModel",
    "distilbert": "AutoModel",
    "gpt2": "AutoModelForCausalLM",
    "llama": "AutoModelForCausalLM",
    "t5_1_1": "AutoModelForSeq2SeqLM",
    "bart": "AutoModelForSeq2SeqLM",
}
# The library has no block after cross-attention.
HOULSBY = BottleneckAdapter(pattern=r"(?<!cross_)(?<!cross)attention/out$|mlp/wo$")
ATTENTION, FEED_FORWARD = BottleneckAdapter(pattern="attention/out$"), BottleneckAdapter(pattern="mlp/wo$")
PFEIFFER = PfeifferAdapter(activation="relu")


@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "adapter"),
    [
        *((family, adapter) for family in CLASSES for adapter in (HOULSBY, PFEIFFER)),
        ("bert", ATTENTION),
        ("bert", FEED_FORWARD),
        ("t5_1_1", FEED_FORWARD),
    ],
)
def test_outputs_equal_those_of_the_library(tmp_path, family, adapter):
    import torch

    transformers, library = pytest.importorskip("transformers"), pytest.importorskip("adapters")
    config, batch = base_of(family), example_batch(FAMILIES[family])
    size = 4 if config.embed_dim % 4 == 0 else 3
    adapter = dataclasses.replace(adapter, size=size)
    model = randomized(dataclasses.replace(config, adapters=(adapter,)))
    leaves = stacked(model)
    interop.to_huggingface(bare(leaves), config, str(tmp_path / "base"))
    adapter_hub.write(model.config, leaves, str(tmp_path / "adapter"), name="one")
    theirs = getattr(transformers, CLASSES[family]).from_pretrained(tmp_path / "base")
    library.init(theirs)
    theirs.load_adapter(str(tmp_path / "adapter"), set_active=True, use_safetensors=True)
    inputs = [torch.tensor(x.astype(np.int64)) for x in batch.values()]
    names = ("input_ids", "decoder_input_ids") if len(inputs) == 2 else ("input_ids",)
    with torch.no_grad():
        found = theirs.eval()(**dict(zip(names, inputs, strict=True)))
    hidden = model(batch).hidden
    expected = hidden if CLASSES[family] == "AutoModel" else model.unembed(hidden)
    found = found.last_hidden_state if CLASSES[family] == "AutoModel" else found.logits
    assert_close({"output": found.numpy()}, {"output": expected}, 1e-5)

    theirs.save_adapter(str(tmp_path / "theirs"), "one", use_safetensors=True)
    for directory in ("adapter", "theirs"):
        adapters, read = adapter_hub.read(str(tmp_path / directory), config)
        assert [(type(each), each.size, each.activation) for each in adapters] == [
            (type(adapter), size, adapter.activation)
        ]
        assert read.keys() == leaves.keys() - bare(leaves).keys()
        for name, leaf in read.items():
            np.testing.assert_array_equal(leaf, leaves[name], err_msg=name)


@pytest.mark.parametrize("adapter", [BottleneckAdapter(size=3), PfeifferAdapter(size=3)], ids=["houlsby", "pfeiffer"])
def test_convert_reads_and_writes_blocks(tmp_path, run_command, adapter):
    config = base_of("bert")
    adapted = dataclasses.replace(config, adapters=(adapter,))
    leaves = stacked(randomized(adapted))
    interop.to_huggingface(bare(leaves), config, str(tmp_path / "base"))
    adapter_hub.write(adapted, leaves, str(tmp_path / "one"))
    for source, output, *flags in (("one", "run"), ("run", "two", "--merge=False")):
        given = [f"--input={tmp_path / source}", f"--output={tmp_path / output}"]
        code, text = run_command(["convert", *given, f"--gin.BASE_PATH={tmp_path / 'base'}", *flags])
        assert code == 0, text
    for name in (adapter_hub.CONFIG, adapter_hub.WEIGHTS):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_invalid_directories_raise(tmp_path):
    config = base_of("bert")
    adapted = dataclasses.replace(config, adapters=(BottleneckAdapter(size=3),))
    leaves = stacked(randomized(adapted))
    adapter_hub.write(adapted, leaves, str(tmp_path))
    contents = json.loads((tmp_path / adapter_hub.CONFIG).read_text())
    for changes, message in (
        ({"ln_before": True}, "ln_before True: not supported, only False, as in double_seq_bn and seq_bn"),
        ({"original_ln_before": True}, "mh_adapter True with original_ln_before True: not supported"),
        ({"non_linearity": "tanh"}, "non_linearity 'tanh': not supported"),
    ):
        changed = contents | {"config": contents["config"] | changes}
        (tmp_path / adapter_hub.CONFIG).write_text(json.dumps(changed))
        with pytest.raises(UserError, match=message):
            adapter_hub.read(str(tmp_path), config)
    (tmp_path / adapter_hub.CONFIG).write_text(json.dumps(contents | {"name": "other"}))
    with pytest.raises(UserError, match="is no block of BertConfig"):
        adapter_hub.read(str(tmp_path), config)
    (tmp_path / adapter_hub.CONFIG).write_text(json.dumps(contents))
    (tmp_path / adapter_hub.WEIGHTS).rename(tmp_path / "pytorch_adapter.bin")
    with pytest.raises(UserError, match="adapter.safetensors not found. Files that are pickled"):
        adapter_hub.read(str(tmp_path), config)
    with pytest.raises(UserError, match="not one BottleneckAdapter, which this format has"):
        adapter_hub.write(dataclasses.replace(config, adapters=(LoRA(),)), leaves, str(tmp_path / "lora"))
