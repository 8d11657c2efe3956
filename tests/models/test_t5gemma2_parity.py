"""Compares the text model of T5Gemma 2 with transformers 5, the only one that has it: random weights, float32.

All parameters are drawn from a normal distribution with standard deviation 0.3, norms included. Rows are longer than
the windows, whose multiples they are not, and one is padded. The directory of transformers 5 is that of
test_rotary_transformers_5.py.
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

from t5x_like import interop, parameters
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.kernels.cross_entropy import cross_entropy
from t5x_like.layers.rope_scaling import Linear
from t5x_like.models import build
from t5x_like.models.gemma import Gemma3Config
from t5x_like.models.t5gemma import T5Gemma2Config

OUTPUTS = Path(__file__).parents[1] / "transformers_5_outputs.py"
TRANSFORMERS_5 = "T5X_LIKE_TRANSFORMERS5"
pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not os.environ.get(TRANSFORMERS_5), reason=f"needs transformers 5 ({TRANSFORMERS_5})"),
]

VOCABULARY, SOURCE, LENGTH, NEW = 61, 23, 17, 12
STACK = Gemma3Config(
    embed_dim=24,
    mlp_dim=37,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    num_layers=5,
    max_length=60,
    query_scalar=7,
    rope_theta=500.0,
    local_rope_theta=100.0,
    attention_windows=(5, 5, None),
)
# Window of an even and of an odd number of positions, whose encoder sees one key more after a position than before it.
CASES = {
    "odd window": STACK,
    "even window": dataclasses.replace(STACK, attention_windows=(6, 6, None), rope_scaling=Linear(8.0)),
}


@dataclasses.dataclass
class Case:
    """The same model here and in transformers, whose outputs are given, and a batch of which one row is padded."""

    directory: str
    config: object
    model: object
    batch: dict
    targets: np.ndarray
    theirs: dict


@pytest.fixture(scope="module", params=[pytest.param("odd window", marks=pytest.mark.slow), "even window"])
def case(request, tmp_path_factory):
    root, stack = tmp_path_factory.mktemp("t5gemma2"), CASES[request.param]
    config = T5Gemma2Config(encoder=stack, decoder=stack, vocab_size=VOCABULARY, end_of_image_id=7)
    rng = np.random.default_rng(1)
    shapes = parameters.named_leaves(build.stacked_shapes(config))
    leaves = {name: 0.3 * rng.standard_normal(each.shape).astype(np.float32) for name, each in shapes.items()}
    model = parameters.unstack(leaves, build.shapes(config))
    directory = str(root / "exported")
    interop.to_huggingface({"model": model}, config, directory)
    inputs, targets = (rng.integers(3, VOCABULARY, (3, n)).astype(np.int32) for n in (SOURCE, LENGTH))
    inputs[1, 14:], targets[1, 9:], inputs[0, 4], targets[0, 3] = 0, 0, 7, 7
    batch = {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)), constant_values=2)[:, :-1],
    }
    given = {
        "input_ids": inputs,
        "attention_mask": (inputs != 0).astype(int),
        "decoder_input_ids": batch["decoder_input_tokens"],
        "labels": np.where(targets == 0, -100, targets),
    }
    given = {name: each.tolist() for name, each in given.items()}
    cases, outputs = root / "cases.json", root / "outputs.npz"
    cases.write_text(json.dumps([("", directory, "T5Gemma2ForConditionalGeneration", given, NEW)]))
    environment = os.environ | {"PYTHONPATH": os.environ[TRANSFORMERS_5], "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, OUTPUTS, str(cases), str(outputs)], env=environment, check=True)
    theirs = {name.removeprefix("/"): array for name, array in np.load(outputs).items()}
    assert str(theirs["version"]).startswith("5.")
    return Case(directory, config, model, batch, targets, theirs)


def test_hidden_states(case, assert_parity):
    names = [f"{stack}/{what}" for stack in ("encoder", "decoder") for what in ("embedding", "layers/hidden", "output")]
    captured = jax.jit(lambda model: model(case.batch, capture=tuple(names)).captured)(case.model)
    for stack, valid in {"encoder": case.batch["encoder_input_tokens"] != 0, "decoder": case.targets != 0}.items():
        states = [captured[f"{stack}/embedding"], *captured[f"{stack}/layers/hidden"][:-1], captured[f"{stack}/output"]]
        assert_parity(
            {number: state[valid] for number, state in enumerate(states)},
            {number: case.theirs[f"{stack}/{number}"][valid] for number in range(len(states))},
            f"{stack} states",
        )


def test_logits_loss_and_gradients(case, assert_parity):
    weights = (case.targets != 0).astype(np.float32)

    def loss(model):
        hidden = model(case.batch).hidden
        entropy = cross_entropy(hidden, model.unembed, case.targets, weights)
        return entropy.total / entropy.weight, model.unembed(hidden)

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(case.model)
    real = weights > 0
    assert_parity({"logits": logits[real]}, {"logits": case.theirs["logits"][real]}, "logits")
    assert_parity({"loss": value}, {"loss": case.theirs["loss"]}, "loss")
    found = interop.tensors_to_huggingface({"model": gradient}, case.config)
    expected = {
        name.removeprefix("gradients/").replace("text_model.", ""): each
        for name, each in case.theirs.items()
        if name.startswith("gradients/")
    }
    assert_parity(found, expected, "gradients")


def test_packed_rows_equal_rows_alone(case, assert_parity):
    lengths = {"encoder": (9, SOURCE), "decoder": (LENGTH, 6)}
    packed, alone = {}, [{}, {}]
    for stack, (first, second) in lengths.items():
        tokens = case.batch[f"{stack}_input_tokens"]
        parts = tokens[:1, :first], tokens[2:, :second]
        packed[f"{stack}_input_tokens"] = np.concatenate(parts, axis=1)
        packed[f"{stack}_segment_ids"] = np.repeat([[1, 2]], [first, second], axis=1).astype(np.int32)
        packed[f"{stack}_positions"] = np.concatenate([np.arange(first), np.arange(second)])[None].astype(np.int32)
        for row, part in zip(alone, parts, strict=True):
            row[f"{stack}_input_tokens"] = part
    states = jax.jit(lambda model, batch: model(batch).hidden)
    found = states(case.model, packed)
    for row, part in zip(alone, (found[:, :LENGTH], found[:, LENGTH:]), strict=True):
        assert_parity({"packed": part}, {"packed": states(case.model, row)}, "packed")


@pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
def test_greedy_generation(case, scanned):
    """Continuations are longer than the windows."""
    inputs, generated = case.batch["encoder_input_tokens"], case.theirs["tokens"]
    expected = np.zeros((len(inputs), NEW), np.int32)
    expected[:, : generated.shape[1]] = generated
    config = dataclasses.replace(case.config, scan_layers=scanned)
    model = parameters.unstack(parameters.stack(parameters.named_leaves(case.model)), build.shapes(config))
    decoding = Decoding(max_length=NEW, eos_ids=(1,), bos_id=2)
    found = jax.jit(lambda model: generate(model, {"encoder_input_tokens": inputs}, decoding).tokens[:, 0])(model)
    np.testing.assert_array_equal(found, expected)


def test_tensors_are_equal_after_there_and_back(case):
    config, model = interop.from_huggingface(f"{case.directory}/saved")
    assert dataclasses.replace(config, special_tokens=None) == case.config
    found, expected = (parameters.named_leaves(each) for each in (model, case.model))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
