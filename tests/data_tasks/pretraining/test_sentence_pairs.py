"""Tests of BERT's sentence pairs: examples by hand, comparison with the loop of BERT's code, and distributions."""

import collections
import json
import random
import shutil

import numpy as np
import pytest
import seqio
import tensorflow as tf

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.pretraining import sentence_pairs as pairing
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.specs import SENTENCE_PAIRS
from t5x_like.vocabularies.special_tokens import SpecialTokens

CLS, SEP = 1, 2
SPECIAL = SpecialTokens(cls=CLS, sep=SEP, mask=3)
# A token encodes its document, its sentence and its position in the sentence.
DOCUMENT, SENTENCE = 1_000_000, 1_000


def document(number, lengths):
    return [
        [number * DOCUMENT + sentence * SENTENCE + position for position in range(length)]
        for sentence, length in enumerate(lengths, 1)
    ]


def batch_of(documents):
    flat = [[token for sentence in document for token in sentence] for document in documents]
    return {
        "tokens": tf.ragged.constant(flat, dtype=tf.int32),
        "sentence_lengths": tf.ragged.constant([[len(s) for s in document] for document in documents], dtype=tf.int32),
        "document": tf.constant([document[0][0] for document in documents], tf.int64),
    }


def draws(cut, random_next, others, start):
    return pairing.Draws(
        tf.constant(cut),
        tf.constant([0.4 if each else 0.5 for each in random_next]),
        tf.constant(others, tf.int32),
        tf.constant(start, tf.float32),
    )


def segments(documents, pairs):
    tokens = [token for document in documents for sentence in document for token in sentence]
    a_start, a_length, b_start, b_length, label = (column.numpy().tolist() for column in pairs)
    return [
        (tokens[a : a + la], tokens[b : b + lb], is_random)
        for a, la, b, lb, is_random in zip(a_start, a_length, b_start, b_length, label, strict=True)
    ]


# ---- deterministic cores ---------------------------------------------------------------------------------------------


def test_next_pairs_of_two_documents():
    # Two documents; the first has sentences of 3, 2, 4 and 1 tokens, the second of 2 and 6.
    one, two = document(1, [3, 2, 4, 1]), document(2, [2, 6])
    docs = pairing.Documents.from_batch(batch_of([one, two]))
    assert docs.boundaries.numpy().tolist() == [0, 3, 5, 9, 10, 12, 18]
    targets = tf.constant([8, 8])
    # Document 1: the first 3 + 2 + 4 tokens reach the target 8, and a cut of 0.6 selects the second of two positions.
    # The pair is consecutive. Document 2: the chunk is the whole document, cut at the only position. The random segment
    # comes from document 1 (document 2 itself is drawn first). It needs 8 - 2 tokens, but from the third sentence on
    # there are only 5.
    first = draws([0.6, 0.0], [False, True], [[1, 0], [1, 0]], [0.0, 0.5])
    found, nexts = pairing.next_pairs(docs, docs.firsts[:-1], targets, first)
    assert segments([one, two], found) == [(one[0] + one[1], one[2], 0), (two[0], one[2] + one[3], 1)]
    assert nexts.numpy().tolist() == [3, 5]  # the unused second sentence of document 2 comes next
    # Document 1 has one sentence left, so segment B is random regardless of the draw: document 2 from the start, until
    # there are 8 - 1 tokens. The same holds for document 2, which has 6 of 8 tokens: one sentence of 4 is enough.
    second = draws([0.9, 0.9], [False, False], [[1, 1], [0, 0]], [0.49, 0.74])
    found, nexts = pairing.next_pairs(docs, nexts, targets, second)
    assert segments([one, two], found) == [(one[3], two[0] + two[1], 1), (two[1], one[2], 1)]
    assert nexts.numpy().tolist() == docs.firsts[1:].numpy().tolist() == [4, 6]


