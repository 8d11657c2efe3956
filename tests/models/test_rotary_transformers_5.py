"""Compares exported models with transformers 5: logits, greedy continuations, and no missing or unexpected tensors.

So are the heads of EuroBERT, whose classes transformers 4 does not have.

Needs the directory of `pip install --target` with transformers 5 in T5X_LIKE_TRANSFORMERS5.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from families import FAMILIES

from t5x_like import interop, parameters
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.interop import tables
from t5x_like.layers.rope_scaling import Linear
from t5x_like.models import build
from t5x_like.models.special_tokens import SpecialTokens
from t5x_like.objectives import passes
from t5x_like.objectives.heads import EachToken, transformed_tokens
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.token_classification import TokenClassification

OUTPUTS = Path(__file__).parents[1] / "transformers_5_outputs.py"
TRANSFORMERS_5 = "T5X_LIKE_TRANSFORMERS5"
pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not os.environ.get(TRANSFORMERS_5), reason=f"needs transformers 5 ({TRANSFORMERS_5})"),
]

LENGTH, NEW, PADDING = 23, 12, 39
ENCODERS = ("modernbert", "eurobert")
# Fields to replace: local bases of the rotations that transformers 4.57 does not read, and one that 5 reads elsewhere.
NAMES = {
    "qwen2": {},
    "qwen3": {},
    "gemma1": {},
    "gemma2": {},
    "gemma3": {"local_rope_theta": 100.0, "rope_scaling": Linear(8.0)},
    "olmo2": {},
    "olmo3": {"rope_theta": 1000.0},
    "smollm3": {"head_dim": 6, "embed_dim": 24},
    "phi3": {},
    "modernbert_decoder": {"local_rope_theta": 100.0},
    "modernbert": {"local_rope_theta": 100.0},
    "eurobert": {"embed_dim": 24},
}
WIDTHS = {"qwen2", "olmo2", "olmo3", "eurobert", "smollm3"}  # families with num_heads · head_dim = embed_dim


def small(name):
    """Returns a model with parameters from a normal distribution with standard deviation 0.3, norms included."""
    changes = {"max_length": 60, "embed_dim": 24 if name in WIDTHS else 12, **NAMES[name]}
    if "padding_id" in {field.name for field in dataclasses.fields(FAMILIES[name].config)}:
        changes["padding_id"] = PADDING
    tokens = SpecialTokens((("pad_token_id", PADDING), ("bos_token_id", 0), ("eos_token_id", 1)))
    config = dataclasses.replace(FAMILIES[name].config, special_tokens=tokens, **changes)
    rng, heads = np.random.default_rng(1), {}
    shapes = {tables.MODEL + key: each for key, each in parameters.named_leaves(build.stacked_shapes(config)).items()}
    if name == "modernbert":
        objective = MaskedLM()
        heads = jax.eval_shape(objective.init, jax.random.key(0), build.shapes(config))
        shapes |= {tables.OBJECTIVE + key: each for key, each in parameters.named_leaves(heads).items()}
    leaves = {key: 0.3 * rng.standard_normal(each.shape).astype(np.float32) for key, each in shapes.items()}
    of_model = {key.removeprefix(tables.MODEL): each for key, each in leaves.items()}
    model = parameters.unstack(of_model, build.shapes(config))
    return config, model, leaves, heads


# Class of a head of EuroBERT by its pooling; None for the head of each token.
HEADS = {
    "bos": (SequenceClassification, transformed_tokens.DenseToken(pooling="first")),
    "mean": (SequenceClassification, transformed_tokens.DenseToken(pooling="mean")),
    "late": (SequenceClassification, transformed_tokens.DenseToken(pooling="late")),
    None: (TokenClassification, EachToken(dropout_rate=0.0)),
}


def classify(pooling, directory, batch):
    """Writes a small EuroBERT with a head, and returns its logits."""
    changes = {} if pooling is None else {"classifier_pooling": pooling}
    config = dataclasses.replace(
        FAMILIES["eurobert"].config, embed_dim=24, max_length=60, padding_id=PADDING, **changes
    )
    kind, form = HEADS[pooling]
    objective, rng = kind(["a", "b", "c"], head=form), np.random.default_rng(2)
    model = build.shapes(config)
    shapes = {"model": model, "objective": jax.eval_shape(objective.init, jax.random.key(0), model)}
    leaves = {
        name: 0.3 * rng.standard_normal(each.shape).astype(np.float32)
        for name, each in parameters.named_leaves(shapes).items()
    }
    params = parameters.rebuild(shapes, leaves)
    interop.to_huggingface(params, config, directory, labels=objective.labels)
    (predicted,) = passes.forward(objective, params, batch).predictions.values()
    return np.asarray(predicted.hidden)


def continuations(model, prompts):
    return generate(model, prompts, Decoding(max_length=NEW, eos_ids=(1,), bos_id=0)).tokens[:, 0]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Returns outputs of this package and of transformers 5 by family."""
    root, cases, ours = tmp_path_factory.mktemp("rotary"), [], {}
    lengths = np.array([LENGTH, 9])
    valid = np.arange(LENGTH)[::-1] < lengths[:, None]  # padding on the left, for generation
    tokens = np.where(valid, np.random.default_rng(0).integers(2, PADDING, (2, LENGTH)), PADDING)
    positions = np.maximum(np.cumsum(valid, axis=1) - 1, 0)
    for name in NAMES:
        config, model, leaves, heads = small(name)
        interop.to_huggingface(leaves, config, str(root / name))
        stack = "encoder" if name in ENCODERS else "decoder"
        batch = {
            f"{stack}_{key}": np.asarray(each, np.int32)
            for key, each in (("input_tokens", tokens), ("segment_ids", valid), ("positions", positions))
        }
        given = {"input_ids": tokens, "attention_mask": valid.astype(int), "position_ids": positions}
        hidden = jax.jit(lambda model, batch: model(batch).hidden)(model, batch)
        if heads:
            stored = {key.removeprefix(tables.OBJECTIVE): each for key, each in leaves.items()}
            head = parameters.rebuild(heads, stored)["masked_lm"]
            ours[name] = {"logits": head.logits(model, head(hidden))[valid]}
        else:
            ours[name] = {"logits": model.unembed(hidden)[valid]}
        if stack == "decoder":
            right = np.stack([np.roll(row, n - LENGTH) for row, n in zip(tokens, lengths, strict=True)])
            segments = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
            prompts = {"decoder_input_tokens": right.astype(np.int32), "decoder_segment_ids": segments}
            ours[name]["tokens"] = jax.jit(continuations)(model, prompts)
        kind = "AutoModelForMaskedLM" if stack == "encoder" else "AutoModelForCausalLM"
        given = {key: each.tolist() for key, each in given.items()}
        cases.append((name, str(root / name), kind, given, NEW if stack == "decoder" else 0))
    real = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
    rows = np.where(real, np.random.default_rng(3).integers(2, PADDING, real.shape), PADDING)
    batch = {"encoder_input_tokens": rows.astype(np.int32), "encoder_segment_ids": real}
    for pooling in HEADS:
        name = f"eurobert-{pooling}"
        ours[name] = {"logits": classify(pooling, str(root / name), batch)}
        kind = f"AutoModelFor{'Token' if pooling is None else 'Sequence'}Classification"
        cases.append((name, str(root / name), kind, {"input_ids": rows.tolist(), "attention_mask": real.tolist()}, 0))
    (root / "cases.json").write_text(json.dumps(cases))
    environment = os.environ | {"PYTHONPATH": os.environ[TRANSFORMERS_5], "JAX_PLATFORMS": "cpu"}
    files = [str(root / "cases.json"), str(root / "outputs.npz")]
    subprocess.run([sys.executable, OUTPUTS, *files], env=environment, check=True)
    theirs = np.load(root / "outputs.npz")
    assert str(theirs["version"]).startswith("5.")
    return ours, theirs, valid


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_continuations(name, found, assert_parity):
    ours, theirs, valid = found
    assert_parity(
        {"logits": ours[name]["logits"]}, {"logits": theirs[f"{name}/logits"][valid]}, "logits in transformers 5.24"
    )
    if "tokens" in ours[name]:
        tokens = theirs[f"{name}/tokens"]
        expected = np.zeros((len(tokens), NEW), np.int32)
        expected[:, : tokens.shape[1]] = tokens
        np.testing.assert_array_equal(ours[name]["tokens"], expected)


@pytest.mark.parametrize("pooling", HEADS)
def test_heads_of_eurobert(pooling, found, assert_parity):
    ours, theirs, _ = found
    logits, expected = ours[f"eurobert-{pooling}"]["logits"], theirs[f"eurobert-{pooling}/logits"]
    if pooling is None:
        logits, expected = logits[:, :9], expected[:, :9]  # tokens of both rows
    assert_parity({"logits": logits.reshape(expected.shape)}, {"logits": expected}, "logits in transformers 5.24")
