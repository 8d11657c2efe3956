"""Tests of BART's noise functions: deterministic cores, random choices and the preprocessor."""

import collections
import itertools
import math

import numpy as np
import pytest
import seqio
import small_models
import tensorflow as tf

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from data_tasks import preprocessors
from data_tasks.pretraining import bart, bart_noise
from data_tasks.pretraining.bart import BartNoise
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.vocabularies import shipped
from t5x_like.vocabularies.from_folder import from_folder

MASK = ord("_")


def seed(number=0):
    return tf.constant([number, 7], tf.int64)


def row(text, width=None):
    """Returns one padded row of characters and its count."""
    ids = [ord(letter) for letter in text]
    return tf.constant([ids + [0] * ((width or len(ids) + 2) - len(ids))]), tf.constant([len(ids)])


def shown(tokens, counts=None):
    letters = tokens[0].numpy().tolist()
    assert counts is None or not any(letters[int(counts[0]) :])
    return "".join(chr(token) for token in letters if token)


def at(values, width):
    """Returns one row of zeros except at the given positions: ones, or the values of a mapping."""
    flags = np.zeros([1, width], np.int32)
    for position in values:
        flags[0, position] = values[position] if isinstance(values, dict) else 1
    return tf.constant(flags)


# ---- deterministic cores ---------------------------------------------------------------------------------------------


def test_mask_tokens():
    tokens, _ = row("ABCDEF", 6)
    assert shown(bart_noise.mask_tokens(tokens, at([1, 4], 6) > 0, MASK)) == "A_CD_F"


def test_delete_tokens():
    assert shown(*bart_noise.delete_tokens(*row("ABCDEF"), at([1, 4], 8) > 0)) == "ACDF"


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ({1: 2, 4: 1}, "A_D_F"),  # a span of two words becomes one mask
        ({1: 1, 2: 1}, "A__DEF"),  # adjacent spans stay separate
        ({1: 3, 2: 1}, "A_EF"),  # a span within another one is absorbed
        ({1: 2, 2: 3}, "A_F"),  # an overlapping span extends the first one
        ({4: 5}, "ABCD_"),  # the end of the text ends a span
        ({0: 6}, "_"),
        ({}, "ABCDEF"),
    ],
)
def test_infill_single_letter_words(spans, expected):
    tokens, counts = row("ABCDEF")
    words = tf.ones_like(tokens) > 0
    assert shown(*bart_noise.infill(tokens, counts, words, at(spans, 8), MASK)) == expected


def test_infill_covers_whole_words():
    # The words are Ab, C, Def and G. The span covers two words from the second one on.
    tokens, counts = row("AbCDefG")
    words = at([0, 2, 3, 6], 9) > 0
    assert shown(*bart_noise.infill(tokens, counts, words, at({2: 2}, 9), MASK)) == "Ab_G"
    assert shown(*bart_noise.infill(tokens, counts, words, at({0: 1, 3: 1}, 9), MASK)) == "_C_G"


def test_insert_adds_masks_for_empty_spans():
    tokens, counts = row("ABC.DE.")
    infilled = bart_noise.infill(tokens, counts, tf.ones_like(tokens) > 0, at({1: 2}, 9), MASK)
    assert shown(*infilled) == "A_.DE."
    assert shown(*bart_noise.insert(*infilled, at([4], 7) > 0, MASK)) == "A_.D_E."
    assert shown(*bart_noise.insert(*row("AB"), at([0, 3], 4) > 0, MASK)) == "_AB_"


def test_rows_are_infilled_independently():
    tokens = tf.concat([row("ABCDEF")[0], row("GH", 8)[0]], axis=0)
    spans = tf.concat([at({4: 5}, 8), at({0: 1}, 8)], axis=0)
    found, counts = bart_noise.infill(tokens, tf.constant([6, 2]), tf.ones_like(tokens) > 0, spans, MASK)
    assert [shown(found[i : i + 1], counts[i : i + 1]) for i in range(2)] == ["ABCD_", "_H"]
    found, counts = bart_noise.insert(found, counts, tf.concat([at([], 6), at([1, 2], 6)], axis=0) > 0, MASK)
    assert [shown(found[i : i + 1], counts[i : i + 1]) for i in range(2)] == ["ABCD_", "___H"]


