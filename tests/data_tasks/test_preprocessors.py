"""Tests of the preprocessors: documents, chunks and span corruption."""

import collections
import itertools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from data_tasks import preprocessors
from t5x_like.data.span_lengths import noise_counts, span_lengths
from t5x_like.vocabularies import shipped

SENTENCE = "Thank you for inviting me to your party last week."


def corrupt(tokens, mask, vocab_size):
    tokens, noise = tf.constant([tokens]), tf.constant([mask])
    sentinels = range(vocab_size - 1, 2, -1)
    inputs = preprocessors.replace_spans(tokens, noise, tf.ones_like(noise), sentinels)
    targets = preprocessors.extract_spans(tokens, noise, sentinels)
    return [preprocessors.append_eos(side, 1)[0].numpy().tolist() for side in (inputs, targets)]


def test_example_of_the_paper():
    words = "Thank you for inviting me to your party last week .".split()
    ids = {word: 10 + index for index, word in enumerate(words)}
    names = {index: word for word, index in ids.items()} | {99: "<X>", 98: "<Y>", 1: "</s>"}
    mask = [word in ("for", "inviting", "last") for word in words]
    inputs, targets = corrupt([ids[word] for word in words], mask, vocab_size=100)
    assert " ".join(names[token] for token in inputs) == "Thank you <X> me to your party <Y> week . </s>"
    assert " ".join(names[token] for token in targets) == "<X> for inviting <Y> last </s>"


def test_example_of_the_paper_in_shipped_vocabulary():
    vocabulary = shipped.python_docs()
    pieces = {
        part: vocabulary.encode(part) for part in ("Thank you", "for inviting", "me to your party", "last", "week.")
    }
    tokens = list(itertools.chain(*pieces.values()))
    mask = [part in ("for inviting", "last") for part, ids in pieces.items() for _ in ids]
    assert vocabulary.decode(tokens) == SENTENCE
    inputs, targets = corrupt(tokens, mask, vocabulary.vocab_size)
    assert vocabulary.decode(inputs) == "Thank you <extra_id_0> me to your party <extra_id_1> week."
    assert vocabulary.decode(targets) == "<extra_id_0> for inviting <extra_id_1> last"


def test_noise_at_beginning_and_middle_of_row():
    inputs, targets = corrupt([11, 12, 13, 14, 15], [True, True, False, True, False], vocab_size=100)
    assert inputs == [99, 13, 98, 15, 1]
    assert targets == [99, 11, 12, 98, 14, 1]


def masks(lengths, width, seed=0, density=0.15, mean=3.0):
    lengths = tf.constant(lengths, tf.int32)
    return preprocessors.random_spans_mask(lengths, width, tf.constant([seed, 7], tf.int64), density, mean).numpy()


def runs(row):
    return [(value, len(list(group))) for value, group in itertools.groupby(row.tolist())]


@pytest.mark.parametrize(("density", "mean"), [(0.15, 3.0), (0.5, 3.0), (0.3, 1.0), (0.9, 5.0)])
def test_every_row_has_exact_density_and_number_of_spans(density, mean):
    lengths = [2, 3, 7, 40, 99, 100, 100]
    for row, length in zip(masks(lengths, 100, density=density, mean=mean), lengths, strict=True):
        noise, spans = noise_counts(length, density, mean)
        assert row.sum() == noise
        assert not row[length:].any()
        alternating = runs(row[:length])
        assert len(alternating) == 2 * spans
        assert not alternating[0][0] and alternating[-1][0]


def test_noise_counts_are_those_of_the_length_arithmetic_where_float32_and_float64_round_differently():
    lengths = [190, 350, 390, 670]
    assert masks(lengths, 670).sum(axis=1).tolist() == [noise_counts(length)[0] for length in lengths]


def test_mean_span_length():
    rows = masks([568] * 200, 568)
    lengths = [length for row in rows for noise, length in runs(row) if noise]
    assert rows.mean() == pytest.approx(85 / 568, abs=1e-9)
    assert np.mean(lengths) == pytest.approx(85 / 28, abs=1e-9)
    # Uniform compositions have nearly geometric parts: about a third are single tokens (27/84 exactly).
    assert np.mean(np.array(lengths) == 1) == pytest.approx(27 / 84, abs=0.02)


def test_compositions_are_uniform():
    # 12 tokens, of which 6 are noise in 3 spans: 10 compositions of 6 into 3 parts for each kind, 100 pairs.
    rows = masks([12] * 20_000, 12, density=0.5, mean=2.0)
    noise, other = collections.Counter(), collections.Counter()
    both = set()
    for row in rows:
        parts = runs(row)
        other[tuple(length for is_noise, length in parts if not is_noise)] += 1
        noise[tuple(length for is_noise, length in parts if is_noise)] += 1
        both.add(tuple(parts))
    for counts in (noise, other):
        assert len(counts) == 10
        chi_square = sum((count - 2000) ** 2 / 2000 for count in counts.values())
        assert chi_square < 27.9  # p = 0.001 with 9 degrees of freedom
    assert len(both) == 100


def test_mask_depends_only_on_seed():
    assert (masks([100] * 5, 100, seed=1) == masks([100] * 5, 100, seed=1)).all()
    assert (masks([100] * 5, 100, seed=1) != masks([100] * 5, 100, seed=2)).any(axis=1).all()


