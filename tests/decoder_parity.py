"""Comparisons of a decoder with transformers, given a pair of both models and a batch with padding on both sides."""

import jax
import numpy as np

from t5x_like import interop
from t5x_like.kernels.cross_entropy import cross_entropy


def reference_outputs(pair):
    """Returns the outputs of the reference, with the loss of all tokens but the first one of each row."""
    import torch

    first = pair.valid & ~np.pad(pair.valid[:, :-1], ((0, 0), (1, 0)))
    return pair.reference(
        input_ids=torch.tensor(pair.tokens).long(),
        attention_mask=torch.tensor(pair.valid).long(),
        position_ids=torch.tensor(pair.positions).long(),
        labels=torch.tensor(np.where(pair.valid & ~first, pair.tokens, -100)).long(),
        output_hidden_states=True,
        output_attentions=True,
    )


def check_logits_loss_and_gradients(pair, assert_parity):
    """Asserts that logits, loss and gradients equal the reference's."""
    reference = reference_outputs(pair)
    reference.loss.backward()
    targets, weights = np.roll(pair.tokens, -1, axis=1), pair.predicted.astype(np.float32)

    def loss(model):
        hidden = model(pair.batch).hidden
        entropy = cross_entropy(hidden, model.unembed, targets, weights)
        return entropy.total / entropy.weight, model.unembed(hidden)

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(pair.model)
    assert_parity({"logits": logits[pair.valid]}, {"logits": reference.logits.detach().numpy()[pair.valid]}, "logits")
    assert_parity({"loss": value}, {"loss": reference.loss.detach()}, "loss")
    assert_parity(
        interop.tensors_to_huggingface({"model": gradient}, pair.config),
        {name: parameter.grad for name, parameter in pair.reference.named_parameters()},
        "gradients",
    )
    pair.reference.zero_grad()
