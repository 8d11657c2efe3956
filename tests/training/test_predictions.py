"""Batches of predictions: prompts without padding, and rows that the shards do not divide."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like.data.batches import from_arrays
from t5x_like.data.specs import ENCODER_DECODER
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Objective, Pass
from t5x_like.objectives.prefix_lm import PrefixLM
from t5x_like.partitioning import Partitioner
from t5x_like.training.predictions import Predictor, prompts

INPUTS = np.array([[5, 6, 7] + [0] * 37, [5] * 20 + [0] * 20])
TARGETS = np.array([[8, 9] + [0] * 18, [8] * 20])


def test_prompts_of_an_encoder_are_its_features_alone():
    found = prompts(from_arrays(ENCODER_DECODER, {"inputs": INPUTS, "targets": TARGETS}))
    assert found and all(name.startswith("encoder_") for name in found)
    np.testing.assert_array_equal(found["encoder_input_tokens"], INPUTS[:, :32])


def test_prompts_of_a_decoder_end_before_its_targets():
    batch = from_arrays(PrefixLM(bos_id=2).features, {"inputs": INPUTS, "targets": TARGETS})
    found = prompts(batch)
    # BOS and 20 inputs fit into 32 of 60 tokens.
    assert {array.shape for array in found.values()} == {(2, 32)}
    np.testing.assert_array_equal(found["decoder_input_tokens"], batch["decoder_input_tokens"][:, :32])


def test_rows_that_the_shards_do_not_divide_are_padded():
    class Scale(nnx.Module):
        config = None

        def __init__(self):
            self.factor = nnx.Param(jnp.int32(2), axes=())

        def __call__(self, batch, **options):
            return Outputs(batch["encoder_input_tokens"] * self.factor[...])

    class Sums(Objective):
        features, coefficients = ENCODER_DECODER, {}

        def read(self, params, outputs, rows, **options):
            return Pass(rows, outputs, {})

        def predict(self, found):
            return {"scores": jnp.sum(found.outputs.hidden, axis=1)}

    predictor = Predictor(Sums(), None, None, Partitioner(rules="dp", ici={"data": 8}))
    rows = np.arange(12).reshape(3, 4)
    found = predictor.score({"model": Scale(), "objective": {}}, {"encoder_input_tokens": rows})["scores"]
    np.testing.assert_array_equal(found[:3], 2 * rows.sum(axis=1))
