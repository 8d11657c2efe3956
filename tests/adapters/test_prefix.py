"""Prefix tuning: by hand, in packed rows, generated from, from real words, and errors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, example_batch, hidden, in_lanes, logits, loss, random_model, scanned, tokens
from numerics import assert_close

from t5x_like import parameters
from t5x_like.adapters import prefix as prefixes
from t5x_like.adapters import prefix_activations
from t5x_like.adapters.lora import LoRA
from t5x_like.adapters.prefix import Prefix
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.decoding.start import left_pad
from t5x_like.errors import UserError
from t5x_like.kernels.masks import Mask
from t5x_like.models import construct
from t5x_like.models.lstm import LSTMConfig

LENGTH = 3
PLAIN, MLP = Prefix(length=LENGTH), Prefix(length=LENGTH, hidden_size=5)
DECODERS = {"gpt2": MLP, "mistral": PLAIN, "llama": MLP, "t5_decoder": PLAIN}
BY_DEFAULT = ("t5_1_1", "deberta", "llama", "bart")
EVERY_FAMILY = in_lanes((name for name, each in FAMILIES.items() if not each.config.initial_carry(1)), BY_DEFAULT)


def prefixed(name, prefix=PLAIN, scan=False):
    config = dataclasses.replace(FAMILIES[name].config, adapters=(prefix,))
    return scanned(config) if scan else config


def randomized(config):
    """Returns the random model of `families` with a random prefix, equal for scanned and unrolled layers."""
    base = parameters.stack(parameters.named_leaves(random_model(construct.without_adapters(config))))
    made = jax.eval_shape(lambda: construct.make(config, jax.random.key(0)))
    rng, leaves = np.random.default_rng(5), parameters.stack(parameters.named_leaves(made))
    drawn = {name: rng.normal(size=leaf.shape) for name, leaf in sorted(leaves.items()) if name not in base}
    return parameters.unstack(base | {name: jnp.asarray(x, jnp.float32) for name, x in drawn.items()}, made)


def packed(family):
    """Returns two random texts in one row, and in a row each."""
    alone, together = example_batch(family, encoder=4, decoder=5), {}
    for stack in family.stacks:
        ids = alone[f"{stack}_input_tokens"]
        rows, columns = np.indices(ids.shape, np.int32)
        features = {"input_tokens": ids, "segment_ids": rows + 1, "positions": columns}
        together |= {f"{stack}_{name}": each.reshape(1, -1) for name, each in features.items()}
    return together, alone


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_every_segment_of_a_packed_row_sees_the_prefix(name):
    family, model = FAMILIES[name], randomized(prefixed(name))
    together, alone = packed(family)
    found, expected = logits(model, together), logits(model, alone)
    np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=1e-5, atol=2e-5)
    bare = logits(random_model(construct.without_adapters(model.config)), together)
    assert np.abs(found - bare).max(axis=-1).min() > 1e-3


def test_attention_by_hand():
    attention = randomized(prefixed("bert")).encoder.layers[0].attention
    x = np.random.default_rng(2).normal(size=(2, 4, FAMILIES["bert"].config.embed_dim)).astype(np.float32)
    query, key, value = (projection(x) for projection in (attention.query, attention.key, attention.value))

    def joined(prefix, tokens):
        return np.concatenate([np.tile(prefix[...], (2, 1, 1, 1)), tokens], axis=1)

    key, value = joined(attention.adapter.key, key), joined(attention.adapter.value, value)
    scores = np.einsum("bqhd,bkhd->bhqk", query, key) * attention.scale
    hidden = np.zeros((2, 4), bool)
    hidden[1, 2:] = True
    scores = np.where(np.pad(hidden, ((0, 0), (LENGTH, 0)))[:, None, None], -1e10, scores)
    expected = attention.out(jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value))

    found, captured = attention(x, mask=Mask(key_valid=~hidden), capture=frozenset({"scores", "key"}))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert captured["scores"].shape == (2, 2, 4, LENGTH + 4) and captured["key"].shape[1] == 4


@pytest.mark.parametrize("name", DECODERS)
def test_prefill_and_decode_steps_match_whole_rows(name):
    model = randomized(prefixed(name, DECODERS[name], scan=name != "t5_decoder"))
    whole, lengths = tokens(2, 9), np.array([5, 2])
    segments = (np.arange(5) < lengths[:, None]).astype(np.int32)
    prompts = {"decoder_input_tokens": whole[:, :5], "decoder_segment_ids": segments}
    state, cache = jax.jit(lambda model: model.prefill(left_pad(prompts), 10))(model)
    expected = np.asarray(logits(model, {"decoder_input_tokens": whole}))
    np.testing.assert_allclose(model.unembed(state)[:, 0], expected[np.arange(2), lengths - 1], atol=2e-5)
    decode_step = jax.jit(lambda model, *arguments: model.decode_step(*arguments))
    for step in range(3):
        positions = lengths[:, None] + step
        state, cache = decode_step(model, np.take_along_axis(whole, positions, axis=1), cache, 5 + step)
        wanted = np.take_along_axis(expected, positions[:, :, None], axis=1)[:, 0]
        np.testing.assert_allclose(model.unembed(state)[:, 0], wanted, atol=2e-5)


@pytest.mark.full
@pytest.mark.parametrize(("name", "beams"), [("t5_1_1", 3), ("bart", 1)])
def test_scores_of_generated_texts_are_those_of_whole_rows(name, beams):
    model, inputs = randomized(prefixed(name, MLP)), example_batch(FAMILIES[name])
    inputs = {"encoder_input_tokens": inputs["encoder_input_tokens"]}
    decoding = Decoding(max_length=4, eos_ids=(), bos_id=0, beams=beams, samples=beams, alpha=0.0)
    found = generate(model, inputs, decoding)
    for sample in range(beams):
        generated = np.asarray(found.tokens)[:, sample]
        rows = np.concatenate([np.zeros((2, 1), np.int32), generated[:, :-1]], axis=1)
        probabilities = jax.nn.log_softmax(logits(model, inputs | {"decoder_input_tokens": rows}))
        chosen = np.take_along_axis(np.asarray(probabilities), generated[..., None], axis=2)[..., 0]
        np.testing.assert_allclose(found.log_probability[:, sample], chosen.sum(axis=1), rtol=1e-4)
        if beams == 1:
            np.testing.assert_array_equal(generated, np.argmax(probabilities, axis=-1))


@pytest.mark.full
def test_generation_ends_at_the_last_position_after_the_prefix():
    model = randomized(dataclasses.replace(prefixed("gpt2"), max_length=12))
    found = generate(model, example_batch(FAMILIES["gpt2"]), Decoding(max_length=9, eos_ids=(), bos_id=0))
    assert int(found.lengths.max()) == 12 - LENGTH - 6 + 1


def started(model, ids):
    return prefix_activations.fill(model, prefixes.find(model.config).ids(ids))


@pytest.mark.parametrize(("name", "prefix"), [("gpt2", PLAIN), ("llama", MLP), ("t5_decoder", MLP)])
def test_prefix_of_words_continues_them(name, prefix):
    """The keys and values of words are all that later tokens read of them."""
    config = prefixed(name, prefix, scan=prefix is MLP)
    ids, row = (7, 4, 9), tokens(2, 5)
    model = started(randomized(config), ids)
    base = random_model(construct.without_adapters(prefixed(name)))
    whole = np.concatenate([np.tile(ids, (2, 1)), row], axis=1).astype(np.int32)
    expected = logits(base, {"decoder_input_tokens": whole})[:, len(ids) :]
    assert_close({"logits": logits(model, {"decoder_input_tokens": row})}, {"logits": expected}, 2e-5)


def test_words_are_read_by_each_attention_of_an_encoder_decoder():
    config = prefixed("bart")
    model = started(randomized(config), (7, 4))
    ids = np.array([[7, 4, 7]], np.int32)
    base, rows = (
        random_model(construct.without_adapters(config)),
        dict.fromkeys(("encoder_input_tokens", "decoder_input_tokens"), ids),
    )
    names = {"encoder": ("attention",), "decoder": ("self_attention", "cross_attention")}
    names = [f"{stack}/layers/{block}/value" for stack, blocks in names.items() for block in blocks]
    captured = base(rows, capture=names).captured
    found = parameters.stack(parameters.named_leaves(model))
    for name in names:
        stored = name.replace("/value", "/adapter/value")
        np.testing.assert_allclose(found[stored], np.stack(captured[name])[:, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["t5_1_1", "llama"])
def test_collapsed_model_has_the_same_outputs(name):
    batch = example_batch(FAMILIES[name])
    for scan in (False, True):
        model = randomized(prefixed(name, MLP, scan))
        plain = construct.collapse(model)
        assert plain.config == dataclasses.replace(model.config, adapters=(PLAIN,))
        made = jax.eval_shape(lambda config=plain.config: construct.make(config, jax.random.key(0)))
        assert jax.tree.structure(plain) == jax.tree.structure(made)
        assert_close({"hidden": hidden(plain, batch)}, {"hidden": hidden(model, batch)}, 1e-6)
    assert construct.collapse(plain) is plain


@pytest.mark.full
def test_gradients_with_rematerialization_and_dropout_are_equal():
    """The MLPs compute keys and values before the layers, which are recomputed."""
    gradients = []
    for remat in ("none", "full"):
        changes = {"remat": remat, "dropout_rate": 0.3, "attention_dropout_rate": 0.3}
        model = randomized(dataclasses.replace(prefixed("bert", MLP, scan=True), **changes))
        run = jax.jit(jax.grad(lambda model: loss(model, example_batch(FAMILIES["bert"]), jax.random.key(1))))
        gradients.append(parameters.named_leaves(run(model)))
    assert_close(*({name: x for name, x in each.items() if "/adapter/" in name} for each in gradients), 1e-5)


def test_errors():
    for settings, message in (
        ({"length": 0}, "Prefix.length=0: not positive"),
        ({"hidden_size": 0}, "Prefix.hidden_size=0: not positive"),
        ({"token_ids": ()}, r"Prefix.token_ids=\(\): empty"),
        ({"token_ids": (1,), "text": "a"}, r"Prefix.token_ids=\(1,\): Prefix.text='a' is given as well"),
        ({"pattern": "("}, r"Prefix.pattern='\(' is not a regular expression"),
    ):
        with pytest.raises(UserError, match=message):
            Prefix(**settings)
    with pytest.raises(UserError, match="matches no attention of Bert. The attentions are encoder/layers/attention"):
        construct.make(prefixed("bert", Prefix(pattern="cross")), jax.random.key(0))
    with pytest.raises(UserError, match="several prefixes. Give one"):
        dataclasses.replace(FAMILIES["bert"].config, adapters=(PLAIN, LoRA(), PLAIN))
    long = prefixed("bert", Prefix(length=500))
    with pytest.raises(UserError, match=r"rows of 7 tokens after a prefix of 500 \(Prefix.length\): longer than"):
        construct.make(long, jax.random.key(0))(example_batch(FAMILIES["bert"]))
    with pytest.raises(UserError, match="a prefix cannot be merged into the parameters"):
        construct.merge(randomized(prefixed("bert")))
    with pytest.raises(UserError, match="LSTMConfig.adapters=.*a recurrent model has no prefix"):
        LSTMConfig(adapters=(PLAIN,))
    with pytest.raises(UserError, match="Prefix.token_ids: 99 is not one of the ids 0 to 39 of the model"):
        started(randomized(prefixed("bert")), (99,))
