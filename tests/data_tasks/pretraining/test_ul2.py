"""Tests of UL2's mixture of denoisers: modes, lengths, rates and noise."""

import collections

import numpy as np
import pytest
import seqio
import tensorflow as tf

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.pretraining import ul2
from data_tasks.pretraining.denoising import chunk_length, parse_recipe
from t5x_like.data import task_arguments
from t5x_like.data.seqio_feed import SeqIOSource

NAME = "python_docs_ul2"
LENGTHS = {"inputs": 128, "targets": 128}
BASE = 924  # number of pieces of the vocabulary; the ids of the modes and 97 sentinels follow


@pytest.fixture(autouse=True)
def default_rates():
    yield
    task_arguments.update([task.name for task in seqio.get_mixture_or_task(NAME).tasks], {})


def examples_of(name, count, **kwargs):
    source = SeqIOSource(
        mixture_or_task_name=name, task_feature_lengths=LENGTHS, batch_size=2, split="validation", **kwargs
    )
    return list(source.task_dataset(num_epochs=None).take(count).as_numpy_iterator())


def test_mixture_has_seven_denoisers():
    tasks = {task.name.removeprefix(NAME) for task in seqio.get_mixture_or_task(NAME).tasks}
    assert tasks == {
        "_r_span_3_15_u_u",
        "_r_span_8_15_u_u",
        "_s_prefix_25_d_d",
        "_x_span_3_50_u_u",
        "_x_span_8_50_u_u",
        "_x_span_64_15_u_u",
        "_x_span_64_50_u_u",
    }


@pytest.mark.parametrize(
    ("rates", "fractions"),
    [
        ({}, (2 / 7, 1 / 7, 4 / 7)),
        pytest.param({"s_rate": 2, "x_rate": 0.25}, (2 / 5, 2 / 5, 1 / 5), marks=pytest.mark.full),
        pytest.param({"x_rate": 0.0}, (2 / 3, 1 / 3, 0), marks=pytest.mark.full),
    ],
)
def test_modes_are_drawn_at_their_rates(rates, fractions):
    modes = collections.Counter(
        int(example["inputs"][0]) - BASE for example in examples_of(NAME, 400, task_arguments=rates)
    )
    assert set(modes) <= {0, 1, 2}
    for mode, fraction in enumerate(fractions):
        assert modes[mode] / 400 == pytest.approx(fraction, abs=4 * (fraction * (1 - fraction) / 400) ** 0.5)


@pytest.mark.parametrize(
    ("task", "mode", "density"),
    [
        ("r_span_8_15_u_u", 0, 0.15),
        ("s_prefix_25_d_d", 1, 0.25),
        ("x_span_3_50_u_u", 2, 0.5),
        ("x_span_64_50_u_u", 2, 0.5),
    ],
)
def test_denoisers_have_their_mode_and_density(task, mode, density):
    examples = examples_of(f"{NAME}_{task}", 200)
    features = {name: np.stack([example[name] for example in examples]) for name in LENGTHS}
    assert (features["inputs"][:, 0] == BASE + mode).all()
    assert not ((features["inputs"][:, 1:] >= BASE) & (features["inputs"][:, 1:] < BASE + 3)).any()
    assert not ((features["targets"] >= BASE) & (features["targets"] < BASE + 3)).any()
    for tokens in features.values():
        last = tokens.shape[1] - 1 - np.argmax(tokens[:, ::-1] != 0, axis=1)
        assert (np.take_along_axis(tokens, last[:, None], axis=1) == 1).all()
    kept, noise = (((tokens > 1) & (tokens < BASE)).sum() for tokens in features.values())
    assert noise / (kept + noise) == pytest.approx(density, abs=0.03)


def test_mixture_of_t5gemma_2_removes_ends_in_half_of_its_examples():
    mixture = seqio.get_mixture_or_task("python_docs_t5gemma_2")
    rates = {task.name.removeprefix("python_docs_t5gemma_2_"): mixture.get_rate(task) for task in mixture.tasks}
    assert rates == {
        "span_3_15_u_u": 1,
        "span_12_50_u_u": 1,
        "span_32_15_u_u": 1,
        "span_32_50_u_u": 1,
        "end_75_u_u": 4,
    }
    for example in examples_of("python_docs_t5gemma_2_end_75_u_u", 20):
        kept, noise = (example[name][example[name] > 1] for name in LENGTHS)
        assert kept[-1] == noise[0] == BASE + 99 and (kept[:-1] < BASE).all() and (noise[1:] < BASE).all()
        assert len(noise) - 1 == round(0.75 * (len(kept) + len(noise) - 2))


def test_chunk_lengths_allow_for_mode_and_sentinels():
    # With lengths 512 and 512 and 97 sentinels: 97 spans of 3 tokens are half of 582.
    chunks = {
        recipe: chunk_length(parse_recipe(recipe), 511, 512, 97)
        for recipes in ul2.DENOISERS.values()
        for recipe in recipes
    }
    assert chunks["span_3_15_u_u"] == 567 and chunks["prefix_25_d_d"] == 510
    assert 580 <= chunks["span_3_50_u_u"] <= 585
    assert parse_recipe("span_64_50_u_u").max_lengths(chunks["span_64_50_u_u"])[0] <= 510


def test_custom_mode_ids_and_invalid_settings():
    source = seqio.FunctionDataSource(
        lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensors({"text": "some text " * 30}),
        splits=["train"],
    )
    letters = seqio.ByteVocabulary(extra_ids=20)
    mixture = ul2.add_ul2_mixture("own_modes", source, letters, mode_ids={"r": 5, "s": 6, "x": 7}, rates={"x": 0.0})
    try:
        assert sorted({mixture.get_rate(task) for task in mixture.tasks}) == [0.0, 1.0]
        task = seqio.get_mixture_or_task("own_modes_s_prefix_25_d_d")
        assert next(iter(task.get_dataset(LENGTHS).as_numpy_iterator()))["inputs"][0] == 6
    finally:
        for name in [task.name for task in mixture.tasks]:
            seqio.TaskRegistry.remove(name)
        seqio.MixtureRegistry.remove("own_modes")
    with pytest.raises(ValueError, match="3 extra ids are too few"):
        ul2.add_ul2_mixture("few", source, seqio.ByteVocabulary(extra_ids=3))
    with pytest.raises(ValueError, match="rates=.*nonnegative"):
        ul2.add_ul2_mixture("few", source, letters, rates={"r": -1.0})
    with pytest.raises(ValueError, match="mode_ids=.*for each of the modes r, s, x"):
        ul2.add_ul2_mixture("few", source, letters, mode_ids={"r": 5})
    with pytest.raises(ValueError, match="s_rate=-1.0 of .* is not a finite nonnegative number"):
        examples_of(NAME, 1, task_arguments={"s_rate": -1.0})
