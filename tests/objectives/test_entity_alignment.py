"""Denoising entity alignment: candidates, corruptions, and the loss by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, random_model
from objective_cases import CASES

from t5x_like.errors import UserError
from t5x_like.models.bert import BertConfig
from t5x_like.objectives.entity_alignment import (
    UNIQUE_COUNT,
    UNIQUE_IDS,
    UNIQUE_VECTORS,
    EntityAlignment,
    unique_entities,
)
from t5x_like.objectives.keys import NO_KEYS, Keys, row_keys
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.passes import forward_at_evaluation, predict, terms

OBJECTIVE = EntityAlignment([MaskedLM()], entity_dim=2)


def test_unique_entities_come_first_with_their_vectors():
    entities = np.array([[7, 3, 0], [3, 9, 7]])
    found = unique_entities(entities, np.stack([entities, -entities], axis=-1).astype(np.float32))
    assert (
        found[UNIQUE_COUNT] == 3 and found[UNIQUE_IDS][:3].tolist() == [3, 7, 9] and (found[UNIQUE_IDS][3:] > 9).all()
    )
    assert found[UNIQUE_VECTORS].tolist() == [[3, -3], [7, -7], [9, -9], [0, 0], [0, 0], [0, 0]]
    assert unique_entities(0 * entities, np.zeros((2, 3, 2), np.float32))[UNIQUE_COUNT] == 0


def test_entities_are_replaced_removed_and_kept_with_the_published_probabilities():
    rows, mentions = 4000, 5
    entities = np.broadcast_to(np.array([[1, 2, 3, 4, 0]]), (rows, mentions))
    batch = {"entities": entities, "entity_vectors": np.stack([entities, entities], axis=-1).astype(np.float32)}
    batch = OBJECTIVE.prepare({}, batch, key=None, step=0)
    keys = Keys(rows=row_keys(jax.random.key(0), jnp.arange(rows)))
    found = jax.device_get(OBJECTIVE.corrupt(batch, keys))
    changed = found["entities"]
    assert (changed[:, 4] == 0).all()
    first = np.bincount(changed[:, 0], minlength=5) / rows  # a random entity may be the entity itself
    np.testing.assert_allclose(first, [0.15, 0.8 + 0.0125, 0.0125, 0.0125, 0.0125], atol=0.02)
    is_mention = changed > 0
    np.testing.assert_array_equal(found["entity_vectors"][..., 0][is_mention], changed[is_mention])
    # A draw depends on the row alone.
    half = {name: array[rows // 2 :] if array.shape[:1] == (rows,) else array for name, array in batch.items()}
    of_half = OBJECTIVE.corrupt(half, Keys(rows=keys.rows[rows // 2 :]))["entities"]
    np.testing.assert_array_equal(of_half, changed[rows // 2 :])
    np.testing.assert_array_equal(OBJECTIVE.corrupt(batch, NO_KEYS)["entities"], entities)


def test_loss_is_the_cross_entropy_over_the_entities_of_the_batch_and_none():
    case = CASES["entity_alignment"]
    params, batch = case.params(), case.batch()
    objective = EntityAlignment(case.objective.objectives, entity_dim=6, replaced=0.0, removed=0.0)
    found = forward_at_evaluation(objective, params, batch)
    hidden = params["model"](batch).hidden
    flat = zip(batch["entities"].ravel().tolist(), batch["entity_vectors"].reshape(-1, 6), strict=True)
    table = {0: np.zeros(6)} | {entity: vector for entity, vector in flat if entity}
    candidates, head = sorted(table), params["objective"]["entity_alignment"]
    matrix, losses, guesses = np.stack([table[each] for each in candidates]), [], []
    for row, mention in np.argwhere(batch["entities"] > 0):
        logits = matrix @ head(hidden[row, batch["entity_positions"][row, mention]][None, None])[0, 0]
        losses.append(jax.nn.logsumexp(logits) - logits[candidates.index(batch["entities"][row, mention])])
        guesses.append(candidates[int(np.argmax(logits))])
    total, weight = terms(found).metrics["entity_alignment_loss"]
    np.testing.assert_allclose(total / weight, np.mean(losses), rtol=1e-5)
    assert weight == len(losses)
    at = batch["entities"] > 0
    assert predict(objective, params, batch)["entity_alignment"][at].tolist() == guesses


def test_model_without_entities_of_this_size_raises():
    model = random_model(FAMILIES["ernie"].config)
    with pytest.raises(UserError, match="EntityAlignment.entity_dim=2: the ErnieConfig has entity_dim=6"):
        OBJECTIVE.init(jax.random.key(0), model)
    with pytest.raises(UserError, match="the BertConfig has no entities"):
        OBJECTIVE.init(jax.random.key(0), random_model(FAMILIES["bert"].config))
    assert isinstance(FAMILIES["bert"].config, BertConfig)
    with pytest.raises(UserError, match="replaced=0.6, removed=0.5: not probabilities"):
        EntityAlignment([MaskedLM()], replaced=0.6, removed=0.5)
