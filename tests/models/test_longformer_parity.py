"""Compares Longformer with transformers: random weights, small odd sizes, windows, global tokens, rows with padding.

numerics.py defines the tolerance.
"""

import dataclasses
import math

import jax
import numpy as np
import pytest
from exported_weights import check_export
from families import PARAMETERS
from objective_cases import terms_of

from t5x_like import interop, parameters
from t5x_like.interop import tables
from t5x_like.kernels import attention as kernels
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.passes import total_weights

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

ROWS, PREDICTIONS = 3, 5
# Window on each side, length of the rows, numbers of global tokens. The longest rows gather the keys of windows.
CASES = [(2, 23, (0, 0, 0)), (3, 37, (1, 4, 2)), (5, 61, (3, 0, 1)), (16, 300, (2, 3, 3))]


@dataclasses.dataclass
class Example:
    """The same model and head in transformers and here, and a batch of padded rows."""

    reference: object
    directory: str
    config: object
    params: dict
    batch: dict

    @property
    def valid(self):
        return self.batch["encoder_segment_ids"] == 1

    def outputs(self):
        labels = np.full(self.valid.shape, -100)
        for row, chosen in enumerate(self.batch["masked_weights"] == 1):
            labels[row, self.batch["masked_positions"][row][chosen]] = self.batch["masked_targets"][row][chosen]
        given = {"input_ids": self.batch["encoder_input_tokens"], "attention_mask": self.valid, "labels": labels}
        if "encoder_global_tokens" in self.batch:
            given["global_attention_mask"] = self.batch["encoder_global_tokens"]
        given = {name: torch.tensor(array).long() for name, array in given.items()}
        return self.reference(**given, output_hidden_states=True)


def make_batch(rng, hf_config, length, numbers):
    lengths = np.array([length, length - 4, length - 11])
    tokens = rng.integers(3, hf_config.vocab_size, (ROWS, length))
    valid = np.arange(length) < lengths[:, None]
    predictions = np.array([PREDICTIONS, 1, PREDICTIONS - 2])
    positions, shared = np.zeros((ROWS, PREDICTIONS), np.int64), np.zeros((ROWS, length))
    for row in range(ROWS):
        positions[row, : predictions[row]] = np.sort(rng.choice(lengths[row], predictions[row], replace=False))
        shared[row, rng.choice(lengths[row], numbers[row], replace=False)] = 1
    weights = np.arange(PREDICTIONS) < predictions[:, None]
    batch = {
        "encoder_input_tokens": np.where(valid, tokens, hf_config.pad_token_id),
        "encoder_segment_ids": valid,
        "masked_positions": positions,
        "masked_targets": rng.integers(0, hf_config.vocab_size, (ROWS, PREDICTIONS)) * weights,
        "masked_weights": weights,
    }
    if any(numbers):
        batch["encoder_global_tokens"] = shared
    return {name: array.astype(np.int32) for name, array in batch.items()}


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"window{case[0]}")
def example(request, tmp_path_factory):
    window, length, numbers = request.param
    directory = str(tmp_path_factory.mktemp("longformer"))
    torch.manual_seed(window)
    hf_config = transformers.LongformerConfig(
        attention_window=2 * window,
        vocab_size=67,
        hidden_size=21,
        intermediate_size=29,
        num_attention_heads=3,
        num_hidden_layers=3,
        max_position_embeddings=length + 40,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    reference = transformers.LongformerForMaskedLM(hf_config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # move norms and biases away from 1 and 0
            parameter += 0.1 * torch.randn_like(parameter)
    reference.save_pretrained(directory, safe_serialization=True)
    config, model = interop.from_huggingface(directory)
    like = jax.eval_shape(MaskedLM().init, jax.random.key(0), model)
    heads = {
        name.removeprefix(tables.OBJECTIVE): leaf
        for name, leaf in interop.read(directory, config).items()
        if name.startswith(tables.OBJECTIVE)
    }
    params = {"model": model, "objective": parameters.rebuild(like, heads)}
    batch = make_batch(np.random.default_rng(window), hf_config, length, numbers)
    return Example(reference, directory, config, params, batch)


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_hidden_states(example, scan, assert_parity, caplog):
    kernels._log_once.cache_clear()
    caplog.set_level("INFO")
    with torch.no_grad():
        expected = example.outputs().hidden_states
    model = interop.from_huggingface(example.directory, scan_layers=scan)[1]
    wanted = ("encoder/embedding", "encoder/layers/hidden")
    captured = jax.jit(lambda model: model(example.batch, capture=wanted).captured)(model)
    states = [captured[wanted[0]], *captured[wanted[1]]]
    without_padding = lambda arrays: {i: np.asarray(x)[example.valid] for i, x in enumerate(arrays)}  # noqa: E731
    assert_parity(without_padding(states), without_padding(expected), "hidden states")
    assert ("gathered blocks" in caplog.text) == (example.batch["encoder_input_tokens"].shape[1] == 300)


def test_logits_loss_and_gradients(example, assert_parity):
    reference = example.outputs()
    reference.loss.backward()
    objective = MaskedLM()

    def loss(params):
        head, model = params["objective"]["masked_lm"], params["model"]
        terms, weights = terms_of(objective, params, example.batch), total_weights(objective, example.batch)
        logits = head.logits(model, head(model(example.batch).hidden))
        return terms.sums["masked_lm"] / weights["masked_lm"], logits

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(example.params)
    assert_parity({"logits": logits[example.valid]}, {"logits": reference.logits.detach()[example.valid]}, "logits")
    assert_parity({"loss": value}, {"loss": reference.loss.detach()}, "loss")
    expected = {name: parameter.grad for name, parameter in example.reference.named_parameters()}
    found = interop.tensors_to_huggingface(gradient, example.config)
    if "encoder_global_tokens" not in example.batch:
        unused = [name for name, x in expected.items() if x is None]
        assert len(unused) == 6 * 3 and not any(np.any(found.pop(name)) for name in unused)
    assert_parity(found, {name: x for name, x in expected.items() if x is not None}, "gradients")
    example.reference.zero_grad()


def test_transformers_reads_exported_model(example, tmp_path):
    same = ("max_position_embeddings", "pad_token_id", "sep_token_id", "attention_window", "architectures")
    check_export(example.params, example.config, example.reference, tmp_path, same=same)


@pytest.mark.parametrize("size", ["base", "large"])
def test_published_sizes_have_the_parameters_of_transformers(size):
    sizes = {"base": (768, 3072, 12, 12), "large": (1024, 4096, 16, 24)}[size]
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
    settings = dict(zip(names, sizes, strict=True), vocab_size=50265, max_position_embeddings=4098, type_vocab_size=1)
    with torch.device("meta"):
        model = transformers.LongformerForMaskedLM(transformers.LongformerConfig(**settings))
    head = 50265 + sizes[0] * (sizes[0] + 3)
    assert sum(math.prod(x.shape) for x in model.parameters()) - head == PARAMETERS[f"longformer/{size}"]
