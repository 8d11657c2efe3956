"""Replaced-token detection: the replaced tokens, losses by hand, shared embeddings, and a run that resumes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES
from objective_cases import CASES

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.kernels import position_samples
from t5x_like.kernels.chunks import Readout
from t5x_like.models import build, networks
from t5x_like.models.electra import ElectraConfig
from t5x_like.models.networks import NetworkSpec, Shared
from t5x_like.objectives import passes
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.replaced_tokens import (
    GENERATOR,
    READ_TOKENS,
    ReplacedTokenDetection,
    averaged_samples,
    one_sample,
    place,
)

CASE = CASES["replaced_tokens"]
CONFIG = FAMILIES["bert"].config


def test_masked_tokens_are_samples_of_the_generator_and_the_model_judges_all_tokens():
    batch, params = CASE.batch(), CASE.params()
    found = jax.jit(lambda params: passes.forward_at_evaluation(CASE.objective, params, batch).outputs)(params)
    read, given = np.asarray(found.captured[READ_TOKENS]), batch["encoder_input_tokens"]
    masked = np.zeros(read.shape, bool)
    for row, positions in enumerate(batch["masked_positions"]):
        masked[row, positions[batch["masked_weights"][row] > 0]] = True
    np.testing.assert_array_equal(read[~masked], given[~masked])
    assert np.mean(read[masked] != given[masked]) > 0.5
    original = np.asarray(place(jnp.asarray(given), batch, batch["masked_targets"]))
    logits = np.asarray(jax.jit(lambda params: params["objective"]["replaced_tokens"](found.hidden))(params))[..., 0]
    replaced, real = read != original, batch["encoder_segment_ids"] != 0
    expected = np.where(replaced, np.log1p(np.exp(-logits)), np.log1p(np.exp(logits)))
    terms = jax.jit(lambda p: passes.terms(passes.forward_at_evaluation(CASE.objective, p, batch)))(params)
    np.testing.assert_allclose(terms.sums["replaced_tokens"], expected[real].sum(), rtol=1e-5)
    assert [float(x) for x in terms.metrics["replaced"]] == [replaced[real].sum(), real.sum()]
    assert CASE.objective.coefficients == {"masked_lm": 1.0, "replaced_tokens": 50.0}


def test_several_samples_at_a_position_are_one_sample_or_averaged():
    """Tokens 1 and 2 of the second row are predicted twice and three times."""
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 50)), jnp.float32)
    batch = {
        "encoder_input_tokens": jnp.full((2, 5), 99),
        "masked_positions": jnp.array([[3, 0, 0, 0, 0, 0], [1, 2, 2, 1, 4, 2]]),
        "masked_weights": jnp.array([[1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]]),
    }
    readout, keys = Readout(logits, lambda x: x), jax.random.split(jax.random.key(0), 2)
    drawn = np.asarray(position_samples.sample(readout, keys))
    expected = np.full((2, 5), 99)
    expected[0, 3] = drawn[0, 0]
    expected[1, [1, 2, 4]] = (drawn[1, 0] + drawn[1, 3]) // 2, drawn[1, [1, 2, 5]].sum() // 3, drawn[1, 4]
    np.testing.assert_array_equal(averaged_samples(readout, batch, keys, 1.0), expected)
    same = Readout(jnp.broadcast_to(logits[:, :1], logits.shape), lambda x: x)
    one = np.asarray(position_samples.sample(same, keys, positions=batch["masked_positions"]))
    np.testing.assert_array_equal(one_sample(same, batch, keys, 1.0)[1], [99, one[1, 0], one[1, 1], 99, one[1, 4]])
    assert one[1, 0] == one[1, 3]


def test_generator_is_a_masked_language_model_on_the_embeddings_of_the_model():
    params, batch = CASE.params(), CASE.batch()
    assert not any(name.startswith(f"{GENERATOR}/embeddings") for name in parameters.named_leaves(params["objective"]))
    generator = networks.exported(CASE.objective, params)[GENERATOR]
    config = CASE.objective.networks(params["model"].config)[GENERATOR].config
    shapes = {name: leaf.shape for name, leaf in parameters.named_leaves(generator).items()}
    assert shapes == {name: leaf.shape for name, leaf in parameters.named_leaves(build.shapes(config)).items()}
    alone = passes.forward(MaskedLM(), {"model": generator, "objective": params["objective"]}, batch)
    both = passes.forward_at_evaluation(CASE.objective, params, batch)
    np.testing.assert_allclose(passes.terms(alone).sums["masked_lm"], passes.terms(both).sums["masked_lm"], rtol=1e-6)


def test_embeddings_have_the_gradients_of_both_networks_and_samples_have_none():
    params, batch = CASE.params(), CASE.batch()

    def gradient(factors):
        def total(params):
            return passes.loss(passes.forward_at_evaluation(CASE.objective, params, batch), factors)[0]

        return parameters.named_leaves(jax.jit(jax.grad(total))(params))

    both, masked, judged = (
        gradient({"masked_lm": first, "replaced_tokens": second}) for first, second in ((1, 1), (1, 0), (0, 1))
    )
    table = "model/embeddings/token_embedder/embedding"
    assert np.abs(masked[table]).max() > 0 and np.abs(judged[table]).max() > 0
    np.testing.assert_allclose(both[table], masked[table] + judged[table], rtol=1e-4, atol=1e-6)
    assert not any(np.any(leaf) for name, leaf in judged.items() if name.startswith(f"objective/{GENERATOR}/"))
    assert not any(np.any(leaf) for name, leaf in masked.items() if name.startswith("model/encoder/"))


@pytest.mark.full
def test_modules_may_be_shared_in_both_directions_and_combined():
    class Sum(type(CASE.params()["model"].embeddings)):
        def __init__(self, source, own):
            self.config, self.norm, self.token_embedder = source.config, source.norm, source.token_embedder
            self.source, self.own = source, own

        def __call__(self, batch):
            return jax.lax.stop_gradient(self.source(batch)) + self.own(batch)

    class Reversed(ReplacedTokenDetection):
        def networks(self, config):
            found = super().networks(config)
            of_model = dataclasses.replace(
                found["model"], shares={"embeddings": Shared(f"{GENERATOR}/embeddings", combine=Sum)}
            )
            return {"model": of_model, GENERATOR: NetworkSpec(found[GENERATOR].config)}

    objective, batch = Reversed(generator_size=0.5), CASE.batch()
    params = jax.jit(lambda key: networks.make(objective, CONFIG, key))(jax.random.key(0))
    names = set(parameters.named_leaves(params))
    tables = {f"{where}/embeddings/token_embedder/embedding" for where in ("model", f"objective/{GENERATOR}")}
    assert tables <= names

    def total(params):
        factors = {"masked_lm": 0.0, "replaced_tokens": 1.0}
        return passes.loss(passes.forward_at_evaluation(objective, params, batch), factors)[0]

    found = parameters.named_leaves(jax.jit(jax.grad(total))(params))
    own, others = sorted(tables)
    assert np.any(found[own]) and not np.any(found[others])


def test_generator_has_the_sizes_of_the_released_code():
    def generator(config, **sizes):
        return ReplacedTokenDetection(**sizes).networks(config)[GENERATOR].config

    def sizes(config):
        return config.num_layers, config.embed_dim, config.mlp_dim, config.num_heads, config.head_dim

    base, small = ElectraConfig(), ElectraConfig(embedding_dim=128, embed_dim=256, mlp_dim=1024, num_heads=4)
    assert sizes(generator(base, generator_size=0.33333)) == (12, 256, 1024, 4, 64)
    assert sizes(generator(small)) == (12, 64, 256, 1, 64)
    assert sizes(generator(small, generator_size=1.0)) == (12, 256, 1024, 4, 64)
    assert sizes(generator(small, generator_layers=0.25)) == (3, 64, 256, 1, 64)
    assert {generator(each).embedding_dim for each in (base, small)} == {768, 128}
    with pytest.raises(UserError, match="generator_size=0.2: hidden states of size 205, which 3 heads do not divide"):
        generator(ElectraConfig(embed_dim=1024), generator_size=0.2)


def test_layers_without_initializer_in_the_released_code_are_glorot():
    config = ElectraConfig(embedding_dim=16, embed_dim=400, num_heads=4, head_dim=100, num_layers=1, vocab_size=50)
    params = jax.jit(lambda key: networks.make(ReplacedTokenDetection(), config, key))(jax.random.key(0))
    classifier = params["objective"]["replaced_tokens"].classifier.kernel[...]
    for kernel in (params["model"].embedding_projection.kernel[...], classifier):
        bound = (6 / sum(kernel.shape)) ** 0.5
        assert 0.95 * bound < np.abs(kernel).max() <= bound
    assert np.abs(params["objective"]["replaced_tokens"].dense.kernel[...]).max() <= 0.04  # truncated normal of BERT


def test_invalid_networks_raise():
    class Declaring(ReplacedTokenDetection):
        def __init__(self, declared):
            super().__init__()
            self._declared = declared

        def networks(self, config):
            return self._declared

        def init(self, key, model):
            return {}

    class Wide(ReplacedTokenDetection):
        def networks(self, config):
            found = super().networks(config)
            wide = dataclasses.replace(found[GENERATOR].config, vocab_size=99)
            return found | {GENERATOR: dataclasses.replace(found[GENERATOR], config=wide)}

    with pytest.raises(UserError, match="network 'generator': its embeddings/token_embedder/embedding has shape .99, "):
        networks.make(Wide(), CONFIG, jax.random.key(0))
    for module, path, message in (
        ("embeddings", "modle/embeddings", "unknown network 'modle'. The networks are model, generator"),
        ("embeddings", "model/embedding", "'model' has no module 'embedding'. Its modules are embeddings, encoder"),
        ("encoder/layers", "model/encoder", "'generator' has no module 'encoder/layers'"),
    ):
        with pytest.raises(UserError, match=message):
            networks.make(
                Declaring({GENERATOR: NetworkSpec(CONFIG, {module: Shared(path)})}), CONFIG, jax.random.key(0)
            )
    circular = {
        "model": NetworkSpec(shares={"encoder": Shared(f"{GENERATOR}/encoder")}),
        GENERATOR: NetworkSpec(CONFIG, {"encoder": Shared("model/encoder")}),
    }
    with pytest.raises(UserError, match="'generator' does not store this module, but shares 'model/encoder'"):
        networks.make(Declaring(circular), CONFIG, jax.random.key(0))
    with pytest.raises(UserError, match="network 'generator': NetworkSpec.config is None. Give the configuration"):
        networks.make(Declaring({GENERATOR: NetworkSpec()}), CONFIG, jax.random.key(0))
    with pytest.raises(UserError, match="the model is a GPTConfig. Give a BertConfig"):
        networks.make(ReplacedTokenDetection(), FAMILIES["gpt2"].config, jax.random.key(0))
    with pytest.raises(UserError, match="generator_size=0 of ReplacedTokenDetection is not positive"):
        ReplacedTokenDetection(generator_size=0)
