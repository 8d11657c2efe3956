"""Multi-label classification: the binary cross-entropy by hand."""

import numpy as np
from objective_cases import CASES, terms_of

from t5x_like.objectives.passes import predict, total_weights


def test_loss_is_the_mean_binary_cross_entropy_of_known_labels():
    case = CASES["multi-label classification"]
    params, batch = case.params(), case.batch()
    hidden = params["model"](batch).hidden
    logits = np.asarray(params["objective"]["sequence_classification"](hidden[:, :1]))[:, 0]
    probabilities, targets = 1 / (1 + np.exp(-logits)), batch["label"]
    known = (targets >= 0) & (batch["encoder_segment_ids"][:, :1] > 0)
    losses = -np.where(targets > 0, np.log(probabilities), np.log(1 - probabilities))
    terms = terms_of(case.objective, params, batch)
    np.testing.assert_allclose(terms.sums["multi_label_classification"], losses[known].sum(), rtol=1e-5)
    assert total_weights(case.objective, batch)["multi_label_classification"] == known.sum()
    right = ((probabilities > 0.5) == (targets > 0)) & known
    assert [float(each) for each in terms.metrics["accuracy"]] == [right.sum(), known.sum()]
    np.testing.assert_allclose(predict(case.objective, params, batch)["predictions"], probabilities, rtol=1e-5)
