"""Golden shardings of every model family under every rule set, and their properties.

`T5X_LIKE_UPDATE_GOLDENS=1 pytest tests/test_shardings.py` updates the goldens.
"""

import dataclasses
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import config, optimizers, parameters
from t5x_like.axis_rules import INPUT_TOKENS_SUFFIX, LENGTH, RESIDUAL_LENGTH
from t5x_like.decoding.start import left_pad
from t5x_like.layers.cache import logical_axes
from t5x_like.models.base import GenerativeDecoder, GenerativeEncoderDecoder
from t5x_like.models.t5 import T5Config
from t5x_like.objectives import gradients
from t5x_like.objectives.keys import NO_KEYS
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.objectives.variables import Frozen
from t5x_like.partitioning import Partitioner
from t5x_like.training import program

GOLDENS = Path(__file__).parent / "goldens"
# Family -> gin files of a run. For a new family, add a line and create its golden with the environment variable.
FAMILIES = {
    "t5": ["models/t5_1_1/small.gin", "runs/pretrain.gin"],
    "bert": ["models/bert/tiny.gin", "runs/bert.gin"],
    "mobilebert": ["models/mobilebert/base.gin", "runs/mobilebert.gin"],
    "gpt": ["models/gpt2/tiny.gin", "runs/gpt.gin"],
    "llama": ["models/llama2/tiny.gin", "runs/llama.gin"],
    "bart": ["models/bart/base.gin", "runs/bart.gin"],
}
MESHES = {
    "dp": {"data": 8},
    "fsdp": {"fsdp": 8},
    "fsdp_tp": {"fsdp": 4, "tensor": 2},
    "fsdp_tp_residual": {"fsdp": 4, "tensor": 2},
    "fsdp_tp_sp": {"fsdp": 2, "sequence": 2, "tensor": 2},
}
VOCAB_MULTIPLE = 8  # the 50,257 ids of GPT-2 are not divisible by any mesh axis
ROWS = 16
SETTINGS = [("MIXTURE_OR_TASK_NAME", "any"), ("TRAIN_STEPS", "100000"), ("BATCH_SIZE", str(ROWS))]


