"""Masking of each token by itself: numbers by the binomial distribution, the limit of `targets`, and the tasks."""

import numpy as np
import pytest
import tensorflow as tf

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.pretraining import masked_lm
from data_tasks.pretraining.independent_masking import IndependentMasking
from data_tasks.pretraining.masked_lm import Rows
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.specs import MASKED_LM
from t5x_like.errors import UserError
from t5x_like.vocabularies import shipped
from t5x_like.vocabularies.special_tokens import SpecialTokens

SPECIAL = SpecialTokens(cls=97, sep=98, mask=99)
ROWS, LENGTH, REAL = 4000, 20, 15


def rows():
    tokens = np.arange(1, LENGTH + 1)[None].repeat(ROWS, 0)
    tokens[:, 0], tokens[:, REAL - 1], tokens[:, REAL:] = SPECIAL.cls, SPECIAL.sep, 0
    return Rows(tf.constant(tokens, tf.int32), tf.fill([ROWS], REAL), SPECIAL)


def chosen(masking, limit=LENGTH):
    given = rows()
    draw = masked_lm.seeded_draws(tf.shape(given.tokens), tf.constant([0, 7], tf.int64))
    return masking.choose(given, draw, limit, shipped.python_docs()).numpy(), draw


@pytest.mark.parametrize("rate", [0.3, 0.15, 0.0])
def test_every_token_is_chosen_with_the_rate(rate):
    found, _ = chosen(IndependentMasking(rate=rate))
    deviation = np.sqrt(rate * (1 - rate) / ROWS)
    assert not found[:, REAL:].any()
    np.testing.assert_allclose(found[:, :REAL].mean(0), rate, atol=4 * deviation)  # [CLS] and [SEP] too
    numbers = found.sum(1)
    assert abs(numbers.var() - REAL * rate * (1 - rate)) < 0.1 * max(REAL * rate * (1 - rate), 1e-9) + 1e-9


def test_limit_keeps_a_random_part_of_the_chosen_tokens():
    every, _ = chosen(IndependentMasking(rate=0.3))
    some, _ = chosen(IndependentMasking(rate=0.3), limit=4)
    assert (some <= every).all() and (some.sum(1) == np.minimum(every.sum(1), 4)).all()
    kept = some[every.sum(1) > 4].mean(0)[:REAL]
    assert kept.max() < 1.3 * kept.min()


def test_special_tokens_are_chosen_unless_a_rule_leaves_them_out():
    found, _ = chosen(IndependentMasking(rate=0.3, with_special=False))
    assert not found[:, [0, *range(REAL - 1, LENGTH)]].any()
    np.testing.assert_allclose(found[:, 1 : REAL - 1].mean(0), 0.3, atol=4 * np.sqrt(0.21 / ROWS))


def test_evaluations_mask_at_a_rate_of_their_own():
    """Sources of one task with other arguments, in turn: each reads with its own."""
    settings = dict(mixture_or_task_name="python_docs_modernbert", batch_size=16)
    settings["task_feature_lengths"] = {"inputs": 64, "targets": 48}
    training = SeqIOSource(**settings)
    evaluation = SeqIOSource(**settings, shuffle=False, split="validation", task_arguments={"mask_rate": 0.15})

    def rate(batch):
        return batch["masked_weights"].sum() / (batch["encoder_segment_ids"] > 0).sum()

    first = next(training.host_iterator(MASKED_LM))
    evaluated = list(evaluation.eval_batches(MASKED_LM, 4))
    again = next(training.host_iterator(MASKED_LM))
    np.testing.assert_array_equal(first["encoder_input_tokens"], again["encoder_input_tokens"])
    assert 0.25 < rate(first) < 0.35 and 0.12 < np.mean([rate(batch) for batch in evaluated]) < 0.18


def test_replacements_are_bert_s_or_all_masks():
    given = rows()
    for all_masked, low, high in ((True, 1.0, 1.0), (False, 0.78, 0.82)):
        masking = IndependentMasking(rate=0.3, all_masked=all_masked)
        found, draw = chosen(masking)
        replaced = masking.replacements(given, found, draw, shipped.python_docs()).numpy()[found]
        assert low <= np.mean(replaced == SPECIAL.mask) <= high


@pytest.mark.parametrize(("kind", "rate"), [("modernbert", 0.3), ("neobert", 0.2), ("mosaicbert", 0.3)])
def test_tasks_mask_with_their_rate(kind, rate):
    source = SeqIOSource(
        mixture_or_task_name=f"python_docs_{kind}", task_feature_lengths={"inputs": 64, "targets": 48}, batch_size=8
    )
    examples = list(source.task_dataset(shuffle=False, num_epochs=1).take(300).as_numpy_iterator())
    predicted = sum(np.count_nonzero(each["targets"]) for each in examples)
    special = 2 if kind == "mosaicbert" else 0  # of each example
    total = sum(np.count_nonzero(each["inputs"]) - special for each in examples)
    assert abs(predicted / total - rate) < 0.01


def test_targets_that_are_too_short_are_an_error():
    with pytest.raises(UserError, match="30% are masked, and up to 381 in a row, .* only 307. Set targets to 381"):
        IndependentMasking(rate=0.3).check(1024, 307)
    IndependentMasking(rate=0.3).check(1024, 381)
