"""Compares MosaicBERT, the crammed BERT, LTG-BERT and GPT-BERT with rewrites of their released code in torch.

Random weights, odd sizes, rows with padding, float32 against float64. The rewrites follow `bert_layers.py` of
mosaicml/examples (daddaef), `crammed_bert.py` of JonasGeiping/cramming (196c991), `babylm/train/model.py` of
ltgoslo/ltg-bert (4fe9e6f), and `pretraining/model_extra.py` of ltgoslo/gpt-bert (9fc1507).
"""

import math

import jax
import numpy as np
import pytest
from torch_rewrites import LENGTH, ROWS, compare

from t5x_like.models.cramming import CrammedBertConfig
from t5x_like.models.gptbert import GptBertConfig
from t5x_like.models.ltgbert import CenteredPositions, LtgBertConfig
from t5x_like.models.mosaicbert import MosaicBertConfig
from t5x_like.models.unilm import RANKS
from t5x_like.objectives.masked_lm import MaskedLMHead

torch = pytest.importorskip("torch", reason="compares with torch (extra `parity`)")

pytestmark = pytest.mark.parity

# Three heads: their slopes are those of two heads, and the first of four. The window of exact buckets is exceeded.
SIZES = dict(vocab_size=37, embed_dim=15, mlp_dim=22, num_heads=3, head_dim=5, num_layers=2, max_length=LENGTH + 2)
BUCKETS = dict(position_buckets=4, max_distance=9, num_token_types=0, norm_epsilon=1e-5)
CAUSAL_ROW = 1


def norm(x, scale=None, bias=None, epsilon=1e-5):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], scale, bias, epsilon)


def affine(p, name, x, epsilon):
    return norm(x, p[f"{name}/scale"], p[f"{name}/bias"], epsilon)


def linear(p, name, x, dims=1):
    """Contracts the last dimensions of `x` with the kernel, and adds the bias if there is one."""
    product = torch.tensordot(x, p[f"{name}/kernel"], dims)
    return product + p[f"{name}/bias"] if f"{name}/bias" in p else product


def gated(p, name, x, approximate):
    return torch.nn.functional.gelu(linear(p, f"{name}/wi_0", x), approximate=approximate) * linear(
        p, f"{name}/wi_1", x
    )


def weights(scores, visible):
    return scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1)


def averaged(probabilities, value):
    return torch.einsum("bhqk,bkhd->bqhd", probabilities, value)


def mosaicbert(p, tokens, types):
    x = p["embeddings/token_embedder/embedding"][tokens] + p["embeddings/token_type_embedder/embedding"][types]
    x = affine(p, "embeddings/norm", x, 1e-12)
    slopes = torch.tensor([2**-4, 2**-8, 2**-2], dtype=torch.float64)
    distances = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()
    visible = (tokens != 0)[:, None].expand(-1, LENGTH, -1)
    for i in range(SIZES["num_layers"]):
        layer = f"encoder/layers/{i}"
        query, key, value = (linear(p, f"{layer}/attention/{name}", x) for name in ("query", "key", "value"))
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / SIZES["head_dim"] ** 0.5
        context = averaged(weights(scores - slopes[:, None, None] * distances, visible), value)
        x = affine(p, f"{layer}/attention_norm", x + linear(p, f"{layer}/attention/out", context, 2), 1e-12)
        update = linear(p, f"{layer}/mlp/wo", gated(p, f"{layer}/mlp", x, "none"))
        x = affine(p, f"{layer}/mlp_norm", x + update, 1e-12)
    return x


def crammed(p, tokens, types):
    size = SIZES["embed_dim"] + 1
    frequencies = torch.exp(torch.arange(0, size, 2, dtype=torch.float64) * (-math.log(10000.0) / size))
    angles = torch.arange(LENGTH)[:, None] * frequencies
    sinusoids = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
    x = p["token_embedder/embedding"][tokens] + p["position_factor"] * sinusoids
    x = affine(p, "embedding_norm", x, 1e-12)
    visible = (tokens != 0)[:, None].expand(-1, LENGTH, -1)
    for i in range(SIZES["num_layers"]):
        layer = f"encoder/layers/{i}"
        y = affine(p, f"{layer}/attention_norm", x, 1e-12)
        query, key, value = (linear(p, f"{layer}/attention/{name}", y) for name in ("query", "key", "value"))
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / (SIZES["head_dim"] + 1) ** 0.5
        x = x + linear(p, f"{layer}/attention/out", averaged(weights(scores, visible), value), 2)
        y = affine(p, f"{layer}/mlp_norm", x, 1e-12)
        x = x + linear(p, f"{layer}/mlp/wo", gated(p, f"{layer}/mlp", y, "none"))
    return affine(p, "encoder/norm", x, 1e-12)


def bucket(distance, buckets, longest):
    """`make_log_bucket_position` and the offset of the index in the table."""
    middle, sign = buckets // 2, torch.sign(distance)
    near = (distance < middle) & (distance > -middle)
    size = torch.where(near, middle - 1, distance.abs().clamp(max=longest - 1))
    far = torch.ceil(torch.log(size / middle) / math.log((longest - 1) / middle) * (middle - 1)).int() + middle
    return torch.where(size <= middle, distance, far * sign).long() + buckets - 1


