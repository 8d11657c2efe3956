"""LoRA: names and initial values, the update by hand, frozen bases, scanned and unrolled layers, and imports."""

import dataclasses
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from adapted_models import randomized_by_stored_name as randomized
from families import FAMILIES, assert_trees_close, eight_rows, example_batch, in_lanes, loss, scanned
from family_case import VOCABULARY, Family
from lanes import others_are_full
from numerics import assert_close

from t5x_like import interop, optimizers, parameters
from t5x_like.adapters.lora import LoRA
from t5x_like.errors import UserError
from t5x_like.models import construct
from t5x_like.models.base import for_platform
from t5x_like.models.character_lstm import CharacterLSTMConfig
from t5x_like.models.lstm import LSTMConfig
from t5x_like.partitioning import Partitioner

LORA = LoRA(rank=3, alpha=6.0)
RECURRENT = dict(vocab_size=VOCABULARY, embed_dim=12, embedding_dim=8, num_layers=2)
LSTM = Family(LSTMConfig(**RECURRENT), stacks=("decoder",))
CHARACTERS = CharacterLSTMConfig(**RECURRENT, num_characters=20, filters=((1, 4), (2, 4)), highway_layers=1)
ALL = FAMILIES | {"lstm": LSTM, "character_lstm": Family(CHARACTERS, stacks=("decoder",))}
# Kernels of modules that are not projections.
NO_PROJECTIONS = {"convolution/kernel"}
# The projections that get no dropout key: of logits, and of embeddings.
WITHOUT_KEY = {
    "modernbert_decoder": "^head$",
    "mobilebert": "^(logits|embedding_projection)$",
    "mobilebert_tiny": "^(logits|embedding_projection)$",
    "ib_bert": "^(logits|embedding_projection)$",
    "character_lstm": "^(logits|character_encoder/.*)$",
}
BY_DEFAULT = ("mobilebert", "gpt2")
EVERYTHING = LoRA(rank=2, pattern=".")
FROZEN = (optimizers.ParameterGroup("^model/(?!.*/adapter/)", freeze=True),)


def adapted(family, scan=False, **changes):
    config = dataclasses.replace(FAMILIES[family].config, adapters=(LORA,), **changes)
    return scanned(config) if scan else config


@pytest.mark.parametrize("family", others_are_full(["t5_1_1", "bert", "llama"], ["t5_1_1"]))
def test_new_model_equals_its_base_and_keeps_its_names(family):
    config, batch = adapted(family), example_batch(FAMILIES[family])
    model, base = construct.make(config, jax.random.key(1)), FAMILIES[family].config.make(jax.random.key(1))
    leaves, known = parameters.named_leaves(model), parameters.named_leaves(base)
    added = leaves.keys() - known.keys()
    assert added and all(re.search(r"attention/(query|value)/adapter/(down|up)$", name) for name in added)
    for name, leaf in known.items():
        np.testing.assert_array_equal(leaves[name], leaf)
    np.testing.assert_array_equal(model(batch).hidden, base(batch).hidden)
    assert all(not np.any(leaves[name]) for name in added if name.endswith("/up"))


@pytest.mark.parametrize("family", ["t5_1_1", "bert", "llama"])
def test_scanned_and_unrolled_layers_are_equal(family):
    batch = example_batch(FAMILIES[family])
    unrolled, stacked = (construct.make(adapted(family, scan), jax.random.key(1)) for scan in (False, True))
    found = parameters.stack(parameters.named_leaves(unrolled))
    for name, leaf in parameters.named_leaves(stacked).items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)
    one, other = (randomized(adapted(family, scan))(batch).hidden for scan in (False, True))
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


# Projections whose output nothing reads: the update of entities in the last layer, and that of global tokens, of which
# rows without sentences have none here.
UNREAD = {"ernie": "^knowledge/layers/mlp/wo/", "etc": "/global_out/"}


def batch_of(family):
    batch = example_batch(ALL[family])
    if family == "character_lstm":
        batch["decoder_input_characters"] = np.random.default_rng(0).integers(0, 20, (2, 6, 5)).astype(np.int32)
    if family == "ernie":
        vectors = np.random.default_rng(0).normal(size=(2, 1, ALL[family].config.entity_dim)).astype(np.float32)
        batch |= {"entities": np.ones((2, 1), np.int32), "entity_positions": np.full((2, 1), 2, np.int32)}
        batch["entity_vectors"] = vectors
    return batch


@jax.jit
def logits(model, batch, dropout_key=None):
    return model.unembed(model(batch, dropout_key=dropout_key).hidden)


