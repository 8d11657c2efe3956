"""Properties of every family: interface, masks, layouts, dropout, devices, captures, FLOPs."""

import dataclasses
import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import (
    COMPILED,
    FAMILIES,
    assert_trees_close,
    eight_rows,
    example_batch,
    first_of_each_class,
    hidden,
    loss,
    loss_and_gradient,
    others_are_slow,
    parametrize_families,
    random_model,
    resized,
    scanned,
    shapes,
    tokens,
)
from lanes import others_are_full
from numerics import assert_close

from t5x_like import parameters
from t5x_like.layers.captures import Edit
from t5x_like.models.base import (
    BaseConfig,
    GenerativeDecoder,
    GenerativeEncoderDecoder,
    Model,
    ModelConfig,
    for_platform,
)
from t5x_like.partitioning import Partitioner

ALL = list(FAMILIES)
# By default, two properties of the initialization and of sharding are tested for one family of each kind of layers.
FEWER = [name for name in COMPILED if not isinstance(name, str)]  # other families of one class are slow
FEWER += others_are_full(
    [name for name in COMPILED if isinstance(name, str)],
    ("bert", "mobilebert", "deberta", "xlnet", "bigbird", "gpt2", "llama", "t5_1_1", "bart"),
)


# ---- interfaces ------------------------------------------------------------------------------------------------------


def assert_same_parameters(kind, protocol, ignored=()):
    """Asserts that the methods of a protocol have the same parameters in a class, apart from ignored ones."""
    methods = [
        name
        for owner in protocol.__mro__
        for name, member in vars(owner).items()
        if inspect.isfunction(member) and (name == "__call__" or not name.startswith("_"))
    ]
    assert methods
    for name in methods:
        expected, found = (inspect.signature(getattr(owner, name)).parameters for owner in (protocol, kind))
        assert [(p.name, p.kind, p.default) for p in found.values() if p.name not in ignored] == [
            (p.name, p.kind, p.default) for p in expected.values()
        ], name


@pytest.mark.parametrize("name", ALL)
def test_families_implement_the_model_interface(name):
    family = FAMILIES[name]
    config = family.config
    assert isinstance(config, ModelConfig) and isinstance(config, BaseConfig)
    assert_same_parameters(type(config), ModelConfig)
    protocols = [Model]
    if "decoder" in family.stacks:
        protocols.append(GenerativeEncoderDecoder if family.is_encoder_decoder else GenerativeDecoder)
    model = shapes(config)
    for protocol in protocols:
        assert isinstance(model, protocol)
        assert_same_parameters(type(model), protocol, ignored=("carry",) if config.initial_carry(1) else ())


# ---- attention masks -------------------------------------------------------------------------------------------------


def influence(model, batch, stack):
    """Returns the sensitivity of each output position to each input position of a stack: `[output input]`."""
    embedded = model.embed(batch)
    jacobian = jax.jit(jax.jacobian(lambda x: model.trunk(embedded | {stack: x}, batch).hidden[0]))
    return np.abs(jacobian(embedded[stack])[:, :, 0]).max(axis=(1, 3))


@pytest.mark.parametrize("name", ALL)
def test_stacks_are_known_before_the_parameters(name):
    family = FAMILIES[name]
    infos = family.config.stacks
    assert tuple(infos) == family.stacks and {info.embed_dim for info in infos.values()} == {family.config.embed_dim}
    names = tuple(f"{stack}/layers/{info.num_layers - 1}/attention/query" for stack, info in infos.items())
    batch = example_batch(family)
    captured = jax.eval_shape(lambda model: model(batch, capture=names).captured, shapes(family.config))
    queries = [captured[name].shape[2:] for name in names]
    assert queries == [(info.num_heads, info.head_dim) for info in infos.values()]
    keys = [name.replace("/query", "/key") for name in names]
    captured = jax.eval_shape(lambda model: model(batch, capture=tuple(keys)).captured, shapes(family.config))
    assert [captured[key].shape[2:] for key in keys] == [(info.num_kv_heads, info.head_dim) for info in infos.values()]


@pytest.mark.parametrize("name", ALL)
def test_features_that_a_model_reads_are_those_of_its_configuration(name):
    family, read = FAMILIES[name], set()

    class Recorded(dict):
        def __getitem__(self, feature):
            read.add(feature)
            return super().__getitem__(feature)

        def get(self, feature, default=None):
            read.add(feature)
            return super().get(feature, default)

    batch = example_batch(family)
    for stack in family.stacks:
        ones = np.ones_like(batch[f"{stack}_input_tokens"])
        batch |= {f"{stack}_segment_ids": ones, f"{stack}_positions": ones, "token_types": ones}
    jax.eval_shape(lambda model: model(Recorded(batch)), shapes(family.config))
    assert read == set(family.config.reads)


