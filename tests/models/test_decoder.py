"""Properties of decoder-only networks that hold for any weights: GPT, GPT-2, GPT-3, Llama and Mistral."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.decoding.prompts import aligned
from t5x_like.kernels.cross_entropy import cross_entropy
from t5x_like.models.decoder import forward_flops
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.llama import LlamaConfig
from t5x_like.partitioning import Partitioner, for_platform

SIZES = dict(vocab_size=40, embed_dim=12, mlp_dim=20, num_heads=4, num_layers=2, max_length=16)
GPT2 = GPTConfig(head_dim=3, **SIZES, dropout_rate=0.0, attention_dropout_rate=0.0)
LLAMA = LlamaConfig(head_dim=6, num_kv_heads=2, **SIZES)
FAMILIES = {
    "gpt1": dataclasses.replace(GPT2, norm_position="post"),
    "gpt2": GPT2,
    "gpt3": dataclasses.replace(GPT2, head_dim=5, num_layers=4, attention_windows=(None, 2), tied_embeddings=False),
    "llama": LLAMA,
    "mistral": dataclasses.replace(LLAMA, attention_windows=(3,), tied_embeddings=True),
}
everywhere = pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)


def scanned(config, **changes):
    return dataclasses.replace(config, scan_layers=True, **changes)


@functools.cache
def make(config):
    """A network of random values, the same in either layout; compiling an initialisation takes longer than a test."""
    stack = jax.eval_shape(dataclasses.replace(config, scan_layers=True).make, jax.random.key(0))
    rng = np.random.default_rng(0)
    drawn = {
        name: rng.normal(size=leaf.shape, scale=0.3 if name.endswith("kernel") else 1.0).astype(np.float32)
        for name, leaf in parameters.named_leaves(stack).items()
    }
    return parameters.unstack(drawn, jax.eval_shape(config.make, jax.random.key(0)))


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, SIZES["vocab_size"], shape).astype(np.int32)


def example(rows=2, length=9):
    return {"decoder_input_tokens": tokens(rows, length)}


@jax.jit
def logits(model, batch):
    return model.unembed(model(batch).hidden)


def influence(config, batch):
    """How much each position's result follows from each input: `[length, length]`, of the first row."""
    model = make(config)
    embedded = model.embed(batch)["decoder"]
    jacobian = jax.jit(jax.jacobian(lambda decoder: model.trunk({"decoder": decoder}, batch).hidden[0]))(embedded)
    return np.abs(jacobian[:, :, 0]).max(axis=(1, 3))


# ---- what sees what ---------------------------------------------------------------------------------------------


@everywhere
def test_every_position_sees_all_that_is_before_it_and_nothing_after(config):
    found = influence(dataclasses.replace(config, attention_windows=(None,)), example(rows=1))
    assert (found[np.triu_indices_from(found, 1)] == 0).all()
    assert (found[np.tril_indices_from(found)] > 0).all()


@pytest.mark.parametrize(
    ("config", "reach"),
    [
        (dataclasses.replace(LLAMA, attention_windows=(3,)), 2 * 2),
        (dataclasses.replace(GPT2, attention_windows=(1, 3)), 0 + 2),
        (dataclasses.replace(GPT2, num_layers=4, attention_windows=(3, 2)), 2 * (2 + 1)),
        (scanned(GPT2, num_layers=4, attention_windows=(3, 2)), 2 * (2 + 1)),
    ],
    ids=["one for all layers", "in turns", "in two turns", "in two turns, scanned"],
)
def test_windows_limit_how_far_back_the_layers_reach(config, reach):
    found = influence(config, example(rows=1))
    distance = np.arange(9)[:, None] - np.arange(9)
    assert (found[(distance >= 0) & (distance <= reach)] > 0).all()
    assert (found[(distance < 0) | (distance > reach)] == 0).all()


