"""A decoder on the rows of an encoder-decoder: each example is one text, and teachers of adapted models use it."""

import contextlib
import dataclasses

import jax
import numpy as np
import pytest
from adapted_models import randomized
from families import FAMILIES, random_model

from t5x_like import parameters
from t5x_like.adapters.lora import LoRA
from t5x_like.distillation.losses.logits import ForwardKL
from t5x_like.distillation.objective import Distillation
from t5x_like.models.base import ModelConfig
from t5x_like.models.rotary_encoder_decoder import RotaryEncoderDecoderConfig
from t5x_like.objectives import passes
from t5x_like.objectives.base import Objective
from t5x_like.objectives.joined_lm import JoinedLM
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.training import flops

DECODER = FAMILIES["qwen2"].config
# Two examples of 3 inputs and 2 targets, and of 1 input and 3 targets, with padding at the end.
ROWS = {
    "encoder_input_tokens": [[11, 12, 13, 21, 0]],
    "encoder_segment_ids": [[1, 1, 1, 2, 0]],
    "encoder_positions": [[0, 1, 2, 0, 0]],
    "decoder_input_tokens": [[2, 14, 2, 22, 23, 0]],
    "decoder_target_tokens": [[14, 15, 22, 23, 24, 0]],
    "decoder_loss_weights": [[1, 1, 1, 1, 1, 0]],
    "decoder_segment_ids": [[1, 1, 2, 2, 2, 0]],
    "decoder_positions": [[0, 1, 0, 1, 2, 0]],
}
ROWS = {name: np.array(rows, np.int32) for name, rows in ROWS.items()}
# The same examples, if the encoder reads BOS in place of EOS, which are 13 and 21.
WITH_BOS = {**ROWS, "encoder_input_tokens": np.array([[2, 11, 12, 2, 0]], np.int32)}


def test_operations_of_the_joined_rows_are_counted():
    config, objective = dataclasses.replace(DECODER, max_length=96), JoinedLM()
    shapes = {name: (4, 64) if "encoder" in name else (4, 32) for name in ROWS}
    rows = {name: jax.ShapeDtypeStruct(shape, np.int32) for name, shape in shapes.items()}

    def forward(model, rows):
        return model.unembed(objective.run({"model": model}, rows).hidden)

    counted = flops.jaxpr_flops(jax.make_jaxpr(forward)(jax.eval_shape(config.make, jax.random.key(0)), rows).jaxpr)
    assert 1 <= counted / (config.train_flops(objective.read_shapes(shapes)) / 3) < 1.08


def test_joined_rows_by_hand():
    found = JoinedLM(bos_id=2, causal_inputs=False).join(ROWS)
    assert found["decoder_input_tokens"].tolist() == [[2, 11, 12, 2, 2, 13, 14, 21, 22, 23, 0]]
    assert found["decoder_segment_ids"].tolist() == [[1, 1, 1, 2, 0, 1, 1, 2, 2, 2, 0]]
    assert found["decoder_positions"][0, [0, 1, 2, 3, 5, 6, 7, 8, 9]].tolist() == [0, 1, 2, 0, 3, 4, 1, 2, 3]
    assert found["decoder_prefix"].tolist() == [[1] * 5 + [1, 0, 1, 0, 0, 1]]


def test_joined_rows_after_bos_by_hand():
    found = JoinedLM(bos_id=2, encoder_bos=True).join(WITH_BOS)
    assert found["decoder_input_tokens"].tolist() == [[2, 11, 12, 2, 0, 12, 14, 2, 22, 23, 0]]
    assert found["decoder_segment_ids"].tolist() == [[1, 1, 0, 0, 0, 1, 1, 2, 2, 2, 0]]
    assert found["decoder_positions"][0, [0, 1, 5, 6, 7, 8, 9]].tolist() == [0, 1, 2, 3, 0, 1, 2]


TEXTS = {
    False: (([2, 11, 12, 13, 14], 3, slice(0, 2)), ([2, 21, 22, 23], 1, slice(2, 5))),
    True: (([2, 11, 12, 14], 2, slice(0, 2)), ([2, 22, 23], 0, slice(2, 5))),
}
"""Whether the encoder reads BOS -> each text, the number of its inputs, and the places of its targets."""


@pytest.mark.parametrize("encoder_bos", [False, True])
@pytest.mark.parametrize("causal", [True, False])
def test_packed_examples_are_texts_of_their_own(causal, encoder_bos):
    model = random_model(DECODER)
    objective = JoinedLM(bos_id=2, encoder_bos=encoder_bos, causal_inputs=causal)
    rows = WITH_BOS if encoder_bos else ROWS
    hidden = objective.run({"model": model, "objective": {}}, rows).hidden[0]
    for text, inputs, places in TEXTS[encoder_bos]:
        batch = {"decoder_input_tokens": np.array([text])}
        if not causal:
            batch["decoder_prefix"] = (np.arange(len(text)) <= inputs)[None].astype(np.int32)
        np.testing.assert_allclose(hidden[places], model(batch).hidden[0, inputs:], atol=2e-5)


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A teacher with random parameters; see `loaded_teachers.LoadedTeacher`."""

    config: ModelConfig
    objective: Objective
    vocabulary: str | None = None
    weight: float = 1.0

    def bound(self):
        return contextlib.nullcontext()


BOTH = RotaryEncoderDecoderConfig(encoder=DECODER, decoder=DECODER)
TEACHERS = {
    "decoder": Teacher(DECODER, JoinedLM(bos_id=2)),
    "decoder, BOS": Teacher(DECODER, JoinedLM(bos_id=2, encoder_bos=True)),
    "adapted": Teacher(BOTH, SequenceToSequence(bos_id=2)),
}


@pytest.mark.full
@pytest.mark.parametrize("name", TEACHERS)
def test_an_adapted_model_with_lora_learns_from_a_decoder_and_from_an_adapted_model(name):
    teacher = TEACHERS[name]
    rows = WITH_BOS if name == "decoder, BOS" else ROWS
    own = SequenceToSequence(bos_id=2, encoder_bos=rows is WITH_BOS)
    objective = Distillation(own, {"kl": ForwardKL()}, coefficients={"task": 0.0}, teachers={name: teacher})
    config = dataclasses.replace(BOTH, adapters=(LoRA(pattern="cross_attention/(query|value)$", rank=2),))
    student = randomized(config)
    other = {"model": random_model(teacher.config), "objective": {}}

    def loss(model):
        params = {"model": model, "objective": {}, "teachers": {name: other}}
        return passes.loss(passes.forward(objective, params, rows), {"targets": 0.0, "kl": 1.0})[0]

    value, gradient = jax.jit(jax.value_and_grad(loss))(student)

    def log_probabilities(objective, params):
        found = passes.forward(objective, params, rows).predictions["targets"]
        return jax.nn.log_softmax(found.logits(found.hidden))

    log_p = log_probabilities(teacher.objective, other)
    log_q = log_probabilities(own, {"model": student, "objective": {}})
    divergence = np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)
    np.testing.assert_allclose(value, np.sum(divergence * ROWS["decoder_loss_weights"]), rtol=1e-4)
    factors = [leaf for each, leaf in parameters.named_leaves(gradient).items() if "/adapter/" in each]
    assert len(factors) == 8 and all(np.any(leaf) for leaf in factors)