def reference_pair(documents, index, start, target, cut, is_random, others, other_start):
    """Implements one iteration of the loop in BERT's `create_instances_from_document` with given random numbers."""
    chunk, length, sentence = [], 0, start
    while True:
        chunk.append(documents[index][sentence])
        length += len(chunk[-1])
        if sentence == len(documents[index]) - 1 or length >= target:
            break
        sentence += 1
    a_end = 1 + int(cut * (len(chunk) - 1)) if len(chunk) >= 2 else 1
    a, b = sum(chunk[:a_end], []), []
    if len(chunk) == 1 or is_random:
        other = next((other for other in others if other != index), others[-1])
        for sentence_of_other in documents[other][int(other_start * len(documents[other])) :]:
            b += sentence_of_other
            if len(b) >= target - len(a):
                break
        return a, b, 1, sentence + 1 - (len(chunk) - a_end)
    return a, sum(chunk[a_end:], []), 0, sentence + 1


def test_next_pairs_match_reference_loop():
    rng = random.Random(0)
    documents = [document(number, [rng.randint(1, 12) for _ in range(rng.randint(1, 30))]) for number in range(1, 9)]
    docs = pairing.Documents.from_batch(batch_of(documents))
    firsts = docs.firsts.numpy()
    targets = [rng.randint(2, 40) for _ in documents]
    starts, compared = docs.firsts[:-1], 0
    while (active := starts.numpy() < firsts[1:]).any():
        cut, other_start = (np.float32([rng.random() for _ in documents]) for _ in range(2))
        random_next = [rng.random() < 0.5 for _ in documents]
        others = [[rng.randrange(len(documents)) for _ in range(3)] for _ in documents]
        before = starts.numpy() - firsts[:-1]
        found, starts = pairing.next_pairs(
            docs, starts, tf.constant(targets), draws(cut, random_next, others, other_start)
        )
        found, after = segments(documents, found), starts.numpy() - firsts[:-1]
        for index in np.flatnonzero(active):
            expected = reference_pair(
                documents, index, before[index], targets[index], cut[index], random_next[index], others[index],
                other_start[index],
            )  # fmt: skip
            assert (*found[index], after[index]) == expected
            compared += 1
    assert compared > 60


@pytest.mark.parametrize(
    ("a", "b", "dropped"),
    [(4, 6, (0, 0)), (3, 9, (0, 2)), (9, 3, (2, 0)), (6, 6, (1, 1)), (6, 5, (1, 0)), (7, 6, (2, 1)), (6, 7, (1, 2))],
)
def test_longer_segment_loses_tokens(a, b, dropped):
    found = pairing.tokens_to_drop(tf.constant([a]), tf.constant([b]), 10)
    assert tuple(int(count[0]) for count in found) == dropped
    kept = [a, b]
    while sum(kept) > 10:  # BERT's code: A if it is longer, B otherwise
        kept[0 if kept[0] > kept[1] else 1] -= 1
    assert (a - dropped[0], b - dropped[1]) == tuple(kept)


def test_tokens_are_dropped_at_random_ends():
    count = 4000
    pairs = pairing.Pairs(*(tf.fill([count], value) for value in (100, 20, 500, 4, 0)))
    cut = pairing.truncate_pairs(pairs, 16, tf.constant([1, 2], tf.int64))
    assert set(cut.a_length.numpy()) == {12} and set(cut.b_length.numpy()) == {4}
    assert set(cut.b_start.numpy()) == {500}
    fronts = cut.a_start.numpy() - 100
    # A binomial of 8 fair draws: mean 4, variance 2. The bounds are four standard errors.
    assert fronts.min() == 0 and fronts.max() == 8
    assert fronts.mean() == pytest.approx(4, abs=4 * (2 / count) ** 0.5)
    assert fronts.var() == pytest.approx(2, rel=4 * (1.75 / count) ** 0.5)


