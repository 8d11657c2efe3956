"""ELECTRA's masking, and its tasks."""

import numpy as np
import tensorflow as tf

from data_tasks import shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.pretraining.electra_masking import ElectraMasking
from data_tasks.pretraining.masked_lm import Rows, seeded_draws
from data_tasks.vocabularies.special_tokens import SpecialTokens
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.specs import MASKED_LM

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


def test_task_has_the_features_of_masked_tokens():
    source = SeqIOSource(
        mixture_or_task_name="python_docs_replaced_tokens",
        split="validation",
        task_feature_lengths={"inputs": 128, "targets": 19},
        batch_size=4,
        pack=False,
    )
    batch = next(source.host_iterator(MASKED_LM, process_index=0, process_count=1))
    assert set(batch) == set(MASKED_LM.dtypes)
    lengths, masked = (batch["encoder_segment_ids"] != 0).sum(1), batch["masked_weights"].sum(1)
    np.testing.assert_array_equal(masked, np.clip(np.round(lengths * 0.15), 1, 19))