def test_a_prefix_is_seen_by_the_whole_segment_alone():
    prefix = np.array([[1, 1, 1, 0, 0, 1, 1, 0, 0]])
    segments = np.array([[1] * 5 + [2] * 4])
    found = influence(GPT2, example(rows=1) | {"decoder_prefix": prefix, "decoder_segment_ids": segments})
    places = np.arange(9)
    seen = (places[None] <= places[:, None]) | (prefix == 1)
    np.testing.assert_array_equal(found > 0, seen & (segments.T == segments))


@everywhere
def test_packed_examples_do_not_see_each_other(config):
    first, second, padding = tokens(1, 4), tokens(1, 3, seed=1), np.zeros((1, 2), np.int32)
    packed = {
        "decoder_input_tokens": np.concatenate([first, second, padding], 1),
        "decoder_segment_ids": np.array([[1] * 4 + [2] * 3 + [0] * 2]),
        "decoder_positions": np.array([[0, 1, 2, 3, 0, 1, 2, 0, 0]]),
    }
    model = make(config)
    found = logits(model, packed)
    np.testing.assert_allclose(found[:, :4], logits(model, {"decoder_input_tokens": first}), atol=2e-5)
    np.testing.assert_allclose(found[:, 4:7], logits(model, {"decoder_input_tokens": second}), atol=2e-5)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["learnt", "rotated"])
def test_positions_matter(config):
    model, batch = make(config), example()
    counted = np.broadcast_to(np.arange(9), (2, 9))
    np.testing.assert_array_equal(logits(model, batch | {"decoder_positions": counted}), logits(model, batch))
    assert np.abs(logits(model, batch | {"decoder_positions": counted[:, ::-1]}) - logits(model, batch)).max() > 0.1


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt", "llama"])
def test_rows_longer_than_there_are_positions_are_refused(config):
    with pytest.raises(ValueError, match=r"rows of 17 tokens exceed .*Config.max_length=16"):
        make(config).embed(example(length=17))


# ---- layouts, dropout, devices -----------------------------------------------------------------------------------


def loss(model, batch, key=None):
    batch_tokens = batch["decoder_input_tokens"]
    targets, weights = jnp.roll(batch_tokens, -1, axis=1), jnp.ones(batch_tokens.shape).at[:, -1].set(0)
    return cross_entropy(model(batch, dropout_key=key).hidden, model.unembed, targets, weights, z_loss=1e-3).total


EIGHT_ROWS = dict(rows=8, length=8)  # as many as there are devices


@functools.cache
def loss_and_gradient(config):
    return jax.jit(jax.value_and_grad(loss))(make(config), example(**EIGHT_ROWS))


def assert_same(ours, theirs, atol=2e-5):
    ours, theirs = (parameters.stack(parameters.named_leaves(tree)) for tree in (ours, theirs))
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-5, atol=atol, err_msg=name)


@pytest.mark.parametrize("kind", ["gpt1", "gpt3", "mistral"])
def test_scanned_unrolled_and_rematerialised_are_the_same_network(kind):
    config = FAMILIES[kind]
    value, gradient = loss_and_gradient(config)
    for other in (scanned(config), scanned(config, remat="full")):
        other_value, other_gradient = loss_and_gradient(other)
        np.testing.assert_allclose(value, other_value, rtol=1e-6)
        assert_same(gradient, other_gradient)


