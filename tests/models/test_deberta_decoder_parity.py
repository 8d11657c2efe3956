"""Compares the enhanced mask decoder on DeBERTa v1 with a rewrite in torch: padded rows, float64 in torch.

transformers does not have this decoder. numerics.py defines the tolerance.
"""

import dataclasses

import jax
import numpy as np
import pytest
from families import random_model
from torch_rewrites import join_key_biases, unstacked

from t5x_like import parameters
from t5x_like.models.deberta import DebertaConfig
from t5x_like.objectives import passes
from t5x_like.objectives.base import RunOptions
from t5x_like.objectives.enhanced_masked_lm import EnhancedMaskedLM

torch = pytest.importorskip("torch", reason="compares with torch (extra `parity`)")
functional = torch.nn.functional

pytestmark = pytest.mark.parity

CONFIG = DebertaConfig(
    vocab_size=53, embed_dim=14, mlp_dim=19, num_heads=2, head_dim=7, num_layers=3, max_length=16, max_distance=3
)
LENGTH, LENGTHS, COUNTS = 11, np.array([11, 7, 4]), np.array([3, 2, 1])


class Rewrite:
    """DeBERTa and its decoder, with the scores of each pair written out."""

    def __init__(self, p, tokens):
        self.p, self.tokens, self.valid = p, tokens, tokens != CONFIG.padding_id
        k, length = CONFIG.max_distance, tokens.shape[1]
        row = [[min(max(i - j + k, 0), 2 * k - 1) for j in range(length)] for i in range(length)]
        self.row = torch.tensor(row)

    def norm(self, x, name):
        p = self.p
        return functional.layer_norm(x, x.shape[-1:], p[f"{name}/scale"], p[f"{name}/bias"], CONFIG.norm_epsilon)

    def heads(self, x, name):
        projected = torch.einsum("...e,ehd->...hd", x, self.p[f"{name}/kernel"])
        return projected + self.p[f"{name}/bias"] if f"{name}/bias" in self.p else projected

    def layer(self, index, source, queries):
        attention, mlp = (f"encoder/layers/{index}/{name}" for name in ("attention", "mlp"))
        table = self.p["relative_embedder/embedding"]
        q = self.heads(queries, f"{attention}/query")
        k, v = (self.heads(source, f"{attention}/{name}") for name in ("key", "value"))
        position_q, position_k = (
            self.heads(table, f"{attention}/position_{name}")[self.row] for name in ("query", "key")
        )
        scores = torch.einsum("bihd,bjhd->bhij", q, k)
        scores = scores + torch.einsum("bihd,ijhd->bhij", q, position_k)
        scores = scores + torch.einsum("bjhd,ijhd->bhij", k, position_q)
        scores = scores / (3 * CONFIG.head_dim) ** 0.5
        weights = scores.masked_fill(~self.valid[:, None, None], -torch.inf).softmax(-1)
        out = torch.einsum("bhij,bjhd,hde->bie", weights, v, self.p[f"{attention}/out/kernel"])
        x = self.norm(queries + out + self.p[f"{attention}/out/bias"], f"{attention}_norm")
        hidden = functional.gelu(x @ self.p[f"{mlp}/wi/kernel"] + self.p[f"{mlp}/wi/bias"])
        return self.norm(x + hidden @ self.p[f"{mlp}/wo/kernel"] + self.p[f"{mlp}/wo/bias"], f"{mlp}_norm")

    def logits(self):
        p, last = self.p, CONFIG.num_layers - 1
        h = self.norm(p["embeddings/token_embedder/embedding"][self.tokens], "embeddings/norm")
        for index in range(last):
            h = self.layer(index, h, h)
        z = h + p["masked_lm/position_embedder/embedding"][: h.shape[1]]
        for _ in range(2):
            z = self.layer(last, h, z)
        z = functional.gelu(z @ p["masked_lm/dense/kernel"] + p["masked_lm/dense/bias"])
        return self.norm(z, "masked_lm/norm") @ p["embeddings/token_embedder/embedding"].T + p["masked_lm/bias"]


def make_params(scan):
    model, rng = random_model(dataclasses.replace(CONFIG, scan_layers=scan)), np.random.default_rng(5)
    heads = jax.eval_shape(EnhancedMaskedLM().init, jax.random.key(0), model)
    draw = lambda _, leaf: (0.5 * rng.normal(size=leaf.shape)).astype(np.float32)  # noqa: E731
    return {"model": model, "objective": parameters.map_named(draw, heads)}


def make_batch():
    rng = np.random.default_rng(1)
    valid = np.arange(LENGTH) < LENGTHS[:, None]
    weights = np.arange(max(COUNTS)) < COUNTS[:, None]
    batch = {
        "encoder_input_tokens": rng.integers(1, CONFIG.vocab_size, (3, LENGTH)) * valid,
        "encoder_segment_ids": valid,
        "masked_positions": np.array([[1, 5, 9], [0, 6, 0], [3, 0, 0]]),
        "masked_targets": rng.integers(1, CONFIG.vocab_size, weights.shape) * weights,
        "masked_weights": weights,
    }
    return {name: array.astype(np.int32) for name, array in batch.items()}


@pytest.mark.parametrize(
    ("scan", "capture"), [(False, ("encoder/layers/2/hidden",)), (True, ())], ids=["unrolled", "scanned"]
)
def test_logits_loss_and_gradients(scan, capture, assert_parity):
    params, batch, objective = make_params(scan), make_batch(), EnhancedMaskedLM()

    def loss(params):
        outputs = objective.run(params, batch, RunOptions(capture=capture))
        found = objective.read(params, outputs, batch)
        total, _ = passes.loss(found, {"masked_lm": 1 / COUNTS.sum()})
        predicted = found.predictions["all_tokens"]
        return total, predicted.logits(predicted.hidden)

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    trees = unstacked(params["model"]) | unstacked(params["objective"])
    p = {name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in trees.items()}
    expected = Rewrite(p, torch.tensor(batch["encoder_input_tokens"])).logits()
    rows, columns = np.nonzero(batch["masked_weights"])
    at = batch["masked_positions"][rows, columns]
    targets = torch.tensor(batch["masked_targets"][rows, columns]).long()
    total = functional.cross_entropy(expected[rows, at], targets)
    total.backward()
    valid = batch["encoder_segment_ids"] == 1
    assert_parity({"logits": np.asarray(logits)[valid]}, {"logits": expected.detach().numpy()[valid]}, "logits")
    assert_parity({"loss": value}, {"loss": total.detach()}, "loss")
    found = unstacked(gradient["model"]) | unstacked(gradient["objective"])
    wanted = {name: array.grad.numpy() for name, array in p.items()}
    assert_parity(*(join_key_biases(gradients) for gradients in (found, wanted)), "gradients")
