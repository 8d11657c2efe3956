"""Compares encoders with rewrites in torch: hidden states, logits, loss and gradients of rows with padding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from families import random_model

from t5x_like import parameters
from t5x_like.kernels.cross_entropy import cross_entropy

ROWS, LENGTH = 3, 11
LENGTHS = np.array([LENGTH, LENGTH - 4, LENGTH - 7])


def unstacked(tree):
    """Returns the arrays of a scanned or unrolled model, or of its gradient, by the names of unrolled layers."""
    arrays = {}
    for name, stored in parameters.stack(parameters.named_leaves(tree)).items():
        if "/layers/" in name:
            arrays |= {name.replace("/layers/", f"/layers/{i}/"): layer for i, layer in enumerate(np.asarray(stored))}
        else:
            arrays[name] = np.asarray(stored)
    return arrays


def compare(config, scan, reference, assert_parity, further=()):
    """Asserts that a model with random parameters equals its rewrite.

    Args:
      config: configuration of an encoder.
      scan: whether layers are scanned.
      reference: function of the parameters by name, of token ids and of token types, that returns hidden states.
      assert_parity: the fixture of this name.
      further: further features of the batch, name -> array `[ROWS, LENGTH]`.
    """
    import torch

    rng, model = np.random.default_rng(1), random_model(dataclasses.replace(config, scan_layers=scan))
    tokens, targets = rng.integers(5, config.vocab_size, (2, ROWS, LENGTH)).astype(np.int32)
    types = rng.integers(0, 2, (ROWS, LENGTH)).astype(np.int32)
    tokens[np.arange(LENGTH) >= LENGTHS[:, None]] = config.padding_id
    real, batch = tokens != config.padding_id, {"encoder_input_tokens": tokens, "token_types": types, **dict(further)}

    def loss(model):
        hidden = model(batch).hidden
        # Embeddings may be smaller than hidden states, which a head transforms before the logits.
        states = hidden[..., : config.unembed_dim]
        total = cross_entropy(states, model.unembed, targets, jnp.asarray(real, jnp.float32)).total
        return total, (hidden, model.unembed(states))

    (value, (hidden, logits)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(model)
    p = {name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in unstacked(model).items()}
    expected = reference(p, torch.tensor(tokens), torch.tensor(types))
    (table,) = (array for name, array in p.items() if name.endswith("token_embedder/embedding"))
    expected_logits = expected[..., : config.unembed_dim] @ table.T
    total = torch.nn.functional.cross_entropy(
        expected_logits[real], torch.tensor(targets[real]).long(), reduction="sum"
    )
    total.backward()
    assert_parity({"hidden": hidden[real]}, {"hidden": expected[real].detach()}, "hidden states")
    assert_parity({"logits": logits[real]}, {"logits": expected_logits[real].detach()}, "logits")
    assert_parity({"loss": value}, {"loss": total.detach()}, "loss")
    found, wanted = unstacked(gradient), {name: array.grad.numpy() for name, array in p.items()}
    assert_parity(*(join_key_biases(gradients) for gradients in (found, wanted)), "gradients")


def join_key_biases(gradients):
    """Joins kernel and bias of keys: a softmax does not depend on the bias, whose gradient is a rounding error."""
    joined = dict(gradients)
    for name in gradients:
        if name.endswith("attention/key/bias"):
            kernel = name.replace("bias", "kernel")
            joined[kernel] = np.append(joined[kernel], joined.pop(name))
    return joined
