"""Compares ETC with a rewrite in torch from the released code: random weights, small odd sizes, padding, float32.

The rewrite has two inputs, and gathers the window of each token. numerics.py defines the tolerance.
"""

import dataclasses

import jax
import numpy as np
import pytest
from families import FAMILIES, random_model, scanned, tokens

from t5x_like import parameters

torch = pytest.importorskip("torch", reason="compares with torch (extra `parity`)")

pytestmark = pytest.mark.parity

ROWS, LENGTH, GLOBALS = 3, 29, 6
CONFIG = dataclasses.replace(FAMILIES["etc"].config, max_length=40, local_radius=4, num_layers=3)


def make_batch():
    """Returns rows of two packed texts, of one padded text, and of one text without padding."""
    rng = np.random.default_rng(0)
    segments = np.ones((ROWS, LENGTH), np.int32)
    segments[0, 13:], segments[0, 25:], segments[1, 17:] = 2, 0, 0
    positions = np.array([[1, 6, 13, 15, 0, 0], [1, 4, 9, 0, 0, 0], [0, 3, 11, 12, 20, 27]])
    of_globals = np.array([[1, 1, 2, 2, 0, 0], [1, 1, 1, 0, 0, 0], [1] * 6])
    return {
        "encoder_input_tokens": tokens(ROWS, LENGTH),
        "encoder_segment_ids": segments,
        "token_types": rng.integers(0, 3, (ROWS, LENGTH)).astype(np.int32),
        "global_positions": positions.astype(np.int32),
        "global_segment_ids": of_globals.astype(np.int32),
        "global_tokens": np.where(of_globals, rng.integers(1, 9, of_globals.shape), 0).astype(np.int32),
    }


def sentences(batch):
    """Returns the index of the global token of each token, -1 for none."""
    found = np.full((ROWS, LENGTH), -1)
    for row in range(ROWS):
        for index, start in enumerate(batch["global_positions"][row]):
            segment = batch["global_segment_ids"][row, index]
            for at in range(start, LENGTH) if segment else ():
                if batch["encoder_segment_ids"][row, at] == segment:
                    found[row, at] = index
    return found


def relative_id(query, key):
    distance = min(abs(key - query), CONFIG.max_distance)
    return distance if key >= query else CONFIG.max_distance + distance