def test_permute_sentences():
    tokens, counts = row("ABC.DE.FG.")
    sentences, numbers = bart.sentence_indices(tokens, counts, ord("."))
    assert sentences[0].numpy().tolist()[:10] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2] and numbers.numpy().tolist() == [3]
    assert shown(bart_noise.permute_sentences(tokens, counts, sentences, tf.constant([[2, 0, 1]]))) == "FG.ABC.DE."


def test_rotate():
    tokens, counts = row("ABC.DE.FG.")
    assert shown(bart_noise.rotate(tokens, counts, tf.constant([5]))) == "E.FG.ABC.D"
    assert shown(bart_noise.rotate(tokens, counts, tf.constant([0]))) == "ABC.DE.FG."


def test_repeated_full_stops_end_one_sentence_and_last_needs_none():
    tokens, counts = row("A..B.C")
    sentences, numbers = bart.sentence_indices(tokens, counts, ord("."))
    assert sentences[0].numpy().tolist()[:6] == [0, 0, 1, 1, 1, 2] and numbers.numpy().tolist() == [3]


# ---- random choices --------------------------------------------------------------------------------------------------


def test_choose_has_exact_fraction_and_uniform_positions():
    among = tf.sequence_mask(tf.fill([3000], 10), 12)
    chosen = bart_noise.choose(among, 0.25, seed()).numpy()
    assert (chosen.sum(axis=1) == 3).all() and not chosen[:, 10:].any()
    assert np.abs(chosen[:, :10].mean(axis=0) - 0.3).max() < 4 * (0.21 / 3000) ** 0.5


def test_draw_spans_covers_budget_with_poisson_lengths_at_random_words():
    words = tf.ones([3000, 100], bool)
    spans, without_word = (array.numpy() for array in bart_noise.draw_spans(words, 0.3, 3.0, seed()))
    assert (spans.sum(axis=1) == 30).all()
    # The last span of each row is shortened to the budget. The others, including empty ones, are Poisson with mean 3.
    counts = collections.Counter(spans[spans > 0].tolist()) + collections.Counter({0: int(without_word.sum())})
    total = counts.total()
    assert total / 3000 == pytest.approx(10.5, abs=0.3)
    for length in (0, 1, 2, 3, 4, 5):
        assert counts[length] / total == pytest.approx(math.exp(-3) * 3**length / math.factorial(length), abs=0.03)
    begins = (spans > 0).mean(axis=0)
    assert np.abs(begins - begins.mean()).max() < 4.5 * (begins.mean() / 3000) ** 0.5


def test_draw_spans_begins_only_at_words_and_covers_short_texts():
    words = tf.constant([[True, False, True, False, True, True, False, False]] * 500)
    spans, without_word = (array.numpy() for array in bart_noise.draw_spans(words, 0.3, 3.0, seed()))
    assert (spans.sum(axis=1) == 2).all()  # 0.3 of 4 words, rounded up
    assert not spans[:, [1, 3, 6, 7]].any() and spans[:, [0, 2, 4, 5]].any(axis=0).all()
    assert without_word.mean() == pytest.approx(0.06, abs=0.05)
    empty = bart_noise.draw_spans(tf.zeros([2, 8], bool), 0.3, 3.0, seed())
    assert not any(array.numpy().any() for array in empty)


