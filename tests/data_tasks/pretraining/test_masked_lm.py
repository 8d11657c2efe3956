"""Tests of masked LM: the choice of tokens and their corruption."""

import numpy as np
import pytest
import seqio
import tensorflow as tf
from lanes import others_are_full

from data_tasks.pretraining import masked_lm
from data_tasks.pretraining.masked_lm import BertMasking, RobertaMasking, Rows
from t5x_like.vocabularies import shipped, special_tokens
from t5x_like.vocabularies.special_tokens import SpecialTokens

# The 0.999 quantiles of chi-square by degrees of freedom. A correct distribution exceeds them for one in 1,000 seeds;
# the seeds here are fixed.
CHI_SQUARE = {2: 13.82, 9: 27.88, 19: 43.82}
SPECIAL = SpecialTokens(cls=97, sep=98, mask=99)
WORDS = dict(zip("went to the store man buy a gallon of milk".split(), range(10, 20), strict=True))
RANDOM_TOKENS = np.arange(30, 90, dtype=np.int32)


def chi_square(counts, expected):
    return float(np.sum((np.asarray(counts) - expected) ** 2 / np.asarray(expected)))


def draws_of(kind, tokens, seed=0):
    """Returns dynamic draws, or static ones with a duplicate number per row."""
    if kind == "dynamic":
        return masked_lm.seeded_draws(tf.shape(tokens), tf.constant([seed, 7], tf.int64))
    return masked_lm.hashed_draws(tokens, tf.range(tf.shape(tokens)[0]) + 100_000 * seed)


def repeated(tokens, count):
    return tf.tile(tf.constant([tokens], tf.int32), [count, 1])


def corrupted(tokens, chosen, draw):
    rows = Rows(tokens, tf.fill(tokens.shape[:1], tokens.shape[1]), SPECIAL)
    return tf.where(chosen, masked_lm.uniform_replacements(rows, draw, RANDOM_TOKENS), tokens)


def all_zero(shape):
    return lambda number: tf.zeros(shape, tf.uint32)


