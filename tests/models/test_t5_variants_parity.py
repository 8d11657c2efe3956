"""The networks of T5's study against transformers' stacks: tied weights, a decoder alone, a prefix."""

import dataclasses

import jax
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.interop import t5 as mapping
from t5x_like.kernels.cross_entropy import cross_entropy
from t5x_like.models.t5_variants import SharedT5Config, T5DecoderConfig

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

ROWS, LENGTH, SOURCE = 3, 17, 23


def their_config(seed):
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


def make_theirs(seed):
    torch.manual_seed(seed)
    theirs = transformers.T5ForConditionalGeneration(their_config(seed)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return theirs


def our_config(kind, theirs):
    config = mapping.config_from_huggingface(theirs.config.to_dict())
    return kind(**{field.name: getattr(config, field.name) for field in dataclasses.fields(config)})


def ours_by_theirs(config, rename):
    """Our stored names beside the rows of T5's table that hold them; `rename` gives T5's name for ours."""
    rows = {row.ours: row for row in mapping.table(config)}
    like = jax.eval_shape(config.make, jax.random.key(0))
    return like, {name: rows[rename("model/" + name)] for name in parameters.stack(parameters.named_leaves(like))}


def load(config, rename, state):
    like, rows = ours_by_theirs(config, rename)
    shapes = parameters.stack(parameters.named_leaves(like))
    leaves = {}
    for name, row in rows.items():
        shape = shapes[name].shape
        if "{i}" in row.theirs:
            layers = [row.read(state[row.theirs.format(i=i)], shape[1:]) for i in range(shape[0])]
            leaves[name] = jax.numpy.asarray(np.stack(layers))
        else:
            leaves[name] = jax.numpy.asarray(row.read(state[row.theirs], shape))
    return parameters.unstack(leaves, like), rows


def state_of(theirs):
    return {name: tensor.detach().numpy() for name, tensor in theirs.state_dict().items()}


def written(rows, gradient):
    leaves = parameters.stack(parameters.named_leaves(gradient))
    tensors = {}
    for name, row in rows.items():
        each = enumerate(leaves[name]) if "{i}" in row.theirs else [(0, leaves[name])]
        tensors |= {row.theirs.format(i=i): row.write(np.asarray(array)) for i, array in each}
    return tensors


def gradients_of(theirs, names):
    found = {name: parameter.grad for name, parameter in theirs.named_parameters(remove_duplicate=False)}
    return {name: found[name] for name in names}


@pytest.mark.parametrize("seed", range(3))
def test_a_shared_encoder_is_the_decoder_with_tied_weights(seed, assert_parity):
    theirs = make_theirs(seed)
    for encoder, decoder in zip(theirs.encoder.block, theirs.decoder.block, strict=True):
        for name in "qkvo":
            getattr(encoder.layer[0].SelfAttention, name).weight = getattr(decoder.layer[0].SelfAttention, name).weight
        encoder.layer[0].layer_norm.weight = decoder.layer[0].layer_norm.weight
        encoder.layer[1].layer_norm.weight = decoder.layer[2].layer_norm.weight
        encoder.layer[1].DenseReluDense.wi.weight = decoder.layer[2].DenseReluDense.wi.weight
        encoder.layer[1].DenseReluDense.wo.weight = decoder.layer[2].DenseReluDense.wo.weight
    first = (stack.block[0].layer[0].SelfAttention for stack in (theirs.encoder, theirs.decoder))
    encoder, decoder = first
    encoder.relative_attention_bias.weight = decoder.relative_attention_bias.weight
    config = our_config(SharedT5Config, theirs)
    ours, rows = load(config, lambda name: name, state_of(theirs))
    rng = np.random.default_rng(seed)
    inputs, targets = (rng.integers(2, config.vocab_size, (ROWS, n)).astype(np.int32) for n in (SOURCE, LENGTH))
    inputs[1, 9:] = 0
    output = theirs(
        input_ids=torch.tensor(inputs).long(),
        attention_mask=torch.tensor(inputs != 0).long(),
        labels=torch.tensor(targets).long(),
    )
    output.loss.backward()
    batch = {"encoder_input_tokens": inputs, "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1]}
    compare(ours, rows, batch, targets, np.ones(targets.shape), output.logits, output.loss, theirs, assert_parity)


def compare(ours, rows, batch, targets, weights, their_logits, their_loss, theirs, assert_parity):
    def loss(model):
        hidden = model(batch).hidden
        entropy = cross_entropy(hidden, model.unembed, targets, weights)
        return entropy.total / entropy.weight, model.unembed(hidden)

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(ours)
    assert_parity({"logits": logits}, {"logits": their_logits.detach()}, "logits")
    assert_parity({"loss": value}, {"loss": their_loss.detach()}, "loss")
    tensors = written(rows, gradient)
    assert_parity(tensors, gradients_of(theirs, tensors), "gradients")


def decoder_name(name):
    """T5's name of a tensor of the decoder alone."""
    return name.replace("layers/attention", "layers/self_attention")


@pytest.mark.parametrize("prefix", [0, 6], ids=["LM", "prefix LM"])
@pytest.mark.parametrize("seed", range(3))
def test_a_decoder_alone(seed, prefix, assert_parity, monkeypatch):
    theirs = make_theirs(seed)
    config = our_config(T5DecoderConfig, theirs)
    ours, rows = load(config, decoder_name, state_of(theirs))
    rng = np.random.default_rng(seed)
    sequence = rng.integers(2, config.vocab_size, (ROWS, LENGTH)).astype(np.int32)
    inputs = np.pad(sequence, ((0, 0), (1, 0)))[:, :-1]
    visible = np.tril(np.ones((LENGTH, LENGTH), bool)) | (np.arange(LENGTH) < prefix)
    dense = torch.tensor(np.where(visible, 0.0, np.finfo(np.float32).min), dtype=torch.float32)[None, None]
    # Their stack makes its own causal mask; a prefix has to be put in its place.
    monkeypatch.setattr(theirs.decoder, "_update_causal_mask", lambda *args, **options: dense, raising=True)
    hidden = theirs.decoder(input_ids=torch.tensor(inputs).long(), use_cache=False).last_hidden_state
    logits = theirs.lm_head(hidden * config.embed_dim**-0.5)
    weights = np.broadcast_to(np.arange(LENGTH) >= prefix, sequence.shape).astype(np.float32)
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), torch.tensor(sequence).long(), reduction="none"
    ) * torch.tensor(weights)
    loss = losses.sum() / weights.sum()
    loss.backward()
    batch = {"decoder_input_tokens": inputs}
    if prefix:
        batch["decoder_prefix"] = np.broadcast_to(np.arange(LENGTH) < prefix, inputs.shape).astype(np.int32)
    compare(ours, rows, batch, sequence, weights, logits, loss, theirs, assert_parity)
