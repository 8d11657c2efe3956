"""MobileBERT's transfer from IB-BERT: the losses of one layer read both networks and train that layer alone."""

import dataclasses

import jax
import numpy as np
import pytest
from families import FAMILIES, example_batch, random_model, scanned
from lanes import others_are_full

from t5x_like import parameters
from t5x_like.distillation import layer_maps, losses
from t5x_like.distillation.loss import ForwardPass, ModelSpec
from t5x_like.objectives.masked_lm import MaskedLM

FAMILY = FAMILIES["mobilebert"]
STUDENT = ModelSpec("student", dataclasses.replace(FAMILY.config, num_layers=3), MaskedLM())
TEACHER = ModelSpec("ib_bert", dataclasses.replace(FAMILIES["ib_bert"].config, num_layers=3), MaskedLM())
LOSSES = {
    "feature_map": losses.FeatureMap(layers=layer_maps.uniform()),
    "attention": losses.AttentionTransfer(layers=layer_maps.uniform()),
}
BATCH = example_batch(FAMILY)
BATCH["encoder_segment_ids"] = np.ones_like(BATCH["encoder_input_tokens"])
BATCH["encoder_segment_ids"][1, 5:] = 0


@pytest.mark.parametrize("scan", others_are_full([False, True], [True]), ids=["unrolled", "scanned"])
def test_losses_of_a_layer_train_this_layer_and_those_below(scan):
    student, teacher = (random_model(scanned(each.config) if scan else each.config) for each in (STUDENT, TEACHER))
    of_layers = losses.per_layer(LOSSES, num_layers=3)
    for each in of_layers.values():
        each.check(STUDENT, TEACHER)
    chosen = {name: of_layers[f"{name}_1"] for name in LOSSES}
    names = [each.captures(STUDENT, TEACHER) for each in chosen.values()]
    theirs = ForwardPass(TEACHER, teacher(BATCH, capture=[name for _, given in names for name in given]), BATCH, dict)

    def value(student, name):
        outputs = student(BATCH, capture=chosen[name].captures(STUDENT, TEACHER)[0])
        loss = chosen[name]({}, ForwardPass(STUDENT, outputs, BATCH, dict), theirs)
        return loss / chosen[name].weights(BATCH, STUDENT.objective).sum(), outputs.captured

    moved = {}
    for name in LOSSES:
        (found, captured), gradient = jax.jit(jax.value_and_grad(lambda s, n=name: value(s, n), has_aux=True))(student)
        leaves = parameters.stack(parameters.named_leaves(gradient))
        moved[name] = {
            part: tuple(bool(np.any(array)) for array in leaves[f"encoder/layers/{part}/kernel"])
            for part in ("attention/query", "attention/value", "expansion")
        }
        if name == "feature_map":
            np.testing.assert_allclose(found, feature_map(captured, theirs.outputs.captured), rtol=1e-4)
    assert moved["feature_map"] == dict.fromkeys(moved["feature_map"], (True, True, False))
    # The scores of a layer do not depend on its values and its feed-forward blocks.
    assert moved["attention"] == {
        "attention/query": (True, True, False),
        "attention/value": (True, False, False),
        "expansion": (True, False, False),
    }


def feature_map(ours, theirs):
    """Returns the mean squared difference of normalized hidden states of the tokens that are not padding."""
    name, valid = "encoder/layers/1/hidden", BATCH["encoder_segment_ids"] > 0
    maps = [np.asarray(each[name], np.float64)[valid] for each in (ours, theirs)]
    maps = [(each - each.mean(-1, keepdims=True)) / each.std(-1, keepdims=True) for each in maps]
    return np.mean((maps[0] - maps[1]) ** 2)