@pytest.mark.parametrize(
    ("total", "counts"), [(0, []), (1, []), (2, [2]), (9, [5, 4]), (10, [5, 5]), (11, [5, 5]), (12, [5, 5, 2])]
)
def test_chunk_drops_only_single_last_token(total, counts):
    tokens, found = preprocessors.chunk(tf.range(1, total + 1), 5)
    assert found.numpy().tolist() == counts
    assert tokens.shape == (len(counts), 5)
    assert tokens.numpy().ravel()[: sum(counts)].tolist() == list(range(1, sum(counts) + 1))
    assert not tokens.numpy().ravel()[sum(counts) :].any()


def features(extra_ids=100):
    feature = seqio.Feature(seqio.ByteVocabulary(extra_ids=extra_ids))
    return {"inputs": feature, "targets": feature}


def corrupted(texts, lengths, seed=3, **kwargs):
    ds = tf.data.Dataset.from_tensor_slices({"text": texts})
    ds = preprocessors.tokenize(preprocessors.documents(ds), features())
    with seqio.utils.map_seed_manager(seed):
        return list(preprocessors.span_corruption(ds, lengths, features(), **kwargs).as_numpy_iterator())


def restored(example, first_sentinel):
    """Returns the chunk of an example, with the spans of its targets in place of the sentinels of its inputs."""
    spans: dict[int, list[int]] = {}
    for token in example["targets"]:
        if token > 258:
            spans[int(token)] = current = []
        elif token > 1:
            current.append(int(token))
    assert list(spans) == [first_sentinel - index for index in range(len(spans))]
    inputs = [int(token) for token in example["inputs"] if token > 1]
    assert [token for token in inputs if token > 258] == list(spans)
    return [token for part in inputs for token in (spans[part] if part in spans else [part])]


def test_inputs_and_targets_together_restore_the_text():
    texts = ["the quick brown fox " * 5, "jumps", "over the lazy dog. " * 9]
    lengths = {"inputs": 32, "targets": 20}
    examples = corrupted(texts, lengths)
    expected = span_lengths(32)
    for example in examples:
        assert example["inputs"].shape == (32,)
        assert example["targets"].shape == (expected.targets,)
        for feature in example.values():
            assert feature[feature != 0][-1] == 1
    tokens = [token for example in examples for token in restored(example, first_sentinel=358)]
    assert bytes(token - 3 for token in tokens).decode() == "".join(texts)


def test_batches_of_documents_are_cut_separately():
    texts = ["a" * 50] * 6
    lengths = {"inputs": 32, "targets": 20}
    raw = span_lengths(32).raw
    for documents_per_batch in (1, 4):
        counts = [
            len(restored(example, 358))
            for example in corrupted(texts, lengths, documents_per_batch=documents_per_batch)
        ]
        assert sum(counts) == 300
        batches = [50] * 6 if documents_per_batch == 1 else [200, 100]
        assert counts == [n for size in batches for n in [raw] * (size // raw) + [size % raw] * (size % raw > 0)]


def test_invalid_documents_are_dropped_and_counted_by_reason():
    texts = [b"good", b"", b" \n\t", b"\xff\xfe bad", b"x" * 20, "grün".encode()]
    ds = tf.data.Dataset.from_tensor_slices({"text": texts, "url": ["u"] * 6})
    kept = list(preprocessors.documents(ds, max_document_bytes=10).as_numpy_iterator())
    assert kept == [{"targets": b"good"}, {"targets": "grün".encode()}]
    reasons = [
        [reason for reason, found in preprocessors.document_problems(tf.constant(text), 10).items() if found.numpy()]
        for text in texts
    ]
    assert reasons == [[], ["empty"], ["empty"], ["not valid UTF-8"], ["longer than 10 bytes"], []]


def test_missing_and_wrong_features_raise():
    ds = tf.data.Dataset.from_tensor_slices({"body": ["a"], "length": [1]})
    with pytest.raises(ValueError, match="no feature 'text'. Their features are 'body', 'length'"):
        preprocessors.documents(ds)
    with pytest.raises(ValueError, match="'length' must be a scalar string per document"):
        preprocessors.documents(ds, text_feature="length")


def test_invalid_lengths_and_vocabularies_raise():
    ds = tf.data.Dataset.from_tensor_slices({"text": ["a"]})
    ds = preprocessors.tokenize(preprocessors.documents(ds), features())
    with pytest.raises(ValueError, match="1137 raw tokens have 57 noise spans, .* only 50 sentinels"):
        preprocessors.span_corruption(ds, {"inputs": 1024, "targets": 229}, features(extra_ids=50))
    with pytest.raises(ValueError, match="Set targets to 229"):
        preprocessors.span_corruption(ds, {"inputs": 1024, "targets": 128}, features())
    with pytest.raises(ValueError, match="TASK_FEATURE_LENGTHS=None: span corruption needs 'inputs' and 'targets'"):
        preprocessors.span_corruption(ds, None, features())
    mixed = features() | {"inputs": features(7)["inputs"]}
    with pytest.raises(ValueError, match="the same vocabulary"):
        preprocessors.span_corruption(ds, {"inputs": 64, "targets": 32}, mixed)
