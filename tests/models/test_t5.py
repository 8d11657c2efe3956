"""Properties of T5 that hold for any weights, and the two layouts of its stacks."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.kernels.cross_entropy import cross_entropy
from t5x_like.models.encoder_decoder import forward_flops
from t5x_like.models.t5 import T5Config, make_layer
from t5x_like.partitioning import Partitioner, for_platform

CONFIG = T5Config(
    vocab_size=40,
    embed_dim=12,
    mlp_dim=20,
    num_heads=2,
    head_dim=5,
    encoder_layers=2,
    decoder_layers=2,
    relpos_buckets=8,
    relpos_max_distance=16,
)
SCANNED = dataclasses.replace(CONFIG, scan_layers=True)
TIED = dataclasses.replace(CONFIG, activations=("relu",), tied_embeddings=True)


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


def example(rows=2, inputs=7, targets=6):
    return {"encoder_input_tokens": tokens(rows, inputs), "decoder_input_tokens": tokens(rows, targets, seed=1)}


@jax.jit
def logits(model, batch):
    return model.unembed(model(batch).hidden)


def loss(model, batch, key=None):
    targets, weights = batch["decoder_input_tokens"], jnp.ones(batch["decoder_input_tokens"].shape)
    hidden = model(batch, dropout_key=key).hidden
    return cross_entropy(hidden, model.unembed, targets, weights, z_loss=1e-3).total


EIGHT_ROWS = {"rows": 8, "inputs": 8}  # as many as there are devices


@functools.cache
def loss_and_gradient(config):
    return jax.jit(jax.value_and_grad(loss))(make(config), example(**EIGHT_ROWS))


def stacked(tree):
    return parameters.stack(parameters.named_leaves(tree))


def assert_same(ours, theirs, atol=2e-5):
    ours, theirs = stacked(ours), stacked(theirs)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-5, atol=atol, err_msg=name)


# ---- what sees what ---------------------------------------------------------------------------------------------


def test_no_position_of_the_decoder_sees_a_later_one():
    model, batch = make(CONFIG), example(rows=1)
    embedded = model.embed(batch)

    def hidden(decoder):
        return model.trunk(embedded | {"decoder": decoder}, batch).hidden[0]

    jacobian = jax.jit(jax.jacobian(hidden))(embedded["decoder"])[:, :, 0]
    influence = np.abs(jacobian).max(axis=(1, 3))
    assert (influence[np.triu_indices_from(influence, 1)] == 0).all()
    assert (influence[np.tril_indices_from(influence)] > 0).all()


def test_every_position_sees_all_of_the_encoder_but_padding():
    model, batch = make(CONFIG), example(rows=1)
    batch["encoder_input_tokens"][:, 5:] = 0
    embedded = model.embed(batch)

    def hidden(encoder):
        return model.trunk(embedded | {"encoder": encoder}, batch).hidden[0]

    influence = np.abs(jax.jit(jax.jacobian(hidden))(embedded["encoder"])[:, :, 0]).max(axis=(1, 3))
    assert (influence[:, :5] > 0).all()
    assert (influence[:, 5:] == 0).all()


@pytest.mark.parametrize("config", [CONFIG, TIED], ids=["1.1", "1.0"])
def test_packed_examples_do_not_see_each_other(config):
    model = make(config)
    first = example(rows=1, inputs=4, targets=3)
    second = {name: row[:, ::-1] for name, row in example(rows=1, inputs=5, targets=2).items()}

    def row(stack):
        a, b = first[f"{stack}_input_tokens"], second[f"{stack}_input_tokens"]
        padding = np.zeros((1, 2), np.int32)
        return {
            f"{stack}_input_tokens": np.concatenate([a, b, padding], 1),
            f"{stack}_segment_ids": np.concatenate([a * 0 + 1, b * 0 + 2, padding], 1),
        }

    packed = logits(model, row("encoder") | row("decoder"))
    np.testing.assert_allclose(packed[:, :3], logits(model, first), atol=2e-5)
    np.testing.assert_allclose(packed[:, 3:5], logits(model, second), atol=2e-5)
    assert np.isfinite(packed).all()


def test_padding_changes_nothing():
    model, batch = make(CONFIG), example()
    padded = {name: np.pad(rows, ((0, 0), (0, 3))) for name, rows in batch.items()}
    np.testing.assert_allclose(logits(model, padded)[:, :6], logits(model, batch), atol=2e-5)


def test_segment_ids_of_one_stack_alone_are_refused():
    batch = example()
    with pytest.raises(ValueError, match="together or neither"):
        make(CONFIG)(batch | {"encoder_segment_ids": np.ones_like(batch["encoder_input_tokens"])})


def test_queries_are_initialised_with_the_scale_that_scores_lack():
    wide = dataclasses.replace(CONFIG, embed_dim=64, num_heads=16, head_dim=16)
    attention = make_layer(wide, ("attention",), jax.random.key(0)).attention
    ratio = np.std(attention.query.kernel[...]) / np.std(attention.key.kernel[...])
    assert abs(ratio / 16**-0.5 - 1) < 0.03


# ---- layouts, dropout, rematerialisation ---------------------------------------------------------------------------


def test_scanned_and_unrolled_are_the_same_network():
    (value, gradient), (other_value, other) = loss_and_gradient(CONFIG), loss_and_gradient(SCANNED)
    np.testing.assert_allclose(value, other_value, rtol=1e-6)
    assert_same(gradient, other)
    unrolled, scanned = make(CONFIG), make(SCANNED)
    there_and_back = parameters.unstack(stacked(scanned), unrolled)
    assert jax.tree.structure(there_and_back) == jax.tree.structure(unrolled)
    np.testing.assert_array_equal(logits(there_and_back, example()), logits(unrolled, example()))


def test_dropout_needs_a_key_and_follows_it_alike_in_either_layout():
    batch = example()
    run = jax.jit(lambda model, key=None: model(batch, dropout_key=key).hidden)
    unrolled, scanned = (make(dataclasses.replace(config, dropout_rate=0.3)) for config in (CONFIG, SCANNED))
    np.testing.assert_array_equal(run(unrolled), run(make(CONFIG)))
    first = run(unrolled, jax.random.key(1))
    np.testing.assert_array_equal(first, run(unrolled, jax.random.key(1)))
    assert np.abs(first - run(unrolled, jax.random.key(2))).max() > 0.1
    np.testing.assert_allclose(run(scanned, jax.random.key(1)), first, atol=2e-5)


@pytest.mark.parametrize(("config", "remat"), [(CONFIG, "full"), (SCANNED, "dots")], ids=["unrolled", "scanned"])
def test_rematerialisation_changes_no_gradient(config, remat):
    value, gradient = loss_and_gradient(CONFIG)
    other_value, other = loss_and_gradient(dataclasses.replace(config, remat=remat))
    np.testing.assert_allclose(value, other_value, rtol=1e-6)
    assert_same(gradient, other)


def test_bfloat16_stays_near_float32_with_losses_in_float32():
    config = dataclasses.replace(SCANNED, dtype="bfloat16")
    hidden = jax.eval_shape(lambda model: model(example()).hidden, make(config))
    assert hidden.dtype == jnp.bfloat16
    assert jax.eval_shape(make(config).unembed, hidden).dtype == jnp.float32
    value, gradient = loss_and_gradient(config)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    assert float(value) == pytest.approx(float(loss_and_gradient(SCANNED)[0]), rel=0.01)


@pytest.mark.parametrize(
    ("config", "rules", "mesh"),
    [
        (SCANNED, "dp", {"data": 8}),
        (dataclasses.replace(SCANNED, tied_embeddings=True), "fsdp", {"fsdp": 4, "data": 2}),
        (CONFIG, "fsdp_tp_sp", {"fsdp": 2, "sequence": 2, "tensor": 2}),
    ],
    ids=["data", "fsdp, tied", "tensor and sequence, unrolled"],
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
    assert_same(jax.device_get(found[1]), gradient, atol=1e-4)


# ---- decoding ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [SCANNED, TIED], ids=["scanned 1.1", "unrolled 1.0"])
def test_step_by_step_equals_teacher_forcing(config):
    model, batch = make(config), example()
    batch["encoder_input_tokens"][1, 4:] = 0

    @jax.jit
    def decode(model):
        # One position more room than is used: what lies ahead must not matter.
        cache = model.init_cache(2, 7, model.encode(batch))
        rows = []
        for index in range(6):
            hidden, cache = model.decode_step(batch["decoder_input_tokens"][:, index : index + 1], cache, index)
            rows.append(hidden)
        return model.unembed(jnp.concatenate(rows, axis=1))

    np.testing.assert_allclose(decode(model), logits(model, batch), atol=2e-5)


def test_decoding_continues_the_first_segment_of_a_packed_row():
    model, alone = make(CONFIG), example(rows=1, inputs=4)
    packed = {
        "encoder_input_tokens": np.concatenate([alone["encoder_input_tokens"], tokens(1, 3, seed=5)], 1),
        "encoder_segment_ids": np.array([[1] * 4 + [2] * 3]),
    }

    @jax.jit
    def first_step(batch):
        cache = model.init_cache(1, 3, model.encode(batch))
        return model.decode_step(np.zeros((1, 1), np.int32), cache, 0)[0]

    np.testing.assert_allclose(first_step(packed), first_step(alone), atol=2e-5)


# ---- captures, counts, configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [CONFIG, SCANNED], ids=["unrolled", "scanned"])
def test_captures(config):
    model, batch = make(config), example()
    names = (
        "encoder/output",
        "encoder/layers/attention/probabilities",
        "decoder/layers/hidden",
        "decoder/layers/1/hidden",
        "decoder/layers/0/cross_attention/scores",
        "decoder/layers/self_attention/query",
    )
    outputs = jax.jit(lambda model: model(batch, capture=names))(model)
    captured = outputs.captured
    assert set(captured) == set(names)
    np.testing.assert_allclose(outputs.hidden, model(batch).hidden, atol=2e-5)
    np.testing.assert_allclose(captured["encoder/layers/attention/probabilities"].sum(-1), 1, rtol=1e-5)
    assert captured["decoder/layers/hidden"].shape == (2, 2, 6, 12)
    np.testing.assert_array_equal(captured["decoder/layers/1/hidden"], captured["decoder/layers/hidden"][1])
    np.testing.assert_allclose(model.decoder.norm(captured["decoder/layers/1/hidden"]), outputs.hidden, atol=2e-5)
    assert captured["decoder/layers/0/cross_attention/scores"].shape == (2, 2, 6, 7)
    assert captured["decoder/layers/self_attention/query"].shape == (2, 2, 6, 2, 5)
    with pytest.raises(ValueError, match="cannot capture 'decoder/layers/2/hidden'"):
        model(batch, capture=("decoder/layers/2/hidden",))


def test_names_and_axes():
    axes = parameters.logical_axes(jax.eval_shape(SCANNED.make, jax.random.key(0)))
    assert axes["encoder/layers/attention/query/kernel"] == ("layers", "embed", "heads", "kv")
    assert axes["decoder/layers/cross_attention/out/kernel"] == ("layers", "heads", "kv", "embed")
    assert axes["decoder/layers/mlp/wi_1/kernel"] == ("layers", "embed", "mlp")
    assert axes["encoder/relative_bias/table"] == ("heads", "relpos_buckets")
    assert axes["token_embedder/embedding"] == ("vocab", "embed")
    assert axes["logits/kernel"] == ("embed", "vocab")
    assert "decoder/layers/0/mlp_norm/scale" in parameters.named_leaves(jax.eval_shape(CONFIG.make, jax.random.key(0)))
    assert "logits/kernel" not in parameters.named_leaves(jax.eval_shape(TIED.make, jax.random.key(0)))


@pytest.mark.parametrize("tied", [False, True])
def test_flops_are_those_that_xla_counts(tied):
    config = T5Config(
        vocab_size=1000,
        embed_dim=128,
        mlp_dim=256,
        num_heads=4,
        head_dim=32,
        encoder_layers=2,
        decoder_layers=3,
        activations=("relu",) if tied else ("gelu", "linear"),
        tied_embeddings=tied,
    )
    batch = example(rows=4, inputs=96, targets=40)
    shapes = {name: rows.shape for name, rows in batch.items()}
    model = jax.eval_shape(config.make, jax.random.key(0))

    def counted(function):
        return jax.jit(function).lower(model, batch).compile().cost_analysis()["flops"]

    forward = forward_flops(config, 4, 96, 40)
    # What the formula leaves out, norms, softmax and activations, is a few percent at these sizes.
    assert 1 <= counted(logits.__wrapped__) / forward < 1.08
    assert config.train_flops(shapes) == 3 * forward
    assert 1 <= counted(jax.value_and_grad(loss)) / (3 * forward) < 1.08


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 0}, r"T5Config.num_heads=0 must be a whole number of at least 1"),
        ({"embed_dim": 1.5}, r"T5Config.embed_dim=1.5 must be a whole number"),
        ({"activations": ("swish",)}, r"one or more of \[.*'linear', 'relu'.*\]; \['swish'\] is none"),
        ({"activations": ()}, r"must name one or more of"),
        ({"dropout_rate": 1.0}, r"T5Config.dropout_rate=1.0 must be in \[0, 1\)"),
        ({"remat": "some"}, r"T5Config.remat='some' must be one of \['dots', 'full', 'none'\]"),
        ({"dtype": "float16"}, r"T5Config.dtype='float16' must be 'float32' or 'bfloat16'"),
        ({"relpos_buckets": 7}, r"relpos_buckets=7 must be even"),
        ({"relpos_max_distance": 16, "relpos_buckets": 32}, r"must exceed the 16 distances"),
        ({"norm_epsilon": 0.0}, r"norm_epsilon=0.0 must be positive"),
    ],
)
def test_configurations_that_make_no_network_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)


def test_the_platform_fills_in_what_is_left_open():
    assert (for_platform(CONFIG, "cpu").dtype, for_platform(CONFIG, "cpu").scan_layers) == ("float32", False)
    assert (for_platform(CONFIG, "tpu").dtype, for_platform(CONFIG, "tpu").scan_layers) == ("bfloat16", True)


@pytest.mark.parametrize("config", [CONFIG, TIED], ids=["1.1", "1.0"])
def test_the_first_loss_is_near_that_of_guessing(config):
    # Where it is far above ln(vocab), an initialisation or a scale is wrong.
    config = dataclasses.replace(config, vocab_size=512, embed_dim=64, mlp_dim=128, num_heads=4, head_dim=16)
    config = dataclasses.replace(config, encoder_layers=1, decoder_layers=1)
    batch = example(rows=8)
    first = jax.jit(lambda key: loss(config.make(key), batch))(jax.random.key(0))
    assert float(first) / batch["decoder_input_tokens"].size < np.log(512) + 1.5
