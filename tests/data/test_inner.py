"""Features with an inner dimension, such as the characters of each word: rows, packing, caches, streams, errors."""

import dataclasses
import functools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_like.benchmarking import synthetic
from t5x_like.data import batches, buckets, specs
from t5x_like.data.cached import CachedSource, writer
from t5x_like.data.features import FeatureSpec, ModelFeature, TaskFeature, rows_of_shape
from t5x_like.data.seqio_feed import SeqIOSource, SpecConverter
from t5x_like.data.token_text import rows_as_text
from t5x_like.errors import UserError

INNER, LENGTH, NAME = 3, 5, "inner_characters"
SPEC = specs.with_characters(specs.NEXT_TOKEN, INNER)
CHARACTERS, TOKENS, SEGMENTS = "decoder_input_characters", "decoder_input_tokens", "decoder_segment_ids"
EXAMPLES = [4, 2, 1, 5, 7, 3]  # numbers of words


def example(number, words):
    """Returns an example; the characters of a word are its id and two more."""
    ids = np.arange(2, 2 + words) + 10 * number
    return {"targets": ids, "characters": np.stack([ids, ids % 7, 0 * ids], axis=1)}


def read(split, shuffle_files=False, seed=None, inner=INNER, static=True):
    examples = [example(number, words) for number, words in enumerate(EXAMPLES)]
    shapes = {"targets": [None], "characters": [None, inner if static else None]}

    def generate():
        for each in examples:
            yield {
                "targets": each["targets"],
                "characters": np.resize(each["characters"], (len(each["targets"]), inner)),
            }

    signature = {name: tf.TensorSpec(shape, tf.int32) for name, shape in shapes.items()}
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def register(name=NAME, size=100, **options):
    features = {
        "targets": seqio.Feature(seqio.PassThroughVocabulary(size)),
        "characters": seqio.Feature(seqio.PassThroughVocabulary(size), rank=2),
    }
    source = seqio.FunctionDataSource(functools.partial(read, **options), splits=["train"])
    seqio.TaskRegistry.add(name, source, preprocessors=[], output_features=features)


@pytest.fixture(autouse=True)
def task():
    register()
    yield
    seqio.TaskRegistry.remove(NAME)


def make(**changes):
    settings = {"mixture_or_task_name": NAME, "task_feature_lengths": {"targets": LENGTH}, "batch_size": 2}
    return SeqIOSource(**settings | {"shuffle": False, "pack": False, "num_epochs": 1} | changes)


def rows(source, spec=SPEC):
    found = list(source.eval_batches(spec))
    return {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}


def assert_characters(found):
    """Checks that each word has its own characters, and padding zeros."""
    ids = found[TOKENS]
    np.testing.assert_array_equal(found[CHARACTERS], np.stack([ids, ids % 7, 0 * ids], axis=2))
    assert found[CHARACTERS].dtype == np.int32 and (found[CHARACTERS] != 0).any()


@pytest.mark.parametrize("settings", [{"pack": False}, {"pack": True}, {"continuous": True}], ids=str)
def test_words_keep_their_characters(settings):
    found = rows(make(**settings))
    assert_characters(found)
    if settings.get("pack"):
        assert found[SEGMENTS][1].tolist() == [1, 1, 2, 0, 0]


def test_arrays_give_the_rows_of_the_converter():
    live = rows(make())
    arrays = {"targets": np.zeros((6, LENGTH), np.int32), "characters": np.zeros((6, LENGTH, INNER), np.int32)}
    for number, words in enumerate(EXAMPLES):
        for name, values in example(number, words).items():
            arrays[name][number, : min(words, LENGTH)] = values[:LENGTH]
    made = batches.from_arrays(SPEC, arrays)
    assert set(made) == set(live)
    for name in made:
        np.testing.assert_array_equal(made[name], live[name], err_msg=name)
    with pytest.raises(
        UserError, match=r"'characters': shape \(6, 5, 2\) does not suit. Give an array \[batch, l.*3\]"
    ):
        batches.from_arrays(SPEC, arrays | {"characters": arrays["characters"][:, :, :2]})


def test_items_whose_values_are_all_padding_end_an_example():
    spec = FeatureSpec(
        (ModelFeature("x", "characters", "tokens"), ModelFeature("weights", "characters", "weights")),
        packable=False,
        aligned_features=(TaskFeature("characters", inner=INNER),),
    )
    characters = np.array([[[0, 1, 0], [0, 0, 0], [2, 0, 0], [0, 0, 0]]])
    ds = tf.data.Dataset.from_tensor_slices({"characters": characters})
    (row,) = SpecConverter(spec, pack=False).convert(ds, {"characters": 4}).as_numpy_iterator()
    assert row["weights"].tolist() == [1, 1, 1, 0] and row["x"].tolist() == characters[0].tolist()
    made = batches.from_arrays(spec, {"characters": characters})
    np.testing.assert_array_equal(made["weights"][0], row["weights"])
    assert not spec.is_token_ids("characters")


