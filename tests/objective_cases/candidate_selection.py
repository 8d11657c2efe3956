"""Candidate selection of ETC: some of the global tokens are candidates."""

import numpy as np
from objective_case import PREDICTIONS, ROWS

from objective_cases.etc import SentenceCase
from t5x_like.objectives import heads
from t5x_like.objectives.candidate_selection import IS_CANDIDATE, CandidateSelection


class CandidateCase(SentenceCase):
    """A case whose first global token, the question, is not a candidate, unless it is the only one."""

    def batch(self):
        batch = dict(super().batch())
        is_global = batch["global_segment_ids"] != 0
        flags = is_global & (np.arange(PREDICTIONS) >= (is_global.sum(1, keepdims=True) > 1))
        label = np.where(batch["label"] < flags.sum(1, keepdims=True), batch["label"], -1)
        return batch | {IS_CANDIDATE: flags.astype(np.int32), "label": label.astype(np.int32)}


CASES = {
    "candidate selection": CandidateCase(
        CandidateSelection(head=heads.EachToken()),
        "etc",
        lambda rng: rng.integers(-1, PREDICTIONS - 1, (ROWS, 1)),
        # The states of the text after the last layer are not read, and a shift of all states of global tokens is a
        # constant in all scores.
        r"key/bias|classifier/bias|layers/1/(mlp_norm/bias|attention_norm/|attention/(out|relative)/)",
        layers=2,
    ),
}
