"""Prompt tuning: by hand, in all layouts, generated from, trained on a frozen base."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import (
    FAMILIES,
    assert_trees_close,
    eight_rows,
    example_batch,
    in_lanes,
    logits,
    loss,
    random_model,
    scanned,
    tokens,
)
from lanes import others_are_full
from numerics import assert_close

from t5x_like import optimizers, parameters
from t5x_like.adapters.lora import LoRA
from t5x_like.adapters.prompt import INDEX, Prompt
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.decoding.start import left_pad
from t5x_like.errors import UserError
from t5x_like.models import construct
from t5x_like.models.character_lstm import CharacterLSTMConfig
from t5x_like.models.lstm import LSTMConfig
from t5x_like.models.unilm_decoder import UnilmDecoder
from t5x_like.objectives.enhanced_masked_lm import EnhancedMaskedLM, enhanced_outputs
from t5x_like.objectives.feature_based import FeatureBased
from t5x_like.objectives.layer_mix import Concatenation
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.partitioning import Partitioner

LENGTH = 3
UNIFORM = Prompt(length=LENGTH, initialization="uniform")
FROZEN = (optimizers.ParameterGroup("^model/(?!.*/adapter/)", freeze=True),)
BY_DEFAULT = ("t5_1_1", "bert", "mobilebert", "gpt3", "longformer")
DECODERS = (("gpt3", True), ("t5_decoder", False), ("mistral", False), ("llama", True))
RECURRENT = [name for name, family in FAMILIES.items() if family.config.initial_carry(1)]
EVERY_FAMILY = in_lanes((name for name in FAMILIES if name not in RECURRENT), BY_DEFAULT)


def prompted(family, prompt=UNIFORM, scan=False):
    config = dataclasses.replace(FAMILIES[family].config, adapters=(prompt,))
    return scanned(config) if scan else config


def randomized(config):
    """Returns the random model of `families` with random rows."""
    base = parameters.named_leaves(random_model(construct.without_adapters(config)))
    made = jax.eval_shape(lambda: construct.make(config, jax.random.key(0)))
    (name,) = parameters.named_leaves(made).keys() - base.keys()
    rows = np.random.default_rng(5).normal(size=parameters.named_leaves(made)[name].shape).astype(np.float32)
    return parameters.rebuild(made, base | {name: jnp.asarray(rows)})


def pasted(model):
    """Returns the model without prompt, with the rows at the end of its table."""
    bare = construct.without_adapters(model.config)
    leaves = parameters.named_leaves(model)
    (name,) = (name for name in leaves if name.endswith("/adapter/rows"))
    rows, table = leaves.pop(name), name.replace("adapter/rows", "embedding")
    leaves[table] = jnp.concatenate([leaves[table], rows])
    sizes = {"vocab_size": bare.vocab_size + len(rows)}
    wide = jax.eval_shape(dataclasses.replace(bare, **sizes).make, jax.random.key(0))
    if "logits/kernel" in leaves:
        leaves["logits/kernel"] = jnp.pad(leaves["logits/kernel"], ((0, 0), (0, len(rows))))
    if "bias" in leaves:  # of the logits
        leaves["bias"] = jnp.pad(leaves["bias"], (0, len(rows)))
    return parameters.rebuild(wide, leaves)


def before(stack, batch, vocab_size):
    """Returns a batch with the ids of the rows before the tokens of a stack."""
    rows = len(batch[f"{stack}_input_tokens"])
    values = {
        f"{stack}_input_tokens": vocab_size + np.arange(LENGTH),
        f"{stack}_positions": np.arange(LENGTH),
        f"{stack}_segment_ids": np.ones(LENGTH),
        "decoder_prefix": np.ones(LENGTH),
        "encoder_ranks": np.zeros(LENGTH),
        "encoder_global_tokens": np.zeros(LENGTH),
        "token_types": np.zeros(LENGTH),
    }
    moved = (f"{stack}_positions", "entity_positions", "global_positions")
    shifted = {**batch, **{name: batch[name] + LENGTH for name in moved if name in batch}}
    added = {k: np.tile(v, (rows, 1)).astype(np.int32) for k, v in values.items() if k in batch}
    return shifted | {k: np.concatenate([v, shifted[k]], axis=1) for k, v in added.items()}


def full_batch(family, config):
    """Returns a batch with every feature that the model reads, with padding."""
    batch = example_batch(family)
    for stack in family.stacks:
        ids = batch[f"{stack}_input_tokens"]
        segments = np.ones_like(ids)
        segments[1, 4:] = 0
        batch[f"{stack}_segment_ids"] = segments
        batch[f"{stack}_positions"] = np.where(segments, np.arange(ids.shape[1]), 0).astype(np.int32)
    reads = set(config.reads)
    length = next(iter(batch.values())).shape[1]
    if "token_types" in reads:
        types = np.arange(length) % min(2, config.num_token_types)
        batch["token_types"] = np.tile(types, (2, 1)).astype(np.int32)
    if "encoder_ranks" in reads:
        batch["encoder_ranks"] = np.tile(np.arange(length) // 3, (2, 1)).astype(np.int32)
    if "decoder_prefix" in reads:
        batch["decoder_prefix"] = np.tile(np.arange(length) < 2, (2, 1)).astype(np.int32)
    if "entities" in reads:
        batch |= {"entities": np.array([[3, 1], [2, 0]]), "entity_positions": np.array([[2, 5], [1, 0]], np.int32)}
        size = (2, 2, config.entity_dim)
        batch["entity_vectors"] = np.random.default_rng(3).normal(size=size).astype(np.float32)
    if "global_positions" in reads:
        batch |= {"global_positions": np.array([[1, 4], [0, 2]]), "global_segment_ids": np.ones((2, 2), np.int32)}
    return {name: x for name, x in batch.items() if name in reads}


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_prompt_equals_rows_of_the_table(name):
    family, config = FAMILIES[name], prompted(name, scan=True)
    model, stack = randomized(config), family.stacks[0]
    wide, reads_prompt = pasted(model), family.stacks == (stack,)
    for batch in (example_batch(family), full_batch(family, config)):
        first = {"encoder_global_tokens": np.eye(1, 7, dtype=np.int32).repeat(2, axis=0)}  # FirstToken of the text
        extended = before(stack, batch | (first if name == "longformer" else {}), config.vocab_size)
        expected = logits(wide, extended)[:, LENGTH if reads_prompt else 0 :, : config.vocab_size]
        found = logits(model, batch)
        last = batch[f"{family.stacks[-1]}_input_tokens"]
        assert found.shape == (*last.shape, config.vocab_size)
        real = batch.get(f"{family.stacks[-1]}_segment_ids", np.ones_like(last)) > 0
        assert np.all(np.isfinite(found[real]))
        np.testing.assert_allclose(found[real], expected[real], rtol=1e-5, atol=2e-5)
    bare = logits(random_model(construct.without_adapters(config)), batch)
    assert np.abs(found - bare)[real].max() > 1e-2


@pytest.mark.full
def test_enhanced_mask_decoder_reads_the_prompt():
    config, rows = prompted("deberta"), example_batch(FAMILIES["deberta"])
    model = randomized(config)
    head = EnhancedMaskedLM().init(jax.random.key(0), model)["masked_lm"]
    expected = enhanced_outputs(pasted(model), head, before("encoder", rows, config.vocab_size)).hidden[:, LENGTH:]
    np.testing.assert_allclose(enhanced_outputs(model, head, rows).hidden, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", others_are_full(["bert", "t5_1_1", "gpt2"], ["t5_1_1"]))
def test_new_prompt_of_the_vocabulary_has_embeddings_of_different_ids(name):
    prompt = Prompt(length=LENGTH, seed=1)
    family, config, key = FAMILIES[name], prompted(name, prompt), jax.random.key(1)
    batch, stack = example_batch(family), family.stacks[0]
    ids = prompt.ids(config.vocab_size)
    assert len(set(ids)) == LENGTH and set(ids) != set(Prompt(length=LENGTH, seed=2).ids(config.vocab_size))
    model = construct.make(config, key)
    # Weights that are loaded later change the prompt as well.
    base = random_model(construct.without_adapters(config))
    model = parameters.rebuild(model, parameters.named_leaves(model) | parameters.named_leaves(base))
    extended = before(stack, batch, config.vocab_size)
    tokens_name = f"{stack}_input_tokens"
    extended[tokens_name] = np.concatenate([np.tile(ids, (2, 1)), batch[tokens_name]], axis=1).astype(np.int32)
    expected = base(extended).hidden
    expected = expected[:, LENGTH:] if family.stacks == (stack,) else expected
    assert_close({"hidden": model(batch).hidden}, {"hidden": expected}, 5e-6)


@pytest.mark.parametrize("initialization", ["vocabulary", "uniform"])
def test_first_vectors_start_from_the_means_of_the_embeddings_of_their_ids(initialization):
    prompt = Prompt(length=LENGTH, initialization=initialization, initial_ids=((5,), (2, 9)))
    model = construct.make(prompted("bert", prompt), jax.random.key(0))
    embedder = model.embeddings.token_embedder
    table, vocab_size = np.asarray(embedder.embedding[...]), model.config.vocab_size
    found = embedder(vocab_size + np.arange(LENGTH)[None])[0]
    np.testing.assert_allclose(found[:2], [table[5], (table[2] + table[9]) / 2], rtol=1e-6)
    if initialization == "vocabulary":
        np.testing.assert_array_equal(found[2], table[prompt.ids(vocab_size)[0]])
    else:
        assert found[2].min() >= 0 and found[2].max() < 0.5


@pytest.mark.parametrize("name", ["t5_1_1", "gpt2"])
def test_rows_of_a_batch_read_prompts_of_their_own(name):
    one = randomized(prompted(name))
    leaves, batch = parameters.named_leaves(one), example_batch(FAMILIES[name])
    (rows,) = (each for each in leaves if each.endswith("/rows"))
    other = parameters.rebuild(one, leaves | {rows: 2 * leaves[rows]})
    config = prompted(name, dataclasses.replace(UNIFORM, names=("one", "other")))
    bank = jax.eval_shape(lambda: construct.make(config, jax.random.key(0)))
    bank = parameters.rebuild(bank, leaves | {rows: jnp.concatenate([leaves[rows], 2 * leaves[rows]])})
    found = logits(bank, batch | {INDEX: np.array([1, 0], np.int32)})
    expected = np.stack([logits(other, batch)[0], logits(one, batch)[1]])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match="missing feature 'prompt_index', which chooses one of the prompts one, other"):
        bank(batch)


def test_new_prompt_is_uniform():
    config = prompted("bert", Prompt(length=1000, initialization="uniform"))
    model = construct.make(config, jax.random.key(0))
    rows = model.embeddings.token_embedder.adapter.rows[...]
    assert rows.min() >= 0 and rows.max() < 0.5 and abs(float(rows.mean()) - 0.25) < 0.01


@pytest.mark.parametrize("name", ["t5_1_1", "gpt2"])
def test_scanned_and_unrolled_layers_are_equal(name):
    batch = example_batch(FAMILIES[name])
    unrolled, stacked = (construct.make(prompted(name, scan=scan), jax.random.key(1)) for scan in (False, True))
    found = parameters.stack(parameters.named_leaves(unrolled))
    for leaf_name, leaf in parameters.named_leaves(stacked).items():
        np.testing.assert_array_equal(found[leaf_name], leaf, err_msg=leaf_name)
    one, other = (randomized(prompted(name, scan=scan))(batch).hidden for scan in (False, True))
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", others_are_full(["bert", "t5_1_1", "gpt2"], ["gpt2"]))
def test_gradients_are_equal_on_devices_and_only_rows_train(name):
    model, batch, key = randomized(prompted(name)), eight_rows(FAMILIES[name]), jax.random.key(3)
    trainable, frozen = optimizers.split({"model": model, "objective": {}}, FROZEN)
    (rows,) = parameters.named_leaves(trainable)
    assert rows.endswith("token_embedder/adapter/rows")

    def gradient(trainable, frozen):
        return jax.grad(lambda own: loss(optimizers.merge(own, frozen)["model"], batch, key))(trainable)

    expected = jax.jit(gradient)(trainable, frozen)
    assert np.all(np.abs(parameters.named_leaves(expected)[rows]).max(axis=1) > 1e-7)
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"fsdp": 2, "sequence": 2, "tensor": 2})
    placed = [jax.device_put(each, partitioner.shardings(each)) for each in (trainable, frozen)]
    assert_trees_close(partitioner.jit(gradient, out_shardings=partitioner.shardings(trainable))(*placed), expected)


# Scanned and unrolled layers with windows and without.
@pytest.mark.parametrize(("name", "scan"), others_are_full(DECODERS, (("gpt3", True), ("t5_decoder", False))))
def test_prefill_and_decode_steps_match_whole_rows(name, scan):
    model = randomized(prompted(name, scan=scan))
    whole, lengths = tokens(2, 9), np.array([5, 2])
    segments = (np.arange(5) < lengths[:, None]).astype(np.int32)
    prompts = {"decoder_input_tokens": whole[:, :5], "decoder_segment_ids": segments}
    state, cache = jax.jit(lambda model: model.prefill(left_pad(prompts), 10))(model)
    expected = np.asarray(logits(model, {"decoder_input_tokens": whole}))
    np.testing.assert_allclose(model.unembed(state)[:, 0], expected[np.arange(2), lengths - 1], atol=2e-5)
    for step in range(4):
        positions = lengths[:, None] + step
        state, cache = model.decode_step(np.take_along_axis(whole, positions, axis=1), cache, 5 + step)
        wanted = np.take_along_axis(expected, positions[:, :, None], axis=1)[:, 0]
        np.testing.assert_allclose(model.unembed(state)[:, 0], wanted, atol=2e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", ["t5_1_1", "bart", "gpt2"])
def test_greedy_generation_equals_whole_rows(name):
    model, family = randomized(prompted(name)), FAMILIES[name]
    batch = example_batch(family)
    decoding = Decoding(max_length=4, eos_ids=(1,), bos_id=0)
    prompts = {each: x for each, x in batch.items() if family.stacks == ("decoder",) or each.startswith("encoder")}
    found = np.asarray(generate(model, prompts, decoding).tokens)[:, 0]
    row = batch["decoder_input_tokens"] if family.stacks == ("decoder",) else np.zeros((2, 1), np.int32)
    is_open = np.ones(2, bool)
    for step in range(4):
        following = np.argmax(logits(model, {**prompts, "decoder_input_tokens": row})[:, -1], axis=-1)
        np.testing.assert_array_equal(found[is_open, step], following[is_open])
        is_open &= following != 1
        row = np.concatenate([row, following[:, None].astype(np.int32)], axis=1)


def test_features_of_all_layers_are_those_of_tokens():
    model, batch = randomized(prompted("bert")), example_batch(FAMILIES["bert"])
    objective = FeatureBased(MaskedLM(), features=Concatenation(states=(0, -1)))
    found = objective.run({"model": model, "objective": {}}, batch).hidden
    outputs = model(batch, capture=("encoder/embedding",))
    expected = [outputs.captured["encoder/embedding"][:, LENGTH:], outputs.hidden]
    np.testing.assert_array_equal(found, np.concatenate(expected, axis=-1))


@pytest.mark.full
def test_generation_ends_at_the_last_position_after_the_prompt():
    config = dataclasses.replace(prompted("gpt2"), max_length=12)
    batch = example_batch(FAMILIES["gpt2"])
    found = generate(randomized(config), batch, Decoding(max_length=9, eos_ids=(), bos_id=0))
    assert int(found.lengths.max()) == 12 - LENGTH - 6 + 1


def test_errors():
    with pytest.raises(UserError, match="Prompt.length=0: not positive"):
        Prompt(length=0)
    with pytest.raises(UserError, match="Prompt.length=3: shorter than the 4 labels or tokens"):
        Prompt(length=LENGTH, initial_ids=((1,),) * 4)
    with pytest.raises(UserError, match="a vector has no ids"):
        Prompt(initial_ids=((1,), ()))
    with pytest.raises(UserError, match="Prompt.initial_ids: 400 is not one of the 40 token ids"):
        model = construct.make(prompted("bert", Prompt(length=2, initial_ids=((400,),))), jax.random.key(0))
        model(example_batch(FAMILIES["bert"]))
    with pytest.raises(UserError, match="Prompt.initialization='text': neither 'vocabulary' nor 'uniform'"):
        Prompt(initialization="text")
    with pytest.raises(UserError, match="Prompt.length=100: longer than the 40 token ids"):
        construct.make(prompted("bert", Prompt()), jax.random.key(0))
    with pytest.raises(UserError, match="several prompts. Give one"):
        dataclasses.replace(FAMILIES["bert"].config, adapters=(UNIFORM, LoRA(), UNIFORM))
    long = prompted("bert", Prompt(length=500, initialization="uniform"))
    with pytest.raises(UserError, match=r"rows of 7 tokens after a prompt of 500 \(Prompt.length\): longer than"):
        construct.make(long, jax.random.key(0))(example_batch(FAMILIES["bert"]))
    with pytest.raises(UserError, match="a prompt cannot be merged into the parameters"):
        construct.merge(randomized(prompted("bert")))
    for recurrent in (LSTMConfig, CharacterLSTMConfig):
        with pytest.raises(UserError, match=f"{recurrent.__name__}.adapters=.*a recurrent model has no prompt"):
            recurrent(adapters=(UNIFORM,))
    with pytest.raises(UserError, match="UnilmConfig.adapters=.*: sequence to sequence with UniLM reads no prompt"):
        UnilmDecoder(randomized(prompted("unilm")), lambda hidden: hidden, mask_id=3)