@parametrize_families(lambda family: "decoder" in family.stacks or family.causal)
def test_decoder_is_causal(name):
    family = FAMILIES[name]
    config = family.config
    if hasattr(config, "attention_windows"):
        config = dataclasses.replace(config, attention_windows=(None,))
    found = influence(random_model(config), example_batch(family, rows=1), family.stacks[-1])
    assert (found[np.triu_indices_from(found, 1)] == 0).all()
    assert (found[np.tril_indices_from(found)] > 0).all()


@parametrize_families(lambda family: "encoder" in family.stacks and not family.causal)
def test_encoder_attends_to_all_positions_except_padding(name):
    family = FAMILIES[name]
    batch = example_batch(family, rows=1)
    batch["encoder_input_tokens"][:, 5:] = family.padding_id
    found = influence(random_model(family.config), batch, "encoder")
    if not family.is_encoder_decoder:
        found = found[:5]  # results at padding positions are never read
    assert (found[:, :5] > 0).all()
    assert (found[:, 5:] == 0).all()


# Decoders of one class that differ in windows, rotations and places of norms.
OF_KINDS = ("gemma3", "olmo3", "smollm3")
PACKED = others_are_slow([name for name in FAMILIES if name not in OF_KINDS], first_of_each_class(FAMILIES))
PACKED += others_are_full(OF_KINDS, ())


@pytest.mark.parametrize("name", PACKED)
def test_packed_examples_are_isolated(name):
    family = FAMILIES[name]
    model, batch, packed = random_model(family.config), example_batch(family), {}
    for stack in family.stacks:
        first, second = batch[f"{stack}_input_tokens"][:, None]
        padding, positions = np.zeros((1, 2), np.int32), np.arange(first.shape[1], dtype=np.int32)[None]
        packed[f"{stack}_input_tokens"] = np.concatenate([first, second, padding], 1)
        packed[f"{stack}_segment_ids"] = np.concatenate([first * 0 + 1, second * 0 + 2, padding], 1)
        packed[f"{stack}_positions"] = np.concatenate([positions, positions, padding], 1)
    found, expected = hidden(model, packed), hidden(model, batch)
    np.testing.assert_allclose(found[0, :-2].reshape(expected.shape), expected, atol=2e-5)
    assert np.isfinite(found).all()


@parametrize_families(lambda family: "encoder" in family.stacks)
def test_padding_does_not_change_results(name):
    family = FAMILIES[name]
    model, batch = random_model(family.config), example_batch(family)
    padded = {key: np.pad(rows, ((0, 0), (0, 3)), constant_values=family.padding_id) for key, rows in batch.items()}
    expected = hidden(model, batch)
    np.testing.assert_allclose(hidden(model, padded)[:, : expected.shape[1]], expected, atol=2e-5)


@pytest.mark.parametrize("name", [name for name in ALL if hasattr(FAMILIES[name].config, "max_length")])
def test_rows_longer_than_max_length_raise(name):
    family = FAMILIES[name]
    for stack in family.stacks:
        with pytest.raises(ValueError, match=r"rows of 17 tokens: .* \(\w+Config.max_length=16\)"):
            random_model(family.config).embed(example_batch(family) | {f"{stack}_input_tokens": tokens(1, 17)})


# ---- layouts, dropout, precision, devices ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPILED)
def test_scan_and_remat_do_not_change_gradients(name):
    config = FAMILIES[name].config
    value, gradient = loss_and_gradient(name, config)
    other_value, other = loss_and_gradient(name, scanned(config, remat="full"))
    np.testing.assert_allclose(value, other_value, rtol=1e-6)
    assert_trees_close(other, gradient)


@pytest.mark.full
@pytest.mark.parametrize("name", ["bert", "gpt3", "t5_1_1"])
def test_remat_policies_do_not_change_gradients(name):
    config = FAMILIES[name].config
    value, gradient = loss_and_gradient(name, config)
    for changes in (dict(remat="dots", scan_layers=True), dict(remat="full")):
        other_value, other = loss_and_gradient(name, dataclasses.replace(config, **changes))
        np.testing.assert_allclose(value, other_value, rtol=1e-6)
        assert_trees_close(other, gradient)


LAYOUTS = ["bert", "albert", "xlnet", "t5_1_1", "gpt3"]


