"""Bottleneck adapters in the files of the library adapters, in both directions."""

import dataclasses
import json

import numpy as np
import pytest
from adapted_models import bare, base_of, randomized, stacked
from families import FAMILIES, example_batch, hidden
from numerics import assert_close
from peft_models import outputs_of_class, rebuilt, their_outputs

from t5x_like import interop
from t5x_like.adapters.bottleneck import BottleneckAdapter
from t5x_like.adapters.lora import LoRA
from t5x_like.adapters.pfeiffer import PfeifferAdapter
from t5x_like.errors import UserError
from t5x_like.interop import adapter_hub
from t5x_like.interop.adapter_base import Base
from t5x_like.interop.bert import ACTIVATIONS

CLASSES = {
    **dict.fromkeys(("albert", "bert", "roberta", "deberta_v2", "distilbert", "electra"), "AutoModel"),
    **dict.fromkeys(("gpt2", "llama", "mistral"), "AutoModelForCausalLM"),
    **dict.fromkeys(("t5_1_0", "t5_1_1", "bart"), "AutoModelForSeq2SeqLM"),
}
# The library has no block after cross-attention.
HOULSBY = BottleneckAdapter(pattern=r"(?<!cross_)(?<!cross)attention/out$|mlp/wo$")
ATTENTION, FEED_FORWARD = BottleneckAdapter(pattern="attention/out$"), BottleneckAdapter(pattern="mlp/wo$")
PFEIFFER = PfeifferAdapter(activation="relu")


@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "adapter"),
    [
        *((family, adapter) for family in CLASSES for adapter in (HOULSBY, PFEIFFER) if family != "albert"),
        ("albert", PFEIFFER),
        ("albert", FEED_FORWARD),
        ("bert", ATTENTION),
        ("bert", FEED_FORWARD),
        ("t5_1_1", FEED_FORWARD),
    ],
)
def test_outputs_equal_those_of_the_library(tmp_path, family, adapter):
    import torch

    transformers, library = pytest.importorskip("transformers"), pytest.importorskip("adapters")
    config, batch = base_of(family), example_batch(FAMILIES[family])
    size = 5  # does not divide the width
    adapter = dataclasses.replace(adapter, size=size)
    # With larger ones, T5's unscaled scores saturate, and float32 rounds outputs to 1.7e-5, the library's to 1e-5.
    model = randomized(dataclasses.replace(config, adapters=(adapter,)), std=0.2)
    leaves = stacked(model)
    interop.to_huggingface(bare(leaves), config, str(tmp_path / "base"))
    adapter_hub.write(model.config, leaves, str(tmp_path / "adapter"), name="one")
    theirs = getattr(transformers, CLASSES[family]).from_pretrained(tmp_path / "base")
    library.init(theirs)
    theirs.load_adapter(str(tmp_path / "adapter"), set_active=True, use_safetensors=True)
    inputs = [torch.tensor(x.astype(np.int64)) for x in batch.values()]
    names = ("input_ids", "decoder_input_ids") if len(inputs) == 2 else ("input_ids",)
    with torch.no_grad():
        # In float64, so that the library's own rounding does not add to ours.
        found = theirs.double().eval()(**dict(zip(names, inputs, strict=True)))
    states = hidden(model, batch)
    expected = states if CLASSES[family] == "AutoModel" else model.unembed(states)
    found = found.last_hidden_state if CLASSES[family] == "AutoModel" else found.logits
    assert_close({"output": found.numpy()}, {"output": expected}, 1e-5)

    theirs.save_adapter(str(tmp_path / "theirs"), "one", use_safetensors=True)
    for directory in ("adapter", "theirs"):
        adapters, read = adapter_hub.read(str(tmp_path / directory), Base(config, bare(leaves)))
        assert [(type(each), each.size, each.activation) for each in adapters] == [
            (type(adapter), size, adapter.activation)
        ]
        assert read.keys() == leaves.keys() - bare(leaves).keys()
        for name, leaf in read.items():
            np.testing.assert_array_equal(leaf, leaves[name], err_msg=name)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["houlsby", "pfeiffer"])