def make(family, rules):
    """Makes the program of a family on eight devices, with stacked layers as on TPU and a divisible vocabulary."""
    loaded = config.load(
        "t5x_like.train.train",
        files=["commands/train.gin", *FAMILIES[family]],
        bindings=SETTINGS,
        given=("run_config",),
    )
    recipe = config.arguments(loaded.configured())["recipe"]
    model = recipe.model
    vocab_size = -(-model.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    model = dataclasses.replace(model, scan_layers=True, vocab_size=vocab_size)
    partitioner = Partitioner(rules=rules, ici=MESHES[rules])
    return program.make_program(dataclasses.replace(recipe, model=model, partitioner=partitioner))


def rows(made):
    """Returns name -> (shape, partition spec) of the state, the frozen parameters, a batch, activations and a cache."""
    state, frozen = made.shapes
    found = {}
    for prefix, shapes, shardings in (
        ("", state, made.shardings[0]),
        ("frozen/", frozen.params, made.shardings[1].params),
    ):
        layouts = parameters.named_leaves(shardings)
        for name, leaf in parameters.named_leaves(shapes).items():
            found[prefix + name] = (leaf.shape, layouts[name].spec)
    specs = made.partitioner.batch_specs(made.batch_shapes)
    found |= {f"batch/{name}": (shape, specs[name]) for name, shape in made.batch_shapes.items()}
    inputs = {name: shape for name, shape in made.batch_shapes.items() if name.endswith(INPUT_TOKENS_SUFFIX)}
    for name, shape in inputs.items():
        shape = (*shape, made.config.embed_dim)
        for what, length in (("between", RESIDUAL_LENGTH), ("within", LENGTH)):
            stack = name.removesuffix(INPUT_TOKENS_SUFFIX)
            found[f"activation/{stack}/{what} blocks"] = (
                shape,
                made.partitioner.spec(("batch", length, "embed"), shape),
            )
    for name, leaf in parameters.named_leaves(made.partitioner.eval_shape(caches, state.params["model"])).items():
        found[f"cache/{name}"] = (leaf.shape, made.partitioner.spec(logical_axes(len(leaf.shape)), leaf.shape))
    return found


def caches(model):
    """Returns the keys and values for decoding 8 tokens after 16 inputs or prompt tokens, by attention."""
    tokens = jnp.ones((ROWS, 16), jnp.int32)
    if isinstance(model, GenerativeEncoderDecoder):
        cache = model.init_cache(ROWS, 8, model.encode({"encoder_input_tokens": tokens}))
        return {"self_attention": cache.self_attention, "cross_attention": cache.cross_attention}
    if isinstance(model, GenerativeDecoder):
        _, cache = model.prefill(left_pad({"decoder_input_tokens": tokens}), 24)
        return {"self_attention": cache.self_attention}
    return {}


def listed(entries):
    return "[" + " ".join("+".join(entry) if isinstance(entry, tuple) else str(entry or "-") for entry in entries) + "]"


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param, {rules: make(request.param, rules) for rules in MESHES}


def test_shardings_equal_the_goldens(family):
    name, made = family
    rows_by_rules = {rules: rows(one) for rules, one in made.items()}
    table = [("array", "shape", *(f"{rules} {MESHES[rules]}".replace("'", "") for rules in MESHES))]
    for array, (shape, _) in rows_by_rules["dp"].items():
        table.append((array, listed(shape), *(listed(found[array][1]) for found in rows_by_rules.values())))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    text = "\n".join(lines) + "\n"
    golden = GOLDENS / f"{name}_shardings.txt"
    if os.environ.get("T5X_LIKE_UPDATE_GOLDENS"):
        GOLDENS.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_optimizer_state_is_sharded_like_its_parameters(family):
    for made in family[1].values():
        state = made.shapes[0]
        layouts, axes = parameters.named_leaves(made.shardings[0].params), parameters.logical_axes(state.params)
        kept = parameters.named_leaves(made.shardings[0].opt_state)
        kept_axes = parameters.logical_axes(state.opt_state)
        matched = 0
        for name, leaf in parameters.named_leaves(state.opt_state).items():
            owner = next((owner for owner in layouts if name.endswith(owner)), None)
            if owner is None or not leaf.shape:
                continue
            matched += 1
            if kept_axes[name] == axes[owner]:  # a moment
                assert kept[name].spec == layouts[owner].spec, name
                continue
            remaining = iter(axes[owner])  # a factored moment has a subsequence of the dimensions
            assert all(axis in remaining for axis in kept_axes[name]), (name, kept_axes[name], axes[owner])
        assert matched >= len(layouts) / 2


def test_large_arrays_are_sharded(family):
    """Under `fsdp`, every array with more than 1 % of the parameters is sharded."""
    made = family[1]["fsdp"]
    total = parameters.count(made.shapes[0].params)
    layouts = parameters.named_leaves(made.shardings[0])
    replicated = [
        name
        for name, leaf in parameters.named_leaves(made.shapes[0]).items()
        if leaf.size > total / 100 and layouts[name].shard_shape(leaf.shape) == leaf.shape
    ]
    assert replicated == []


def test_gradients_are_sharded_like_their_parameters():
    model = T5Config(
        vocab_size=32, embed_dim=16, mlp_dim=32, num_heads=4, head_dim=4, encoder_layers=1, decoder_layers=1
    )
    objective = SequenceToSequence()
    partitioner = Partitioner(rules="fsdp_tp", ici=MESHES["fsdp_tp"])
    params = {"model": jax.eval_shape(model.make, jax.random.key(0)), "objective": {}}
    params, frozen = optimizers.split(params, ())
    layouts = partitioner.shardings(params)
    lengths = objective.features.model_lengths({"inputs": 4, "targets": 4})
    batch = partitioner.put_batch({name: np.ones((8, length), np.int32) for name, length in lengths.items()})

    def gradient(params, batch):
        normalize = gradients.normalizers(objective, batch, None)
        options = {"keys": NO_KEYS, "microbatches": 1, "normalize": normalize}
        return gradients.compute(objective, params, Frozen(frozen), batch, **options)[0]

    placed = jax.tree.map(
        lambda leaf, layout: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=layout), params, layouts
    )
    compiled = partitioner.jit(gradient).lower(placed, batch).compile()
    expected = parameters.named_leaves(layouts)
    for name, layout in parameters.named_leaves(compiled.output_shardings).items():
        assert layout.is_equivalent_to(expected[name], len(parameters.named_leaves(params)[name].shape)), name
