"""Tests of T5's denoising recipes: encodings, names, lengths compared with T5's, and distributions."""

import collections
import math

import numpy as np
import pytest
import seqio
import tensorflow as tf

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from data_tasks import preprocessors
from data_tasks.pretraining import denoising, token_encodings
from data_tasks.pretraining.noise_patterns import AfterPrefix, Iid, RandomSpans, RegularSpans
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.span_lengths import span_lengths

# ---- encodings -------------------------------------------------------------------------------------------------------

WORDS = "Thank you for inviting me to your party last week .".split()
IDS = token_encodings.Ids(sentinels=range(99, 89, -1), text_ids=(3, 90))
NAMES = {10 + index: word for index, word in enumerate(WORDS)} | {99: "<X>", 98: "<Y>", 97: "<Z>"}


def encode(encoding, noise, words=WORDS, seed=0):
    tokens = [10 + WORDS.index(word) for word in words]
    rows = token_encodings.Rows(
        tf.constant([[*tokens, 0]]),
        tf.constant([[word in noise for word in words] + [False]]),
        tf.constant([[True] * len(tokens) + [False]]),
    )
    return [
        NAMES.get(token, token) for token in encoding(rows, IDS, tf.constant([seed, 1], tf.int64))[0].numpy().tolist()
    ]


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("full", "Thank you for inviting me to your party last week ."),
        ("noise_token_to_sentinel", "Thank you <X> <X> me to your party <X> week ."),
        ("noise_span_to_sentinel", "Thank you <X> me to your party <X> week ."),
        ("noise_span_to_unique_sentinel", "Thank you <X> me to your party <Y> week ."),
        ("drop_noise_tokens", "Thank you me to your party week ."),
        ("drop_nonnoise_tokens", "for inviting last"),
        ("nonnoise_span_to_sentinel", "<X> for inviting <X> last <X>"),
        # The row ends without noise, so a sentinel ends the targets.
        ("nonnoise_span_to_unique_sentinel", "<X> for inviting <Y> last <Z>"),
    ],
)
def test_example_of_the_paper(encoding, expected):
    assert " ".join(encode(getattr(token_encodings, encoding), ("for", "inviting", "last"))) == expected


def test_noise_at_both_ends_of_a_row():
    noise = ("Thank", "you", "last")
    words = ["Thank", "you", "for", "last"]
    assert encode(token_encodings.noise_span_to_unique_sentinel, noise, words) == ["<X>", "for", "<Y>"]
    assert encode(token_encodings.nonnoise_span_to_unique_sentinel, noise, words) == ["Thank", "you", "<X>", "last"]


def test_permute_noise_tokens_moves_only_noise():
    noise = ("you", "inviting", "party", "week")
    seen = set()
    for seed in range(200):
        shown = encode(token_encodings.permute_noise_tokens, noise, seed=seed)
        assert [word for word in shown if word not in noise] == [word for word in WORDS if word not in noise]
        assert [shown[WORDS.index(word)] in noise for word in noise] == [True] * 4
        seen.add(tuple(shown[WORDS.index(word)] for word in noise))
    assert len(seen) == math.factorial(4)


def test_gathered_and_random_tokens_are_uniform():
    tokens, noise = np.tile(np.arange(10, 21), (1500, 1)), np.tile(np.arange(11) == 2, (1500, 1))
    rows = token_encodings.Rows(tf.constant(tokens, tf.int32), tf.constant(noise), tf.ones(noise.shape, bool))
    seed = tf.constant([0, 1], tf.int64)
    shown = token_encodings.noise_token_to_gathered_token(rows, IDS, seed).to_tensor().numpy()
    np.testing.assert_array_equal(np.delete(shown, 2, axis=1), np.delete(tokens, 2, axis=1))
    gathered = collections.Counter(shown[:, 2].tolist())
    assert set(gathered) == set(range(10, 21))
    assert sum((count - 1500 / 11) ** 2 / (1500 / 11) for count in gathered.values()) < 29.6  # p = 0.001, 10 degrees
    rows = token_encodings.Rows(tf.zeros([300, 100], tf.int32), tf.ones([300, 100], bool), tf.ones([300, 100], bool))
    shown = token_encodings.noise_token_to_random_token(rows, IDS, tf.constant([1, 2], tf.int64)).flat_values.numpy()
    assert set(shown.tolist()) == set(range(3, 90))  # neither special ids nor sentinels
    mixed = token_encodings.noise_token_to_random_token_or_sentinel(rows, IDS, tf.constant([1, 2], tf.int64), 0.1)
    assert (mixed.flat_values.numpy() == 99).mean() == pytest.approx(0.9, abs=4 * (0.09 / 30_000) ** 0.5)