class Rewrite:
    """The network with tensors by their names here, layers stacked."""

    def __init__(self, tensors, batch, is_hard, radius):
        self.tensors, self.is_hard, self.radius = tensors, is_hard, radius
        self.batch = {name: torch.tensor(array).long() for name, array in batch.items()}
        self.sentence = torch.tensor(sentences(batch))
        own = self.sentence[:, :, None] == torch.arange(GLOBALS)
        self.same = self.batch["encoder_segment_ids"][:, :, None] == self.batch["global_segment_ids"][:, None]
        self.own, self.between = own, 2 * CONFIG.max_distance + 1 + own.long()

    def norm(self, x, name, layer=None):
        scale, bias = (self.tensor(f"{name}/{part}", layer) for part in ("scale", "bias"))
        return torch.nn.functional.layer_norm(x, x.shape[-1:], scale, bias, CONFIG.norm_epsilon)

    def tensor(self, name, layer=None):
        found = self.tensors[name]
        return found if layer is None else found[layer]

    def project(self, x, name, layer):
        kernel, bias = (self.tensor(f"encoder/layers/{name}/{part}", layer) for part in ("kernel", "bias"))
        return torch.tensordot(x, kernel, dims=x.ndim - 2 if name.endswith("out") else 1) + bias

    def scores(self, q, keys, ids, mask, table, layer):
        """Returns `[row, heads, query, key]` of `keys` `[row, query, key, head, size]`, or one set for all queries."""
        name = f"encoder/layers/attention/{table}"
        vectors, biases = (self.tensor(f"{name}/{part}", layer)[ids] for part in ("embedding", "bias"))
        content = torch.einsum("bqhd,bqkhd->bhqk", q, keys)
        relative = torch.einsum("bqhd,bqkhd->bhqk", q, vectors) + biases.permute(0, 3, 1, 2)
        return (content + relative) / CONFIG.head_dim**0.5 - 10000.0 * (1 - mask.float())[:, None]

    def attend(self, scores, values):
        weights = torch.softmax(torch.cat(scores, dim=-1), dim=-1)
        return torch.einsum("bhqk,bqkhd->bqhd", weights, torch.cat(values, dim=2))

    def layer(self, text, globals_, layer):
        def project(x, own):
            parts = ("query", "key", "value")
            names = parts if "encoder/layers/attention/global_query/kernel" not in self.tensors else own
            return (self.project(x, f"attention/{name}", layer) for name in names)

        q, k, v = project(text, ("query", "key", "value"))
        gq, gk, gv = project(globals_, ("global_query", "l2g_key", "l2g_value"))
        _, k_of_g, v_of_g = project(text, ("query", "g2l_key", "g2l_value"))
        _, gk_of_g, gv_of_g = project(globals_, ("global_query", "global_key", "global_value"))
        radius, segments = self.radius, self.batch["encoder_segment_ids"]
        offsets = torch.arange(LENGTH)[:, None] + torch.arange(-radius, radius + 1)
        inside, at = (offsets >= 0) & (offsets < LENGTH), offsets.clamp(0, LENGTH - 1)
        window = inside & (segments[:, at] == segments[:, :, None])
        ids = torch.tensor([[relative_id(0, offset) for offset in range(-radius, radius + 1)]] * LENGTH)
        everywhere = lambda x, count: x[:, None].expand(-1, count, -1, -1, -1)  # noqa: E731
        local = self.scores(q, k[:, at], ids.expand(ROWS, -1, -1), window, "relative", layer)
        across = self.scores(q, everywhere(gk, LENGTH), self.between, self.same, "relative", layer)
        text_update = self.attend([local, across], [v[:, at], everywhere(gv, LENGTH)])
        of_globals = self.batch["global_segment_ids"]
        ids = torch.tensor([[relative_id(i, j) for j in range(GLOBALS)] for i in range(GLOBALS)]).expand(ROWS, -1, -1)
        mask = of_globals[:, :, None] == of_globals[:, None]
        among = self.scores(gq, everywhere(gk_of_g, GLOBALS), ids, mask, "global_relative", layer)
        mask = (self.same & self.own if self.is_hard else self.same).transpose(1, 2)
        ids = self.between.transpose(1, 2)
        reading = self.scores(gq, everywhere(k_of_g, GLOBALS), ids, mask, "global_relative", layer)
        global_update = self.attend([among, reading], [everywhere(gv_of_g, GLOBALS), everywhere(v_of_g, GLOBALS)])
        streams = []
        for x, update, out, norm in (
            (text, text_update, "attention/out", "attention_norm"),
            (globals_, global_update, "attention/global_out", "global_attention_norm"),
        ):
            x = self.norm(x + self.project(update, out, layer), f"encoder/layers/{norm}", layer)
            hidden = torch.nn.functional.gelu(self.project(x, "mlp/wi", layer), approximate="tanh")
            streams.append(self.norm(x + self.project(hidden, "mlp/wo", layer), "encoder/layers/mlp_norm", layer))
        return streams

    def __call__(self):
        words, types = (self.tensors[f"embeddings/{name}_embedder/embedding"] for name in ("token", "token_type"))
        text = words[self.batch["encoder_input_tokens"]] + types[self.batch["token_types"] + 1]
        globals_ = words[self.batch["global_tokens"]] + types[0]
        text, globals_ = self.norm(text, "embeddings/norm"), self.norm(globals_, "embeddings/global_norm")
        for layer in range(CONFIG.num_layers):
            text, globals_ = self.layer(text, globals_, layer)
        return text, globals_


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
@pytest.mark.parametrize(
    ("radius", "is_shared", "is_hard"),
    # Every pair of settings, with blocks and with dense products.
    [(4, True, True), (4, False, False), (12, True, False), (12, False, True)],
)
def test_hidden_states_logits_and_gradients(radius, is_shared, scan, is_hard, assert_parity):
    changes = {"hard_global_mask": is_hard, "shared_projections": is_shared, "local_radius": radius}
    config, batch = dataclasses.replace(CONFIG, **changes), make_batch()
    model = random_model(scanned(config) if scan else config)
    tensors = {
        name: torch.tensor(np.asarray(leaf), requires_grad=True)
        for name, leaf in parameters.stack(parameters.named_leaves(model)).items()
    }
    text, globals_ = Rewrite(tensors, batch, is_hard, radius)()
    valid, is_global = batch["encoder_segment_ids"] != 0, batch["global_segment_ids"] != 0
    expected_logits = text @ tensors["embeddings/token_embedder/embedding"].T
    targets = tokens(ROWS, LENGTH, seed=1)
    losses = torch.nn.functional.cross_entropy(
        expected_logits[torch.tensor(valid)], torch.tensor(targets[valid]).long()
    )
    (losses + (globals_[torch.tensor(is_global)] ** 2).mean()).backward()

    def loss(model):
        outputs = model(batch, capture=("encoder/output",))
        logits, of_globals = model.unembed(outputs.hidden), outputs.captured["encoder/output"][:, :GLOBALS]
        nll = -jax.nn.log_softmax(logits)[np.arange(ROWS)[:, None], np.arange(LENGTH), targets]
        squares = (of_globals**2 * is_global[..., None]).sum() / (is_global.sum() * CONFIG.embed_dim)
        return (nll * valid).sum() / valid.sum() + squares, (outputs.hidden, of_globals, logits)

    (_, (hidden, of_globals, logits)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(model)
    found = {"text": np.asarray(hidden)[valid], "globals": np.asarray(of_globals)[is_global]}
    wanted = {"text": text.detach().numpy()[valid], "globals": globals_.detach().numpy()[is_global]}
    assert_parity(found, wanted, "hidden states")
    assert_parity({"": np.asarray(logits)[valid]}, {"": expected_logits.detach().numpy()[valid]}, "logits")
    gradients = parameters.stack(parameters.named_leaves(gradient))
    expected = {name: tensor.grad.numpy() for name, tensor in tensors.items()}
    assert_parity(join_key_biases(gradients), join_key_biases(expected), "gradients")


def join_key_biases(tensors):
    """Appends the biases of keys to their kernels: their gradient is the rounding error of a sum of zero."""
    joined = dict(tensors)
    for bias in [name for name in joined if name.endswith("key/bias")]:
        kernel = bias.replace("/bias", "/kernel")
        joined[kernel] = np.append(tensors[kernel], joined.pop(bias))
    return joined