@pytest.mark.parametrize(
    "name",
    others_are_full(LAYOUTS, ["albert", "t5_1_1"]) + others_are_slow((name for name in ALL if name not in LAYOUTS), ()),
)
def test_initial_values_do_not_depend_on_layout(name):
    config = FAMILIES[name].config
    unrolled, stacked = (jax.jit(each.make)(jax.random.key(0)) for each in (config, scanned(config)))
    assert_trees_close(unrolled, stacked)


@pytest.mark.parametrize("name", COMPILED)
def test_dropout_depends_on_key_and_not_on_layout(name):
    family = FAMILIES[name]
    config, batch = family.config, example_batch(family)
    rates = {rate: 0.3 for rate in ("dropout_rate", "attention_dropout_rate") if hasattr(config, rate)}

    def run(model, key=None):
        return model(batch, dropout_key=key).hidden

    def traced(changes, *key):
        return str(jax.make_jaxpr(run)(shapes(dataclasses.replace(config, **changes)), *key))

    keys = jax.random.split(jax.random.key(1, impl="rbg"))  # compiles faster than the default
    assert rates and traced(rates) == traced({})
    assert all("random_bits" in traced({rate: 0.3}, keys[0]) for rate in rates)
    dropping, dropped = dataclasses.replace(config, **rates), jax.jit(run)
    unrolled = random_model(dropping)
    first = dropped(unrolled, keys[0])
    np.testing.assert_array_equal(first, dropped(unrolled, keys[0]))
    assert np.abs(first - dropped(unrolled, keys[1])).max() > 0.01
    np.testing.assert_allclose(dropped(random_model(scanned(dropping)), keys[0]), first, atol=2e-5)


@pytest.mark.parametrize("name", ALL)
def test_logits_and_losses_are_float32_with_bfloat16_activations(name):
    family = FAMILIES[name]
    model = random_model(scanned(family.config, dtype="bfloat16"))
    states = jax.eval_shape(lambda model: model(example_batch(family)).hidden, model)
    assert states.dtype == jnp.bfloat16
    assert jax.eval_shape(model.unembed, states).dtype == jnp.float32
    value, gradient = jax.eval_shape(jax.value_and_grad(loss), model, example_batch(family))
    assert {leaf.dtype for leaf in jax.tree.leaves((value, gradient))} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    ("name", "changes", "tolerance"),
    [
        ("bert", {}, 0.01),
        ("llama", {}, 0.02),
        ("t5_1_1", {}, 0.01),
        ("xlnet", {}, 0.01),
        ("deberta", {}, 0.01),
        ("deberta_v2", {}, 0.01),
        ("longformer", {"window": 1}, 0.01),
        ("bigbird", {"block_size": 1, "num_random_blocks": 1}, 0.01),
        ("etc", {"local_radius": 1, "tokens_per_global": 3}, 0.01),
    ],
)
def test_bfloat16_loss_is_close_to_float32(name, changes, tolerance):
    config, batch = dataclasses.replace(FAMILIES[name].config, **changes), eight_rows(FAMILIES[name])
    value, exact = (jax.jit(loss)(random_model(scanned(config, dtype=dtype)), batch) for dtype in ("bfloat16", None))
    assert float(value) != float(exact) and float(value) == pytest.approx(float(exact), rel=tolerance)


@pytest.mark.parametrize("name", FEWER)
def test_eight_devices_match_one_device(name):
    family = FAMILIES[name]
    rules, mesh = family.mesh
    # Alternate the layouts over the families, so that each rule set is tested with both.
    config = scanned(family.config) if ALL.index(name) % 2 else family.config
    model, partitioner = random_model(config), Partitioner(rules=rules, ici=mesh)
    step = partitioner.jit(
        jax.value_and_grad(loss), out_shardings=(partitioner.replicated, partitioner.shardings(model))
    )
    found, gradient = step(
        jax.device_put(model, partitioner.shardings(model)), partitioner.put_batch(eight_rows(family))
    )
    value, expected = loss_and_gradient(name, family.config)
    np.testing.assert_allclose(found, value, rtol=2e-6)
    assert_trees_close(jax.device_get(gradient), expected)


@pytest.mark.parametrize("name", ALL)
def test_platform_sets_dtype_and_layout(name):
    config = FAMILIES[name].config
    cpu, tpu = for_platform(config, "cpu"), for_platform(config, "tpu")
    assert (cpu.dtype, cpu.scan_layers) == ("float32", False)
    assert (tpu.dtype, tpu.scan_layers) == ("bfloat16", True)


