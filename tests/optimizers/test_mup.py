"""muP: the factors of its groups, models of the base width, and activations that change alike at all widths."""

import json

import jax
import numpy as np
import pytest
from lanes import others_are_full

from t5x_like import optimizers, parameters
from t5x_like.coordinates import coordinates, resized
from t5x_like.errors import UserError
from t5x_like.models.llama import LlamaConfig
from t5x_like.models.lstm import LSTMConfig
from t5x_like.models.neobert import NeoBertConfig
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence

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


_T5 = {name: size for name, size in SIZES.items() if name != "num_layers"} | {"encoder_layers": 1, "decoder_layers": 1}
CHECKED = {
    "decoder": (LlamaConfig(**SIZES), CausalLM(), True),
    "encoder": (NeoBertConfig(**SIZES), MaskedLM(), True),
    "encoder-decoder": (T5Config(**_T5), SequenceToSequence(z_loss=0.0), False),
}


@pytest.mark.parametrize("kind", others_are_full(CHECKED, ("decoder",)))
def test_activations_change_alike_at_all_widths(kind, tmp_path, capsys):
    model, objective, constant_range = CHECKED[kind]
    files = {"json_path": str(tmp_path / "changes.json"), "plot_path": str(tmp_path / "changes.png")}
    small = {"widths": "32,128", "steps": 3, "seeds": 1, "layers": 1, "rows": 4, "length": 8}
    found = coordinates(model=model, objective=objective, constant_range=constant_range, **small, **files)
    stack = list(model.stacks)[-1]
    for name in (f"{stack}/layers/0/hidden", "logits"):
        assert found["muP"][name][0] == pytest.approx(found["standard"][name][0], rel=1e-3)  # the base width
        first, last = found["muP"][name]
        assert 0.5 < last / first < 1.5 and found["standard"][name][1] / first > 1.7, (name, found)
    assert json.loads((tmp_path / "changes.json").read_text()) == {"widths": [32, 128], "changes": found}
    assert (tmp_path / "changes.png").read_bytes().startswith(b"\x89PNG")
    assert f"| muP | {stack}/layers/0/hidden | " in capsys.readouterr().out


def test_invalid_settings_of_the_check():
    model = LlamaConfig(**SIZES)
    for settings, message in (
        ({"widths": "64"}, "--widths=64: not several widths"),
        ({"widths": 64}, "--widths=64: not numbers"),
        ({"widths": "64,x"}, "--widths=64,x: not numbers"),
        ({"widths": (32, 16)}, "not several widths in ascending order"),
        ({"steps": 0}, "COORDINATES_STEPS=0: not positive"),
        ({"plot_path": "a.svg"}, "--plot=a.svg: not a .png"),
        ({"widths": "16,20"}, "2.5 num_heads, .* Give multiples of 8"),
    ):
        with pytest.raises(UserError, match=message):
            coordinates(model=model, objective=CausalLM(), **settings)
    with pytest.raises(UserError, match="LSTMConfig: has no attention heads"):
        resized(LSTMConfig(), 32, 2)
    wide = resized(LlamaConfig(**SIZES | {"num_heads": 4, "head_dim": 4}, num_kv_heads=2), 64, 1)
    assert (wide.mlp_dim, wide.num_heads, wide.num_kv_heads, wide.num_layers, wide.head_dim) == (128, 16, 8, 1, 4)
