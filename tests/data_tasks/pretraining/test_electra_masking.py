"""ELECTRA's masking, and its tasks."""

import numpy as np
import tensorflow as tf

from data_tasks import shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.pretraining.electra_masking import ElectraMasking
from data_tasks.pretraining.masked_lm import Rows, predictions, seeded_draws
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.specs import MASKED_LM_WITH_TYPES
from t5x_like.vocabularies.special_tokens import SpecialTokens

CLS, SEP, MASK = 1, 2, 3


def test_chosen_tokens_become_mask_or_stay():
    tokens = np.random.default_rng(0).integers(4, 40, (400, 50))
    tokens[:, 0], tokens[:, -1] = CLS, SEP
    rows = Rows(tf.constant(tokens, tf.int32), tf.fill([400], 50), SpecialTokens(CLS, SEP, MASK))
    draw, masking = seeded_draws(tf.shape(rows.tokens), tf.constant([3, 5])), ElectraMasking()
    chosen = masking.choose(rows, draw, 19, None).numpy()
    assert (chosen.sum(1) == 8).all() and not chosen[:, [0, -1]].any()  # round(50 · 0.15)
    found = masking.replacements(rows, tf.constant(chosen), draw, None).numpy()
    masked = found == MASK
    np.testing.assert_array_equal(found[~masked], tokens[~masked])
    assert abs(masked[chosen].mean() - 0.85) < 0.02  # standard error 0.0063


def test_positions_drawn_with_replacement_are_predicted_several_times():
    tokens = np.random.default_rng(0).integers(4, 40, (400, 50))
    tokens[:, 0], tokens[:, -1] = CLS, SEP
    rows = Rows(tf.constant(tokens, tf.int32), tf.fill([400], 50), SpecialTokens(CLS, SEP, MASK))
    draw, masking = seeded_draws(tf.shape(rows.tokens), tf.constant([3, 5])), ElectraMasking(with_replacement=True)
    chosen = masking.choose(rows, draw, 19, None)
    counts = chosen.numpy()
    assert (counts.sum(1) == 8).all() and not counts[:, [0, -1]].any()  # round(50 · 0.15)
    # 8 draws among 48 tokens choose 48 · (1 - (47 / 48) ** 8) different ones on average.
    assert abs((counts > 0).sum(1).mean() - 48 * (1 - (47 / 48) ** 8)) < 0.15
    masked = masking.replacements(rows, chosen, draw, None).numpy() == MASK
    assert abs(masked[counts == 1].mean() - 0.85) < 0.03 and masked[counts == 2].mean() > 0.93
    found = {name: values.numpy() for name, values in predictions(rows.tokens, chosen, 19).items()}
    np.testing.assert_array_equal(found["masked_positions"][0, :8], np.repeat(np.arange(50), counts[0]))
    np.testing.assert_array_equal(found["targets"][0, :8], np.repeat(tokens[0], counts[0]))


def test_task_has_the_features_of_masked_tokens():
    source = SeqIOSource(
        mixture_or_task_name="python_docs_replaced_tokens",
        split="validation",
        task_feature_lengths={"inputs": 128, "targets": 19},
        batch_size=4,
        pack=False,
    )
    batch = next(source.host_iterator(MASKED_LM_WITH_TYPES, process_index=0, process_count=1))
    assert set(batch) == set(MASKED_LM_WITH_TYPES.dtypes)
    assert batch["token_types"].any()
    lengths, masked = (batch["encoder_segment_ids"] != 0).sum(1), batch["masked_weights"].sum(1)
    np.testing.assert_array_equal(masked, np.clip(np.round(lengths * 0.15), 1, 19))