@pytest.mark.parametrize("family", in_lanes(FAMILIES, BY_DEFAULT) + others_are_full(["lstm", "character_lstm"], ()))
def test_every_projection_has_its_update_and_dropout(family):
    """The gradient of `up`, which is 0, has the input of the projection, with dropout where the adapter has any."""
    config, batch = scanned(ALL[family].config), batch_of(family)
    without = WITHOUT_KEY.get(family, "^logits$")
    adapters = LoRA(rank=2, pattern=without), LoRA(rank=2, pattern=f"^(?!{without[1:]})", dropout_rate=0.5)
    bare = jax.eval_shape(config.make, jax.random.key(0))
    names = [name.removesuffix("/kernel") for name in parameters.named_leaves(bare) if name.endswith("/kernel")]
    names = [name for name in names if f"{name}/kernel" not in NO_PROJECTIONS]
    refused = [name for name in names if re.search(without, name)]
    model = randomized(dataclasses.replace(config, adapters=adapters if refused else adapters[1:]))
    leaves = parameters.named_leaves(model)
    zeros = {name: 0 * leaf for name, leaf in leaves.items() if name.endswith("/up")}
    weights = np.random.default_rng(1).normal(size=jax.eval_shape(logits, model, batch).shape)

    def total(ups, key):
        return jnp.sum(weights * logits(parameters.rebuild(model, leaves | ups), batch, key))

    updates = jax.jit(jax.grad(total))
    found, other = (updates(zeros, jax.random.key(seed)) for seed in (0, 1))
    assert {name.removesuffix("/adapter/up") for name in found} == set(names)
    for name, leaf in found.items():
        if family in UNREAD and re.search(UNREAD[family], name):
            assert not np.any(leaf)
            continue
        layers = range(len(leaf)) if "/layers/" in name else [...]
        largest = [np.abs(leaf[layer]).max() for layer in layers]
        assert min(largest) > 1e-6, name
        changes = [np.abs(leaf[layer] - other[name][layer]).max() for layer in layers]
        is_equal = [change < 1e-3 * most for change, most in zip(changes, largest, strict=True)]
        assert set(is_equal) == {name.removesuffix("/adapter/up") in refused}, name
    for name in refused:
        changed = dataclasses.replace(config, adapters=(LoRA(pattern=f"^{name}$", dropout_rate=0.5),))
        with pytest.raises(UserError, match=f"LoRA.dropout_rate=0.5: {name}, which LoRA.pattern=.* matches, has no"):
            construct.make(changed, jax.random.key(0))


@pytest.mark.full
@pytest.mark.parametrize("family", ["t5_1_1", "bert", "albert", "deberta", "gpt3", "mobilebert", "character_lstm"])
def test_merged_model_has_the_same_logits(family):
    config, batch = ALL[family].config, batch_of(family)
    for layout in (config, scanned(config)):
        model = randomized(dataclasses.replace(layout, adapters=(EVERYTHING,)))
        merged = construct.merge(model)
        assert jax.tree.structure(merged) == jax.tree.structure(layout.make(jax.random.key(0)))
        assert_close({"logits": logits(merged, batch)}, {"logits": logits(model, batch)}, 5e-6)


def test_merged_kernel_by_hand():
    model = randomized(adapted("t5_1_1"))
    query = model.encoder.layers[0].attention.query
    update = 6.0 / 3 * query.adapter.down[...] @ query.adapter.up[...].reshape(3, -1)
    merged = construct.merge(model).encoder.layers[0].attention.query.kernel[...]
    np.testing.assert_allclose(merged - query.kernel[...], update.reshape(merged.shape), rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_dropout_is_equal_in_layouts_and_on_devices_and_differs_between_applications():
    config = dataclasses.replace(FAMILIES["bert"].config, adapters=(LoRA(rank=3, pattern=".", dropout_rate=0.5),))
    model, batch, key = randomized(config), eight_rows(FAMILIES["bert"]), jax.random.key(3)
    gradient = jax.grad(lambda model, key: loss(model, batch, key))
    expected = jax.jit(gradient)(model, key)
    assert_trees_close(jax.jit(gradient)(randomized(scanned(config)), key), expected)
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"fsdp": 2, "sequence": 2, "tensor": 2})
    placed = jax.device_put(model, partitioner.shardings(model))
    assert_trees_close(partitioner.jit(gradient, out_shardings=partitioner.shardings(model))(placed, key), expected)

    attention, x = model.encoder.layers[0].attention, jnp.ones((1, 4, config.embed_dim))
    masks = [
        np.asarray(each.adapter.dropout(x, jax.random.fold_in(key, each.adapter.stream)))
        for each, key in ((attention.query, key), (attention.value, key), (attention.query, jax.random.key(4)))
    ]
    assert all(np.any(one != other) for one, other in itertools.combinations(masks, 2))
    np.testing.assert_array_equal(attention.query(x), attention.query(x, dropout_key=None))


