"""Encoded rows decode to the batches of the converter, for every objective."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from lanes import others_are_full

from t5x_like.data import specs
from t5x_like.data.cached.layout import Layout
from t5x_like.data.cached.rows import REAL, Decoder, encode, storage_dtype
from t5x_like.data.features import FeatureSpec, ModelFeature, TaskFeature
from t5x_like.data.seqio_feed import SpecConverter
from t5x_like.errors import RunFailed

LENGTHS = {"inputs": 16, "targets": 9}
THREE_JOINED = FeatureSpec(
    features=(
        ModelFeature("tokens", ("a", "b", "c"), "shifted"),
        ModelFeature("weights", ("a", "b", "c"), "last_weights"),
        ModelFeature("prefix", ("a", "b", "c"), "prefix"),
        ModelFeature("types", ("t", "b", "c"), "tokens"),
        ModelFeature("alone", "b", "next"),
        ModelFeature("alone_weights", "b", "next_weights"),
    ),
    packable=True,
    aligned_features=(TaskFeature("t", aligned_with="a"),),
    bos_id=70_000,
)
SPECS = specs.SPECS | {"three joined": THREE_JOINED, "choices": specs.multiple_choice(3)}
SPECS |= {"three scores": specs.with_scores(specs.ENCODER_INPUTS_WITH_TYPES, 3)}
SPECS |= {"characters": specs.with_characters(specs.CAUSAL_LM, 3)}


def random_examples(spec, count):
    """Returns examples with lengths from 0 to more than a row, zeros among the ids, and ascending positions."""
    generator = np.random.default_rng(7)
    examples = []
    for _ in range(count):
        lengths = {name: int(generator.integers(0, 13)) for name in spec.task_features}
        example = {}
        for name in spec.task_features:
            length = spec.fixed_lengths.get(name, lengths[spec.lead(name)])
            if name == "masked_positions":
                example[name] = np.arange(length) * 2
            else:
                inner = [spec.inner_sizes[name]] if name in spec.inner_sizes else []
                example[name] = generator.integers(0, 50, [length, *inner])
        examples.append({name: array.astype(spec.task_dtype(name)) for name, array in example.items()})
    return examples


def dataset(examples):
    ds = tf.data.Dataset.from_tensor_slices(
        {
            name: tf.ragged.constant(
                [e[name].tolist() for e in examples], tf.as_dtype(array.dtype), inner_shape=array.shape[1:]
            )
            for name, array in examples[0].items()
        }
    )
    return ds.map(lambda example: {name: tf.identity(value) for name, value in example.items()})


def batch_of(ds):
    (batch,) = ds.batch(10_000).as_numpy_iterator()
    return batch


@pytest.mark.parametrize(
    ("name", "pack"),
    others_are_full(
        [(name, pack) for name, spec in SPECS.items() for pack in sorted({False, spec.packable})],
        [(name, spec.packable) for name, spec in SPECS.items()],
    ),
)
def test_decoded_rows_equal_those_of_the_converter(name, pack):
    spec = SPECS[name]
    lengths = dict.fromkeys(spec.task_features, 7) | LENGTHS
    examples = dataset(random_examples(spec, 80))
    live = batch_of(SpecConverter(spec, pack=pack).convert(examples, lengths))
    layout = Layout.from_json(Layout.of(spec, lengths, pack=pack).to_json())
    dtypes = [
        REAL if spec.task_dtype(value.sources[0]) == "float32" else storage_dtype(50 if index else 10**6)
        for index, value in enumerate(layout.values)
    ]
    records = encode(
        batch_of(SpecConverter(layout.storage_spec(spec), pack=pack).convert(examples, lengths)), layout, dtypes
    )
    read = Decoder(layout, dtypes, spec)(records)
    assert set(read) == set(live)
    for feature in live:
        assert read[feature].dtype == spec.dtypes[feature]
        np.testing.assert_array_equal(read[feature], live[feature], err_msg=feature)


def test_encoded_bytes():
    layout = Layout.of(specs.ENCODER_DECODER, {"inputs": 6, "targets": 3}, pack=True)
    stored = {
        "value 0": np.array([[7, 8, 9, 0, 0, 0]]),
        "value 1": np.array([[70000, 4, 0]]),
        "segments 0": np.array([[1, 2, 2, 0, 0, 0]]),
        "segments 1": np.array([[1, 3, 0]]),
    }
    (record,) = encode(stored, layout, ["<u2", "<i4"])
    counts = np.array([3, *(1, 2, 0), *(1, 0, 1)], "<u4")  # examples; of the inputs; of the targets
    assert record == counts.tobytes() + np.array([7, 8, 9], "<u2").tobytes() + np.array([70000, 4], "<i4").tobytes()


def test_objectives_with_the_same_stored_values_share_a_layout():
    def layout(spec):
        return Layout.of(spec, {"targets": 4}, pack=True)

    assert layout(specs.CAUSAL_LM) == layout(specs.NEXT_TOKEN)
    assert layout(dataclasses.replace(specs.CAUSAL_LM, bos_id=5)) == layout(specs.CAUSAL_LM)
    assert layout(specs.CAUSAL_LM) != Layout.of(specs.ENCODER_DECODER, LENGTHS, pack=True)
    joined = Layout.of(specs.PREFIX_LM, LENGTHS, pack=True)
    assert joined.differences(Layout.of(specs.ENCODER_DECODER, LENGTHS, pack=True))
    assert not joined.differences(joined)


def test_id_outside_the_vocabulary_raises():
    layout = Layout.of(specs.CAUSAL_LM, {"targets": 2}, pack=False)
    for wrong in (-1, 2**16):
        stored = {"value 0": np.array([[1, wrong]]), "segments 0": np.array([[1, 1]])}
        with pytest.raises(ValueError, match=rf"'targets': the id {wrong} is not in the vocabulary.*vocab_size"):
            encode(stored, layout, ["<u2"])


def test_record_with_another_layout_raises():
    layout = Layout.of(specs.CAUSAL_LM, {"targets": 4}, pack=False)
    (record,) = encode({"value 0": np.array([[1, 2, 3, 0]]), "segments 0": np.array([[1, 1, 1, 0]])}, layout, ["<u2"])
    for wrong in (record[:-1], record + b"\0", record[:2]):
        with pytest.raises(RunFailed, match="does not have the layout"):
            Decoder(layout, ["<u2"], specs.CAUSAL_LM)([wrong])


def test_float_values_and_final_id_0_are_restored():
    spec = FeatureSpec(
        features=(
            ModelFeature("tokens", "targets", "tokens"),
            ModelFeature("segments", "targets", "segment_ids"),
            ModelFeature("numbers", "numbers", "tokens"),
        ),
        packable=True,
        aligned_features=(TaskFeature("numbers", aligned_with="targets", dtype="float32"),),
    )
    layout, dtypes = Layout.of(spec, {"targets": 4}, pack=True), [storage_dtype(50), REAL]
    signature = {"targets": tf.TensorSpec([None], tf.int32), "numbers": tf.TensorSpec([None], tf.float32)}
    examples = [{"targets": [7, 0], "numbers": [0.5, 0.25]}, {"targets": [0], "numbers": [1.5]}]
    ds = tf.data.Dataset.from_generator(lambda: examples, output_signature=signature)
    converter = SpecConverter(layout.storage_spec(spec), pack=True, padding_ids={"targets": None})
    read = Decoder(layout, dtypes, spec)(encode(batch_of(converter.convert(ds, {"targets": 4})), layout, dtypes))
    assert read["segments"].tolist() == [[1, 1, 2, 0]] and read["tokens"].tolist() == [[7, 0, 0, 0]]
    assert read["numbers"].dtype == np.float32 and read["numbers"].tolist() == [[0.5, 0.25, 1.5, 0.0]]
