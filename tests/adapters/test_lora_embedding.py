"""LoRA of embedding tables: by hand, with tied logits, merged, trained on devices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from adapted_models import randomized_by_stored_name as randomized
from families import FAMILIES, assert_trees_close, eight_rows, example_batch, logits, loss
from numerics import assert_close

from t5x_like import optimizers, parameters
from t5x_like.adapters.lora_embedding import EmbeddingLoRA
from t5x_like.adapters.prompt import Prompt
from t5x_like.errors import UserError
from t5x_like.models import construct
from t5x_like.partitioning import Partitioner

FROZEN = (optimizers.ParameterGroup("^model/(?!.*/adapter/)", freeze=True),)


def adapted(family, **settings):
    return dataclasses.replace(FAMILIES[family].config, adapters=(EmbeddingLoRA(rank=3, alpha=6.0, **settings),))


def test_new_update_changes_nothing_and_has_the_initial_values_of_loralib():
    batch, key = example_batch(FAMILIES["llama"]), jax.random.key(1)
    model, base = construct.make(adapted("llama"), key), FAMILIES["llama"].config.make(key)
    np.testing.assert_array_equal(model(batch).hidden, base(batch).hidden)
    adapter = model.token_embedder.adapter
    assert not np.any(adapter.down[...]) and 0.5 < float(jnp.std(adapter.up[...])) < 1.5


@pytest.mark.parametrize("tied_logits", [False, True])
def test_vectors_and_tied_logits_by_hand(tied_logits):
    model = randomized(adapted("gpt2", tied_logits=tied_logits))
    embedder, ids = model.token_embedder, np.array([[3, 0, 5]])
    table = embedder.embedding[...]
    updated = table + 6.0 / 3 * embedder.adapter.down[...] @ embedder.adapter.up[...]
    np.testing.assert_allclose(embedder(ids), updated[ids], rtol=1e-5, atol=1e-5)
    hidden = np.random.default_rng(0).normal(size=(1, 3, table.shape[1])).astype(np.float32)
    expected = hidden @ (updated if tied_logits else table).T
    np.testing.assert_allclose(embedder.attend(hidden), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("family", "tied_logits"), [("gpt2", True), ("llama", False)])
def test_merged_model_has_the_same_logits(family, tied_logits):
    model, batch = randomized(adapted(family, tied_logits=tied_logits)), example_batch(FAMILIES[family])
    merged = construct.merge(model)
    assert_close({"logits": logits(merged, batch)}, {"logits": logits(model, batch)}, 5e-6)


def test_updates_without_a_merged_table_or_beside_a_prompt_raise():
    with pytest.raises(UserError, match="EmbeddingLoRA.tied_logits=False: the logits are computed from the embeddings"):
        construct.merge(randomized(adapted("gpt2")))
    adapters = (Prompt(length=2, initialization="uniform"), EmbeddingLoRA())
    with pytest.raises(UserError, match="matches token_embedder, which has a prompt"):
        construct.make(dataclasses.replace(FAMILIES["gpt2"].config, adapters=adapters), jax.random.key(0))
    with pytest.raises(UserError, match="EmbeddingLoRA.pattern='words' matches no embedding table of .*token_embedder"):
        construct.make(adapted("gpt2", pattern="words"), jax.random.key(0))


@pytest.mark.full
def test_gradients_are_equal_on_devices_and_only_the_update_trains():
    model, batch, key = randomized(adapted("bert")), eight_rows(FAMILIES["bert"]), jax.random.key(3)
    trainable, frozen = optimizers.split({"model": model, "objective": {}}, FROZEN)
    assert len(parameters.named_leaves(trainable)) == 2

    def gradient(trainable, frozen):
        return jax.grad(lambda own: loss(optimizers.merge(own, frozen)["model"], batch, key))(trainable)

    expected = jax.jit(gradient)(trainable, frozen)
    partitioner = Partitioner(rules="fsdp_tp", ici={"fsdp": 4, "tensor": 2})
    placed = [jax.device_put(each, partitioner.shardings(each)) for each in (trainable, frozen)]
    assert_trees_close(partitioner.jit(gradient, out_shardings=partitioner.shardings(trainable))(*placed), expected)
