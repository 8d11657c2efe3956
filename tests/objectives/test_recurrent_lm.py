"""Language modeling over continuous rows: carried state, resets, and a run from a cache that resumes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recipes

from t5x_like import optimizers, parameters, train
from t5x_like.data import specs
from t5x_like.data.cached import CachedSource
from t5x_like.errors import UserError
from t5x_like.metrics import read_metrics
from t5x_like.models.lstm import LSTMConfig
from t5x_like.objectives import passes
from t5x_like.objectives.carry import as_features
from t5x_like.objectives.recurrent_lm import RecurrentLM
from t5x_like.partitioning import Partitioner

CONFIG = LSTMConfig(vocab_size=100, embed_dim=6, embedding_dim=5, num_layers=2)
ROWS, LENGTH = 3, 6
OBJECTIVE = RecurrentLM(eos_id=1)


@pytest.fixture(scope="module")
def params():
    rng, like = np.random.default_rng(0), jax.eval_shape(CONFIG.make, jax.random.key(0))
    drawn = parameters.map_named(lambda _, leaf: jnp.asarray(rng.normal(size=leaf.shape) / 2, jnp.float32), like)
    return {"model": drawn, "objective": {}}


def rows(tokens):
    return {"decoder_input_tokens": tokens, "decoder_segment_ids": jnp.ones_like(tokens)}


def loss_of(params, batch, carry):
    found = passes.forward(OBJECTIVE, params, {**rows(batch), **carry})
    return passes.terms(found).sums["targets"], as_features(found.carry)


def test_two_batches_are_one_of_twice_the_length(params):
    tokens = np.random.default_rng(1).integers(2, 70, (ROWS, 2 * LENGTH))
    tokens[0, 3] = tokens[1, LENGTH] = tokens[2, LENGTH - 1] = 1  # documents end within and at the ends of rows
    initial = as_features(OBJECTIVE.initial_carry(CONFIG, ROWS))
    first, carry = jax.jit(loss_of)(params, tokens[:, :LENGTH], initial)
    second, _ = jax.jit(loss_of)(params, tokens[:, LENGTH:], carry)
    whole, _ = jax.jit(loss_of)(params, tokens, initial)
    np.testing.assert_allclose(first + second, whole, rtol=1e-5)
    alone, _ = jax.jit(loss_of)(params, tokens[:, LENGTH:], initial)
    assert abs(alone - second) > 1e-3


def test_nothing_before_the_end_of_a_document_matters_after_it(params):
    tokens = np.random.default_rng(1).integers(2, 70, (1, LENGTH))
    tokens[0, 2] = 1
    other = tokens.copy()
    other[0, :2] = [5, 6]

    def hidden(tokens):
        return passes.forward(OBJECTIVE, params, rows(tokens)).outputs.hidden

    np.testing.assert_array_equal(hidden(tokens)[:, 3:], hidden(other)[:, 3:])
    assert np.any(hidden(tokens)[:, 1:3] != hidden(other)[:, 1:3])


def test_padding_does_not_change_the_state(params):
    tokens = np.random.default_rng(1).integers(2, 70, (ROWS, LENGTH))
    padded = {name: jnp.pad(x, ((0, 0), (0, 3))) for name, x in rows(tokens).items()}
    initial = as_features(OBJECTIVE.initial_carry(CONFIG, ROWS))
    found, expected = (
        as_features(passes.forward(OBJECTIVE, params, {**batch, **initial}).carry) for batch in (padded, rows(tokens))
    )
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


def source(directory, **changes):
    settings = {"batch_size": 4, "shuffle": False, "continuous": True} | changes
    return CachedSource(cache_dir=str(directory), **settings)


@pytest.fixture(scope="module")
def cache(write_cache, tmp_path_factory):
    """Returns a cache of 22 rows, whose targets are 1, 2, 3, …."""
    directory = tmp_path_factory.mktemp("cache")
    lengths, shards = {"targets": LENGTH}, ((0, 15), (0, 7))
    write_cache(directory / "train", spec=specs.NEXT_TOKEN, lengths=lengths, shards=shards, continuous=True)
    return directory


def numbers(batch):
    return batch["decoder_input_tokens"][:, 0].tolist()


def test_rows_continue_those_of_the_batch_before(cache):
    spec = OBJECTIVE.features
    iterator = source(cache).host_iterator(spec)
    read = [numbers(next(iterator)) for _ in range(7)]
    assert read[:2] == [[1, 6, 11, 16], [2, 7, 12, 17]] and read[4] == [5, 10, 15, 20]
    assert read[5] == [6, 11, 16, 1]  # after its own part, a row reads the next one
    both = [source(cache).host_iterator(spec, process_index=index, process_count=2) for index in range(2)]
    assert [numbers(next(each)) for each in both] == [[1, 6], [11, 16]]
    resumed = source(cache).host_iterator(spec)
    resumed.restore(both[0].state())
    assert numbers(next(resumed)) == read[1]
    evaluated = [numbers(batch) for batch in source(cache).eval_batches(spec)]
    assert evaluated[0] == [1, 7, 13, 19] and evaluated[-1] == [6, 12, 18, 0]
    assert sorted(number for batch in evaluated for number in batch if number) == list(range(1, 23))


def test_invalid_continuous_sources_raise(cache):
    with pytest.raises(UserError, match="continuous=True with shuffle=True: shuffled rows do not continue one another"):
        source(cache, shuffle=True)
    with pytest.raises(UserError, match="BATCH_SIZE=23: the cache has only 22 rows to continue"):
        source(cache, batch_size=23).host_iterator(OBJECTIVE.features)


@pytest.mark.full
def test_run_carries_its_state_through_a_restart(cache, tmp_path):
    def run(directory, total):
        recipe = recipes.make(
            model=CONFIG,
            objective=OBJECTIVE,
            optimizer=optimizers.adamw(learning_rate=0.01),
            data=source(cache),
            partitioner=Partitioner(devices=jax.devices()[:1], ici={"data": 1}),
            total=total,
            save=3,
            log=1,
            model_dir=str(directory),
        )
        train.train(recipe)
        return [(row["step"], row["loss"]) for row in read_metrics(str(directory)) if row["split"] == "train"]

    whole = run(tmp_path / "whole", 6)
    run(tmp_path / "stopped", 3)
    assert run(tmp_path / "stopped", 6) == whole and len(whole) == 6