@pytest.mark.full
@pytest.mark.parametrize("settings", [{"pack": False}, {"pack": True}, {"continuous": True}], ids=str)
def test_cached_rows_equal_the_live_rows(settings, tmp_path):
    source = make(**settings, batch_size=1)
    plan = writer.Plan(str(tmp_path / "train"), source, SPEC, shards=1)
    plan.check()
    plan.begin()
    writer.write_shard(plan, (0, 0))
    plan.finish()
    cached = CachedSource(cache_dir=str(tmp_path), batch_size=1, shuffle=False, continuous=source.continuous)
    stored, live = rows(cached), rows(source)
    for name in live:
        np.testing.assert_array_equal(stored[name], live[name], err_msg=name)
    cached.check_vocabulary(100)
    with pytest.raises(UserError, match="'characters' has 3 values per item in the cache, 4 in this run"):
        cached.check(specs.with_characters(specs.NEXT_TOKEN, 4))
    with pytest.raises(UserError, match="no value in this run|features are joined"):
        cached.check(specs.NEXT_TOKEN)


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_wrong_inner_size_names_task_feature_and_sizes(static, continuous):
    register("inner_wrong", inner=4, static=static)
    try:
        source = make(mixture_or_task_name="inner_wrong", continuous=continuous)
        message = "^inner_wrong, task feature 'characters': 4 values per item, but the objective reads 3. Change"
        with pytest.raises(UserError, match=message):
            next(source.host_iterator(SPEC))
        with pytest.raises(UserError, match=message):
            source.check(SPEC)
    finally:
        seqio.TaskRegistry.remove("inner_wrong")


def test_missing_and_superfluous_inner_dimensions_raise():
    flat = dataclasses.replace(
        specs.NEXT_TOKEN,
        features=(*specs.NEXT_TOKEN.features, ModelFeature("x", "characters", "tokens")),
        aligned_features=(TaskFeature("characters", aligned_with="targets"),),
    )
    with pytest.raises(UserError, match=r"'characters': 3 values per item, but the objective reads one value"):
        rows(make(), flat)
    with pytest.raises(ValueError, match="role 'next' does not suit 'targets', which has 2 values per item"):
        dataclasses.replace(SPEC, aligned_features=(*SPEC.aligned_features, TaskFeature("targets", inner=2)))


def test_choices_raise():
    spec = dataclasses.replace(
        specs.ENCODER_INPUTS,
        features=(*specs.ENCODER_INPUTS.features, ModelFeature("encoder_input_characters", "characters", "tokens")),
        aligned_features=(TaskFeature("characters", aligned_with="inputs", inner=INNER),),
    )
    with pytest.raises(UserError, match="choices cannot read 'characters_0', which has 3 values per item"):
        specs.multiple_choice(2, spec)


def test_id_outside_of_its_vocabulary_raises():
    register("inner_ids", size=54)
    try:
        with pytest.raises(UserError, match=r"inner_ids: token id 54 in 'decoder_input_tokens'"):
            rows(make(mixture_or_task_name="inner_ids"))
        assert make(mixture_or_task_name="inner_ids").id_limits(SPEC)[CHARACTERS] == 54
    finally:
        seqio.TaskRegistry.remove("inner_ids")


def test_shapes_axes_and_synthetic_batches():
    shapes = {name: (4, *shape) for name, shape in SPEC.row_shapes({"targets": LENGTH}).items()}
    assert shapes[CHARACTERS] == (4, LENGTH, INNER) and SPEC.axes[CHARACTERS] == ("batch", "length", None)
    assert rows_of_shape(shapes[CHARACTERS], SPEC.axes[CHARACTERS]) == (4, LENGTH, INNER)
    made = synthetic.make_batch(SPEC, shapes, vocab_size=100)
    assert {name: array.shape for name, array in made.items()} == shapes
    assert made[CHARACTERS].max() > 2
    assert SPEC.digest != specs.with_characters(specs.NEXT_TOKEN, INNER + 1).digest


def test_batches_are_cut_along_their_length():
    size = LENGTH  # equal to the length, which must not decide
    spec = specs.with_characters(specs.NEXT_TOKEN, size)
    batch = {TOKENS: np.ones((2, LENGTH)), CHARACTERS: np.ones((2, LENGTH, size))}
    assert buckets.trim(batch, 2, spec.axes)[CHARACTERS].shape == (2, 2, size)


def test_characters_are_shown_as_words():
    class Letters(seqio.PassThroughVocabulary):
        def _decode(self, ids):
            return "".join(chr(96 + number) for number in ids if number)

    batch = rows(make())
    shown = dict(rows_as_text(SPEC, batch, {"characters": Letters(99)}, {}))
    assert shown["characters → decoder_input_characters"].plain == "bb cc dd ee"
    numbers = dict(rows_as_text(SPEC, batch, {}, {}))["characters → decoder_input_characters"]
    assert numbers.plain == "[2 × 2, 0] [3 × 2, 0] [4 × 2, 0] [5 × 2, 0]"
