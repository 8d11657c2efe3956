"""Properties of BART that hold for any weights, and the two layouts of its stacks."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.decoding.greedy import greedy
from t5x_like.kernels.cross_entropy import cross_entropy
from t5x_like.models.bart import BartConfig
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.partitioning import Partitioner, for_platform

CONFIG = BartConfig(
    vocab_size=40,
    embed_dim=12,
    mlp_dim=20,
    num_heads=2,
    head_dim=5,
    encoder_layers=2,
    decoder_layers=2,
    max_length=11,
)
SCANNED = dataclasses.replace(CONFIG, scan_layers=True)


@functools.cache
def make(config):
    """A network of random values, the same in either layout."""
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
    return cross_entropy(model(batch, dropout_key=key).hidden, model.unembed, targets, weights).total


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


def influence(batch, stack):
    """How much each position of a stack's input changes each position of the result, `[result, input]`."""
    model, embedded = make(CONFIG), make(CONFIG).embed(batch)
    hidden = jax.jit(jax.jacobian(lambda x: model.trunk(embedded | {stack: x}, batch).hidden[0]))
    return np.abs(hidden(embedded[stack])[:, :, 0]).max(axis=(1, 3))


def test_no_position_of_the_decoder_sees_a_later_one():
    found = influence(example(rows=1), "decoder")
    assert (found[np.triu_indices_from(found, 1)] == 0).all()
    assert (found[np.tril_indices_from(found)] > 0).all()


def test_every_position_sees_all_of_the_encoder_but_padding():
    batch = example(rows=1)
    batch["encoder_input_tokens"][:, 5:] = 0
    found = influence(batch, "encoder")
    assert (found[:, :5] > 0).all()
    assert (found[:, 5:] == 0).all()


def test_packed_examples_do_not_see_each_other():
    model = make(CONFIG)
    first = example(rows=1, inputs=4, targets=3)
    second = {name: row[:, ::-1] for name, row in example(rows=1, inputs=5, targets=2).items()}

    def row(stack):
        a, b = first[f"{stack}_input_tokens"], second[f"{stack}_input_tokens"]
        padding = np.zeros((1, 2), np.int32)
        count = [np.arange(part.shape[1])[None] for part in (a, b)]
        return {
            f"{stack}_input_tokens": np.concatenate([a, b, padding], 1),
            f"{stack}_segment_ids": np.concatenate([a * 0 + 1, b * 0 + 2, padding], 1),
            f"{stack}_positions": np.concatenate([*count, padding], 1).astype(np.int32),
        }

    packed = logits(model, row("encoder") | row("decoder"))
    np.testing.assert_allclose(packed[:, :3], logits(model, first), atol=2e-5)
    np.testing.assert_allclose(packed[:, 3:5], logits(model, second), atol=2e-5)
    assert np.isfinite(packed).all()


def test_padding_changes_nothing():
    model, batch = make(CONFIG), example()
    padded = {name: np.pad(rows, ((0, 0), (0, 3))) for name, rows in batch.items()}
    np.testing.assert_allclose(logits(model, padded)[:, :6], logits(model, batch), atol=2e-5)


# ---- positions and embeddings ----------------------------------------------------------------------------------------


def test_what_goes_into_the_stacks_by_hand():
    model, batch = make(CONFIG), example(rows=1)
    table = np.asarray(model.token_embedder.embedding[...])
    for stack, layer in (("encoder", model.encoder_input), ("decoder", model.decoder_input)):
        positions = np.asarray(layer.position_embedder.embedding[...])
        assert positions.shape == (13, 12)
        # The third token is at position 2, which is row 4.
        total = table[batch[f"{stack}_input_tokens"][0, 2]] + positions[4]
        normal = (total - total.mean()) / np.sqrt(total.var() + 1e-5)
        expected = normal * layer.norm.scale[...] + layer.norm.bias[...]
        np.testing.assert_allclose(model.embed(batch)[stack][0, 2], expected, atol=2e-5)