def test_draw_insertions_is_uniform_over_new_row():
    counts, added = tf.constant([3, 0, 2] * 1000), tf.constant([2, 1, 0] * 1000)
    positions = bart_noise.draw_insertions(counts, added, seed()).numpy()
    assert (positions.sum(axis=1) == np.array([2, 1, 0] * 1000)).all()
    assert np.abs(positions[::3].mean(axis=0) - 0.4).max() < 4 * (0.24 / 1000) ** 0.5
    assert positions[1::3, 0].all()


def test_draw_order_is_uniform_over_permutations():
    orders = bart_noise.draw_order(tf.fill([6000], 3), 4, 1.0, seed()).numpy()
    counts = collections.Counter(map(tuple, orders.tolist()))
    assert set(counts) == {(*order, 3) for order in itertools.permutations(range(3))}
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 20.5  # p = 0.001 with 5 degrees of freedom
    half = bart_noise.draw_order(tf.fill([500], 6), 6, 0.3, seed()).numpy()
    assert set((half != np.arange(6)).sum(axis=1).tolist()) == {0, 2}  # 2 of 6 swap, or happen to stay


# ---- the preprocessor ------------------------------------------------------------------------------------------------


def features(extra_ids=1):
    feature = seqio.Feature(seqio.ByteVocabulary(extra_ids=extra_ids))
    return {"inputs": feature, "targets": feature}


def noised(texts, lengths, noise, **kwargs):
    ds = tf.data.Dataset.from_tensor_slices({"text": texts})
    ds = preprocessors.tokenize(preprocessors.documents(ds), features())
    with seqio.utils.map_seed_manager(5):
        return list(bart.bart(ds, lengths, features(), noise=noise, **kwargs).as_numpy_iterator())


def text_of(tokens):
    """Decodes bytes, with the mask as _ and without special tokens."""
    return "".join("_" if token == 259 else chr(token - 3) for token in tokens if token > 2)


NO_NOISE = dict(permute_sentences=0.0, infill=0.0)
TEXT = "One two three. Four five. Six seven eight nine. Ten."
LENGTHS = {"inputs": 64, "targets": 64}


def test_targets_are_document_chunks_and_special_tokens_do_not_move():
    noise = BartNoise(mask=0.1, delete=0.1, rotate=1.0)
    examples = noised([TEXT * 3, "short"], {"inputs": 32, "targets": 40}, noise, bos_id=2)
    assert "".join(text_of(example["targets"]) for example in examples) == TEXT * 3 + "short"
    for example in examples:
        for name, width in (("inputs", 32), ("targets", 40)):
            real = example[name][example[name] != 0]
            assert example[name].shape == (width,)
            assert real[0] == 2 and real[-1] == 1 and not set(real[1:-1].tolist()) & {1, 2}


@pytest.mark.full
def test_special_tokens_are_those_of_the_vocabulary(tmp_path):
    small_models.write_bart(tmp_path / "bart")
    feature = seqio.Feature(from_folder(tmp_path / "bart"))
    features = {"inputs": feature, "targets": feature}
    ds = preprocessors.tokenize(preprocessors.documents(tf.data.Dataset.from_tensors({"text": TEXT})), features)
    with seqio.utils.map_seed_manager(5):
        (example,) = bart.bart(ds, LENGTHS, features, noise=BartNoise(**NO_NOISE, mask=0.3)).as_numpy_iterator()
    inputs, targets = (example[name][example[name] != 1].tolist() for name in ("inputs", "targets"))
    assert targets == [0, *feature.vocabulary.encode(TEXT), 2]
    assert inputs[0] == 0 and inputs[-1] == 2 and inputs.count(feature.vocabulary.mask_id) == math.ceil(0.3 * len(TEXT))