@pytest.mark.parametrize(
    "rates", [{"dropout_rate": 0.3}, {"attention_dropout_rate": 0.3}], ids=["residual", "attention"]
)
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt", "llama"])
def test_dropout_needs_a_key_and_follows_it_alike_in_either_layout(config, rates):
    batch = example()
    run = jax.jit(lambda model, key=None: model(batch, dropout_key=key).hidden)
    dropping = dataclasses.replace(config, **rates)
    unrolled, stack = make(dropping), make(scanned(dropping))
    np.testing.assert_array_equal(run(unrolled), run(make(config)))
    first = run(unrolled, jax.random.key(1))
    np.testing.assert_array_equal(first, run(unrolled, jax.random.key(1)))
    assert np.abs(first - run(unrolled, jax.random.key(2))).max() > 0.01
    np.testing.assert_allclose(run(stack, jax.random.key(1)), first, atol=2e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_bfloat16_stays_near_float32_with_losses_in_float32(kind):
    config = scanned(FAMILIES[kind], dtype="bfloat16")
    hidden = jax.eval_shape(lambda model: model(example()).hidden, make(config))
    assert hidden.dtype == jnp.bfloat16
    assert jax.eval_shape(make(config).unembed, hidden).dtype == jnp.float32
    value, gradient = loss_and_gradient(config)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    assert float(value) == pytest.approx(float(loss_and_gradient(scanned(FAMILIES[kind]))[0]), rel=0.02)


@pytest.mark.parametrize(
    ("config", "rules", "mesh"),
    [
        (scanned(FAMILIES["gpt2"]), "fsdp", {"fsdp": 4, "data": 2}),
        (FAMILIES["mistral"], "fsdp_tp_sp", {"fsdp": 2, "sequence": 2, "tensor": 2}),
    ],
    ids=["gpt2, fsdp", "mistral, tensor and sequence"],
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


@pytest.mark.parametrize(
    ("kind", "scan"),
    [("gpt1", True), ("gpt2", False), ("gpt3", True), ("gpt3", False), ("llama", True), ("mistral", False)],
    ids=lambda value: value if isinstance(value, str) else ("scanned" if value else "unrolled"),
)
def test_prompts_and_then_token_by_token_equal_whole_rows(kind, scan):
    model, lengths = make(dataclasses.replace(FAMILIES[kind], scan_layers=scan)), np.array([5, 2])
    whole = tokens(2, 9)
    prompts = {
        "decoder_input_tokens": whole[:, :5],
        "decoder_segment_ids": (np.arange(5) < lengths[:, None]).astype(np.int32),
    }

    @jax.jit
    def decode(model, following, cache, index):
        hidden, cache = model.decode_step(following, cache, index)
        return model.unembed(hidden)[:, 0], cache

    # One slot more than is used: what lies ahead must not matter.
    cache = jax.jit(lambda model: model.prefill(aligned(prompts), 10))(model)
    expected = logits(model, {"decoder_input_tokens": whole})
    for step in range(4):
        places = lengths[:, None] + step
        found, cache = decode(model, np.take_along_axis(whole, places, axis=1), cache, 5 + step)
        wanted = np.take_along_axis(np.asarray(expected), places[:, :, None], axis=1)[:, 0]
        np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_a_prompt_that_is_a_prefix_is_read_as_one():
    model, whole = make(scanned(GPT2)), tokens(2, 6)
    prefix = {"decoder_prefix": np.array([[1] * 4 + [0] * 2] * 2)}

    @jax.jit
    def decode(model):
        prompts = {"decoder_input_tokens": whole[:, :4], "decoder_prefix": np.ones((2, 4), np.int32)}
        cache = model.prefill(aligned(prompts), 6)
        first, cache = model.decode_step(whole[:, 4:5], cache, 4)
        second, _ = model.decode_step(whole[:, 5:], cache, 5)
        return model.unembed(jnp.concatenate([first, second], axis=1))

    expected = logits(model, {"decoder_input_tokens": whole} | prefix)[:, 4:]
    np.testing.assert_allclose(decode(model), expected, atol=2e-5)
    assert np.abs(expected - logits(model, {"decoder_input_tokens": whole})[:, 4:]).max() > 0.01


# ---- captures, counts, configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [FAMILIES["gpt3"], scanned(FAMILIES["gpt3"])], ids=["unrolled", "scanned"])
def test_captures(config):
    model, batch = make(config), example()
    names = ("decoder/layers/hidden", "decoder/layers/3/hidden", "decoder/layers/1/attention/probabilities")
    outputs = jax.jit(lambda model: model(batch, capture=names))(model)
    captured = outputs.captured
    assert set(captured) == set(names)
    assert captured["decoder/layers/hidden"].shape == (4, 2, 9, 12)
    np.testing.assert_array_equal(captured["decoder/layers/3/hidden"], captured["decoder/layers/hidden"][3])
    np.testing.assert_allclose(model.decoder.norm(captured["decoder/layers/3/hidden"]), outputs.hidden, atol=2e-5)
    probabilities = captured["decoder/layers/1/attention/probabilities"]
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)
    assert (probabilities > 0).sum() == 2 * 4 * (1 + 8 * 2)  # a band of two positions
    with pytest.raises(ValueError, match="cannot capture 'decoder/layers/4/hidden'"):
        model(batch, capture=("decoder/layers/4/hidden",))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_flops_are_those_that_xla_counts(kind):
    sizes = dict(vocab_size=1000, embed_dim=128, mlp_dim=256, num_layers=3, head_dim=32, max_length=96)
    config = dataclasses.replace(FAMILIES[kind], **sizes)
    batch = example(rows=4, length=96)
    model = jax.eval_shape(config.make, jax.random.key(0))

    def counted(function):
        return jax.jit(function).lower(model, batch).compile().cost_analysis()["flops"]

    # What the formula leaves out, norms, softmax, activations and rotations, is a few percent at these sizes.
    forward = forward_flops(config, 4, 96)
    assert 1 <= counted(logits.__wrapped__) / forward < 1.08
    assert config.train_flops({"decoder_input_tokens": (4, 96)}) == 3 * forward
    assert 1 <= counted(jax.value_and_grad(loss)) / (3 * forward) < 1.08


def test_flops_count_windows_as_windows():
    banded = dataclasses.replace(GPT2, attention_windows=(None, 3))
    # Layer 1 attends to 3 instead of 10 positions: 2 products of 12 values for each of 10 queries, two operations each.
    assert forward_flops(GPT2, 1, 10) - forward_flops(banded, 1, 10) == 2 * 2 * 12 * 10 * (10 - 3)
    assert forward_flops(GPT2, 1, 2) == forward_flops(banded, 1, 2)


@pytest.mark.parametrize(
    ("make_config", "changes", "message"),
    [
        (GPTConfig, {"num_heads": 0}, r"GPTConfig.num_heads=0 must be a whole number"),
        (GPTConfig, {"norm_position": "middle"}, r"GPTConfig.norm_position='middle' must be one of"),
        (GPTConfig, {"attention_windows": (None, 0)}, r"attention_windows=\(None, 0\): 0 must be a whole number"),
        (GPTConfig, {"attention_windows": [None] * 5}, "their number must divide num_layers=12"),
        (GPTConfig, {"attention_windows": ()}, "their number must divide num_layers=12"),
        (GPTConfig, {"attention_dropout_rate": 1.0}, r"attention_dropout_rate=1.0 must be in \[0, 1\)"),
        (LlamaConfig, {"num_kv_heads": 5}, "num_kv_heads=5 must divide num_heads=32"),
        (LlamaConfig, {"head_dim": 7}, "head_dim=7 must be even"),
        (LlamaConfig, {"rope_theta": 0.0}, "rope_theta=0.0 must be positive"),
        (LlamaConfig, {"activations": ("swiglu",)}, "swiglu"),
    ],
)
def test_configurations_that_make_no_sense_are_refused(make_config, changes, message):
    with pytest.raises(ValueError, match=message):
        make_config(**changes)


def test_the_platform_decides_what_is_left_open():
    assert for_platform(LLAMA, "tpu").scan_layers and for_platform(LLAMA, "tpu").dtype == "bfloat16"
    assert LlamaConfig(num_heads=4).num_kv_heads == 4
    assert GPTConfig(attention_windows=[None, 8]).attention_windows == (None, 8)
