"""The task `text_table`: a student trains on the texts that `infer` writes for a teacher."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import small_models
from opened import call

from t5x_like.cache import cache
from t5x_like.checkpoints import checkpoint_choice
from t5x_like.data import prompts, specs
from t5x_like.data.cached import CachedSource
from t5x_like.data.records import Record
from t5x_like.data.seqio_feed import SeqIOSource, truncated_examples
from t5x_like.data.seqio_feed.task_rows import TaskRows
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.infer import infer
from t5x_like.inference.codec import Codec
from t5x_like.inference.examples import TextExamples
from t5x_like.inference.layout import Layout
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.stored import warm_start
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL

LENGTHS = {"inputs": 12, "targets": 6}


def table(split="train", **arguments):
    arguments = {"vocabulary_path": str(PYTHON_DOCS_MODEL), **arguments}
    return SeqIOSource(
        mixture_or_task_name="text_table",
        task_feature_lengths=LENGTHS,
        batch_size=2,
        split=split,
        shuffle=False,
        pack=False,
        task_arguments=arguments,
    )


@pytest.mark.full
def test_student_reads_the_texts_of_a_teacher(tmp_path, monkeypatch):
    sizes = dict(vocab_size=1200, embed_dim=8, mlp_dim=8, num_heads=2, head_dim=4, encoder_layers=1, decoder_layers=1)
    teacher = T5Config(**sizes, relpos_buckets=4, relpos_max_distance=8)
    model = teacher.make(jax.random.key(0))
    model = jax.tree.map(lambda x: x + 0.2 * jax.random.normal(jax.random.key(x.size), x.shape), model)
    monkeypatch.setattr(checkpoint_choice, "choose", lambda path, _: (path,))
    monkeypatch.setattr(warm_start, "load", lambda *_: {"model": model})
    (tmp_path / "unlabelled.txt").write_text("A list.\nReturn the value.\nNone\n")
    path = call(
        infer,
        model=teacher,
        data=table(),
        checkpoint_path="runs/teacher",
        input_path=str(tmp_path / "unlabelled.txt"),
        output_path=str(tmp_path / "teacher.jsonl"),
        decoding=Decoding(beams=2),
        batch_size=8,
    )
    rows = [json.loads(line) for line in open(path)]
    student = table(train=path, targets="prediction")
    vocabulary = student.vocabularies()["targets"]
    batches = list(student.eval_batches(specs.ENCODER_DECODER))
    for row, (batch, index) in zip(rows, [(batches[0], 0), (batches[0], 1), (batches[1], 0)], strict=True):
        expected = [*vocabulary.encode(row["prediction"]), 1][: LENGTHS["targets"] - 1]
        assert len(expected) > 2
        np.testing.assert_array_equal(batch["decoder_target_tokens"][index, : len(expected)], expected)
        inputs = [*vocabulary.encode(row["inputs"]), 1]
        np.testing.assert_array_equal(batch["encoder_input_tokens"][index, : len(inputs)], inputs)
    assert np.count_nonzero(batches[1]["decoder_loss_weights"][1]) == 0  # padding


@pytest.mark.full
def test_texts_of_bart_have_its_special_tokens_in_training_and_inference(tmp_path):
    small_models.write_bart(tmp_path / "bart")
    record = {"inputs": "ab", "targets": "c"}
    (tmp_path / "train.jsonl").write_text(json.dumps(record) + "\n")
    source = table(train=str(tmp_path / "train.jsonl"), vocabulary_path=str(tmp_path / "bart"))
    (batch,) = source.eval_batches(dataclasses.replace(specs.ENCODER_DECODER, bos_id=2))
    vocabulary = source.vocabularies()["targets"]
    inputs, targets = ([0, *vocabulary.encode(record[name]), 2] for name in ("inputs", "targets"))
    assert batch["encoder_input_tokens"][0].tolist()[: len(inputs)] == inputs
    assert batch["decoder_target_tokens"][0].tolist()[: len(targets)] == targets
    assert batch["decoder_input_tokens"][0].tolist()[: len(targets)] == [2, *targets[:-1]]
    codec = Codec({"targets": vocabulary}, LENGTHS, inputs_eos=True, targets_eos=True)
    assert codec.encode("line 1", record, needs_targets=True) == {"inputs": inputs, "targets": targets}
    assert vocabulary.decode(targets) == "c"


@pytest.mark.parametrize("pack", [False, True])
def test_bos_takes_the_place_of_eos_in_training_and_inference(tmp_path, pack, monkeypatch):
    records = [{"inputs": text, "targets": "list"} for text in ("the value of a", "a", "", "the value of " * 5)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    source = dataclasses.replace(table(train=str(tmp_path / "train.jsonl")), pack=pack, batch_size=4)
    spec = SequenceToSequence(bos_id=7, encoder_bos=True).features
    source.check(spec)
    (batch,) = source.eval_batches(spec)
    rows, segments = batch["encoder_input_tokens"].reshape(-1), batch["encoder_segment_ids"].reshape(-1)
    encode = source.vocabularies()["targets"].encode
    expected = [[7, *encode(record["inputs"])][: LENGTHS["inputs"]] for record in records]
    assert len(expected[-1]) == LENGTHS["inputs"]
    assert rows[segments > 0].tolist() == [token for row in expected for token in row]
    layout = Layout.of(spec)
    codec = Codec({"targets": source.vocabularies()["targets"]}, LENGTHS, layout)
    found = [codec.encode("line 1", record, needs_targets=False)["inputs"] for record in records]
    assert found == expected
    task_rows = TaskRows(source, "in.jsonl", [Record(n, values) for n, values in enumerate(records)])
    read = TextExamples("in.jsonl", [Record(0, {})] * 4, codec, layout, LENGTHS, "predict", task_rows)
    assert [example.content["inputs"] for example in read.read(0, 4)] == expected
    monkeypatch.setattr(SeqIOSource, "add_eos", lambda self: {"inputs": False})
    assert read.read(0, 1)[0].content["inputs"] == [*expected[0], 1]  # the last token is no EOS


@pytest.mark.parametrize("separator", [None, "\n"])
def test_records_that_are_longer_than_a_row_are_counted(tmp_path, separator):
    records = [{"inputs": "a", "targets": "list"}, {"inputs": "the value of a", "targets": "list"}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    source = table(train=str(tmp_path / "train.jsonl"))
    spec = dataclasses.replace(specs.ENCODER_DECODER if separator is None else specs.PREFIX_LM, separator=separator)
    longest = max(len(example["inputs"]) for example in source.examples(2, separator=separator))
    assert source.text_problems(spec) == []
    (problem,) = dataclasses.replace(source, task_feature_lengths={**LENGTHS, "inputs": 3}).text_problems(spec)
    assert problem.startswith("text_table: 1 of the first 2 examples have more than 3 tokens in 'inputs'")
    assert f"(up to {longest})" in problem


def test_token_that_encoder_bos_adds_is_counted():
    source = prefixes()
    assert truncated_examples.added_tokens(source, WITH_BOS.features) == {"inputs": 1}
    assert truncated_examples.added_tokens(source, SequenceToSequence().features) == {}
    assert truncated_examples.added_tokens(table(train=""), WITH_BOS.features) == {}


def prefixes(**settings):
    """Returns a source whose inputs do not end in EOS, of rows in which BOS comes before them."""
    lengths = {"inputs": 128, "targets": 64}
    task = dict(mixture_or_task_name="python_docs_prefix_lm", task_arguments=None, task_feature_lengths=lengths)
    return dataclasses.replace(table(train=""), **task, split="validation", shuffle=False, batch_size=8, **settings)


WITH_BOS = SequenceToSequence(bos_id=7, encoder_bos=True)


def inputs(source, objective):
    """Returns the inputs of the first rows of a source as the encoder reads them."""
    batch = next(iter(source.eval_batches(objective.features)))
    return [
        row[of_row == segment].tolist()
        for row, of_row in zip(batch["encoder_input_tokens"], batch["encoder_segment_ids"], strict=True)
        for segment in range(1, of_row.max() + 1)
    ]


@pytest.mark.parametrize("pack", [False, True])
def test_inputs_without_eos_keep_their_last_token_after_bos(pack):
    source = prefixes(pack=pack)
    source.check(WITH_BOS.features)
    found = inputs(source, WITH_BOS)
    assert len(found) > 8 if pack else len(found) == 8
    assert found == [[7, *row["inputs"][row["inputs"] != 0].tolist()] for row in source.examples(len(found))]


@pytest.mark.parametrize("pack", [False, True])
def test_mixed_inputs_with_and_without_eos_keep_their_last_token_after_bos(pack):
    rates = {"python_docs_span_corruption": 1.0, "python_docs_prefix_lm": 1.0}
    source = dataclasses.replace(prefixes(pack=pack), mixture_or_task_name="both", rates=rates)
    assert source.add_eos() == {"inputs": False, "targets": True}
    found = inputs(source, WITH_BOS)
    rows = [row["inputs"][row["inputs"] != 0].tolist() for row in source.examples(len(found))]
    assert found == [[7, *(row[:-1] if row[-1] == 1 else row)] for row in rows]
    assert len({row[-1] == 1 for row in rows}) == 2


@pytest.mark.full
def test_inputs_without_eos_keep_their_last_token_in_a_cache(tmp_path):
    def write(objective, directory):
        cache(cache_dir=str(tmp_path / directory), data=prefixes(), objective=objective, shards=1, processes=1)
        return CachedSource(cache_dir=str(tmp_path / directory), split="validation", batch_size=8, shuffle=False)

    without, with_bos = write(SequenceToSequence(), "without"), write(WITH_BOS, "with")
    found = inputs(without, SequenceToSequence())
    assert inputs(with_bos, WITH_BOS) == [[7, *row] for row in found] and len(found) == 8
    with pytest.raises(UserError, match="was written with ENCODER_BOS=False.*Write it with True"):
        without.check(WITH_BOS.features)
    with pytest.raises(UserError, match="was written with ENCODER_BOS=True.*Write it with False"):
        with_bos.check(SequenceToSequence().features)
    with pytest.raises(UserError, match="a cache with other settings .encoder_bos: True in the cache"):
        write(SequenceToSequence(), "with")


@pytest.mark.parametrize(("separator", "after", "eos"), [(None, "", [1]), ("", "", []), ("\n> ", "\n> ", [])])
def test_inputs_end_in_the_separator_of_the_objective(tmp_path, separator, after, eos):
    record = {"inputs": "the value of a", "targets": "list"}
    (tmp_path / "train.jsonl").write_text(json.dumps(record) + "\n")
    source = table(train=str(tmp_path / "train.jsonl"))
    (example,) = source.task_dataset(separator=separator).as_numpy_iterator()
    vocabulary = source.vocabularies()["targets"]
    assert example["inputs"].tolist() == [*vocabulary.encode(record["inputs"] + after), *eos]
    assert example["targets"].tolist() == [*vocabulary.encode("list"), 1]


def test_task_that_ends_its_inputs_by_itself_has_no_separator(tmp_path):
    spec = dataclasses.replace(specs.PREFIX_LM, separator="\n")
    (tmp_path / "train.jsonl").write_text(json.dumps({"inputs": "a", "targets": "b"}) + "\n")
    source = table(train=str(tmp_path / "train.jsonl"))
    source.check(spec)
    assert prompts.add_eos(source, spec) == {"inputs": False, "targets": True}
    other = dataclasses.replace(source, mixture_or_task_name="python_docs_prefix_lm", task_arguments=None)
    assert prompts.add_eos(other, spec) == other.add_eos()
    with pytest.raises(UserError, match="SEPARATOR='.n': python_docs_prefix_lm ends its inputs by itself"):
        other.check(spec)


def test_long_inputs_before_a_separator_keep_their_end(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"inputs": "ab " * 99, "targets": "c"}) + "\n")
    source = table(train=str(tmp_path / "train.jsonl"))
    (example,) = source.task_dataset(separator=" ->").as_numpy_iterator()
    ids = source.vocabularies()["targets"].encode("ab " * 99 + " ->")
    assert example["inputs"].tolist() == ids[-LENGTHS["inputs"] :]


def test_columns_and_splits_are_arguments(tmp_path):
    (tmp_path / "train.csv").write_text("en,prediction\na,ab\n")
    (tmp_path / "dev.csv").write_text("en,de\nb,bc\n")
    (tmp_path / "test.csv").write_text("en\nc\n")
    files = {split: str(tmp_path / f"{name}.csv") for split, name in (("train", "train"), ("validation", "dev"))}
    columns = {"inputs": "en", "targets": "prediction", "evaluation_targets": "de", "prefix": "to: "}
    for split, inputs, targets in (
        ("train", b"to: a", b"ab"),
        ("validation", b"to: b", b"bc"),
        ("test", b"to: c", b""),
    ):
        (row,) = table(split, **files, **columns, test=str(tmp_path / "test.csv")).examples(2)
        assert (row["inputs_pretokenized"], row["targets_pretokenized"]) == (inputs, targets)
    source = table(**files, **columns)
    assert source.tasks[0].splits == ("train", "validation")
    assert "1 rows of" in source.tasks[0].source.describe()
    with pytest.raises(UserError, match="text_table: no file given. Set TASK_ARGUMENTS"):
        table(train=None).check(specs.ENCODER_DECODER)