@pytest.mark.full
def test_each_noise_alone():
    def inputs(**rates):
        return text_of(noised([TEXT], LENGTHS, BartNoise(**(NO_NOISE | rates)))[0]["inputs"])

    assert inputs() == TEXT
    masked = inputs(mask=0.3)
    assert len(masked) == len(TEXT) and masked.count("_") == math.ceil(0.3 * len(TEXT))
    deleted = inputs(delete=0.3)
    letters = iter(TEXT)
    assert len(deleted) == len(TEXT) - math.ceil(0.3 * len(TEXT)) and all(letter in letters for letter in deleted)
    permuted = inputs(permute_sentences=1.0)
    sentences = ["One two three.", " Four five.", " Six seven eight nine.", " Ten."]
    assert permuted in {"".join(order) for order in itertools.permutations(sentences)} - {TEXT}
    rotated = inputs(rotate=1.0)
    assert rotated in TEXT + TEXT and len(rotated) == len(TEXT) and rotated != TEXT
    infilled = inputs(infill=0.3)
    # 3 of the 10 words are infilled, together with the whitespace after them.
    assert "_" in infilled and sum(word in infilled for word in TEXT.split()) >= 7


def test_shipped_task_infills_30_percent_of_words():
    lengths = {"inputs": 128, "targets": 128}
    source = SeqIOSource(
        mixture_or_task_name="python_docs_bart", task_feature_lengths=lengths, batch_size=2, split="validation"
    )
    vocabulary = source.vocabularies()["targets"]
    special = bart.NoiseTokens.from_vocabulary(vocabulary)
    examples = list(source.task_dataset().take(300).as_numpy_iterator())
    words = {}
    for name in lengths:
        tokens = np.stack([example[name] for example in examples])
        words[name] = (special.begin_words(tf.constant(tokens)).numpy() & (tokens > 2)).sum(axis=1)
    infilled = words["targets"] - words["inputs"]
    # The fraction is slightly below 0.3, because spans overlap and the end of the text cuts spans short.
    assert 0.22 < infilled.sum() / words["targets"].sum() < 0.3
    assert (infilled <= np.ceil(0.3 * (words["targets"] + 1))).all()
    ends = [example[name][example[name] != 0][-1] for example in examples for name in lengths]
    assert set(ends) == {1}


def test_word_starts_and_full_stops_of_vocabularies():
    pieces = shipped.python_docs()
    tokens = pieces.encode("Thank you. Bye.")
    special = bart.NoiseTokens.from_vocabulary(pieces)
    starts = special.word_starts(tf.constant([tokens]))[0].numpy()
    assert [pieces.tokenizer.IdToPiece(token)[0] == bart.WORD_BOUNDARY for token in tokens] == starts.tolist()
    assert starts.sum() == 3 and tokens.count(special.full_stop) == 2 and special.mask == pieces.vocab_size - 1
    letters = seqio.ByteVocabulary(extra_ids=1)
    starts = bart.NoiseTokens.from_vocabulary(letters).word_starts(tf.constant([letters.encode("ab  c\nd.")]))
    assert starts[0].numpy().tolist() == [True, False, False, False, True, False, True, False]

    class Listed(seqio.ByteVocabulary):
        word_starts = np.arange(259) == ord("b") + 3

    starts = bart.NoiseTokens.from_vocabulary(Listed(1)).word_starts(tf.constant([Listed(1).encode("abc") + [259]]))
    assert starts.numpy().tolist() == [[True, True, False, False]]


def test_invalid_settings_raise():
    with pytest.raises(ValueError, match="infill=1.5 is not a fraction"):
        BartNoise(infill=1.5)
    with pytest.raises(ValueError, match="mean_span_length=0"):
        BartNoise(mean_span_length=0)
    with pytest.raises(ValueError, match="ByteVocabulary has no sentinel that BART's noise can use as its mask"):
        bart.NoiseTokens.from_vocabulary(seqio.ByteVocabulary())
    with pytest.raises(
        ValueError,
        match="TASK_FEATURE_LENGTHS={'targets': 9}: BART's noise needs 'inputs' and 'targets'",
    ):
        noised(["a"], {"targets": 9}, BartNoise())
    with pytest.raises(ValueError, match="too short for a token"):
        noised(["a"], {"inputs": 1, "targets": 9}, BartNoise())