# ---- examples of the paper -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_corruption_probabilities(kind):
    """Checks 80 % [MASK], 10 % random tokens and 10 % unchanged tokens by chi-square over 20,000 draws."""
    sentence = [WORDS[word] for word in "went to the store".split()]
    tokens = repeated(sentence, 20_000)
    chosen = tf.constant([False, False, False, True]) & tf.ones(tokens.shape, bool)
    found = corrupted(tokens, chosen, draws_of(kind, tokens)).numpy()
    assert (found[:, :3] == sentence[:3]).all()
    last = found[:, 3]
    masked, kept = (last == SPECIAL.mask), (last == WORDS["store"])
    random_tokens = last[~masked & ~kept]
    assert chi_square([masked.sum(), len(random_tokens), kept.sum()], [16_000, 2_000, 2_000]) < CHI_SQUARE[2]
    counts = np.bincount((random_tokens - RANDOM_TOKENS[0]) // 3, minlength=20)  # 60 tokens, three per bin
    assert len(counts) == 20
    assert chi_square(counts, np.full(20, len(random_tokens) / 20)) < CHI_SQUARE[19]


def test_corrupted_inputs_and_predictions():
    text = "the man went to the store to buy a gallon of milk".split()
    tokens = tf.constant([[SPECIAL.cls, *(WORDS[word] for word in text), SPECIAL.sep, 0]])
    chosen = (tokens == WORDS["store"]) | (tokens == WORDS["gallon"])
    inputs = corrupted(tokens, chosen, all_zero(tokens.shape))
    predicted = masked_lm.predictions(tokens, chosen, 4)
    names = {index: word for word, index in WORDS.items()} | {97: "[CLS]", 98: "[SEP]", 99: "[MASK]"}
    row = [names[token] for token in inputs.numpy()[0, :-1]]
    assert " ".join(row) == "[CLS] the man went to the [MASK] to buy a [MASK] of milk [SEP]"
    assert predicted["masked_positions"].numpy().tolist() == [[6, 10, 0, 0]]
    assert [row[position] for position in (6, 10)] == ["[MASK]", "[MASK]"]
    assert [names[token] for token in predicted["targets"].numpy()[0, :2]] == ["store", "gallon"]
    assert predicted["targets"].numpy()[0, 2:].tolist() == [0, 0]


# ---- the choice of tokens --------------------------------------------------------------------------------------------


def rows_of(lengths, width):
    """Returns rows [CLS] text [SEP] with the given lengths."""
    tokens = np.zeros((len(lengths), width), np.int32)
    for row, length in zip(tokens, lengths, strict=True):
        row[:length] = [SPECIAL.cls, *(10 + np.arange(length - 2) % 80), SPECIAL.sep]
    return Rows(tf.constant(tokens), tf.constant(lengths), SPECIAL)


def chosen_by(masking, rows, max_predictions, kind="dynamic", seed=0, vocabulary=None):
    draw = draws_of(kind, rows.tokens, seed)
    return masking.choose(rows, draw, max_predictions, vocabulary).numpy()


@pytest.mark.parametrize(
    ("length", "max_predictions", "count"),
    [
        (128, 20, 19),  # 19.2, BERT's own settings
        (512, 77, 77),  # 76.8
        (512, 20, 20),  # limited by max_predictions
        (10, 20, 2),  # 1.5 rounds to even, as in Python
        (30, 20, 4),  # 4.5 rounds to even
        (4, 20, 1),  # 0.6
        (3, 20, 1),  # 0.45, but at least 1
    ],
)
def test_bert_chooses_15_percent_of_length_with_special_tokens(length, max_predictions, count):
    rows = rows_of([length] * 5, 512)
    chosen = chosen_by(BertMasking(), rows, max_predictions)
    assert chosen.sum(axis=1).tolist() == [count] * 5
    assert not chosen[:, [0, length - 1]].any() and not chosen[:, length:].any()


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_bert_chooses_uniformly_among_text(kind):
    rows = rows_of([12] * 20_000, 14)
    chosen = chosen_by(BertMasking(rate=0.25), rows, 5, kind)
    assert (chosen.sum(axis=1) == 3).all()
    # Three of ten without replacement: the counts per position vary less than chi-square assumes.
    assert chi_square(chosen.sum(axis=0)[1:11], np.full(10, 6_000)) < CHI_SQUARE[9]
    pairs = {tuple(np.flatnonzero(row)) for row in chosen}
    assert len(pairs) == 120


def test_rate_0_chooses_nothing():
    assert not chosen_by(BertMasking(rate=0.0), rows_of([12] * 5, 14), 5).any()
    with pytest.raises(ValueError, match="mask rate 1.5: not in"):
        BertMasking(rate=1.5)


def test_row_of_special_tokens_has_no_predictions():
    rows = Rows(tf.constant([[97, 98, 0, 0]]), tf.constant([2]), SPECIAL)
    assert not chosen_by(BertMasking(), rows, 4).any()


def test_roberta_rounds_at_random_and_chooses_special_tokens():
    rows = rows_of([32] * 20_000, 40)  # 4.8 tokens
    chosen = chosen_by(RobertaMasking(), rows, 6)
    counts = np.bincount(chosen.sum(axis=1), minlength=7)
    assert counts[4] + counts[5] == 20_000
    assert counts[5] == pytest.approx(16_000, abs=190)  # 3.3 standard deviations of a binomial, 0.001
    assert not chosen[:, 32:].any()
    for position in (0, 31):
        assert chosen[:, position].mean() == pytest.approx(0.15, abs=0.0084)


def test_roberta_requires_length_for_all_masked_tokens():
    RobertaMasking().check(128, 20)
    with pytest.raises(ValueError, match="up to 20 of 128 tokens of 'inputs' are masked, .* Set targets to 20"):
        RobertaMasking().check(128, 19)


# ---- whole words -----------------------------------------------------------------------------------------------------


def reference_whole_words(tokens, starts, scores, wanted):
    """Implements the loops of BERT's code over one row, with words in the order of their first tokens' scores."""
    words = []
    for position, token in enumerate(tokens):
        if token in (0, SPECIAL.cls, SPECIAL.sep):
            continue
        if words and not starts[position] and tokens[position - 1] not in (SPECIAL.cls, SPECIAL.sep):
            words[-1].append(position)
        else:
            words.append([position])
    chosen = []
    for word in sorted(words, key=lambda word: -int(scores[word[0]])):
        if len(chosen) >= wanted:
            break
        if len(chosen) + len(word) > wanted:
            continue
        chosen += word
    return sorted(chosen)


def test_select_words_matches_reference_loops():
    generator = np.random.default_rng(3)
    lengths = generator.integers(3, 40, 200)
    rows = rows_of(lengths.tolist(), 40)
    middle = np.where(generator.random((200, 40)) < 0.03, SPECIAL.sep, rows.tokens.numpy())  # second segments
    rows = Rows(tf.constant(np.where(rows.tokens.numpy() > 0, middle, 0)), rows.counts, SPECIAL)
    starts = generator.random((200, 40)) < 0.4
    scores = generator.integers(0, 2**32, (200, 40), dtype=np.uint32)
    wanted = np.maximum(1, np.round(lengths * 0.3)).astype(np.int32)
    found = masked_lm.select_words(rows, tf.constant(starts), tf.constant(scores), tf.constant(wanted)).numpy()
    expected = [
        reference_whole_words(*row) for row in zip(rows.tokens.numpy(), starts, scores, wanted.tolist(), strict=True)
    ]
    assert [np.flatnonzero(row).tolist() for row in found] == expected
    counts = found.sum(axis=1)
    assert (counts <= wanted).all() and 0.5 < (counts == wanted).mean() < 1  # fewer only where words are too long


def test_words_of_shipped_vocabulary_are_masked_together():
    vocabulary = shipped.python_docs()
    special = special_tokens.special_tokens(vocabulary)
    pieces = [vocabulary.encode(word) for word in ("parenthesised", "expressions", "words")]
    assert min(map(len, pieces)) > 1
    tokens = tf.constant([[special.cls, *sum(pieces, []), special.sep]] * 300)
    rows = Rows(tokens, tf.fill([300], tf.shape(tokens)[1]), special)
    ends = np.cumsum([1, *map(len, pieces)])
    chosen = chosen_by(BertMasking(rate=0.5, whole_words=True), rows, 20, vocabulary=vocabulary)
    words = [chosen[:, start:end] for start, end in zip(ends[:-1], ends[1:], strict=True)]
    for word in words:
        assert (word.all(axis=1) | ~word.any(axis=1)).all()
        assert word.any() and not word.all()


# ---- vocabularies ----------------------------------------------------------------------------------------------------


def test_sentinels_replace_missing_special_tokens():
    assert special_tokens.special_tokens(shipped.python_docs()) == SpecialTokens(mask=1023, cls=1022, sep=1021)
    with pytest.raises(ValueError, match="ByteVocabulary has neither .* Create it with extra_ids=3 or more"):
        special_tokens.special_tokens(seqio.ByteVocabulary(extra_ids=2))


def test_vocabulary_attributes_define_special_tokens_and_word_starts():
    class Named(seqio.ByteVocabulary):
        cls_id, sep_id, mask_id = 5, 6, 7
        word_starts = [True] * 259

    assert special_tokens.special_tokens(Named()) == SpecialTokens(cls=5, sep=6, mask=7)
    assert special_tokens.word_starts(Named()).tolist() == Named.word_starts
    with pytest.raises(ValueError, match="ByteVocabulary does not define which pieces begin a word"):
        special_tokens.word_starts(seqio.ByteVocabulary())


def test_special_pieces_of_sentencepiece_model(test_data):
    (model,) = (test_data / "vocab/albert").glob("*.model")
    vocabulary = seqio.SentencePieceVocabulary(str(model), extra_ids=0)
    special = special_tokens.special_tokens(vocabulary)
    assert [vocabulary.tokenizer.IdToPiece(index) for index in (special.cls, special.sep, special.mask)] == [
        "[CLS]",
        "[SEP]",
        "[MASK]",
    ]


def test_whitespace_and_non_text_ids_begin_words():
    vocabulary = shipped.python_docs()
    starts = special_tokens.word_starts(vocabulary)
    assert starts.shape == (1024,)
    model = vocabulary.tokenizer
    for piece, begins in (
        ("▁the", True),
        ("ing", False),
        ("\n", True),
        ("▁▁▁▁", True),
        ("<0xE2>", False),
        (",", False),
    ):
        assert starts[model.PieceToId(piece)] == begins, piece
    assert starts[[0, 1, 2, 924, 1023]].all()


def test_random_tokens():
    vocabulary = shipped.python_docs()
    special = special_tokens.special_tokens(vocabulary)
    assert BertMasking().random_tokens(vocabulary, special).tolist() == list(range(1024))
    assert RobertaMasking().random_tokens(vocabulary, special).tolist() == list(range(3, 924))


# ---- the preprocessor ------------------------------------------------------------------------------------------------

FEATURES = {"inputs": seqio.Feature(shipped.python_docs())}
LENGTHS = {"inputs": 40, "targets": 8}


def masked(examples, *, seed=5, **kwargs):
    shapes = {name: tf.TensorSpec(np.shape(value), tf.int32) for name, value in examples[0].items() if name != "inputs"}
    signature = shapes | {"inputs": tf.TensorSpec([None], tf.int32)}
    ds = tf.data.Dataset.from_generator(lambda: examples, output_signature=signature)
    with seqio.utils.map_seed_manager(seed):
        ds = masked_lm.mask_inputs(ds, LENGTHS, FEATURES, **kwargs)
    return list(ds.as_numpy_iterator())


def example_of(length, **others):
    generator = np.random.default_rng(length)
    return {"inputs": np.array([1022, *generator.integers(3, 924, length - 2), 1021], np.int32)} | others


def restored(example):
    """Returns the uncorrupted row, restored from the predictions."""
    inputs = example["inputs"].copy()
    count = np.count_nonzero(example["targets"])
    inputs[example["masked_positions"][:count]] = example["targets"][:count]
    return inputs


@pytest.mark.parametrize("masking", [BertMasking(), BertMasking(whole_words=True), RobertaMasking()])
@pytest.mark.parametrize("static", others_are_full([False, True], [True]))
def test_predictions_restore_text(masking, static):
    examples = [example_of(length) for length in (*range(3, 41), *range(3, 41))]
    found = masked(examples, masking=masking, static=static, examples_per_batch=7)
    assert len(found) == len(examples)
    changed = 0
    for before, after in zip(examples, found, strict=True):
        assert after["inputs"].shape == (40,) and after["targets"].shape == after["masked_positions"].shape == (8,)
        count = np.count_nonzero(after["targets"])
        assert (np.diff(after["masked_positions"][:count]) > 0).all()
        assert not after["masked_positions"][count:].any()
        np.testing.assert_array_equal(restored(after), np.pad(before["inputs"], (0, 40 - len(before["inputs"]))))
        changed += (after["inputs"] != restored(after)).sum()
    assert changed > 100


def test_other_features_pass_through():
    examples = [example_of(length, next_sentence_label=np.array([length % 2], np.int32)) for length in (9, 30, 12)]
    found = masked(examples)
    assert [example["next_sentence_label"].tolist() for example in found] == [[1], [0], [0]]
    assert set(found[0]) == {"inputs", "targets", "masked_positions", "next_sentence_label"}


def test_dynamic_masks_depend_on_seed():
    examples = [example_of(40)] * 6
    first, again, other = masked(examples), masked(examples), masked(examples, seed=6)
    rows = [tuple(example["masked_positions"]) for example in first]
    assert len(set(rows)) == 6
    assert rows == [tuple(example["masked_positions"]) for example in again]
    assert all((one["inputs"] != two["inputs"]).any() for one, two in zip(first, other, strict=True))


def test_static_masks_depend_only_on_example_and_duplicate():
    one, two = example_of(40, duplicate=np.int32(0)), example_of(40, duplicate=np.int32(1))
    short = example_of(20, duplicate=np.int32(0))
    first = masked([one, two, short], static=True, examples_per_batch=2)
    second = masked([short, one, two], static=True, examples_per_batch=3, seed=77)
    for left, right in zip(first, [second[1], second[2], second[0]], strict=True):
        for name in left:
            np.testing.assert_array_equal(left[name], right[name])
    assert first[0]["masked_positions"].tolist() != first[1]["masked_positions"].tolist()
    assert "duplicate" not in first[0]


def test_invalid_lengths_raise():
    ds = tf.data.Dataset.from_tensors({"inputs": tf.constant([1022, 5, 1021])})
    with pytest.raises(ValueError, match="TASK_FEATURE_LENGTHS={'inputs': 9}: .* needs 'inputs' and 'targets'"):
        masked_lm.mask_inputs(ds, {"inputs": 9}, FEATURES)
    with pytest.raises(ValueError, match="Set targets to 20"):
        masked_lm.mask_inputs(ds, {"inputs": 128, "targets": 14}, FEATURES, masking=RobertaMasking())