@pytest.mark.parametrize("family", CLASSES)
def test_what_the_library_writes_is_read(tmp_path, family, name):
    """Blocks of several sizes, a layer without them, and every activation."""
    import torch

    transformers, library = pytest.importorskip("transformers"), pytest.importorskip("adapters")
    config, batch = base_of(family), example_batch(FAMILIES[family])
    leaves, index = stacked(randomized(config)), list(CLASSES).index(family)
    interop.to_huggingface(leaves, config, str(tmp_path / "base"))
    theirs = getattr(transformers, CLASSES[family]).from_pretrained(tmp_path / "base")
    library.init(theirs)
    kind = library.DoubleSeqBnConfig if name == "houlsby" else library.SeqBnConfig
    has_attention = name == "houlsby" and family != "albert"
    activation = [*ACTIVATIONS, "linear"][index % (len(ACTIVATIONS) + 1)]
    settings = kind(
        reduction_factor={"0": 5, "default": 2}, mh_adapter=has_attention, non_linearity=activation, leave_out=[2]
    )
    theirs.add_adapter("one", config=settings)
    theirs.set_active_adapters("one")
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter_name, parameter in theirs.named_parameters():
            if "adapters" in parameter_name:
                parameter.copy_(torch.randn_like(parameter) / 3)
    theirs.save_adapter(str(tmp_path / "theirs"), "one", use_safetensors=True)
    adapters, read = adapter_hub.read(str(tmp_path / "theirs"), Base(config, leaves))
    architecture = "BertModel" if CLASSES[family] == "AutoModel" else ""
    found = outputs_of_class(rebuilt(config, adapters, leaves, read), batch, architecture)
    assert_close({"output": found}, {"output": their_outputs(theirs, batch)}, 1e-5)


def test_what_the_library_applies_otherwise_or_does_not_adapt_raises(tmp_path):
    for name, adapter, message in (
        ("albert", BottleneckAdapter(size=3), "mh_adapter True: not supported for ALBERT"),
        ("xlnet", FEED_FORWARD, "model_type 'xlnet': not supported in files of the library adapters"),
        ("deberta", FEED_FORWARD, "model_type 'deberta': not supported in files of the library adapters"),
    ):
        adapted = dataclasses.replace(base_of(name), adapters=(adapter,))
        leaves = stacked(randomized(adapted))
        with pytest.raises(UserError, match=message):
            adapter_hub.write(adapted, leaves, str(tmp_path / "new"))
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reduction_factor": "16"}, "reduction_factor '16': must be a number"),
        ({"reduction_factor": {"0": 2}}, "reduction_factor None: must be a number"),
        ({"reduction_factor": 0}, "reduction_factor 0: must be positive"),
        ({"reduction_factor": 3}, r"has shape \(3, 12\), not \(4, 12\)"),
        ({"mh_adapter": "yes"}, "mh_adapter 'yes': must be true or false"),
        ({"mh_adapter": False}, "attention.output.adapters.t5x_like.adapter_\\w+.0.\\w+' is no block of BertConfig"),
        ({"leave_out": ["0"]}, r"leave_out \['0'\]: must be a list of integers"),
        ({"non_linearity": 3}, "non_linearity 3: not supported"),
    ],
)
def test_settings_that_do_not_fit_raise(tmp_path, changes, message):
    config = base_of("bert")
    adapted = dataclasses.replace(config, adapters=(BottleneckAdapter(size=3),))
    leaves = stacked(randomized(adapted))
    adapter_hub.write(adapted, leaves, str(tmp_path))
    contents = json.loads((tmp_path / adapter_hub.CONFIG).read_text())
    contents["config"] |= changes
    (tmp_path / adapter_hub.CONFIG).write_text(json.dumps(contents))
    with pytest.raises(UserError, match=message):
        adapter_hub.read(str(tmp_path), Base(config, bare(leaves)))


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
            adapter_hub.read(str(tmp_path), Base(config, bare(leaves)))
    (tmp_path / adapter_hub.CONFIG).write_text(json.dumps(contents | {"name": "other"}))
    with pytest.raises(UserError, match="adapters.other.adapter_down.0.weight' not found"):
        adapter_hub.read(str(tmp_path), Base(config, bare(leaves)))
    (tmp_path / adapter_hub.CONFIG).write_text(json.dumps(contents))
    (tmp_path / adapter_hub.WEIGHTS).rename(tmp_path / "pytorch_adapter.bin")
    with pytest.raises(UserError, match="adapter.safetensors not found. Files that are pickled"):
        adapter_hub.read(str(tmp_path), Base(config, bare(leaves)))
    with pytest.raises(UserError, match="not one BottleneckAdapter, which this format has"):
        adapter_hub.write(dataclasses.replace(config, adapters=(LoRA(),)), leaves, str(tmp_path / "lora"))