def test_for_platform_replaces_only_none():
    @dataclasses.dataclass(frozen=True)
    class Config:
        dtype: str | None = None
        scan_layers: bool | None = None

    assert for_platform(Config(), "cpu") == Config("float32", False)
    assert for_platform(Config(), "gpu") == for_platform(Config(), "cuda") == Config("bfloat16", False)
    assert for_platform(Config(dtype="float32"), "tpu") == Config("float32", True)


# ---- captures, FLOPs, initial loss -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPILED)
def test_captures_have_the_same_names_in_all_families_and_the_same_values_in_both_layouts(name):
    family = FAMILIES[name]
    config, batch = family.config, example_batch(family)
    layers = getattr(config, "num_layers", 2)
    whats = ["hidden", *(f"attention/{what}" for what in ("query", "key", "value", "scores", "probabilities"))]
    wanted = [f"{stack}/{what}" for stack in family.stacks for what in ("embedding", "output", "layers/hidden")]
    wanted += [f"{stack}/layers/{layers - 1}/{what}" for stack in family.stacks for what in whats]
    merged = getattr(config, "merged_attention", False)  # one attention to both stacks
    if family.is_encoder_decoder and not merged:
        wanted += ["decoder/layers/0/cross_attention/probabilities"]
    run = jax.jit(lambda model: model(batch, capture=tuple(wanted)))
    unrolled, scan = run(random_model(config)), run(random_model(scanned(config)))
    assert set(unrolled.captured) == set(scan.captured) == set(wanted)
    assert_close(scan.captured, unrolled.captured)
    found = unrolled.captured
    np.testing.assert_allclose(unrolled.hidden, hidden(random_model(config), batch), atol=2e-5)
    np.testing.assert_array_equal(found[f"{family.stacks[-1]}/output"], unrolled.hidden)
    for stack in family.stacks:
        length, last = batch[f"{stack}_input_tokens"].shape[1], f"{stack}/layers/{layers - 1}"
        np.testing.assert_allclose(found[f"{stack}/embedding"], random_model(config).embed(batch)[stack], atol=2e-5)
        assert found[f"{stack}/layers/hidden"].shape == (layers, 2, length, config.embed_dim)
        np.testing.assert_array_equal(found[f"{last}/hidden"], found[f"{stack}/layers/hidden"][-1])
        keys = sum(rows.shape[1] for rows in batch.values()) if merged and stack == "decoder" else length
        assert found[f"{last}/attention/scores"].shape == (2, config.stacks[stack].num_heads, length, keys)
        if stack == "encoder" and getattr(config, "global_block_size", None):
            continue  # the weights of LongT5's global tokens are left out
        probabilities = jax.nn.softmax(found[f"{last}/attention/scores"])
        np.testing.assert_allclose(found[f"{last}/attention/probabilities"], probabilities, atol=1e-6)
    absent = f"{family.stacks[-1]}/layers/{layers}/hidden"
    with pytest.raises(ValueError, match=f"cannot capture '{absent}'"):
        random_model(config)(batch, capture=(absent,))


@pytest.mark.parametrize(
    "name", others_are_full(["bert", "albert", "mobilebert", "gpt3", "bart", "t5_decoder"], ["albert", "bart"])
)
def test_edits_replace_named_arrays_in_both_layouts(name):
    """An edit acts on the layer of its name alone, later layers read the result, and its arrays have gradients."""
    family = FAMILIES[name]
    config, batch, stack = family.config, example_batch(family), family.stacks[-1]
    last = family.config.stacks[stack].num_layers - 1
    first, output = f"{stack}/layers/0/hidden", f"{stack}/output"
    attention = [f"{stack}/layers/{last}/attention/{what}" for what in ("query", "key", "value", "scores")]
    shifts = {each: jnp.linspace(0.5, 1.0, config.embed_dim) for each in (f"{stack}/embedding", first, output)}
    factors = dict.fromkeys([*attention, f"{stack}/layers/{last}/attention/probabilities"], jnp.ones(()))
    added = shifts | factors

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=1, has_aux=True)
    def run(model, added):
        edits = [Edit(each, lambda x, y: x + y, (added[each],)) for each in shifts]
        edits += [Edit(each, lambda x, y: x * (1 + y), (added[each],)) for each in factors]
        outputs = model(batch, capture=(*added, f"{stack}/layers/hidden"), edits=edits)
        return jnp.sum(jnp.sin(outputs.hidden)), outputs.captured

    none, gradients = jax.tree.map(jnp.zeros_like, added), []
    for model in (random_model(config), random_model(scanned(config))):
        (_, plain), _ = run(model, none)
        assert_close(plain, model(batch, capture=tuple(plain)).captured)
        for each in added:
            (_, found), _ = run(model, none | {each: added[each]})
            assert_close({each: found[each]}, {each: plain[each] + added[each] if each in shifts else 2 * plain[each]})
            states = zip(found[f"{stack}/layers/hidden"], plain[f"{stack}/layers/hidden"], strict=True)
            changed = [bool(np.abs(one - other).max() > 1e-4) for one, other in states]
            unchanged = {first: 0, output: last + 1, f"{stack}/embedding": 0}.get(each, last)
            assert changed == [index >= unchanged for index in range(last + 1)], each
        gradients.append(run(model, added)[1])
    assert_close(*gradients)
    assert all(np.any(gradient) for gradient in gradients[0].values())
    with pytest.raises(ValueError, match="cannot edit 'other/output': unknown name"):
        random_model(config)(batch, edits=(Edit("other/output", jnp.sin),))