def test_rows_longer_than_the_table_of_positions_are_refused():
    model, message = make(CONFIG), r"rows of 12 tokens exceed BartConfig.max_length=11"
    for lengths in ({"inputs": 12}, {"targets": 12}):
        with pytest.raises(ValueError, match=message):
            model(example(**lengths))
    batch = example()
    with pytest.raises(ValueError, match=message):
        model.init_cache(2, 12, model.encode(batch))
    assert np.isfinite(logits(model, example(inputs=11, targets=11))).all()


# ---- layouts, dropout, rematerialisation ---------------------------------------------------------------------------


def test_scanned_and_unrolled_are_the_same_network():
    (value, gradient), (other_value, other) = loss_and_gradient(CONFIG), loss_and_gradient(SCANNED)
    np.testing.assert_allclose(value, other_value, rtol=1e-6)
    assert_same(gradient, other)


def test_dropout_needs_a_key_and_follows_it_alike_in_either_layout():
    batch = example()
    run = jax.jit(lambda model, key=None: model(batch, dropout_key=key).hidden)
    rates = {"dropout_rate": 0.3, "attention_dropout_rate": 0.2}
    unrolled, scanned = (make(dataclasses.replace(config, **rates)) for config in (CONFIG, SCANNED))
    np.testing.assert_array_equal(run(unrolled), run(make(CONFIG)))
    first = run(unrolled, jax.random.key(1))
    assert np.abs(first - run(unrolled, jax.random.key(2))).max() > 0.1
    np.testing.assert_allclose(run(scanned, jax.random.key(1)), first, atol=2e-5)


@pytest.mark.parametrize("rate", ["dropout_rate", "attention_dropout_rate"])
def test_either_rate_drops_something(rate):
    none = dataclasses.replace(CONFIG, dropout_rate=0.0, attention_dropout_rate=0.0)
    run = jax.jit(lambda model: model(example(), dropout_key=jax.random.key(1)).hidden)
    assert np.abs(run(make(dataclasses.replace(none, **{rate: 0.3}))) - run(make(none))).max() > 0.1


def test_rematerialisation_changes_no_gradient():
    value, gradient = loss_and_gradient(SCANNED)
    other_value, other = loss_and_gradient(dataclasses.replace(SCANNED, remat="full"))
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


def test_eight_devices_agree_with_one():
    model, batch = make(SCANNED), example(**EIGHT_ROWS)
    value, gradient = loss_and_gradient(SCANNED)
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"fsdp": 2, "sequence": 2, "tensor": 2})
    step = partitioner.jit(
        jax.value_and_grad(loss), out_shardings=(partitioner.replicated, partitioner.shardings(model))
    )
    found = step(jax.device_put(model, partitioner.shardings(model)), partitioner.put_batch(batch))
    np.testing.assert_allclose(found[0], value, rtol=2e-6)
    assert_same(jax.device_get(found[1]), gradient, atol=1e-4)


# ---- decoding ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [SCANNED, CONFIG], ids=["scanned", "unrolled"])
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


def test_greedy_tokens_are_the_best_of_teacher_forcing():
    model, batch = make(CONFIG), {"encoder_input_tokens": tokens(3, 7)}
    generated = jax.jit(lambda model: greedy(model, batch, max_length=6, eos_id=CONFIG.vocab_size))(model)
    given = np.pad(np.asarray(generated.tokens), ((0, 0), (1, 0)))[:, :-1]
    found = logits(model, batch | {"decoder_input_tokens": given})
    np.testing.assert_array_equal(generated.tokens, np.argmax(found, axis=-1))


# ---- training, captures, counts, configuration ---------------------------------------------------------------------


def test_the_objective_of_text_to_text_reads_it():
    model, batch = make(CONFIG), example()
    targets = batch["decoder_input_tokens"]
    batch |= {"decoder_target_tokens": targets, "decoder_loss_weights": np.ones_like(targets)}
    terms = jax.jit(lambda model: SequenceToSequence(z_loss=0.0).terms({"model": model}, batch))(model)
    entropies = -np.take_along_axis(jax.nn.log_softmax(logits(model, batch)), targets[..., None], axis=-1)
    np.testing.assert_allclose(terms.sums["targets"], entropies.sum(), rtol=1e-5)


