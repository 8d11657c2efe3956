"""Errors in a task's data name the task, the preprocessor, the example and its line."""

import pytest
import seqio
import tensorflow as tf

from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.specs import ENCODER_DECODER
from t5x_like.errors import UserError

LENGTHS = {"inputs": 16, "targets": 16}


@seqio.map_over_dataset
def question(line):
    country, capital = tf.unstack(tf.strings.split(line, "\t"), num=2)
    return {"inputs": country, "targets": capital}


def answer(ds):
    return ds.map(lambda example: {"inputs": example["question"], "targets": example["answer"]})


@pytest.fixture
def register(tmp_path):
    """Returns a function that registers tasks over the lines of a file for one test."""
    names = []

    def add(name, lines, preprocessor=question, last=lambda ds: ds):
        path = tmp_path / f"{name}.tsv"
        path.write_text("".join(line + "\n" for line in lines))
        names.append(name)
        seqio.TaskRegistry.add(
            name,
            source=seqio.TextLineDataSource({"train": str(path), "validation": str(path)}),
            preprocessors=[preprocessor, seqio.preprocessors.tokenize, last],
            output_features={feature: seqio.Feature(seqio.ByteVocabulary()) for feature in LENGTHS},
        )
        return SeqIOSource(mixture_or_task_name=name, task_feature_lengths=LENGTHS, batch_size=2, pack=False)

    yield add
    for name in names:
        seqio.TaskRegistry.remove(name)


@pytest.mark.full
@pytest.mark.parametrize("wrong", [1, 4, 5])
def test_malformed_line_is_reported(register, wrong):
    lines = [f"country{number}\tcapital{number}" for number in range(1, 6)]
    lines[wrong - 1] = "no tab here"
    source = register("errors_capitals", lines)
    message = (
        rf"task errors_capitals, split 'train', example {wrong} \(.*errors_capitals.tsv:{wrong}\): preprocessor "
        r"'question' \(1 of 3\) fails: Input shape .* The example is 'no tab here'"
    )
    for batches in (source.host_iterator(ENCODER_DECODER), source.eval_batches(ENCODER_DECODER)):
        with pytest.raises(UserError, match=message):
            for _ in range(9):
                next(batches)


def test_missing_field_is_reported(register):
    source = register("errors_fields", ["a\tb"], answer)
    message = r"task errors_fields: preprocessor 'answer' \(1 of 3\) cannot be applied: .* is a single string tensor\."
    with pytest.raises(UserError, match=message):
        source.host_iterator(ENCODER_DECODER)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda example: {"inputs": example["inputs"]}, "missing expected output feature .*: targets"),
        (
            lambda example: example | {"inputs": tf.cast(example["inputs"], tf.float32)},
            "'inputs'.* Got float32, expected int32",
        ),
        (lambda example: example | {"targets": example["targets"][None]}, "'targets'.* Got 2, expected 1"),
    ],
)
def test_undeclared_output_features_are_reported(register, change, message):
    source = register("errors_features", ["a\tb"], last=seqio.map_over_dataset(change))
    with pytest.raises(
        UserError, match=f"task errors_features: .*{message}. Correct its preprocessors or its output_features"
    ):
        source.host_iterator(ENCODER_DECODER)


def test_missing_file_is_reported(register, tmp_path):
    source = register("errors_file", ["a\tb"])
    (tmp_path / "errors_file.tsv").unlink()
    with pytest.raises(
        UserError, match="errors_file, split 'train': .*errors_file.tsv; No such file.* Check the files"
    ):
        next(source.host_iterator(ENCODER_DECODER))


def test_split_without_a_batch_raises(register):
    source = register("errors_empty", [])
    with pytest.raises(UserError, match="errors_empty: the split 'train' has less than one batch of 2 rows"):
        next(source.host_iterator(ENCODER_DECODER))


def test_rate_without_num_examples_raises(register):
    for name in ("errors_one", "errors_two"):
        source = register(name, ["a\tb"])
    mixture = "errors_mixture"
    seqio.MixtureRegistry.add(mixture, ["errors_one", "errors_two"], default_rate=seqio.mixing_rate_num_examples)
    try:
        with pytest.raises(UserError, match="the rate of the task errors_one cannot be computed .*num_input_examples"):
            SeqIOSource(
                mixture_or_task_name=mixture, task_feature_lengths=LENGTHS, batch_size=source.batch_size
            ).host_iterator(ENCODER_DECODER)
    finally:
        seqio.MixtureRegistry.remove(mixture)


def test_missing_key_is_reported_once(register):
    def rename(ds):
        return ds.map(lambda example: {"inputs": example["question"], "targets": example["inputs"]})

    source = register("errors_key", ["a\tb"], last=rename)
    message = r"'rename' .* cannot be applied: KeyError: 'question'. Its input is an example with the features 'inputs'"
    with pytest.raises(UserError, match=message):
        source.host_iterator(ENCODER_DECODER)


def test_preprocessor_without_result_is_reported(register):
    source = register("errors_none", ["a\tb"], preprocessor=lambda ds: None)
    with pytest.raises(UserError, match=r"'<lambda>' \(1 of 3\) returns a NoneType. Return a tf.data.Dataset"):
        source.host_iterator(ENCODER_DECODER)
