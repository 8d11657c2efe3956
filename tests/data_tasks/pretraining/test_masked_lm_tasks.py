"""Tests of masked LM tasks: splitting of documents, shipped tasks, and resumption."""

import functools

import numpy as np
import pytest
import seqio
import tensorflow as tf
from lanes import others_are_full

from data_tasks.corpora.documents import Corpus, DocumentSource
from data_tasks.pretraining import masked_lm_inputs
from data_tasks.pretraining.masked_lm import BertMasking, RobertaMasking
from data_tasks.pretraining.masked_lm_tasks import add_masked_lm_task
from t5x_like.data import specs
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.vocabularies import shipped
from t5x_like.vocabularies.special_tokens import SpecialTokens

SPECIAL = SpecialTokens(cls=97, sep=98, mask=99)
CLS, SEP = SPECIAL.cls, SPECIAL.sep
LENGTHS = {"inputs": 128, "targets": 20}


def cut(function, documents, length, **kwargs):
    ds = tf.data.Dataset.from_tensor_slices({"targets": tf.ragged.constant(documents, dtype=tf.int32)})
    if dupe_factor := kwargs.pop("dupe_factor", None):
        ds = masked_lm_inputs.duplicate_documents(ds, dupe_factor=dupe_factor)
    ds = ds.map(lambda example: example | {"targets": tf.identity(example["targets"])})
    ds = function(ds, {"inputs": length, "targets": 1}, {}, special=SPECIAL, **kwargs)
    return list(ds.as_numpy_iterator())


def test_single_documents_cuts_pieces_between_special_tokens():
    found = cut(masked_lm_inputs.single_documents, [[1, 2, 3, 4, 5, 6, 7], [], [8], [9, 10, 11]], 5)
    assert [example["inputs"].tolist() for example in found] == [
        [CLS, 1, 2, 3, SEP],
        [CLS, 4, 5, 6, SEP],
        [CLS, 7, SEP, 0, 0],
        [CLS, 8, SEP, 0, 0],
        [CLS, 9, 10, 11, SEP],
    ]


def test_pieces_do_not_depend_on_batching():
    documents = [list(range(1, 1 + length)) for length in (3, 11, 0, 5, 8)]
    together, apart = (
        cut(masked_lm_inputs.single_documents, documents, 6, documents_per_batch=count) for count in (5, 1)
    )
    assert [example["inputs"].tolist() for example in together] == [example["inputs"].tolist() for example in apart]


def test_every_duplicate_has_its_number():
    found = cut(masked_lm_inputs.single_documents, [[1, 2, 3, 4], [5]], 5, dupe_factor=2)
    assert [(int(example["duplicate"]), example["inputs"][1]) for example in found] == [
        *((0, 1), (0, 4), (0, 5)),
        *((1, 1), (1, 4), (1, 5)),
    ]
    with pytest.raises(ValueError, match="dupe_factor=0 must be at least 1"):
        masked_lm_inputs.duplicate_documents(tf.data.Dataset.range(1), dupe_factor=0)


def test_full_sentences_crosses_document_boundaries():
    found = cut(masked_lm_inputs.full_sentences, [[1, 2, 3, 4], [5, 6], [7, 8, 9]], 6)
    assert [example["inputs"].tolist() for example in found] == [
        [CLS, 1, 2, 3, 4, SEP],
        [CLS, SEP, 5, 6, SEP, SEP],
        [CLS, 7, 8, 9, SEP, 0],
    ]


@pytest.mark.parametrize("function", [masked_lm_inputs.single_documents, masked_lm_inputs.full_sentences])
def test_short_lengths_raise(function):
    with pytest.raises(ValueError, match="'inputs' includes 2 special tokens. Set it to 3 or more"):
        cut(function, [[1]], 2)
    with pytest.raises(ValueError, match="TASK_FEATURE_LENGTHS=None: .* needs 'inputs'"):
        function(tf.data.Dataset.from_tensors({"targets": [1]}), None, {}, special=SPECIAL)


# ---- tasks -----------------------------------------------------------------------------------------------------------


def corpus():
    words = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda".split()
    documents = [f"{number} {' '.join(words[number % 5 :])}".encode() for number in range(24)]
    return Corpus(name="tiny", splits={"train": documents, "validation": documents[:4]}, origin="a test", skipped={})