def test_assembled_rows_have_special_tokens_and_types():
    tokens = tf.constant([11, 12, 13, 14, 15, 16])
    pairs = pairing.Pairs(*(tf.constant(column) for column in ([0, 5], [2, 1], [3, 0], [3, 1], [0, 1])))
    rows = pairing.assemble_pairs(tokens, pairs, SPECIAL, 8)
    assert rows["inputs"].numpy().tolist() == [[1, 11, 12, 2, 14, 15, 16, 2], [1, 16, 2, 11, 2, 0, 0, 0]]
    assert rows["token_types"].numpy().tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0, 0]]
    assert rows["next_sentence_label"].numpy().tolist() == [[0], [1]]


def test_random_segment_comes_from_different_text():
    hashes = tf.constant([7, 7, 8], tf.int64)
    candidates = tf.constant([[0, 1, 2, 1], [2, 0, 1, 2], [2, 2, 2, 2]])
    assert pairing._first_different(hashes, candidates).numpy().tolist() == [2, 2, 2]


# ---- the preprocessor ------------------------------------------------------------------------------------------------


def dataset(documents):
    ds = tf.data.Dataset.from_tensor_slices(batch_of(documents))
    return ds.map(lambda example: {name: tf.convert_to_tensor(value) for name, value in example.items()})


def examples_of(documents, length, seed=0, **kwargs):
    with seqio.utils.map_seed_manager(seed):
        ds = pairing.sentence_pairs(dataset(documents), {"inputs": length}, {}, special=SPECIAL, **kwargs)
    return list(ds.as_numpy_iterator())


def many_documents(count=60, seed=5):
    rng = random.Random(seed)
    return [document(n, [rng.randint(3, 20) for _ in range(rng.randint(2, 40))]) for n in range(1, count + 1)]


def unpack(example, cls=CLS, sep=SEP):
    """Returns segments A and B and the label of a row."""
    inputs, types = example["inputs"], example["token_types"]
    inputs = inputs[inputs != 0]
    (first, last) = np.flatnonzero(inputs == sep)
    assert inputs[0] == cls and last == len(inputs) - 1
    assert types.tolist() == [0] * (first + 1) + [1] * (last - first) + [0] * (len(types) - last - 1)
    return inputs[1:first].tolist(), inputs[first + 1 : last].tolist(), int(example["next_sentence_label"][0])


