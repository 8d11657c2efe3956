"""Adapters of vectors, models and outputs that the tests of peft's files share."""

import dataclasses
import re

import jax
import numpy as np
from adapted_models import bare, base_of, randomized, stacked

from t5x_like import interop, parameters
from t5x_like.adapters.dora import DoRA
from t5x_like.adapters.ia3 import IA3
from t5x_like.adapters.lora import LoRA
from t5x_like.adapters.prefix import Prefix
from t5x_like.adapters.prompt import Prompt
from t5x_like.interop import adapted_matrices as matrices
from t5x_like.interop import peft
from t5x_like.models import construct

METHODS = {
    "lora": (LoRA(rank=2, alpha=3.0), LoRA(pattern="mlp/wo$", rank=3, alpha=2.0, rank_stabilized=True)),
    "dora": (DoRA(rank=2, alpha=3.0, pattern="attention/(query|value)$"),),
    "ia3": (IA3(), IA3(pattern="mlp/wo$", of="inputs")),
}
LENGTH = 3
PROMPT = {"prompt": (Prompt(length=LENGTH),)}
PREFIX = {"prefix": (Prefix(length=LENGTH),)}
MLP = {"mlp": (Prefix(length=LENGTH, hidden_size=5),)}
FIRST, LAST = ("vectors", "hidden", "hidden_bias"), ("key", "key_bias", "value", "value_bias")
SELF_ATTENTION = "^decoder/layers/self_attention$"
CLASSES = {
    "bert": "AutoModel",
    "roberta": "AutoModel",
    "gpt2": "AutoModelForCausalLM",
    "t5_1_0": "AutoModelForSeq2SeqLM",
    "t5_1_1": "AutoModelForSeq2SeqLM",
    "llama": "AutoModelForCausalLM",
    "bart": "AutoModelForSeq2SeqLM",
}


def first_of_each_table(names):
    """Returns the first of these families of each table of matrices, which adapters are named by."""

    def table(name):
        config = base_of(name)
        found = matrices.find(interop.family_of(config), config).items()
        return frozenset((re.sub(r"\d+", "", module), each.parts, bool(each.later_biases)) for module, each in found)

    return set({table(name): name for name in reversed(names)}.values())


def outputs(model, batch, family):
    hidden = model(batch).hidden
    return hidden if CLASSES[family] == "AutoModel" else model.unembed(hidden)


def torch_outputs(theirs, batch, family):
    import torch

    inputs = [torch.tensor(x.astype(np.int64)) for x in batch.values()]
    names = ("input_ids", "decoder_input_ids") if len(inputs) == 2 else ("input_ids",)
    with torch.no_grad():
        found = theirs.double().eval()(**dict(zip(names, inputs, strict=True)))
    return (found.last_hidden_state if CLASSES[family] == "AutoModel" else found.logits).numpy()


def write_base(config, leaves, directory):
    interop.to_huggingface(bare(leaves), config, str(directory))


def mlp_weights(leaves):
    """Returns the weights of an MLP by their names in peft, where the last layer has keys and values of all layers."""
    stack = next(name.split("/")[1] for name in leaves if name.endswith("/vectors"))
    first = {name: np.asarray(leaves[f"model/{stack}/adapter/attention/{name}"]) for name in FIRST}
    last = {name: np.asarray(leaves[f"model/{stack}/layers/attention/adapter/{name}"]) for name in LAST}
    kernels, biases = (np.stack([last[f"key{end}"], last[f"value{end}"]], axis=1) for end in ("", "_bias"))
    return {
        "embedding.weight": first["vectors"],
        "transform.0.weight": first["hidden"].T,
        "transform.0.bias": first["hidden_bias"],
        "transform.2.weight": np.moveaxis(kernels, 2, -1).reshape(-1, kernels.shape[2]),
        "transform.2.bias": biases.reshape(-1),
    }


def rebuilt(config, adapters, leaves, read):
    model = construct.make(dataclasses.replace(config, adapters=adapters), jax.random.key(1))
    return parameters.unstack({name.removeprefix("model/"): x for name, x in (bare(leaves) | read).items()}, model)


def write_small(tmp_path, adapters=METHODS["lora"]):
    config = base_of("bert")
    leaves = stacked(randomized(dataclasses.replace(config, adapters=adapters)))
    peft.write(dataclasses.replace(config, adapters=adapters), leaves, str(tmp_path))
    return config, leaves


def outputs_of_class(model, batch, architecture):
    """Returns the outputs of a class of transformers: hidden states of a bare model, or logits."""
    hidden = model(batch).hidden
    return hidden if matrices.is_bare(architecture) else model.unembed(hidden)


def their_outputs(theirs, batch):
    """Returns the logits of a model of transformers, or the hidden states of a bare one.

    The model computes in float64 afterwards, so that its own rounding, which differs between processors, does not add
    to that of the outputs it is compared with.
    """
    import torch

    inputs = [torch.tensor(x.astype("int64")) for x in batch.values()]
    names = ("input_ids", "decoder_input_ids") if len(inputs) == 2 else ("input_ids",)
    with torch.no_grad():
        found = theirs.double().eval()(**dict(zip(names, inputs, strict=True)))
    return (found.logits if "logits" in found else found.last_hidden_state).numpy()
