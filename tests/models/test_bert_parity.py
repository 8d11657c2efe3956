"""Compares BERT and RoBERTa with transformers: random weights, small odd sizes, float32, padded rows.

numerics.py defines the tolerance.
"""

import jax
import numpy as np
import pytest
from encoder_parity import LENGTH, Pair, make_batch
from exported_weights import check_export
from objective_cases import terms_of

from t5x_like import interop, parameters
from t5x_like.interop import tables
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.passes import total_weights

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity


def reduced_config(number):
    """Returns a configuration with odd sizes from a fixed seed: BERT with both heads for even numbers, else RoBERTa."""
    rng = np.random.default_rng(2000 + number)
    heads = int(rng.integers(1, 6))
    is_bert = number % 2 == 0
    return (transformers.BertConfig if is_bert else transformers.RobertaConfig)(
        vocab_size=int(rng.integers(41, 131)),
        hidden_size=heads * int(rng.integers(3, 12)),
        intermediate_size=int(rng.integers(11, 70)),
        num_attention_heads=heads,
        num_hidden_layers=int(rng.integers(1, 5)),
        # The masked-LM head of RoBERTa in transformers always uses exact GELU.
        hidden_act=["gelu", "gelu_new", "relu", "gelu_pytorch_tanh"][number // 2] if is_bert else "gelu",
        type_vocab_size=int(rng.integers(2, 5)) if is_bert else 1,
        pad_token_id=0 if is_bert else int(rng.integers(0, 4)),
        max_position_embeddings=int(rng.integers(LENGTH + 4, 40)),
        layer_norm_eps=1e-12 if is_bert else 1e-5,
        attn_implementation="eager",
    )


@pytest.fixture(scope="module", params=range(8), ids=lambda number: f"{('bert', 'roberta')[number % 2]}{number}")
def pair(request, tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("bert"))
    torch.manual_seed(request.param)
    hf_config = reduced_config(request.param)
    is_bert = hf_config.model_type == "bert"
    reference = (transformers.BertForPreTraining if is_bert else transformers.RobertaForMaskedLM)(hf_config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # move norms and biases away from 1 and 0
            parameter += 0.1 * torch.randn_like(parameter)
    reference.save_pretrained(directory, safe_serialization=True)
    config, model = interop.from_huggingface(directory)
    objective = Joint([MaskedLM(), NextSentence()]) if is_bert else MaskedLM()
    like = jax.eval_shape(objective.init, jax.random.key(0), model)
    heads = {
        name.removeprefix(tables.OBJECTIVE): leaf
        for name, leaf in interop.read(directory, config).items()
        if name.startswith(tables.OBJECTIVE)
    }
    params = {"model": model, "objective": parameters.rebuild(like, heads)}
    return Pair(reference, config, objective, params, make_batch(np.random.default_rng(request.param), hf_config))


def test_config_is_read(pair):
    hf_config = pair.reference.config
    assert pair.config.position_offset == (0 if hf_config.model_type == "bert" else hf_config.pad_token_id + 1)
    assert pair.config.max_length + pair.config.position_offset == hf_config.max_position_embeddings
    assert pair.config.activations == (
        {"gelu": "gelu_exact", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu"}.get(
            hf_config.hidden_act, hf_config.hidden_act
        ),
    )


def test_hidden_states_and_attention(pair, assert_parity):
    with torch.no_grad():
        reference = pair.outputs()
    # Without segment ids, the padding token alone determines the mask.
    batch = {name: array for name, array in pair.batch.items() if name != "encoder_segment_ids"}
    wanted = ("encoder/embedding", "encoder/layers/hidden", "encoder/layers/attention/probabilities")
    outputs = jax.jit(lambda model: model(batch, capture=wanted))(pair.params["model"])
    states = [outputs.captured["encoder/embedding"], *outputs.captured["encoder/layers/hidden"]]
    np.testing.assert_array_equal(states[-1], outputs.hidden)

    def without_padding(arrays):
        """Returns the arrays by index, without padding, where RoBERTa of transformers uses a separate position."""
        return {number: np.asarray(array)[pair.valid] for number, array in enumerate(arrays)}

    assert_parity(without_padding(states), without_padding(reference.hidden_states), "hidden states")
    probabilities = [np.moveaxis(np.asarray(layer), 1, 2) for layer in outputs.captured[wanted[-1]]]
    attentions = [layer.numpy().transpose(0, 2, 1, 3) for layer in reference.attentions]
    assert_parity(without_padding(probabilities), without_padding(attentions), "attention")


def test_logits(pair, assert_parity):
    with torch.no_grad():
        reference = pair.outputs()
    model, heads = pair.params["model"], pair.params["objective"]
    hidden = model(pair.batch).hidden
    found = {"tokens": (model.unembed(heads["masked_lm"](hidden)) + heads["masked_lm"].bias[...])[pair.valid]}
    if "next_sentence" in heads:
        found["sentences"] = heads["next_sentence"](hidden)[:, 0]
        expected = {"tokens": reference.prediction_logits, "sentences": reference.seq_relationship_logits}
    else:
        expected = {"tokens": reference.logits}
    expected["tokens"] = expected["tokens"].numpy()[pair.valid]
    for name in found:
        assert_parity({name: found[name]}, {name: expected[name]}, f"logits of {name}")


def test_loss_and_gradients(pair, assert_parity):
    reference = pair.outputs()
    reference.loss.backward()

    def loss(params):
        terms, weights = terms_of(pair.objective, params, pair.batch), total_weights(pair.objective, pair.batch)
        return sum(pair.objective.coefficients[name] * terms.sums[name] / weights[name] for name in terms.sums)

    value, gradient = jax.jit(jax.value_and_grad(loss))(pair.params)
    assert_parity({"loss": value}, {"loss": reference.loss.detach()}, "loss")
    assert_parity(
        interop.tensors_to_huggingface(gradient, pair.config),
        {name: parameter.grad for name, parameter in pair.reference.named_parameters()},
        "gradients",
    )
    pair.reference.zero_grad()


def test_transformers_reads_exported_model(pair, tmp_path):
    same = ("max_position_embeddings", "pad_token_id", "type_vocab_size", "layer_norm_eps", "architectures")
    check_export(pair.params, pair.config, pair.reference, tmp_path, same=same)


def test_class_depends_on_exported_heads(pair, tmp_path):
    bare = transformers.BertModel if pair.reference.config.model_type == "bert" else transformers.RobertaModel
    classes = {(): (bare, {"add_pooling_layer": False})}
    if "next_sentence" in pair.params["objective"]:
        classes[("masked_lm",)] = (transformers.BertForMaskedLM, {})
        classes[("next_sentence",)] = (transformers.BertForNextSentencePrediction, {})
    for heads, (expected, options) in classes.items():
        params = pair.params | {"objective": {name: pair.params["objective"][name] for name in heads}}
        directory = tmp_path / expected.__name__
        interop.to_huggingface(params, pair.config, str(directory))
        loaded, report = expected.from_pretrained(directory, output_loading_info=True, **options)
        assert loaded.config.architectures == [expected.__name__]
        assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
