"""Masked language modeling of ETC, which reads a token per sentence."""

import numpy as np
from objective_case import Case

from t5x_like.objectives.sentence_masked_lm import SentenceMaskedLM


class SentenceCase(Case):
    """A case whose sentences are in order."""

    def batch(self):
        batch = dict(super().batch())
        is_sentence = batch["global_segment_ids"] != 0
        positions = np.sort(np.where(is_sentence, batch["global_positions"], 99), axis=1)
        return batch | {"global_positions": (positions * is_sentence).astype(np.int32)}


# The states of global tokens after the last layer are not read.
_WITHOUT_EFFECT = "key/bias|global_(attention_norm|out|relative)"
CASES = {"sentence_masked_lm": SentenceCase(SentenceMaskedLM(), "etc", without_effect=_WITHOUT_EFFECT)}
