"""Compares the shared and decoder-only T5 with the stacks of transformers: tied weights, causal and prefix LM."""

import dataclasses

import jax
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.interop import t5
from t5x_like.kernels.cross_entropy import cross_entropy
from t5x_like.models.t5_variants import SharedT5Config, T5DecoderConfig

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

ROWS, LENGTH, SOURCE = 3, 17, 23


def reference_config(seed):
    rng = np.random.default_rng(2000 + seed)
    layers = int(rng.integers(1, 4))
    return transformers.T5Config(
        vocab_size=int(rng.integers(41, 131)),
        d_model=int(rng.integers(9, 40)),
        d_kv=int(rng.integers(3, 12)),
        d_ff=int(rng.integers(11, 60)),
        num_heads=int(rng.integers(1, 6)),
        num_layers=layers,
        num_decoder_layers=layers,
        relative_attention_num_buckets=int(rng.choice([8, 32])),
        relative_attention_max_distance=int(rng.integers(20, 129)),
        feed_forward_proj="relu",
        tie_word_embeddings=True,
        decoder_start_token_id=0,
        dropout_rate=0.0,
        attn_implementation="eager",
    )


def make_reference(seed):
    torch.manual_seed(seed)
    reference = transformers.T5ForConditionalGeneration(reference_config(seed)).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return reference


def model_config(kind, reference):
    config = t5.FAMILY.config_from_json(reference.config.to_dict())
    return kind(**{field.name: getattr(config, field.name) for field in dataclasses.fields(config)})


def mappings_by_name(config, rename):
    """Returns the shapes of the model and its tensor mappings by stored name; `rename` converts to the name in T5."""
    mappings = {mapping.name: mapping for mapping in t5.table(config)}
    like = jax.eval_shape(config.make, jax.random.key(0))
    return like, {name: mappings[rename("model/" + name)] for name in parameters.stack(parameters.named_leaves(like))}


def load(config, rename, state):
    like, mappings = mappings_by_name(config, rename)
    shapes = parameters.stack(parameters.named_leaves(like))
    leaves = {}
    for name, mapping in mappings.items():
        shape = shapes[name].shape
        if "{i}" in mapping.hf_name:
            layers = [mapping.from_hf(state[mapping.hf_name.format(i=i)], shape[1:]) for i in range(shape[0])]
            leaves[name] = jax.numpy.asarray(np.stack(layers))
        else:
            leaves[name] = jax.numpy.asarray(mapping.from_hf(state[mapping.hf_name], shape))
    return parameters.unstack(leaves, like), mappings


def state_of(reference):
    return {name: tensor.detach().numpy() for name, tensor in reference.state_dict().items()}


def hf_tensors(mappings, gradient):
    leaves = parameters.stack(parameters.named_leaves(gradient))
    tensors = {}
    for name, mapping in mappings.items():
        layers = enumerate(leaves[name]) if "{i}" in mapping.hf_name else [(0, leaves[name])]
        tensors |= {mapping.hf_name.format(i=i): mapping.to_hf(np.asarray(array)) for i, array in layers}
    return tensors


def gradients_of(reference, names):
    found = {name: parameter.grad for name, parameter in reference.named_parameters(remove_duplicate=False)}
    return {name: found[name] for name in names}


@pytest.mark.parametrize("seed", range(3))
def test_shared_t5_matches_tied_stacks(seed, assert_parity):
    reference = make_reference(seed)
    for encoder, decoder in zip(reference.encoder.block, reference.decoder.block, strict=True):
        for name in "qkvo":
            getattr(encoder.layer[0].SelfAttention, name).weight = getattr(decoder.layer[0].SelfAttention, name).weight
        encoder.layer[0].layer_norm.weight = decoder.layer[0].layer_norm.weight
        encoder.layer[1].layer_norm.weight = decoder.layer[2].layer_norm.weight
        encoder.layer[1].DenseReluDense.wi.weight = decoder.layer[2].DenseReluDense.wi.weight
        encoder.layer[1].DenseReluDense.wo.weight = decoder.layer[2].DenseReluDense.wo.weight
    first = (stack.block[0].layer[0].SelfAttention for stack in (reference.encoder, reference.decoder))
    encoder, decoder = first
    encoder.relative_attention_bias.weight = decoder.relative_attention_bias.weight
    config = model_config(SharedT5Config, reference)
    model, mappings = load(config, lambda name: name, state_of(reference))
    rng = np.random.default_rng(seed)
    inputs, targets = (rng.integers(2, config.vocab_size, (ROWS, n)).astype(np.int32) for n in (SOURCE, LENGTH))
    inputs[1, 9:] = 0
    output = reference(
        input_ids=torch.tensor(inputs).long(),
        attention_mask=torch.tensor(inputs != 0).long(),
        labels=torch.tensor(targets).long(),
    )
    output.loss.backward()
    batch = {"encoder_input_tokens": inputs, "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1]}
    compare(
        model, mappings, batch, targets, np.ones(targets.shape), output.logits, output.loss, reference, assert_parity
    )


def compare(model, mappings, batch, targets, weights, reference_logits, reference_loss, reference, assert_parity):
    def loss(model):
        hidden = model(batch).hidden
        entropy = cross_entropy(hidden, model.unembed, targets, weights)
        return entropy.total / entropy.weight, model.unembed(hidden)

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(model)
    assert_parity({"logits": logits}, {"logits": reference_logits.detach()}, "logits")
    assert_parity({"loss": value}, {"loss": reference_loss.detach()}, "loss")
    tensors = hf_tensors(mappings, gradient)
    assert_parity(tensors, gradients_of(reference, tensors), "gradients")


def decoder_name(name):
    """Returns the name in T5 of a parameter of the decoder-only model."""
    return name.replace("layers/attention", "layers/self_attention")


@pytest.mark.parametrize("prefix", [0, 6], ids=["LM", "prefix LM"])
@pytest.mark.parametrize("seed", range(3))
def test_decoder_only_t5_matches_decoder_stack(seed, prefix, assert_parity, monkeypatch):
    reference = make_reference(seed)
    config = model_config(T5DecoderConfig, reference)
    model, mappings = load(config, decoder_name, state_of(reference))
    rng = np.random.default_rng(seed)
    sequence = rng.integers(2, config.vocab_size, (ROWS, LENGTH)).astype(np.int32)
    inputs = np.pad(sequence, ((0, 0), (1, 0)))[:, :-1]
    visible = np.tril(np.ones((LENGTH, LENGTH), bool)) | (np.arange(LENGTH) < prefix)
    dense = torch.tensor(np.where(visible, 0.0, np.finfo(np.float32).min), dtype=torch.float32)[None, None]
    # The stack of transformers makes a causal mask; replace it by one with a prefix.
    monkeypatch.setattr(reference.decoder, "_update_causal_mask", lambda *args, **options: dense, raising=True)
    hidden = reference.decoder(input_ids=torch.tensor(inputs).long(), use_cache=False).last_hidden_state
    logits = reference.lm_head(hidden * config.embed_dim**-0.5)
    weights = np.broadcast_to(np.arange(LENGTH) >= prefix, sequence.shape).astype(np.float32)
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), torch.tensor(sequence).long(), reduction="none"
    ) * torch.tensor(weights)
    loss = losses.sum() / weights.sum()
    loss.backward()
    batch = {"decoder_input_tokens": inputs}
    if prefix:
        batch["decoder_prefix"] = np.broadcast_to(np.arange(LENGTH) < prefix, inputs.shape).astype(np.int32)
    compare(model, mappings, batch, sequence, weights, logits, loss, reference, assert_parity)
