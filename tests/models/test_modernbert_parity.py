"""Compares ModernBERT with transformers 4.57: random weights, float32, rows longer than the windows, padded rows.

All parameters are drawn from a normal distribution with standard deviation 0.3, norms included. numerics.py defines the
tolerance.
"""

import json

import jax
import numpy as np
import pytest
from decoder_parity import draw
from encoder_parity import ROWS, Pair, make_batch
from exported_weights import check_export
from objective_cases import terms_of

from t5x_like import interop, parameters
from t5x_like.interop import tables
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.passes import total_weights

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

SIZES = dict(
    vocab_size=61,
    hidden_size=24,
    intermediate_size=37,
    max_position_embeddings=40,
    local_attention=10,
    pad_token_id=3,
    global_rope_theta=1000.0,
    local_rope_theta=10.0,
    attn_implementation="eager",
    reference_compile=False,
)
# The pattern of three layers once and a part of it, and twice without a part.
CASES = {
    "odd": dict(num_hidden_layers=5, num_attention_heads=3),
    "even": dict(num_hidden_layers=6, num_attention_heads=2),
}


def make(name, **changes):
    return transformers.ModernBertConfig(**SIZES | CASES[name] | changes)


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("modernbert"))
    hf_config = make(request.param)
    reference = transformers.ModernBertForMaskedLM(hf_config).eval()
    draw(reference)
    reference.save_pretrained(directory, safe_serialization=True)
    config, model = interop.from_huggingface(directory)
    objective, leaves = MaskedLM(), interop.read(directory, config)
    like = jax.eval_shape(objective.init, jax.random.key(0), model)
    found = {name.removeprefix(tables.OBJECTIVE): leaf for name, leaf in leaves.items()}
    params = {"model": model, "objective": parameters.rebuild(like, found)}
    return Pair(reference, config, objective, params, make_batch(np.random.default_rng(0), hf_config))


def test_hidden_states_attention_and_logits(case, assert_parity):
    with torch.no_grad():
        reference = case.outputs()
    # Without segment ids, the padding token alone determines the mask.
    batch = {name: array for name, array in case.batch.items() if name != "encoder_segment_ids"}
    wanted = ("encoder/embedding", "encoder/layers/hidden", "encoder/layers/attention/probabilities")
    outputs = jax.jit(lambda model: model(batch, capture=wanted))(case.params["model"])
    states = [outputs.captured["encoder/embedding"], *outputs.captured["encoder/layers/hidden"]]
    assert_parity(
        {number: np.asarray(state)[case.valid] for number, state in enumerate(states)},
        {number: state.numpy()[case.valid] for number, state in enumerate(reference.hidden_states)},
        "hidden states",
    )
    probabilities = [np.moveaxis(np.asarray(layer), 1, 2) for layer in outputs.captured[wanted[-1]]]
    assert_parity(
        {number: each[case.valid] for number, each in enumerate(probabilities)},
        {number: each.numpy().transpose(0, 2, 1, 3)[case.valid] for number, each in enumerate(reference.attentions)},
        "attention",
    )
    head = case.params["objective"]["masked_lm"]
    found = head.logits(case.params["model"], head(outputs.hidden))[case.valid]
    assert_parity({"logits": found}, {"logits": reference.logits.numpy()[case.valid]}, "logits")


def test_loss_and_gradients(case, assert_parity):
    reference = case.outputs()
    reference.loss.backward()

    def loss(params):
        terms, weights = terms_of(case.objective, params, case.batch), total_weights(case.objective, case.batch)
        return terms.sums["masked_lm"] / weights["masked_lm"]

    value, gradient = jax.jit(jax.value_and_grad(loss))(case.params)
    assert_parity({"loss": value}, {"loss": reference.loss.detach()}, "loss")
    assert_parity(
        interop.tensors_to_huggingface(gradient, case.config),
        {name: parameter.grad for name, parameter in case.reference.named_parameters()},
        "gradients",
    )
    case.reference.zero_grad()


def test_transformers_reads_exported_model(case, tmp_path):
    loaded = check_export(case.params, case.config, case.reference, tmp_path, same=("architectures",))
    written, original = (each.config.to_dict() for each in (loaded, case.reference))
    ignored = {"_name_or_path", "layer_types", "torch_dtype", "dtype", "_attn_implementation_autoset"}
    assert not {name for name in original if written.get(name) != original[name]} - ignored
    assert interop.config_from_huggingface(str(tmp_path)) == case.config
    interop.to_huggingface({"model": case.params["model"]}, case.config, str(tmp_path / "bare"))
    assert json.loads((tmp_path / "bare/config.json").read_text())["architectures"] == ["ModernBertModel"]


CLASSES = {
    "SequenceClassification": {"classifier_pooling": "cls", "num_labels": 3},
    "SequenceClassification_mean": {"classifier_pooling": "mean", "num_labels": 3},
    "TokenClassification": {"num_labels": 3},
    "QuestionAnswering": {},
}


@pytest.mark.parametrize("name", CLASSES)
def test_heads(name, tmp_path, assert_parity):
    hf_config = make("odd", **CLASSES[name])
    reference = getattr(transformers, f"ModernBertFor{name.partition('_')[0]}")(hf_config).eval()
    draw(reference)
    reference.save_pretrained(tmp_path / "theirs")
    config, model = interop.from_huggingface(str(tmp_path / "theirs"))
    head, batch = interop.task_head(str(tmp_path / "theirs")), make_batch(np.random.default_rng(0), hf_config)
    leaves = interop.read(str(tmp_path / "theirs"), config)
    prefix = f"{tables.OBJECTIVE}{head.name}/"
    outputs = leaves[f"{prefix}classifier/kernel"].shape[-1]
    like = jax.eval_shape(lambda key: head.form.make(config, outputs, key=key), jax.random.key(0))
    module = parameters.rebuild(
        like, {key.removeprefix(prefix): leaf for key, leaf in leaves.items() if key.startswith(prefix)}
    )
    found = module(head.form.read(model(batch).hidden, batch))
    valid = batch["encoder_segment_ids"]
    with torch.no_grad():
        given = {"input_ids": batch["encoder_input_tokens"], "attention_mask": valid}
        result = reference(**{key: torch.tensor(each).long() for key, each in given.items()})
    if name == "QuestionAnswering":
        expected = np.stack([result.start_logits.numpy(), result.end_logits.numpy()], axis=-1)
    else:
        expected = result.logits.numpy()
    if name.startswith("Sequence"):
        found = found[:, 0]
    else:
        found, expected = found[valid == 1], expected[valid == 1]
    assert len(found) >= ROWS
    assert_parity({"logits": found}, {"logits": expected}, f"logits of {name}")
    check_export(leaves, config, reference, tmp_path / "ours", same=("classifier_pooling",))