def disentangled(p, name, x, relative, visible):
    """Returns the averages of the values of each head."""
    query, key, value = (linear(p, f"{name}/{part}", x) for part in ("query", "key", "value"))
    rows = bucket(torch.arange(LENGTH)[:, None] - torch.arange(LENGTH), 4, 9)
    queries, keys = (linear(p, f"{name}/{part}", relative)[rows] for part in ("query", "key"))
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key)
    scores = scores + torch.einsum("bqhd,qkhd->bhqk", query, keys) + torch.einsum("bkhd,qkhd->bhqk", key, queries)
    return averaged(weights(scores / (3 * SIZES["head_dim"]) ** 0.5, visible), value)


def ltg_parts(p, tokens):
    x = norm(p["embeddings/token_embedder/embedding"][tokens])
    relative = affine(p, "relative_norm", p["relative_embedder/embedding"], 1e-5)
    return x, relative, (tokens != 0)[:, None].expand(-1, LENGTH, -1)


def feed_forward(p, layer, x):
    return linear(p, f"{layer}/mlp/wo", norm(gated(p, f"{layer}/mlp", norm(x), "tanh")))


def ltgbert(p, tokens, types):
    x, relative, visible = ltg_parts(p, tokens)
    for i in range(SIZES["num_layers"]):
        layer = f"encoder/layers/{i}"
        context = disentangled(p, f"{layer}/attention", norm(x), relative, visible)
        x = x + affine(p, f"{layer}/attention/out_norm", linear(p, f"{layer}/attention/out", context, 2), 1e-5)
        x = x + feed_forward(p, layer, x)
    return norm(x)


def gptbert(p, tokens, types):
    x, relative, visible = ltg_parts(p, tokens)
    visible = visible.clone()
    visible[CAUSAL_ROW] &= torch.ones(LENGTH, LENGTH).tril().bool()
    states, parts = [x], list(p["encoder/averages"].split(list(range(2, 2 * SIZES["num_layers"] + 2))))

    def average(x):
        states.append(x)
        return torch.tensordot(parts[len(states) - 2], torch.stack(states), 1)

    for i in range(SIZES["num_layers"]):
        layer = f"encoder/layers/{i}"
        y = norm(x)
        context = disentangled(p, f"{layer}/attention", y, relative, visible)
        context = context * torch.nn.functional.gelu(linear(p, f"{layer}/attention/gate", y))
        context = norm(context.flatten(-2)).unflatten(-1, (SIZES["num_heads"], SIZES["head_dim"]))
        x = average(x + linear(p, f"{layer}/attention/out", context, 2))
        x = average(x + feed_forward(p, layer, x))
    return norm(x)


RANK_FEATURE = {RANKS: np.where(np.arange(ROWS)[:, None] == CAUSAL_ROW, np.arange(LENGTH), 0).astype(np.int32)}
CASES = {
    "mosaicbert": (MosaicBertConfig(**SIZES), mosaicbert, {}),
    "crammed": (CrammedBertConfig(**SIZES | {"embed_dim": 16, "head_dim": 6}), crammed, {}),
    "ltgbert": (LtgBertConfig(**SIZES, **BUCKETS), ltgbert, {}),
    "gptbert": (GptBertConfig(**SIZES, **BUCKETS), gptbert, RANK_FEATURE),
}


@pytest.mark.parametrize(
    ("name", "scan"), [(name, False) for name in CASES] + [("gptbert", True)], ids=[*CASES, "gptbert scanned"]
)
def test_hidden_states_logits_loss_and_gradients(name, scan, assert_parity):
    config, reference, further = CASES[name]
    compare(config, scan, reference, assert_parity, further)


def test_head_of_ltg_bert(assert_parity):
    config = LtgBertConfig(**SIZES, **BUCKETS)
    head = MaskedLMHead(config, key=jax.random.key(0))
    hidden = np.random.default_rng(0).normal(size=(2, 3, config.embed_dim)).astype(np.float32)
    kernel = torch.tensor(np.asarray(head.dense.kernel[...]))
    expected = norm(torch.nn.functional.gelu(torch.tensor(hidden) @ kernel), epsilon=config.norm_epsilon)
    assert_parity({"head": head(hidden)}, {"head": expected}, "head")


@pytest.mark.parametrize(("buckets", "longest"), [(32, 512), (8, 20), (4, 6)])
def test_rows_of_relative_positions(buckets, longest):
    distances, positions = np.arange(-2 * longest, 2 * longest + 1), CenteredPositions(longest, buckets)
    rows = positions.table_rows(distances)
    np.testing.assert_array_equal(rows, bucket(torch.tensor(distances), buckets, longest))
    np.testing.assert_array_equal(rows, positions.rows(distances))
    assert (rows.min(), rows.max()) == (0, positions.num_rows - 1)