def test_limit_spans_keeps_first_spans():
    noise = tf.constant([[True, False, True, True, False, True]])
    assert token_encodings.limit_spans(noise, 2).numpy().tolist() == [[True, False, True, True, False, False]]


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pattern", "encodings"),
    [
        ("iid_15_u_u", Iid(0.15), "uu"),
        ("iid_15_d_d", Iid(0.15), "dd"),
        ("iid_15_m_f", Iid(0.15), "mf"),
        ("iid_15_r10s90_f", Iid(0.15), ("r10s90", "f")),
        ("all_permute", Iid(1.0), "pf"),
        ("span_3_15_u_u", RandomSpans(0.15, 3.0), "uu"),
        ("span_2.5_50_s_s", RandomSpans(0.5, 2.5), "ss"),
        ("reg_2_15_g_d", RegularSpans(0.15, 2, 2), "gd"),
        ("reg_1-5_25_r_f", RegularSpans(0.25, 1, 5), "rf"),
        ("prefix_25_d_d", AfterPrefix(0.25), "dd"),
        ("end_75_u_u", RandomSpans(0.75, math.inf), "uu"),
    ],
)
def test_parse_recipe(name, pattern, encodings):
    recipe = denoising.parse_recipe(name)
    assert (recipe.pattern, recipe.inputs, recipe.targets) == (pattern, *encodings)
    assert recipe.join_documents == (name not in ("all_permute", "prefix_25_d_d"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("iid_15_u", "'iid_15_u' is not a denoising recipe(.|\n)*pattern(.|\n)*percent(.|\n)*inputs(.|\n)*targets"),
        ("iid_15_x_f", "not a denoising recipe"),
        ("span_15_u_u", "not a denoising recipe"),
        ("iid_0_u_u", "percentage of noise 0 must be 1 to 100"),
        ("span_3_100_u_u", "percentage of noise 100 must be 1 to 99"),
        ("end_100_u_u", "percentage of noise 100 must be 1 to 99"),
        ("prefix_60_d_d", "percentage of noise 60 must be 1 to 50"),
        ("iid_15_r20s90_f", "20 and 90 in 'r20s90' must add up to 100"),
        ("reg_5-2_15_u_u", "span lengths 5 to 2 must satisfy"),
        ("span_0_15_u_u", "at least 1 token"),
    ],
)
def test_invalid_recipe_names_raise(name, message):
    with pytest.raises(ValueError, match=message):
        denoising.parse_recipe(name)
    with pytest.raises(ValueError, match="random_roll=True applies only to random spans"):
        denoising.parse_recipe("iid_15_u_u", random_roll=True)


# ---- lengths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "inputs", "targets", "chunk"),
    [
        # T5's own lengths. Random spans fill them. With iid noise a chunk has the length of the inputs.
        ("span_2_15_u_u", 512, 126, span_lengths(512, 0.15, 2.0).raw),
        ("span_3_15_u_u", 512, 114, 568),
        ("span_5_15_u_u", 512, 105, span_lengths(512, 0.15, 5.0).raw),
        ("span_10_15_u_u", 512, 99, span_lengths(512, 0.15, 10.0).raw),
        ("iid_15_u_u", 512, 192, 511),
        ("iid_15_d_d", 512, 104, 511),
        ("iid_15_m_f", 512, 512, 511),
        ("all_permute", 512, 512, 511),
        ("iid_15_m_f", 512, 100, 99),
    ],
)
def test_chunk_lengths_match_t5(name, inputs, targets, chunk):
    assert denoising.chunk_length(denoising.parse_recipe(name), inputs, targets, sentinels=100) == chunk


def test_sentinels_limit_chunk_length():
    recipe = denoising.parse_recipe("iid_50_u_u")
    assert denoising.chunk_length(recipe, 512, 512, sentinels=200) == 511
    limited = denoising.chunk_length(recipe, 512, 512, sentinels=100)
    assert recipe.max_sentinels(limited) <= 100 < recipe.max_sentinels(limited + 1)
    with pytest.raises(ValueError, match="with 0 sentinels"):
        denoising.chunk_length(recipe, 512, 512, sentinels=0)
    with pytest.raises(ValueError, match="inputs=2, targets=9 .* at least inputs=3, targets=3"):
        denoising.chunk_length(denoising.parse_recipe("iid_15_m_f"), 2, 9, sentinels=1)