def test_labels_match_documents_of_segments():
    documents, length = many_documents(), 64
    found = [unpack(example) for example in examples_of(documents, length, documents_per_batch=20)]
    assert all(a and b and len(a) + len(b) <= length - 3 for a, b, _ in found)
    for a, b, label in found:
        origin_a, origin_b = ({token // DOCUMENT for token in segment} for segment in (a, b))
        assert len(origin_a) == len(origin_b) == 1
        if label:
            assert origin_a != origin_b
        else:
            assert origin_a == origin_b and a[-1] < b[0]
    # Consecutive segments that were not truncated meet at a sentence boundary.
    uncut = [(a, b) for a, b, label in found if not label and len(a) + len(b) < length - 3]
    assert uncut and all(b[0] // SENTENCE == a[-1] // SENTENCE + 1 and b[0] % SENTENCE == 0 for a, b in uncut)


def test_every_sentence_is_used_once():
    # Sentences have one token and the length is large, so nothing is truncated, and tokens are sentences.
    documents = [document(number, [1] * 50) for number in range(1, 31)]
    used = collections.Counter()
    for example in examples_of(documents, 200, documents_per_batch=7):
        a, b, label = unpack(example)
        used.update(a if label else a + b)
    assert used == {sentence[0]: 1 for document in documents for sentence in document}


def test_half_of_the_pairs_are_random():
    documents = [document(number, [5] * 400) for number in range(1, 21)]
    labels = [unpack(example)[2] for example in examples_of(documents, 64, short_pair_probability=0.0)]
    # A chunk has 13 sentences, except for the last ones of a document, of which there may be only one.
    assert len(labels) > 700
    assert np.mean(labels) == pytest.approx(0.5, abs=4 * (0.25 / len(labels)) ** 0.5 + 20 / len(labels))


def test_10_percent_of_documents_have_short_pairs():
    lengths = pairing.random_target_lengths(tf.constant(20_000), 125, 0.1, tf.constant([3, 4], tf.int64)).numpy()
    short = lengths[lengths < 125]
    # The length is uniform from 2 to 125, and the maximum does not count as short.
    assert len(short) / len(lengths) == pytest.approx(0.1 * 123 / 124, abs=4 * (0.09 / len(lengths)) ** 0.5)
    assert short.min() == 2 and short.max() == 124
    assert short.mean() == pytest.approx(63, abs=4 * (123**2 / 12 / len(short)) ** 0.5)


def test_cuts_are_uniform_over_sentences_of_chunk():
    # Every document is one chunk of five sentences, so segment A has 1 … 4 of them.
    documents = [document(number, [1] * 5) for number in range(1, 2001)]
    found = [unpack(example) for example in examples_of(documents, 8, short_pair_probability=0.0)]
    firsts = collections.Counter(len(a) for a, _, _ in found if a[0] % DOCUMENT == SENTENCE)
    assert sorted(firsts) == [1, 2, 3, 4]
    assert sum((count - 500) ** 2 / 500 for count in firsts.values()) < 16.3  # p = 0.001 with 3 degrees of freedom


def test_pairs_depend_on_seed_and_pass():
    documents = many_documents(30)
    once = examples_of(documents, 48, seed=1)
    again, other = examples_of(documents, 48, seed=1), examples_of(documents, 48, seed=2)
    rows = [[example["inputs"].tolist() for example in examples] for examples in (once, again, other)]
    assert rows[0] == rows[1] != rows[2]
    twice = examples_of(documents, 48, seed=1, passes=2)
    assert [example["inputs"].tolist() for example in twice[: len(once)]] == rows[0]
    assert 0.8 < (len(twice) - len(once)) / len(once) < 1.2
    assert [example["inputs"].tolist() for example in twice[len(once) :]][: len(once)] != rows[0]


def test_invalid_lengths_raise():
    with pytest.raises(ValueError, match="TASK_FEATURE_LENGTHS=None: .* needs 'inputs'"):
        pairing.sentence_pairs(dataset(many_documents(2)), None, {}, special=SPECIAL)
    with pytest.raises(ValueError, match="Set 'inputs' to 5 or more"):
        examples_of(many_documents(2), 4)
    with pytest.raises(ValueError, match="documents_per_batch=1 must be at least 2"):
        examples_of(many_documents(2), 16, documents_per_batch=1)
    assert all(unpack(example) for example in examples_of(many_documents(2), 5))


# ---- tasks -----------------------------------------------------------------------------------------------------------


def source_of(task, length=64, predictions=10, **kwargs):
    return SeqIOSource(
        mixture_or_task_name=task,
        task_feature_lengths={"inputs": length, "targets": predictions},
        pack=False,
        **kwargs,
    )


def test_shipped_task_yields_masked_pairs_and_restores_position():
    source = source_of("python_docs_sentence_pairs", batch_size=16)
    iterator = source.host_iterator(SENTENCE_PAIRS)
    batch = next(iterator)
    state = iterator.state()
    assert iterator.can_be_saved
    expected = next(iterator)
    iterator.restore(state)
    for name, array in next(iterator).items():
        np.testing.assert_array_equal(array, expected[name])
    assert batch["next_sentence_label"].shape == (16, 1) and set(batch["next_sentence_label"].flat) == {0, 1}
    for row in range(16):
        tokens = batch["encoder_input_tokens"][row].copy()
        weights = batch["masked_weights"][row] > 0
        positions = batch["masked_positions"][row][weights]
        assert len(positions) == min(10, round(0.15 * np.count_nonzero(batch["encoder_segment_ids"][row])))
        tokens[positions] = batch["masked_targets"][row][weights]
        unpack(
            {"inputs": tokens, "token_types": batch["token_types"][row], "next_sentence_label": [0]}, cls=1022, sep=1021
        )


@pytest.fixture
def sample(test_data):
    return {
        "pattern": str(test_data / "text/bert_sample_text/sample_text.txt"),
        "vocabulary_path": str(test_data / "vocab/bert/bert_base_uncased_vocab.txt"),
        "validation_fraction": 0.0,
    }


def test_text_files_task_on_sample_text_of_bert(sample, test_data):
    source = source_of("text_files_sentence_pairs", 128, 20, batch_size=1, task_arguments=sample)
    vocabulary = source.vocabularies()["inputs"]
    lines = (test_data / "text/bert_sample_text/sample_text.txt").read_text(encoding="utf-8").split("\n")
    documents, current = [], []
    for line in [*lines, ""]:
        if line.strip():
            current.append(vocabulary.encode(line))
        elif current:
            documents.append(sum(current, []))
            current = []
    assert source.count_examples() == len(documents)

    def documents_with(segment):
        return {
            number
            for number, tokens in enumerate(documents)
            if any(tokens[start : start + len(segment)] == segment for start in range(len(tokens)))
        }

    labels = collections.Counter()
    for example in source.task_dataset(num_epochs=10).as_numpy_iterator():
        count = np.count_nonzero(example["targets"])
        restored = example["inputs"].copy()
        restored[example["masked_positions"][:count]] = example["targets"][:count]
        a, b, label = unpack(example | {"inputs": restored}, cls=vocabulary.cls_id, sep=vocabulary.sep_id)
        of_a, of_b = documents_with(a), documents_with(b)
        assert of_a and of_b and (len(of_a | of_b) > 1 if label else of_a & of_b)
        labels[label] += 1
    assert min(labels.values()) > 20


@pytest.mark.full
def test_mask_rate_0_gives_plain_text_without_weights(sample):
    task = "text_files_sentence_pairs"
    source = source_of(task, 128, 20, batch_size=4, task_arguments=sample | {"mask_rate": 0.0})
    batch = next(source.host_iterator(SENTENCE_PAIRS))
    assert source.vocabularies()["inputs"].mask_id not in batch["encoder_input_tokens"]
    assert not batch["masked_weights"].any() and np.all(batch["encoder_segment_ids"].any(axis=1))


def test_arguments_set_vocabulary_and_format(sample, tmp_path):
    name = "text_files_sentence_pairs"
    without = source_of(name, batch_size=1, task_arguments={"pattern": sample["pattern"]})
    with pytest.raises(ValueError, match="text_files_sentence_pairs needs task_arguments .'vocabulary_path'"):
        without.check_vocabulary(30522)
    (tmp_path / "prose.txt").write_text("The first. And a second.\nNow the third goes\non. The end, four.\n\nTwo. " * 8)
    prose = sample | {"pattern": str(tmp_path / "prose.txt"), "one_sentence_a_line": False, "lines_per_document": 4}
    source = source_of(name, 24, 4, batch_size=1, task_arguments=prose)
    assert next(source.task_dataset().as_numpy_iterator())["inputs"][0] == 101
    assert source.count_examples() == 9


def test_directory_of_a_tokenizer_states_its_own_case(sample, test_data, tmp_path):
    """A Hugging Face directory takes the place of the file, whatever `lower_case` is."""
    shutil.copy(test_data / "vocab/bert/bert_base_cased_vocab.txt", tmp_path / "vocab.txt")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    given = {name: value for name, value in sample.items() if name != "vocabulary_path"}
    source = source_of(
        "text_files_sentence_pairs",
        batch_size=1,
        task_arguments=given | {"lower_case": True},
        vocabulary_path=str(tmp_path),
    )
    vocabulary = source.vocabularies()["inputs"]
    assert vocabulary.vocab_size == 28996 and vocabulary.encode("The") != vocabulary.encode("the")
    assert next(source.task_dataset().as_numpy_iterator())["inputs"][0] == vocabulary.cls_id == 101
