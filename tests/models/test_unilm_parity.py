"""Compares UniLM with transformers' BERT under dense masks: random weights, small odd sizes, float32."""

import dataclasses

import jax
import numpy as np
import pytest
from objective_cases import terms_of

from t5x_like import interop, parameters
from t5x_like.interop import tables
from t5x_like.models.unilm import UnilmConfig
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.passes import total_weights
from t5x_like.objectives.unified_lm import UnifiedLM

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

OBJECTIVE = Joint([UnifiedLM(), NextSentence()])
ROWS, LENGTH, PREDICTIONS, SOURCE = 4, 17, 4, 9
# Bidirectional, sequence to sequence, left to right, right to left.
LENGTHS, COUNTS = np.array([17, 14, 16, 11]), np.array([4, 3, 2, 3])


def make_batch(rng, config):
    positions = np.arange(LENGTH)
    valid = positions < LENGTHS[:, None]
    weights = np.arange(PREDICTIONS) < COUNTS[:, None]
    masked = np.zeros((ROWS, PREDICTIONS), int)
    for row in range(ROWS):
        masked[row, : COUNTS[row]] = np.sort(rng.choice(LENGTHS[row], COUNTS[row], replace=False))
    batch = {
        "encoder_input_tokens": rng.integers(1, config.vocab_size, (ROWS, LENGTH)) * valid,
        "encoder_segment_ids": valid,
        "encoder_ranks": np.stack(
            [0 * positions, np.maximum(positions - SOURCE + 1, 0), positions, LENGTH - positions]
        ),
        "token_types": rng.integers(0, 6, (ROWS, LENGTH)) * valid,
        "masked_positions": masked,
        "masked_targets": rng.integers(0, config.vocab_size, (ROWS, PREDICTIONS)) * weights,
        "masked_weights": weights,
        "next_sentence_label": np.array([[1], [-1], [-1], [-1]]),
    }
    return {name: array.astype(np.int32) for name, array in batch.items()}


def visible():
    """The masks of the paper's figure 1, query by key."""
    query, key = np.arange(LENGTH)[:, None], np.arange(LENGTH)[None]
    masks = np.stack([query >= 0 * key, (key < SOURCE) | (key <= query), key <= query, key >= query])
    return masks & (key < LENGTHS[:, None, None])


@pytest.mark.parametrize(("seed", "scan"), [(0, False), (1, True)])
def test_hidden_states_loss_and_gradients(seed, scan, tmp_path, assert_parity):
    torch.manual_seed(seed)
    reference = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=41 + seed,
            hidden_size=21,
            intermediate_size=27,
            num_attention_heads=3,
            num_hidden_layers=1 + seed,
            max_position_embeddings=LENGTH + 2,
            type_vocab_size=6,
            layer_norm_eps=1e-5,
            attn_implementation="eager",
        )
    ).eval()
    reference.save_pretrained(tmp_path, safe_serialization=True)
    bert, model = interop.from_huggingface(str(tmp_path), scan_layers=scan)
    config = UnilmConfig(**{field.name: getattr(bert, field.name) for field in dataclasses.fields(bert)})
    model = parameters.rebuild(jax.eval_shape(config.make, jax.random.key(0)), parameters.named_leaves(model))
    stored = {
        name.removeprefix(tables.OBJECTIVE): leaf
        for name, leaf in interop.read(str(tmp_path), bert).items()
        if name.startswith(tables.OBJECTIVE)
    }
    heads = parameters.rebuild(jax.eval_shape(OBJECTIVE.init, jax.random.key(0), model), stored)
    params, batch = {"model": model, "objective": heads}, make_batch(np.random.default_rng(seed), config)

    given = {name: torch.tensor(array).long() for name, array in batch.items()}
    found = reference(
        given["encoder_input_tokens"],
        attention_mask=torch.tensor(visible()).long(),
        token_type_ids=given["token_types"],
        output_hidden_states=True,
    )
    rows, columns = torch.nonzero(given["masked_weights"], as_tuple=True)
    logits = found.prediction_logits[rows, given["masked_positions"][rows, columns]]
    cross_entropy = torch.nn.functional.cross_entropy
    expected = cross_entropy(logits, given["masked_targets"][rows, columns])
    expected = expected + cross_entropy(found.seq_relationship_logits[:1], given["next_sentence_label"][:1, 0])
    expected.backward()

    def loss(params):
        terms, weights = terms_of(OBJECTIVE, params, batch), total_weights(OBJECTIVE, batch)
        hidden = params["model"](batch).hidden
        return sum(OBJECTIVE.coefficients[name] * terms.sums[name] / weights[name] for name in terms.sums), hidden

    (value, hidden), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    valid = batch["encoder_segment_ids"] == 1
    theirs = found.hidden_states[-1].detach().numpy()[valid]
    assert_parity({"hidden": np.asarray(hidden)[valid]}, {"hidden": theirs}, "hidden states")
    assert_parity({"loss": value}, {"loss": expected.detach()}, "loss")
    assert_parity(
        interop.tensors_to_huggingface(gradient, bert),
        {name: parameter.grad for name, parameter in reference.named_parameters()},
        "gradients",
    )