@pytest.mark.parametrize("config", [CONFIG, SCANNED], ids=["unrolled", "scanned"])
def test_captures(config):
    model, batch = make(config), example()
    names = (
        "encoder/output",
        "encoder/layers/attention/probabilities",
        "decoder/layers/1/hidden",
        "decoder/layers/0/cross_attention/scores",
    )
    outputs = jax.jit(lambda model: model(batch, capture=names))(model)
    assert set(outputs.captured) == set(names)
    np.testing.assert_allclose(outputs.captured["encoder/layers/attention/probabilities"].sum(-1), 1, rtol=1e-5)
    # No norm follows the last layer.
    np.testing.assert_array_equal(outputs.captured["decoder/layers/1/hidden"], outputs.hidden)
    assert outputs.captured["decoder/layers/0/cross_attention/scores"].shape == (2, 2, 6, 7)
    with pytest.raises(ValueError, match="cannot capture 'decoder/layers/2/hidden'"):
        model(batch, capture=("decoder/layers/2/hidden",))


def test_names_and_axes():
    axes = parameters.logical_axes(jax.eval_shape(SCANNED.make, jax.random.key(0)))
    assert axes["encoder/layers/attention/query/bias"] == ("layers", "heads", "kv")
    assert axes["decoder/layers/cross_attention/out/kernel"] == ("layers", "heads", "kv", "embed")
    assert axes["decoder_input/position_embedder/embedding"] == ("positions", "embed")
    assert axes["token_embedder/embedding"] == ("vocab", "embed")


def test_flops_are_those_that_xla_counts():
    config = BartConfig(
        vocab_size=1000, embed_dim=128, mlp_dim=256, num_heads=4, head_dim=32, encoder_layers=2, decoder_layers=3
    )
    batch = example(rows=4, inputs=96, targets=40)
    model = jax.eval_shape(config.make, jax.random.key(0))

    def counted(function):
        return jax.jit(function).lower(model, batch).compile().cost_analysis()["flops"]

    expected = config.train_flops({name: rows.shape for name, rows in batch.items()})
    # What the formula leaves out, norms, softmax, biases and the error function, is a few percent at these sizes.
    assert 1 <= counted(logits.__wrapped__) / (expected / 3) < 1.08
    assert 1 <= counted(jax.value_and_grad(loss)) / expected < 1.08


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 0}, r"BartConfig.num_heads=0 must be a whole number of at least 1"),
        ({"max_length": 1.5}, r"BartConfig.max_length=1.5 must be a whole number"),
        ({"activations": ("swish",)}, r"one or more of \[.*'gelu_exact'.*\]; \['swish'\] is none"),
        ({"attention_dropout_rate": 1.0}, r"BartConfig.attention_dropout_rate=1.0 must be in \[0, 1\)"),
        ({"position_offset": -1}, r"BartConfig.position_offset=-1 must not be negative"),
        ({"norm_epsilon": 0.0}, r"norm_epsilon=0.0 must be positive"),
        ({"remat": "some"}, r"BartConfig.remat='some' must be one of"),
    ],
)
def test_configurations_that_make_no_network_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)


def test_the_platform_fills_in_what_is_left_open():
    assert (for_platform(CONFIG, "cpu").dtype, for_platform(CONFIG, "cpu").scan_layers) == ("float32", False)
    assert (for_platform(CONFIG, "tpu").dtype, for_platform(CONFIG, "tpu").scan_layers) == ("bfloat16", True)


def test_initial_values_are_those_of_the_released_code():
    config = BartConfig(vocab_size=512, embed_dim=64, mlp_dim=128, num_heads=4, head_dim=16)
    config = dataclasses.replace(config, encoder_layers=1, decoder_layers=1)
    model, first = jax.jit(lambda key: (config.make(key), loss(config.make(key), example(rows=8))))(jax.random.key(0))
    for name, leaf in parameters.named_leaves(model).items():
        if name.endswith(("kernel", "embedding")):
            assert np.std(leaf) == pytest.approx(0.02, rel=0.05), name
        else:
            np.testing.assert_array_equal(leaf, 1.0 if name.endswith("scale") else 0.0, err_msg=name)
    # Where the first loss is far above that of guessing, an initialisation or a scale is wrong.
    assert float(first) / example(rows=8)["decoder_input_tokens"].size < np.log(512) + 0.2