def test_only_updates_are_trained_on_a_frozen_base():
    config, batch = adapted("t5_1_1"), example_batch(FAMILIES["t5_1_1"])
    params = {"model": randomized(config), "objective": {}}
    trainable, frozen = optimizers.split(params, FROZEN)
    assert all("/adapter/" in name for name in parameters.named_leaves(trainable))
    assert not any("/adapter/" in name for name in parameters.named_leaves(frozen))

    def total(trainable):
        return jnp.sum(optimizers.merge(trainable, frozen)["model"](batch).hidden ** 2)

    gradient = parameters.named_leaves(jax.jit(jax.grad(total))(trainable))
    assert gradient and all(np.any(leaf) for leaf in gradient.values())


@pytest.mark.full
def test_generation_has_the_update():
    config = adapted("llama")
    model, batch = randomized(config), {"decoder_input_tokens": np.array([[3, 4, 5, 6]])}
    whole = model(batch).hidden[:, -1:]
    prompt = {"decoder_input_tokens": [[3, 4, 5]], "decoder_segment_ids": [[1, 1, 1]], "decoder_positions": [[0, 1, 2]]}
    _, cache = model.prefill({name: np.array(x, np.int32) for name, x in prompt.items()}, 4)
    step, _ = model.decode_step(jnp.array([[6]]), cache, jnp.asarray(3))
    np.testing.assert_allclose(step, whole, rtol=1e-4, atol=1e-5)


def test_scale_of_rslora_and_dtype():
    config = for_platform(adapted("bert", dtype="bfloat16"), "cpu")
    config = dataclasses.replace(config, adapters=(LoRA(rank=4, alpha=6.0, rank_stabilized=True, pattern="mlp/wi$"),))
    model = construct.make(config, jax.random.key(0))
    adapter = model.encoder.layers[0].mlp.wi.adapter
    assert adapter.scale == 3.0 and model(example_batch(FAMILIES["bert"])).hidden.dtype == jnp.bfloat16
    assert adapter.delta().shape == model.encoder.layers[0].mlp.wi.kernel.shape


def test_invalid_settings_raise():
    config = dataclasses.replace(FAMILIES["bert"].config, adapters=(LoRA(pattern="atention/query"),))
    with pytest.raises(UserError, match="LoRA.pattern='atention/query' matches no projection of Bert. The projections"):
        construct.make(config, jax.random.key(0))
    with pytest.raises(UserError, match=r"LoRA.pattern='\(' is not a regular expression"):
        construct.make(dataclasses.replace(config, adapters=(LoRA(pattern="("),)), jax.random.key(0))
    for adapters in (LORA, ("LoRA",)):
        with pytest.raises(UserError, match=r"BertConfig.adapters=.*: not a tuple of adapters. Give one, such as"):
            dataclasses.replace(config, adapters=adapters)
    with pytest.raises(UserError, match="rank=0, alpha=16.0: not positive"):
        LoRA(rank=0)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "kind"), [("t5_1_1", "AutoModelForSeq2SeqLM"), ("gpt2", "AutoModelForCausalLM"), ("bert", "AutoModel")]
)
def test_transformers_reads_merged_weights(family, kind, tmp_path):
    import torch
    import transformers

    config = dataclasses.replace(FAMILIES[family].config, **FAMILIES[family].huggingface_sizes)
    config = dataclasses.replace(config, adapters=(EVERYTHING,))
    model, batch = randomized(config), example_batch(FAMILIES[family])
    interop.to_huggingface({"model": model}, config, str(tmp_path))
    theirs = getattr(transformers, kind).from_pretrained(tmp_path).eval()
    inputs = [torch.tensor(x.astype(np.int64)) for x in batch.values()]
    names = ("input_ids", "decoder_input_ids") if len(inputs) == 2 else ("input_ids",)
    with torch.no_grad():
        found = theirs(**dict(zip(names, inputs, strict=True)))
    expected = model(batch).hidden if kind == "AutoModel" else logits(model, batch)
    found = found.last_hidden_state if kind == "AutoModel" else found.logits
    assert_close({"output": found.numpy()}, {"output": expected}, 5e-6)
