"""Compares the encoder with disentangled attention with a rewrite in torch: random odd sizes, float32, padded rows.

numerics.py defines the tolerance.
"""

import dataclasses

import pytest
from torch_rewrites import compare

from t5x_like.models.disentangled import DisentangledConfig

torch = pytest.importorskip("torch", reason="compares with torch (extra `parity`)")
functional = torch.nn.functional

pytestmark = pytest.mark.parity

SMALL = DisentangledConfig(
    vocab_size=53, embed_dim=14, mlp_dim=19, num_heads=2, head_dim=7, num_layers=1, max_length=16, max_distance=3
)
CONFIGS = {
    "one_layer": SMALL,
    "narrow_heads": dataclasses.replace(SMALL, num_layers=3, num_heads=3, head_dim=5, max_distance=2),
    "single_head": dataclasses.replace(SMALL, num_layers=2, num_heads=1, head_dim=9, max_distance=13, padding_id=4),
}


def reference_hidden(config, p, tokens, types):
    """Returns the last hidden states in torch, with the scores of each pair written out as in the paper."""

    def norm(x, name):
        return functional.layer_norm(x, x.shape[-1:], p[f"{name}/scale"], p[f"{name}/bias"], config.norm_epsilon)

    def heads(x, name):
        projected = torch.einsum("...e,ehd->h...d", x, p[f"{name}/kernel"])
        return (
            projected + p[f"{name}/bias"][(slice(None), *[None] * (x.ndim - 1))] if f"{name}/bias" in p else projected
        )

    def delta(i, j):
        if i - j <= -config.max_distance:
            return 0
        return 2 * config.max_distance - 1 if i - j >= config.max_distance else i - j + config.max_distance

    length = tokens.shape[1]
    pairs = torch.tensor([[delta(i, j) for j in range(length)] for i in range(length)])
    padding = tokens == config.padding_id
    x = norm(p["embeddings/token_embedder/embedding"][tokens], "embeddings/norm")
    for layer in range(config.num_layers):
        names = {name: f"encoder/layers/{layer}/{name}" for name in ("attention", "mlp")}
        q, k, v = (heads(x, f"{names['attention']}/{what}") for what in ("query", "key", "value"))
        table = p["relative_embedder/embedding"]
        position_q, position_k = (heads(table, f"{names['attention']}/position_{what}") for what in ("query", "key"))
        scores = torch.einsum("hbid,hbjd->bhij", q, k)
        scores = scores + torch.einsum("hbid,hijd->bhij", q, position_k[:, pairs])
        scores = scores + torch.einsum("hbjd,hjid->bhij", k, position_q[:, pairs])
        scores = scores / (3 * config.head_dim) ** 0.5
        weights = scores.masked_fill(padding[:, None, None], -torch.inf).softmax(-1)
        out = torch.einsum("bhij,hbjd,hde->bie", weights, v, p[f"{names['attention']}/out/kernel"])
        x = norm(x + out + p[f"{names['attention']}/out/bias"], f"{names['attention']}_norm")
        hidden = functional.gelu(x @ p[f"{names['mlp']}/wi/kernel"] + p[f"{names['mlp']}/wi/bias"])
        out = hidden @ p[f"{names['mlp']}/wo/kernel"] + p[f"{names['mlp']}/wo/bias"]
        x = norm(x + out, f"{names['mlp']}_norm")
    return x


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
@pytest.mark.parametrize("name", CONFIGS)
def test_hidden_states_logits_loss_and_gradients(name, scan, assert_parity):
    config = CONFIGS[name]
    compare(config, scan, lambda *inputs: reference_hidden(config, *inputs), assert_parity)
