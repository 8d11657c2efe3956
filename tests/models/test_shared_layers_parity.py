"""Compares BERT with shared layers with a rewrite in torch: random odd sizes, float32, padded rows.

numerics.py defines the tolerance.
"""

import dataclasses

import pytest
from torch_rewrites import compare

from t5x_like.models.shared_layers import SharedLayersConfig

torch = pytest.importorskip("torch", reason="compares with torch (extra `parity`)")
functional = torch.nn.functional

pytestmark = pytest.mark.parity

SMALL = SharedLayersConfig(
    vocab_size=53,
    embed_dim=14,
    mlp_dim=19,
    num_heads=2,
    head_dim=7,
    num_layers=12,
    max_length=16,
    activations=("gelu_exact",),
)
CONFIGS = {
    "one_layer": SMALL,
    "factorized_embeddings": dataclasses.replace(SMALL, embedding_dim=5, num_layers=3, num_heads=3, head_dim=5),
    "groups": dataclasses.replace(SMALL, num_layers=4, stored_layers=2, padding_id=4),
}


def reference_hidden(config, p, tokens, types):
    """Returns the last hidden states in torch, of a loop over applications of the stored layers."""

    def norm(x, name):
        return functional.layer_norm(x, x.shape[-1:], p[f"{name}/scale"], p[f"{name}/bias"], config.norm_epsilon)

    def table(name):
        return p[f"embeddings/{name}_embedder/embedding"]

    x = table("token")[tokens] + table("position")[: tokens.shape[1]]
    x = norm(x + table("token_type")[types], "embeddings/norm")
    if config.embedding_dim:
        x = x @ p["embedding_projection/kernel"] + p["embedding_projection/bias"]
    padding = (tokens == config.padding_id)[:, None, None]
    for application in range(config.num_layers):
        layer = f"encoder/layers/{application * config.stored_layers // config.num_layers}"
        attention, mlp = f"{layer}/attention", f"{layer}/mlp"
        q, k, v = (
            torch.einsum("bie,ehd->bhid", x, p[f"{attention}/{name}/kernel"]) + p[f"{attention}/{name}/bias"][:, None]
            for name in ("query", "key", "value")
        )
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / config.head_dim**0.5
        weights = scores.masked_fill(padding, -torch.inf).softmax(-1)
        out = torch.einsum("bhij,bhjd,hde->bie", weights, v, p[f"{attention}/out/kernel"])
        x = norm(x + out + p[f"{attention}/out/bias"], f"{attention}_norm")
        hidden = functional.gelu(x @ p[f"{mlp}/wi/kernel"] + p[f"{mlp}/wi/bias"])
        x = norm(x + hidden @ p[f"{mlp}/wo/kernel"] + p[f"{mlp}/wo/bias"], f"{mlp}_norm")
    return x


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
@pytest.mark.parametrize("name", CONFIGS)
def test_hidden_states_logits_loss_and_gradients(name, scan, assert_parity):
    config = CONFIGS[name]
    compare(config, scan, lambda *inputs: reference_hidden(config, *inputs), assert_parity)
