"""Quantization-aware training against a rewrite in torch of Q8BERT's linear layer (arXiv:1910.06188, section 2)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like.adapters.quantization import FakeQuantized
from t5x_like.layers.initializers import normal
from t5x_like.layers.projections import Projection

torch = pytest.importorskip("torch")
pytest.importorskip("qwix")
pytestmark = pytest.mark.parity
LEVELS, DECAY = 127, 0.9999


class StraightThrough(torch.autograd.Function):
    """round(clamp(x · scale, ±127)) / scale, where scale = 127 / max|x|; the gradient is the identity."""

    @staticmethod
    def forward(context, x, scale):
        return torch.clamp(torch.round(x * scale), -LEVELS, LEVELS) / scale

    @staticmethod
    def backward(context, gradient):
        return gradient, None


class Linear(torch.nn.Linear):
    """A layer whose weight has its largest value as range, and whose inputs have a moving average of theirs."""

    threshold = None

    def forward(self, x):
        largest = x.detach().abs().max()
        before = self.threshold
        self.threshold = largest if before is None else before - (1 - DECAY) * (before - largest)
        if before is None:  # the range of the first batch is known after it
            return torch.nn.functional.linear(x, self.rounded_weight(), self.bias)
        weight_scale, input_scale = LEVELS / self.weight.detach().abs().max(), LEVELS / before
        bias_scale = weight_scale * input_scale  # the bias is an integer of 32 bits
        bias = self.bias + (torch.round(self.bias * bias_scale) / bias_scale - self.bias).detach()
        return torch.nn.functional.linear(StraightThrough.apply(x, input_scale), self.rounded_weight(), bias)

    def rounded_weight(self):
        return StraightThrough.apply(self.weight, LEVELS / self.weight.detach().abs().max())


def test_outputs_gradients_and_ranges_of_three_batches():
    rng = np.random.default_rng(0)
    kernel, bias = rng.normal(size=(6, 5)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    theirs = Linear(6, 5)
    theirs.weight.data, theirs.bias.data = torch.tensor(kernel.T.copy()), torch.tensor(bias)
    ours = Projection((6,), (5,), axes=("embed", "mlp"), key=jax.random.key(0), init=normal(1.0), bias=True)
    ours.kernel.set_value(jnp.asarray(kernel))
    ours.bias.set_value(jnp.asarray(bias))
    ours.quantization = nnx.data(FakeQuantized(scales="tensor").make(ours, name="dense"))
    from t5x_like.kernels.quantization import updated

    for number in range(3):
        x = ((number + 1) * rng.normal(size=(2, 4, 6))).astype(np.float32)  # later batches leave the range of the first
        weights = rng.normal(size=(2, 4, 5)).astype(np.float32)
        given = torch.tensor(x, requires_grad=True)
        theirs.zero_grad()
        output = theirs(given)
        (output * torch.tensor(weights)).sum().backward()

        def total(module, x, weights=weights):
            y = module(x)
            return jnp.sum(y * weights), y

        (of_module, of_input), y = jax.grad(total, argnums=(0, 1), has_aux=True)(ours, jnp.asarray(x))
        np.testing.assert_allclose(y, output.detach(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(of_module.kernel[...], theirs.weight.grad.T, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(of_module.bias[...], theirs.bias.grad, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(of_input, given.grad, rtol=1e-5, atol=1e-5)
        after = updated(ours.quantization.range[...], of_module.quantization.range[...])
        ours.quantization.range.set_value(after)
        np.testing.assert_allclose(after[0], theirs.threshold, rtol=1e-6)
