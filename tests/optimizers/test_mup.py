"""muP: the factors of its groups, models of the base width, and activations that change alike at all widths."""

import coordinates
import jax
import numpy as np
import pytest

from t5x_like import optimizers, parameters
from t5x_like.errors import UserError
from t5x_like.models.llama import LlamaConfig

SIZES = {"vocab_size": 11, "embed_dim": 16, "mlp_dim": 32, "num_heads": 2, "head_dim": 8, "num_layers": 2}


def scaled(groups, **changes):
    model = LlamaConfig(**SIZES | changes, tied_embeddings=False).make(jax.random.key(0))
    scaled = optimizers.scale_initial({"model": model}, groups)
    before, after = (parameters.named_leaves(each) for each in ({"model": model}, scaled))
    return {name: np.std(after[name]) / np.std(before[name]) for name in before if "scale" not in name}


@pytest.mark.parametrize(("constant_range", "hidden", "logits"), [(True, 0.5, 0.25), (False, 1.0, 0.5)])
def test_initial_values_have_the_factors_of_a_fourfold_width(constant_range, hidden, logits):
    groups = optimizers.mup_groups(width=64, base_width=16, constant_range=constant_range)
    for name, factor in scaled(groups).items():
        wanted = logits if name == "model/logits/kernel" else hidden if name.endswith("kernel") else 1.0
        assert factor == pytest.approx(wanted, rel=1e-5), name
    assert [group.learning_rate_factor for group in groups] == [0.25, 0.25]


def test_base_width_is_unchanged():
    assert all(factor == 1.0 for factor in scaled(optimizers.mup_groups(width=16, base_width=16)).values())


def test_model_without_a_kernel_of_logits_is_an_error():
    model = LlamaConfig(**SIZES, tied_embeddings=True).make(jax.random.key(0))
    with pytest.raises(UserError, match="logits/kernel.* matches no parameter"):
        optimizers.scale_initial({"model": model}, optimizers.mup_groups(width=32, base_width=16))


@pytest.mark.parametrize("sizes", [{"width": 0, "base_width": 16}, {"width": 16, "base_width": -1}])
def test_invalid_widths(sizes):
    with pytest.raises(UserError, match="is not a width"):
        optimizers.mup_groups(**sizes)


def test_activations_change_alike_at_all_widths():
    small, wide, wide_standard = (
        coordinates.changes("llama", width, base, learning_rate=0.01, steps=3)
        for width, base in ((32, 32), (128, 32), (128, None))
    )
    for name in ("decoder/layers/0/hidden", "decoder/layers/1/hidden", "logits"):
        assert 0.5 < wide[name] / small[name] < 1.5
        assert wide_standard[name] / small[name] > 2.0