TINY = {
    "masked_static": {"dupe_factor": 3},
    "masked_dynamic": {},
    "masked_whole_words": {"masking": BertMasking(whole_words=True)},
    "masked_full": {"examples": masked_lm_inputs.full_sentences, "masking": RobertaMasking()},
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    """Registers a task of each kind over the tiny corpus."""
    source, vocabulary = DocumentSource(functools.cache(corpus)), shipped.python_docs()
    for name, settings in TINY.items():
        add_masked_lm_task(name, source, vocabulary, **settings)
    yield
    for name in TINY:
        seqio.TaskRegistry.remove(name)


def make(name, **kwargs):
    settings = {"mixture_or_task_name": name, "task_feature_lengths": LENGTHS, "batch_size": 4, "seed": 3}
    return SeqIOSource(**(settings | kwargs))


def examples_of(name, **kwargs):
    source = make(name, batch_size=1, pack=False, **kwargs)
    return [
        (batch["encoder_input_tokens"].tobytes(), batch["masked_positions"].tobytes())
        for batch in source.host_iterator(specs.MASKED_LM)
    ]


@pytest.mark.full
def test_static_masks_repeat_in_every_epoch_and_differ_between_duplicates():
    one, two = (examples_of("masked_static", num_epochs=epochs) for epochs in (1, 2))
    assert len(one) == 3 * 24 and len(two) == 6 * 24
    assert len(set(one)) == 3 * 24
    assert set(two) == set(one)
    assert set(examples_of("masked_static", num_epochs=1, seed=4)) == set(one)
    assert two[: len(one)] != two[len(one) :]  # in another order


def test_dynamic_masks_differ_in_every_epoch():
    found = examples_of("masked_dynamic", num_epochs=4)
    assert len(found) == 4 * 24
    assert len(set(found)) > 90  # a few may repeat by chance


@pytest.mark.parametrize("name", others_are_full(TINY, ["masked_full"]))
def test_restored_iterator_resumes_bit_exactly(name):
    iterator = make(name).host_iterator(specs.MASKED_LM)
    for _ in range(30):
        next(iterator)
    state = iterator.state()
    assert iterator.can_be_saved
    expected = [next(iterator) for _ in range(20)]
    resumed = make(name).host_iterator(specs.MASKED_LM)
    resumed.restore(state)
    for batch in expected:
        found = next(resumed)
        for feature, array in batch.items():
            np.testing.assert_array_equal(found[feature], array)


def masked_fraction(batches):
    masked = sum(batch["masked_weights"].sum() for batch in batches)
    return masked / sum((batch["encoder_segment_ids"] > 0).sum() for batch in batches)


@pytest.mark.parametrize("name", ["python_docs_masked_lm", "python_docs_masked_lm_whole_word"])
def test_15_percent_of_text_is_masked(name):
    iterator = make(name, batch_size=16).host_iterator(specs.MASKED_LM)
    batches = [next(iterator) for _ in range(40)]
    assert masked_fraction(batches) == pytest.approx(0.149, abs=0.002)  # 19 of 128
    masks = sum(
        (np.take_along_axis(batch["encoder_input_tokens"], batch["masked_positions"], 1) == 1023)[
            batch["masked_weights"] > 0
        ].sum()
        for batch in batches
    )
    predictions = sum(batch["masked_weights"].sum() for batch in batches)
    assert predictions > 10_000
    assert masks / predictions == pytest.approx(0.8 + 0.1 / 1024, abs=0.014)  # 3.3 standard deviations


def test_full_sentences_fills_rows_and_masks_15_percent():
    iterator = make("python_docs_full_sentences", batch_size=16).host_iterator(specs.MASKED_LM)
    batches = [next(iterator) for _ in range(40)]
    assert np.mean([batch["encoder_segment_ids"] > 0 for batch in batches]) > 0.97
    assert masked_fraction(batches) == pytest.approx(0.15, abs=0.001)
    with pytest.raises(ValueError, match="Set targets to 20"):
        make("python_docs_full_sentences", task_feature_lengths={"inputs": 128, "targets": 14}).host_iterator(
            specs.MASKED_LM
        )


@pytest.mark.full
def test_text_files_masked_lm_restores_text(test_data):
    pattern = str(test_data / "text/bert_sample_text/sample_text.txt")
    source = make("text_files_masked_lm", task_arguments={"pattern": pattern}, split="train")
    batch = next(source.host_iterator(specs.MASKED_LM))
    row, count = batch["encoder_input_tokens"][0], batch["masked_weights"][0].sum()
    text = row.copy()
    text[batch["masked_positions"][0][:count]] = batch["masked_targets"][0][:count]
    decoded = source.vocabularies()["inputs"].decode([int(token) for token in text if 2 < token < 924])
    original = " ".join((test_data / "text/bert_sample_text/sample_text.txt").read_text().split())
    first = " ".join(decoded.split())[:60]
    assert first in original