@pytest.mark.parametrize("name", ALL)
def test_flop_formula_matches_xla(name):
    family = FAMILIES[name]
    config = dataclasses.replace(family.config, **family.flops_sizes, **WITHOUT_WINDOWS.get(name, {}))
    batch = example_batch(family, rows=4, encoder=96, decoder=40 if family.is_encoder_decoder else 96)
    sizes = {key: rows.shape for key, rows in batch.items()}
    if family.stacks == ("encoder",):
        sizes["masked_positions"] = (4, 20)
    else:
        sizes["decoder_target_tokens"] = sizes["decoder_input_tokens"]
        without_logits = {key: shape for key, shape in sizes.items() if key != "decoder_target_tokens"}
        logits = 3 * 2 * np.prod(sizes["decoder_target_tokens"]) * config.embed_dim * config.vocab_size
        assert config.train_flops(sizes) - config.train_flops(without_logits) == logits
    model = shapes(config)

    def forward(model, batch):
        states = model(batch).hidden
        return model.unembed(states[:, :20] if "masked_positions" in sizes else states)

    counted = jax.jit(forward).lower(model, batch).cost_analysis()["flops"]
    assert 1 <= counted / (config.train_flops(sizes) / 3) < 1.08
    if "decoder" in family.stacks:  # the loss of an encoder uses masked positions only
        counted = jax.jit(jax.value_and_grad(loss)).lower(model, batch).cost_analysis()["flops"]
        assert 1 <= counted / config.train_flops(sizes) < 1.08


# XLA also computes the scores outside of a window, which the formula does not count.
WITHOUT_WINDOWS = {"gpt3": {"attention_windows": (None,)}, "mistral": {"attention_windows": (None,)}}


@pytest.mark.parametrize("name", FEWER)
def test_initial_loss_is_close_to_uniform_prediction(name):
    """A loss far above ln(vocab) means that an initialization or a scale is wrong."""
    family = FAMILIES[name]
    layers = {"num_layers": 1} if family.config.parts else {}
    layers = layers or {key: 1 for key in ("encoder_layers", "decoder_layers") if hasattr(family.config, key)}
    sizes = dict(vocab_size=512, embed_dim=64, mlp_dim=128, num_heads=4, head_dim=16)
    kv_heads = {"num_kv_heads": 4} if hasattr(family.config, "num_kv_heads") else {}
    config, batch = scanned(resized(family.config, **sizes, **kv_heads, **layers)), eight_rows(family)
    first = jax.jit(lambda key: loss(config.make(key), batch))(jax.random.key(0, impl="rbg"))
    assert float(first) / 64 < np.log(512) + family.initial_loss_margin


def test_parameter_names_are_common_to_families():
    """Partitioning rules and parameter groups match these names."""
    for family in FAMILIES.values():
        axes = parameters.logical_axes(shapes(scanned(family.config)))
        (table,) = (axes[name] for name in axes if re.search("(^|/)token_embedder/embedding$", name))
        assert table == ("vocab", "embed")
        stack = family.stacks[-1]
        attention = f"{stack}/layers/{family.attention_of(stack)}"
        assert axes[f"{attention}/query/kernel"] == ("layers", "embed", "heads", "kv")
        assert axes[f"{attention}/out/kernel"] == ("layers", "heads", "kv", "embed")
        assert axes[f"{stack}/layers/mlp/wo/kernel"] == ("layers", "mlp", "embed")
