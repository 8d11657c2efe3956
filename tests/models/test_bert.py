"""Properties of BERT's network that hold for any weights, and the two layouts of its stack."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.kernels.cross_entropy import cross_entropy
from t5x_like.models.bert import BertConfig, forward_flops
from t5x_like.partitioning import Partitioner

CONFIG = BertConfig(
    vocab_size=40,
    embed_dim=12,
    mlp_dim=20,
    num_heads=2,
    head_dim=6,
    num_layers=2,
    max_length=16,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
)
SCANNED = dataclasses.replace(CONFIG, scan_layers=True)
ROBERTA = dataclasses.replace(
    CONFIG, position_offset=2, num_token_types=1, padding_id=1, activations=("gelu_exact",), norm_epsilon=1e-5
)


@functools.cache
def make(config):
    """A network of random values, the same in either layout; compiling an initialisation takes longer than a test."""
    stack = jax.eval_shape(dataclasses.replace(config, scan_layers=True).make, jax.random.key(0))
    rng = np.random.default_rng(0)

    def draw(name, leaf):
        return rng.normal(size=leaf.shape, scale=0.3 if name.endswith("kernel") else 1.0).astype(np.float32)

    drawn = parameters.named_leaves(parameters.map_named(draw, stack))
    return parameters.unstack(drawn, jax.eval_shape(config.make, jax.random.key(0)))


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).integers(2, CONFIG.vocab_size, shape).astype(np.int32)


def example(rows=2, length=7):
    return {"encoder_input_tokens": tokens(rows, length), "token_types": tokens(rows, length, seed=1) % 2}


@jax.jit
def hidden(model, batch):
    return model(batch).hidden


def loss(model, batch, key=None):
    targets = batch["encoder_input_tokens"]
    return cross_entropy(
        model(batch, dropout_key=key).hidden, model.unembed, targets, jnp.ones(targets.shape), z_loss=1e-3
    ).total


EIGHT_ROWS = {"rows": 8, "length": 8}  # as many as there are devices


@functools.cache
def loss_and_gradient(config):
    return jax.jit(jax.value_and_grad(loss))(make(config), example(**EIGHT_ROWS))


def stacked(tree):
    return parameters.stack(parameters.named_leaves(tree))


def assert_same(ours, theirs):
    """Equal but for rounding, by the measure of the comparisons with other implementations."""
    ours, theirs = stacked(ours), stacked(theirs)
    assert ours.keys() == theirs.keys()
    largest = max(np.abs(leaf).max() for leaf in theirs.values())
    for name in ours:
        atol = 2e-5 * max(np.abs(theirs[name]).max(), 1e-3 * largest)
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=atol, err_msg=name)


# ---- what sees what ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [CONFIG, ROBERTA], ids=["bert", "roberta"])
def test_every_position_sees_every_other_but_padding(config):
    model, batch = make(config), {"encoder_input_tokens": tokens(1, 7)}
    batch["encoder_input_tokens"][:, 5:] = config.padding_id
    embedded = model.embed(batch)

    def trunk(encoder):
        return model.trunk({"encoder": encoder}, batch).hidden[0]

    influence = np.abs(jax.jit(jax.jacobian(trunk))(embedded["encoder"])[:, :, 0]).max(axis=(1, 3))
    assert (influence[:5, :5] > 0).all()
    assert (influence[:5, 5:] == 0).all()


def test_a_token_0_is_padding_only_where_the_configuration_says_so():
    batch = {"encoder_input_tokens": np.array([[0, 5, 6, 1]], np.int32)}
    other = {"encoder_input_tokens": np.array([[0, 5, 6, 7]], np.int32)}
    roberta = make(ROBERTA)
    without = {"encoder_input_tokens": batch["encoder_input_tokens"][:, :3]}
    np.testing.assert_allclose(hidden(roberta, batch)[:, :3], hidden(roberta, without), atol=2e-5)
    assert np.abs(hidden(roberta, batch)[:, :3] - hidden(roberta, other)[:, :3]).max() > 1e-3
    swapped = {"encoder_input_tokens": np.array([[9, 5, 6, 7]], np.int32)}
    assert np.abs(hidden(roberta, other)[:, 1:] - hidden(roberta, swapped)[:, 1:]).max() > 1e-3


@pytest.mark.parametrize("config", [CONFIG, ROBERTA], ids=["bert", "roberta"])
def test_packed_examples_do_not_see_each_other(config):
    model = make(config)
    first, second = example(rows=1, length=4), {name: row[:, ::-1] for name, row in example(rows=1, length=5).items()}
    types = config.num_token_types

    def joined(name):
        return np.concatenate([first[name], second[name], np.zeros((1, 3), np.int32)], axis=1)

    packed = {
        "encoder_input_tokens": joined("encoder_input_tokens"),
        "token_types": joined("token_types") % types,
        "encoder_segment_ids": np.array([[1] * 4 + [2] * 5 + [0] * 3], np.int32),
        "encoder_positions": np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0, 0]], np.int32),
    }
    found = hidden(model, packed)
    for part, alone in ((slice(0, 4), first), (slice(4, 9), second)):
        alone = alone | {"token_types": alone["token_types"] % types}
        np.testing.assert_allclose(found[:, part], hidden(model, alone), atol=2e-5)
    assert np.isfinite(found).all()


def test_padding_changes_nothing():
    model, batch = make(CONFIG), example()
    padded = {name: np.pad(rows, ((0, 0), (0, 3))) for name, rows in batch.items()}
    np.testing.assert_allclose(hidden(model, padded)[:, :7], hidden(model, batch), atol=2e-5)


# ---- embeddings ---------------------------------------------------------------------------------------------------


def test_embeddings_by_hand():
    model = make(ROBERTA)
    token, position, kind = (
        np.asarray(table.embedding[...])
        for table in (model.token_embedder, model.position_embedder, model.token_type_embedder)
    )
    assert position.shape == (18, 12)
    batch = {"encoder_input_tokens": np.array([[7, 9]], np.int32), "encoder_positions": np.array([[3, 0]], np.int32)}
    total = np.stack([token[7] + position[5] + kind[0], token[9] + position[2] + kind[0]])
    normed = (total - total.mean(-1, keepdims=True)) / np.sqrt(total.var(-1, keepdims=True) + 1e-5)
    expected = normed * model.embedding_norm.scale[...] + model.embedding_norm.bias[...]
    np.testing.assert_allclose(model.embed(batch)["encoder"][0], expected, atol=1e-5)


def test_what_a_batch_leaves_out_counts_along_the_row_and_is_of_the_first_type():
    model, batch = make(CONFIG), example()
    full = {
        "encoder_input_tokens": batch["encoder_input_tokens"],
        "encoder_positions": np.tile(np.arange(7, dtype=np.int32), (2, 1)),
        "token_types": np.zeros((2, 7), np.int32),
    }
    bare = {"encoder_input_tokens": batch["encoder_input_tokens"]}
    np.testing.assert_array_equal(hidden(model, bare), hidden(model, full))
    assert np.abs(hidden(model, bare) - hidden(model, batch)).max() > 1e-3


def test_rows_longer_than_the_table_are_refused():
    with pytest.raises(ValueError, match=r"rows of 17 tokens exceed BertConfig.max_length=16"):
        make(ROBERTA).embed({"encoder_input_tokens": tokens(1, 17)})


# ---- layouts, dropout, rematerialisation ---------------------------------------------------------------------------


def test_scanned_and_unrolled_are_the_same_network():
    (value, gradient), (other_value, other) = loss_and_gradient(CONFIG), loss_and_gradient(SCANNED)
    np.testing.assert_allclose(value, other_value, rtol=1e-6)
    assert_same(gradient, other)


def test_a_fresh_network_is_the_same_in_either_layout():
    unrolled, scanned = (jax.jit(config.make)(jax.random.key(0)) for config in (CONFIG, SCANNED))
    assert_same(unrolled, scanned)
    kernel = np.asarray(scanned.encoder.layers.mlp.wi.kernel[...])
    assert np.abs(kernel).max() <= 0.04 and kernel.std() > 0.015
    np.testing.assert_array_equal(scanned.encoder.layers.mlp.wi.bias[...], 0)


def test_dropout_needs_a_key_and_follows_it_alike_in_either_layout():
    batch = example()
    run = jax.jit(lambda model, key=None: model(batch, dropout_key=key).hidden)
    rates = {"dropout_rate": 0.3, "attention_dropout_rate": 0.3}
    unrolled, scanned = (make(dataclasses.replace(config, **rates)) for config in (CONFIG, SCANNED))
    np.testing.assert_array_equal(run(unrolled), run(make(CONFIG)))
    first = run(unrolled, jax.random.key(1))
    np.testing.assert_array_equal(first, run(unrolled, jax.random.key(1)))
    assert np.abs(first - run(unrolled, jax.random.key(2))).max() > 0.1
    np.testing.assert_allclose(run(scanned, jax.random.key(1)), first, atol=2e-5)


@pytest.mark.parametrize("rate", ["dropout_rate", "attention_dropout_rate"])
def test_each_dropout_rate_drops(rate):
    model, batch = make(dataclasses.replace(CONFIG, **{rate: 0.5})), example()
    assert np.abs(model(batch, dropout_key=jax.random.key(1)).hidden - hidden(model, batch)).max() > 0.1


@pytest.mark.parametrize(("config", "remat"), [(CONFIG, "full"), (SCANNED, "dots")], ids=["unrolled", "scanned"])
def test_rematerialisation_changes_no_gradient(config, remat):
    value, gradient = loss_and_gradient(CONFIG)
    other_value, other = loss_and_gradient(dataclasses.replace(config, remat=remat))
    np.testing.assert_allclose(value, other_value, rtol=1e-6)
    assert_same(gradient, other)


def test_bfloat16_stays_near_float32_with_losses_in_float32():
    config = dataclasses.replace(SCANNED, dtype="bfloat16")
    shape = jax.eval_shape(lambda model: model(example()).hidden, make(config))
    assert shape.dtype == jnp.bfloat16
    assert jax.eval_shape(make(config).unembed, shape).dtype == jnp.float32
    value, gradient = loss_and_gradient(config)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    assert float(value) == pytest.approx(float(loss_and_gradient(SCANNED)[0]), rel=0.01)


@pytest.mark.parametrize(
    ("config", "rules", "mesh"),
    [
        (SCANNED, "fsdp", {"fsdp": 4, "data": 2}),
        (CONFIG, "fsdp_tp_sp", {"fsdp": 2, "sequence": 2, "tensor": 2}),
    ],
    ids=["fsdp", "tensor and sequence, unrolled"],
)
def test_eight_devices_agree_with_one(config, rules, mesh):
    model, batch = make(config), example(**EIGHT_ROWS)
    value, gradient = loss_and_gradient(config)
    partitioner = Partitioner(rules=rules, ici=mesh)
    step = partitioner.jit(
        jax.value_and_grad(loss), out_shardings=(partitioner.replicated, partitioner.shardings(model))
    )
    found = step(jax.device_put(model, partitioner.shardings(model)), partitioner.put_batch(batch))
    np.testing.assert_allclose(found[0], value, rtol=2e-6)
    assert_same(jax.device_get(found[1]), gradient)


# ---- captures, names, configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [CONFIG, SCANNED], ids=["unrolled", "scanned"])
def test_captures(config):
    model, batch = make(config), example()
    names = (
        "encoder/embedded",
        "encoder/layers/hidden",
        "encoder/layers/1/hidden",
        "encoder/layers/0/attention/scores",
        "encoder/layers/attention/probabilities",
    )
    outputs = jax.jit(lambda model: model(batch, capture=names))(model)
    captured = outputs.captured
    assert set(captured) == set(names)
    np.testing.assert_allclose(captured["encoder/embedded"], model.embed(batch)["encoder"], atol=2e-5)
    np.testing.assert_allclose(captured["encoder/layers/attention/probabilities"].sum(-1), 1, rtol=1e-5)
    assert captured["encoder/layers/hidden"].shape == (2, 2, 7, 12)
    np.testing.assert_array_equal(captured["encoder/layers/1/hidden"], outputs.hidden)
    assert captured["encoder/layers/0/attention/scores"].shape == (2, 2, 7, 7)
    with pytest.raises(ValueError, match="cannot capture 'encoder/layers/2/hidden'"):
        model(batch, capture=("encoder/layers/2/hidden",))


def test_names_and_axes():
    axes = parameters.logical_axes(jax.eval_shape(SCANNED.make, jax.random.key(0)))
    assert axes["encoder/layers/attention/query/kernel"] == ("layers", "embed", "heads", "kv")
    assert axes["encoder/layers/attention/query/bias"] == ("layers", "heads", "kv")
    assert axes["encoder/layers/mlp/wi/kernel"] == ("layers", "embed", "mlp")
    assert axes["token_embedder/embedding"] == ("vocab", "embed")
    assert axes["position_embedder/embedding"] == ("positions", "embed")
    assert axes["token_type_embedder/embedding"] == ("token_types", "embed")


def test_flops_are_those_that_xla_counts():
    config = BertConfig(
        vocab_size=1000, embed_dim=128, mlp_dim=256, num_heads=4, head_dim=32, num_layers=3, max_length=96
    )
    batch = {"encoder_input_tokens": tokens(4, 96)}
    model = jax.eval_shape(config.make, jax.random.key(0))

    def logits(model, batch):
        return model.unembed(model(batch).hidden[:, :20])

    counted = jax.jit(logits).lower(model, batch).compile().cost_analysis()["flops"]
    forward = forward_flops(config, 4, 96, 20)
    # What the formula leaves out, norms, softmax and activations, is a few percent at these sizes.
    assert 1 <= counted / forward < 1.08
    shapes = {"encoder_input_tokens": (4, 96)}
    assert config.train_flops(shapes | {"masked_positions": (4, 20)}) == 3 * forward
    assert config.train_flops(shapes) == 3 * forward_flops(config, 4, 96, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, r"BertConfig.num_layers=0 must be a whole number of at least 1"),
        ({"max_length": True}, r"BertConfig.max_length=True must be a whole number"),
        ({"position_offset": -1}, r"BertConfig.position_offset=-1 must be"),
        ({"padding_id": -1}, r"BertConfig.padding_id=-1 must be"),
        ({"activations": ("gelu_new",)}, r"\['gelu_new'\] is none"),
        ({"attention_dropout_rate": 1.0}, r"attention_dropout_rate=1.0 must be in \[0, 1\)"),
        ({"norm_epsilon": 0.0}, r"norm_epsilon=0.0 must be positive"),
        ({"remat": "some"}, r"BertConfig.remat='some' must be one of"),
    ],
)
def test_bad_configurations_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)
