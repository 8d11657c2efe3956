"""Compares the span-boundary objective with torch: random weights, small odd sizes, float32."""

import jax
import numpy as np
import pytest
from objective_cases import terms_of

from t5x_like import interop, parameters
from t5x_like.interop import tables
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.passes import total_weights
from t5x_like.objectives.span_boundary import SpanBoundary

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

ROWS, LENGTH, PREDICTIONS, COUNTS = 3, 19, 8, np.array([8, 3, 5])
LENGTHS = np.array([19, 13, 17])


def make_batch(rng, vocab_size):
    valid = np.arange(LENGTH) < LENGTHS[:, None]
    weights = np.arange(PREDICTIONS) < COUNTS[:, None]
    positions = np.zeros((ROWS, PREDICTIONS), int)
    positions[0] = [1, 4, 5, 6, 7, 10, 16, 17]
    positions[1, :3], positions[2, :5] = [2, 3, 8], [3, 9, 10, 11, 13]
    batch = {
        "encoder_input_tokens": rng.integers(1, vocab_size, (ROWS, LENGTH)) * valid,
        "encoder_segment_ids": valid,
        "masked_positions": positions,
        "masked_targets": rng.integers(0, vocab_size, (ROWS, PREDICTIONS)) * weights,
        "masked_weights": weights,
    }
    return {name: array.astype(np.int32) for name, array in batch.items()}


def torch_loss(model, leaves, batch, max_targets):
    """Returns the mean of SpanBERT's span-boundary loss, by loops over spans, with our parameters by name."""
    inputs = {name: torch.tensor(batch[name]).long() for name in ("encoder_input_tokens", "encoder_segment_ids")}
    hidden = model.bert(inputs["encoder_input_tokens"], attention_mask=inputs["encoder_segment_ids"]).last_hidden_state
    layer_norm, gelu = torch.nn.functional.layer_norm, torch.nn.functional.gelu

    def norm(x, name):
        return layer_norm(x, x.shape[-1:], leaves[f"{name}/scale"], leaves[f"{name}/bias"], model.config.layer_norm_eps)

    losses = []
    for row in range(ROWS):
        positions, targets = (batch[name][row, : COUNTS[row]] for name in ("masked_positions", "masked_targets"))
        masked = dict(zip(positions.tolist(), targets.tolist(), strict=True))
        for position, target in masked.items():
            start, end = position, position
            while start - 1 in masked:
                start -= 1
            while end + 1 in masked:
                end += 1
            if start == 1 or end == LENGTHS[row] - 2 or position - start >= max_targets:
                continue
            x = torch.cat([hidden[row, start - 1], hidden[row, end + 1], leaves["positions"][position - start]])
            x = norm(gelu(x @ leaves["dense/kernel"] + leaves["dense/bias"]), "norm")
            x = gelu(x @ leaves["prediction/dense/kernel"] + leaves["prediction/dense/bias"])
            logits = norm(x, "prediction/norm") @ model.bert.embeddings.word_embeddings.weight.T
            logits = logits + leaves["prediction/bias"]
            losses.append(torch.logsumexp(logits, 0) - logits[target])
    assert 0 < len(losses) < COUNTS.sum()
    return sum(losses) / len(losses)


@pytest.mark.parametrize(("seed", "scan"), [(0, False), (1, True)])
def test_loss_and_gradients_equal_those_of_torch(seed, scan, tmp_path, assert_parity):
    torch.manual_seed(seed)
    reference = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=53 + seed,
            hidden_size=21,
            intermediate_size=29,
            num_attention_heads=3,
            num_hidden_layers=2 + seed,
            max_position_embeddings=LENGTH + 2,
            attn_implementation="eager",
        )
    ).eval()
    reference.save_pretrained(tmp_path, safe_serialization=True)
    config, model = interop.from_huggingface(str(tmp_path), scan_layers=scan)
    objective = Joint([MaskedLM(), SpanBoundary(max_targets=3, position_dim=7)])
    rng = np.random.default_rng(seed)
    stored = {
        name.removeprefix(tables.OBJECTIVE): leaf
        for name, leaf in interop.read(str(tmp_path), config).items()
        if name.startswith(tables.OBJECTIVE)
    }
    heads = parameters.map_named(
        lambda name, leaf: stored.get(name, rng.normal(size=leaf.shape).astype(np.float32) / 4),
        jax.eval_shape(objective.init, jax.random.key(0), model),
    )
    params, batch = {"model": model, "objective": heads}, make_batch(rng, config.vocab_size)

    def loss(params):
        terms, weights = terms_of(objective, params, batch), total_weights(objective, batch)
        return terms.sums["span_boundary"] / weights["span_boundary"]

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    own = {
        name: torch.tensor(np.asarray(leaf), requires_grad=True)
        for name, leaf in parameters.named_leaves(heads["span_boundary"]).items()
    }
    expected = torch_loss(reference, own, batch, max_targets=3)
    expected.backward()
    assert_parity({"loss": value}, {"loss": expected.detach()}, "loss")
    theirs = {name: leaf.grad for name, leaf in own.items()}
    assert_parity(parameters.named_leaves(gradient["objective"]["span_boundary"]), theirs, "gradients of the head")
    without_head = {**gradient, "objective": {"masked_lm": gradient["objective"]["masked_lm"]}}
    theirs = {
        name: np.zeros(leaf.shape) if leaf.grad is None else leaf.grad for name, leaf in reference.named_parameters()
    }
    assert_parity(interop.tensors_to_huggingface(without_head, config), theirs, "gradients of the model")