# ---- the preprocessor ------------------------------------------------------------------------------------------------


def features(extra_ids=100):
    feature = seqio.Feature(seqio.ByteVocabulary(extra_ids=extra_ids))
    return {"inputs": feature, "targets": feature}


def denoised(name, texts, lengths, extra_ids=100, **kwargs):
    ds = tf.data.Dataset.from_tensor_slices({"text": texts})
    ds = preprocessors.tokenize(preprocessors.documents(ds), features(extra_ids))
    preprocessor = denoising.preprocessor_of(name, **kwargs)
    with seqio.utils.map_seed_manager(5):
        return list(preprocessor(ds, lengths, features(extra_ids)).as_numpy_iterator())


TEXTS = ["the quick brown fox " * 40, "jumps", "over the lazy dog. " * 40]
ALL = [
    *(f"iid_15_{inputs}_{targets}" for inputs in ("m", "r", "g", "p", "d", "s", "u", "r10s90") for targets in "fdsu"),
    "span_3_15_u_u",
    "span_8_50_s_d",
    "reg_1-5_15_u_u",
    "reg_3_25_d_s",
    "prefix_25_d_d",
    "all_permute",
]


@pytest.mark.parametrize("name", ALL[::5] + ALL[-6:])
def test_every_example_fits_and_ends_in_eos(name):
    for example in denoised(name, TEXTS, {"inputs": 64, "targets": 64}):
        for feature in example.values():
            assert feature.shape == (64,)
            assert feature[feature != 0][-1] == 1 and (feature == 1).sum() == 1


def merged(example, first_sentinel=358):
    """Returns the text of a `u_u` example, with the spans of the targets in place of the sentinels of the inputs."""
    spans, inputs = [[]], []
    for token in example["targets"][example["targets"] > 1]:
        if token > 258:
            assert token == first_sentinel + 1 - len(spans)
            spans.append([])
        else:
            spans[-1].append(token)
    noise = iter(spans if spans[0] else spans[1:])
    for token in example["inputs"][example["inputs"] > 1]:
        inputs += next(noise) if token > 258 else [token]
    assert not any(noise)  # except for a sentinel at the end, if the row ends without noise
    return bytes(int(token) - 3 for token in inputs).decode()


@pytest.mark.parametrize(
    ("name", "roll"),
    [
        ("iid_15_u_u", False),
        ("span_3_15_u_u", False),
        ("span_3_15_u_u", True),
        ("reg_2_25_u_u", False),
        ("end_75_u_u", False),
    ],
)
def test_inputs_and_targets_together_restore_the_text(name, roll):
    examples = denoised(name, TEXTS, {"inputs": 64, "targets": 64}, random_roll=roll)
    assert "".join(map(merged, examples)) == "".join(TEXTS)


# Of n tokens, round(n · r) are noise, in round(noise / μ) spans, at least one.
@pytest.mark.parametrize(
    ("name", "tokens", "noise", "spans"),
    [
        *(("span_3_15_u_u", 100, 15, 5), ("span_3_15_u_u", 512, 77, 26), ("span_3_15_u_u", 568, 85, 28)),
        *(("span_8_15_u_u", 100, 15, 2), ("span_8_15_u_u", 512, 77, 10), ("span_8_15_u_u", 1000, 150, 19)),
        *(("span_3_50_u_u", 100, 50, 17), ("span_3_50_u_u", 512, 256, 85)),
        *(("span_8_50_u_u", 100, 50, 6), ("span_8_50_u_u", 512, 256, 32)),
        *(("span_64_15_u_u", 100, 15, 1), ("span_64_15_u_u", 512, 77, 1), ("span_64_15_u_u", 1000, 150, 2)),
        *(("span_64_50_u_u", 512, 256, 4), ("span_64_50_u_u", 1000, 500, 8)),
        *(("span_12_50_u_u", 1024, 512, 43), ("span_32_15_u_u", 1024, 154, 5), ("span_32_50_u_u", 1024, 512, 16)),
        *(("end_75_u_u", 100, 75, 1), ("end_75_u_u", 1024, 768, 1)),
    ],
)
def test_counts_of_denoisers_are_those_worked_by_hand(name, tokens, noise, spans):
    lengths = {"inputs": tokens - noise + spans + 1, "targets": noise + spans + 1}  # with EOS
    (example,) = denoised(name, ["x" * tokens], lengths)
    for side, length in lengths.items():
        assert (example[side] > 0).sum() == length
        assert (example[side] > 258).sum() == spans


