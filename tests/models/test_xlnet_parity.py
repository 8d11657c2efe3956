"""Compares XLNet with transformers: random weights and permutations, small odd sizes, memory, padding, float32.

numerics.py defines the tolerance.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import interop, parameters
from t5x_like.interop import tables
from t5x_like.objectives import passes
from t5x_like.objectives.carry import as_features
from t5x_like.objectives.conditional_spans import ConditionalSpanExtraction
from t5x_like.objectives.permutation_lm import NAME, OrderedLM, PermutationLM

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

ROWS, LENGTH, MEMORY, TARGETS = 4, 23, 7, 5
SIZES = dict(vocab_size=67, d_model=22, d_inner=29, n_head=11, n_layer=3, dropout=0.0)
VARIANTS = {
    "memory": dict(ff_activation="gelu_new", mem_len=MEMORY, reuse_len=4),
    "long_memory_of_reversed_rows": dict(ff_activation="gelu", mem_len=LENGTH + 2, reuse_len=None, bi_data=True),
    "no_memory": dict(ff_activation="relu", mem_len=None, reuse_len=None, n_head=2),
}


class Given(OrderedLM):
    """Predicts given targets in a given order."""

    features = PermutationLM.features

    def order(self, rows):
        return {"encoder_ranks": rows["encoder_ranks"]}

    def targets(self, rows):
        return rows["positions"], (rows["positions"] >= 0).astype(jnp.float32)


@pytest.fixture(scope="module", params=VARIANTS)
def original(request, tmp_path_factory):
    """Returns a model of transformers with random weights, and its directory."""
    torch.manual_seed(0)
    reference = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**SIZES | VARIANTS[request.param])).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    directory = str(tmp_path_factory.mktemp(request.param))
    reference.save_pretrained(directory, safe_serialization=True)
    return reference, directory


def read(directory, scan):
    config, model = interop.from_huggingface(directory, scan_layers=scan)
    stored = {
        name.removeprefix(tables.OBJECTIVE): leaf
        for name, leaf in interop.read(directory, config).items()
        if name.startswith(tables.OBJECTIVE)
    }
    heads = jax.eval_shape(Given().init, jax.random.key(0), model)
    return config, {"model": model, "objective": parameters.rebuild(heads, stored)}


def draw(config):
    """Returns rows with random permutations of all tokens or of some, and their masks as transformers has them."""
    rng = np.random.default_rng(0)
    lengths = np.array([LENGTH, LENGTH - 6, LENGTH, LENGTH - 1])
    valid = np.arange(LENGTH) < lengths[:, None]
    tokens = rng.integers(6, config.vocab_size, (ROWS, LENGTH))
    ranks = 1 + np.argsort(rng.random((ROWS, LENGTH)), axis=1)
    ranks[1:3] *= rng.integers(0, 2, (2, LENGTH))  # some tokens are visible to all
    ranks[3, 0] = 0  # a target that sees nothing but padding averages it, whose states differ
    permuted = [np.flatnonzero(valid[row] & (ranks[row] > 0)) for row in range(ROWS)]
    positions = np.stack([rng.permutation(each)[:TARGETS] for each in permuted])
    rows = {
        "encoder_input_tokens": tokens * valid + config.padding_id * ~valid,
        "encoder_segment_ids": valid.astype(np.int32),
        "token_types": rng.integers(0, 3, (ROWS, LENGTH)) * valid,
        "encoder_ranks": ranks,
        "positions": positions,
    }
    rows = {name: x.astype(np.int32) for name, x in rows.items()}
    sees = (ranks[:, None, :] < ranks[:, :, None]) & valid[:, None, :]
    free = (ranks[:, None, :] == 0) & (ranks[:, :, None] == 0)  # they see one another, but are not predicted
    mapping = rows["positions"][:, :, None] == np.arange(LENGTH)
    return rows, {
        "input_ids": rows["encoder_input_tokens"],
        "attention_mask": valid,
        "token_type_ids": rows["token_types"],
        "perm_mask": ~(sees | free),
        "target_mapping": mapping,
    }


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_states_logits_loss_gradients_and_memory(original, scan, assert_parity):
    reference, directory = original
    config, params = read(directory, scan)
    rows, given = draw(config)
    if reference.config.bi_data:
        rows["reversed"] = np.repeat(np.arange(ROWS) >= ROWS // 2, LENGTH).reshape(ROWS, LENGTH).astype(np.int32)
    given = {
        name: torch.tensor(np.asarray(x, np.float32 if "mask" in name or "map" in name else np.int64))
        for name, x in given.items()
    }
    memory, carry = None, {}
    if config.memory_length:
        shape = (ROWS, config.num_layers, config.memory_length, config.embed_dim)
        carry = {"model": {"memory": np.random.default_rng(1).normal(size=shape).astype(np.float32)}}
        memory = [torch.tensor(np.moveaxis(carry["model"]["memory"][:, i], 1, 0)) for i in range(config.num_layers)]
    targets = np.take_along_axis(rows["encoder_input_tokens"], rows["positions"], axis=1)
    expected = reference(
        **given, mems=memory, labels=torch.tensor(targets).long(), output_hidden_states=True, use_mems=True
    )
    reference.zero_grad()
    expected.loss.backward()
    batch, name = rows | as_features(carry), "encoder/layers/hidden"

    def loss(params):
        found = passes.forward(Given(), params, batch, capture=(name,))
        predicted = found.predictions[NAME]
        total, _ = passes.loss(found, {NAME: 1 / targets.size})
        return total, (found.outputs.captured[name], predicted.logits(predicted.hidden), found.carry)

    (value, (layers, logits, after)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    valid = rows["encoder_segment_ids"] > 0
    for number, (ours, theirs) in enumerate(zip(layers, expected.hidden_states[2::2], strict=True)):
        theirs = theirs.detach().numpy()[valid]
        assert_parity({number: np.asarray(ours)[valid]}, {number: theirs}, "hidden states")
    assert_parity({"logits": logits}, {"logits": expected.logits.detach()}, "logits")
    assert_parity({"loss": value}, {"loss": expected.loss.detach()}, "loss")
    wanted = {name: parameter.grad for name, parameter in reference.named_parameters()}
    found = interop.tensors_to_huggingface(gradient, config)
    assert_parity(found, wanted, "gradients")
    if carry:
        full = valid.all(axis=1)  # states of padding differ
        found = np.moveaxis(np.asarray(after["model"]["memory"]), 2, 1)
        assert_parity(
            {i: found[full, :, i] for i in range(config.num_layers)},
            {i: layer.detach().numpy().swapaxes(0, 1)[full] for i, layer in enumerate(expected.mems)},
            "memory",
        )


def test_without_targets_rows_padded_on_the_left_have_the_same_states(original):
    """Positions are relative, so that padding may be on either side."""
    reference, directory = original
    config, params = read(directory, scan=False)
    rows, given = draw(config)
    lengths = rows["encoder_segment_ids"].sum(axis=1)
    rolled = {
        name: np.stack([np.roll(row, LENGTH - n) for row, n in zip(given[name], lengths, strict=True)])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    reference.transformer.bi_data = False
    with torch.no_grad():
        expected = reference.transformer(**{name: torch.tensor(x).long() for name, x in rolled.items()})[0].numpy()
    reference.transformer.bi_data = reference.config.bi_data
    batch = {name: rows[name] for name in ("encoder_input_tokens", "encoder_segment_ids", "token_types")}
    found = np.asarray(params["model"](batch).hidden)
    for row, n in enumerate(lengths):
        np.testing.assert_allclose(found[row, :n], expected[row, LENGTH - n :], atol=2e-5 * np.abs(expected).max())


def test_exported_model_equals_the_original(original, tmp_path):
    reference, directory = original
    config, params = read(directory, scan=False)
    interop.to_huggingface(params, config, str(tmp_path))
    loaded, report = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokens = torch.arange(6, 25)[None].repeat(2, 1)
    loaded.transformer.bi_data = reference.config.bi_data
    torch.testing.assert_close(loaded(tokens).logits, reference(tokens).logits, rtol=0, atol=1e-6)
    for name in (*SIZES, "mem_len", "reuse_len", "ff_activation"):
        assert getattr(loaded.config, name) == getattr(reference.config, name), name


def test_question_head_equals_transformers(tmp_path, assert_parity):
    """The beam of predictions with the score of no answer, and losses and gradients given the true start."""
    torch.manual_seed(0)
    sizes = SIZES | {"start_n_top": 4, "end_n_top": 4}
    reference = transformers.XLNetForQuestionAnswering(transformers.XLNetConfig(**sizes)).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    reference.save_pretrained(tmp_path / "original", safe_serialization=True)
    head, directory = interop.task_head(str(tmp_path / "original")), str(tmp_path / "original")
    objective = ConditionalSpanExtraction(head=head.form, beam_size=4)
    config, model = interop.from_huggingface(directory)
    like = jax.eval_shape(objective.init, jax.random.key(0), model)
    stored = {name.removeprefix("objective/"): leaf for name, leaf in interop.read(directory, config).items()}
    leaves = {name: leaf for name, leaf in stored.items() if not name.startswith("model/")}
    params = {"model": model, "objective": parameters.rebuild(like, leaves)}
    rng, lengths = np.random.default_rng(0), np.array([LENGTH, LENGTH - 5])
    valid = np.arange(LENGTH) < lengths[:, None]
    tokens = rng.integers(6, config.vocab_size, (2, LENGTH)) * valid + config.padding_id * ~valid
    types = (np.arange(LENGTH) > 5) * valid * 1
    types[np.arange(2), lengths - 1] = 2
    spans = np.array([[7, 9], [0, 0]])
    rows = {"encoder_input_tokens": tokens, "encoder_segment_ids": valid, "token_types": types, "span": spans}
    rows = {name: jnp.asarray(x, jnp.int32) for name, x in rows.items()}
    allowed = np.asarray(head.form.allowed(rows))
    shifts = LENGTH - lengths

    def moved(x, dtype=torch.long):
        return torch.tensor(np.stack([np.roll(row, n) for row, n in zip(x, shifts, strict=True)])).to(dtype)

    given = {"input_ids": moved(tokens), "attention_mask": moved(valid), "token_type_ids": moved(types)}
    given["p_mask"] = moved(~allowed, torch.float)
    with torch.no_grad():
        expected = reference(**given)
    found = jax.jit(passes.predict, static_argnums=0)(objective, params, rows)
    score = found["null_score_difference"]
    assert_parity({"no answer": score}, {"no answer": expected.cls_logits.numpy().reshape(-1)}, "logits")
    starts, probabilities = expected.start_top_index.numpy(), expected.start_top_log_probs.numpy()
    ends = expected.end_top_index.numpy().reshape(2, 4, 4).swapaxes(1, 2)  # by start
    products = expected.end_top_log_probs.numpy().reshape(2, 4, 4).swapaxes(1, 2) * probabilities[:, :, None]
    for row in range(2):
        theirs = {
            (starts[row, i] - shifts[row], ends[row, i, j] - shifts[row]): products[row, i, j]
            for i in range(4)
            for j in range(4)
        }
        scores = np.exp(found["beam_scores"][row])
        ours = dict(zip(map(tuple, found["beam_spans"][row].tolist()), scores, strict=True))
        assert ours.keys() == theirs.keys()
        np.testing.assert_allclose([ours[span] for span in theirs], list(theirs.values()), atol=2e-6)
    positions = {f"{name}_positions": torch.tensor(spans[:, i] + shifts) for i, name in enumerate(("start", "end"))}
    loss = reference(**given, **positions).loss
    loss.backward()

    def ours(params):
        read = passes.forward(objective, params, rows)
        return passes.loss(read, {"span_start": 1 / 4, "span_end": 1 / 4, "no_answer": 0.0})[0]

    value, gradient = jax.jit(jax.value_and_grad(ours))(params)
    assert_parity({"loss": value}, {"loss": loss.detach()}, "loss")
    wanted = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in reference.named_parameters()
    }
    found = interop.tensors_to_huggingface(gradient, config)
    for name in (
        "start_logits.dense.bias",
        "end_logits.dense_1.bias",
        "end_logits.LayerNorm.bias",
    ):  # constants in a softmax
        assert max(np.abs(each.pop(name)).max() for each in (found, wanted)) < 1e-6
    assert_parity(found, wanted, "gradients")