def test_span_3_15_u_u_matches_span_corruption():
    lengths = {"inputs": 64, "targets": span_lengths(64).targets}
    examples = denoised("span_3_15_u_u", TEXTS, lengths)
    assert {len(merged(example)) for example in examples[:-1]} == {span_lengths(64).raw}
    assert [(int((e["inputs"] > 0).sum()), int((e["targets"] > 0).sum())) for e in examples[:-1]] == [
        (64, lengths["targets"])
    ] * (len(examples) - 1)


def test_random_roll_places_spans_anywhere():
    lengths = {"inputs": 18, "targets": 8}
    plain = denoised("span_3_15_u_u", ["abcdefghijklmnop" * 500], lengths)
    rolled = denoised("span_3_15_u_u", ["abcdefghijklmnop" * 500], lengths, random_roll=True)
    assert all(example["inputs"][example["inputs"] > 1][-1] > 258 for example in plain)
    ends = np.mean([example["inputs"][example["inputs"] > 1][-1] > 258 for example in rolled])
    assert 0.02 < ends < 0.3


def test_chunk_length_respects_few_sentinels():
    examples = denoised("iid_50_u_u", ["\xff" * 4000], {"inputs": 64, "targets": 64}, extra_ids=12)
    for example in examples:
        merged(example, first_sentinel=270)
        assert len({token for side in example.values() for token in side if token > 258}) <= 12


def test_lm_recipes():
    joined = denoised("lm", ["abc", "de"], {"inputs": 4, "targets": 4})
    assert [example["targets"].tolist() for example in joined] == [[100, 101, 102, 1], [103, 104, 1, 0]]
    split = denoised("prefix_lm", ["abc"], {"inputs": 4, "targets": 4})
    assert [token for side in ("inputs", "targets") for token in split[0][side] if token] == [100, 101, 102, 1]


def test_all_permute_keeps_all_tokens():
    for example in denoised("all_permute", TEXTS, {"inputs": 64, "targets": 64}):
        assert sorted(example["inputs"]) == sorted(example["targets"])
        real = (example["targets"] > 1).sum()
        assert real < 10 or example["inputs"].tolist() != example["targets"].tolist()


def test_missing_length_and_different_vocabularies_raise():
    with pytest.raises(ValueError, match="TASK_FEATURE_LENGTHS=.*: denoising needs 'inputs' and 'targets'"):
        denoised("iid_15_u_u", ["a"], {"targets": 9})
    mixed = features() | {"inputs": seqio.Feature(seqio.ByteVocabulary(extra_ids=7))}
    with pytest.raises(ValueError, match="the same vocabulary"):
        denoising.denoise(
            tf.data.Dataset.range(1), {"inputs": 9, "targets": 9}, mixed, recipe=denoising.parse_recipe("iid_15_u_u")
        )


def test_shipped_task_has_noise_density():
    lengths = {"inputs": 128, "targets": 64}
    source = SeqIOSource(
        mixture_or_task_name="python_docs_iid_denoising", task_feature_lengths=lengths, batch_size=2, split="validation"
    )
    examples = list(source.task_dataset().take(300).as_numpy_iterator())
    first = source.vocabularies()["targets"].vocab_size - 100
    text = [(side > 2) & (side < first) for side in (np.stack([e[n] for e in examples]) for n in ("inputs", "targets"))]
    kept, noise = (mask.sum() for mask in text)
    assert noise / (kept + noise) == pytest.approx(0.15, abs=4 * (0.15 * 0.85 / (kept + noise)) ** 0.5)


def test_add_denoising_task():
    source = seqio.FunctionDataSource(
        lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices({"body": TEXTS}), splits=["train"]
    )
    with pytest.raises(ValueError, match="not a denoising recipe"):
        denoising.add_denoising_task("wrong", source, seqio.ByteVocabulary(extra_ids=9), "spans")
    task = denoising.add_denoising_task(
        "dropped_words", source, seqio.ByteVocabulary(extra_ids=9), "iid_50_d_d", text_feature="body"
    )
    try:
        example = next(iter(task.get_dataset({"inputs": 32, "targets": 32}, shuffle=False).as_numpy_iterator()))
        assert set(example) == {"inputs", "targets"} and example["inputs"].max() < 259
    finally:
        seqio.TaskRegistry.remove("dropped_words")
