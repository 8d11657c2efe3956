"""Parity of ELMo with a torch rewrite of bilm-tf: words, states of all layers, carried states, gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.models.elmo import BACKWARD_CHARACTERS, CHARACTERS, DIRECTIONS, ElmoConfig

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

CONFIG = ElmoConfig(
    vocab_size=23, filters=((1, 4), (2, 5), (4, 7)), character_dim=3, cell_dim=6, projection_dim=5, cell_clip=0.5,
    projection_clip=0.3, highway_layers=2,
)  # fmt: skip
ROWS, LENGTH, INNER = 3, 6, 9
LENGTHS = np.array([LENGTH, 2, 4])


class Reference:
    """The model over torch tensors by our names; words are read one after another, and rows one by one."""

    def __init__(self, arrays, config):
        self.arrays, self.config = arrays, config

    def words(self, characters):
        get, prefix = self.arrays.__getitem__, "character_encoder"
        x = get(f"{prefix}/embedding")[characters]
        pooled = []
        for width, _ in self.config.filters:
            name = f"{prefix}/convolutions/width_{width}"
            windows = x.unfold(1, width, 1)  # [words, places, dim, width]
            y = torch.einsum("npdw,wdf->npf", windows, get(f"{name}/kernel"))
            pooled.append(torch.relu(y.amax(dim=1) + get(f"{name}/bias")))
        x = torch.cat(pooled, dim=1)
        for number in range(self.config.highway_layers):
            name = f"{prefix}/highway/layer_{number}"
            gate = torch.sigmoid(x @ get(f"{name}/gate/kernel") + get(f"{name}/gate/bias"))
            transformed = torch.relu(x @ get(f"{name}/transform/kernel") + get(f"{name}/transform/bias"))
            x = gate * transformed + (1 - gate) * x
        return x @ get(f"{prefix}/projection/kernel") + get(f"{prefix}/projection/bias")

    def direction(self, direction, x, states):
        """Returns the outputs of each layer for words `[length, size]`, and the states afterwards."""
        found = []
        for layer in range(self.config.num_layers):
            name = f"encoder/{direction}/layer_{layer}"
            kernels = [self.arrays[f"{name}/{part}/kernel"].flatten(1) for part in ("inputs", "recurrent")]
            kernel, bias = torch.cat(kernels), self.arrays[f"{name}/inputs/bias"].flatten()
            hidden, cell = (states[f"{direction}_{kind}_{layer}"] for kind in ("hidden", "cell"))
            outputs = []
            for word in x:
                i, j, f, o = (torch.cat([word, hidden]) @ kernel + bias).chunk(4)
                cell = torch.sigmoid(f + 1) * cell + torch.sigmoid(i) * torch.tanh(j)
                cell = cell.clamp(-self.config.cell_clip, self.config.cell_clip)
                hidden = (torch.sigmoid(o) * torch.tanh(cell)) @ self.arrays[f"{name}/outputs/kernel"]
                hidden = hidden.clamp(-self.config.projection_clip, self.config.projection_clip)
                outputs.append(hidden)
            states |= {f"{direction}_hidden_{layer}": hidden, f"{direction}_cell_{layer}": cell}
            x = torch.stack(outputs) + (x if layer else 0)
            found.append(x)
        return found, states


def boundary(special):
    return [259, special, 260, *[261] * (INNER - 3)]


def draw(rng):
    """Returns parameters, characters and states of random values."""
    like = parameters.named_leaves(jax.eval_shape(CONFIG.make, jax.random.key(0)))
    arrays = {name: (rng.normal(size=leaf.shape) / 2).astype(np.float32) for name, leaf in like.items()}
    characters = rng.integers(1, CONFIG.num_characters, (2, ROWS, LENGTH, INNER))
    states = jax.tree.map(
        lambda x: rng.uniform(-0.3, 0.3, x.shape).astype(np.float32), dict(CONFIG.initial_carry(ROWS))
    )
    return arrays, characters, states


def run(arrays, batch, states, weights):
    """Returns the gradients of a weighted sum of all states, and the states of each layer and the carry."""

    def total(model):
        names = ("encoder/embedding", "encoder/layers/hidden", "encoder/output")
        outputs = model(batch, carry=states, capture=names)
        layers = jnp.stack([outputs.captured[names[0]], *outputs.captured[names[1]]])
        assert outputs.captured[names[2]].shape == outputs.hidden.shape
        return jnp.sum(layers * weights), (layers, outputs.hidden, outputs.carry)

    model = parameters.rebuild(jax.eval_shape(CONFIG.make, jax.random.key(0)), arrays)
    (_, (layers, hidden, carry)), gradients = jax.jit(jax.value_and_grad(total, has_aux=True))(model)
    return gradients, layers, hidden, carry


@pytest.mark.parametrize("kind", ["texts", "streams"])
def test_states_and_gradients(kind, assert_parity):
    """Texts are read between `<S>` and `</S>`; in streams, both directions have words of their own."""
    rng = np.random.default_rng(3)
    arrays, characters, states = draw(rng)
    theirs = {name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in arrays.items()}
    reference, before = (
        Reference(theirs, CONFIG),
        {name: torch.tensor(state).double() for name, state in states.items()},
    )
    is_text = kind == "texts"
    lengths = LENGTHS if is_text else np.full(ROWS, LENGTH)
    weights = rng.normal(size=(CONFIG.num_layers + 1, ROWS, LENGTH, CONFIG.embed_dim)).astype(np.float32)
    weights *= (np.arange(LENGTH) < lengths[:, None])[..., None]
    batch = {"encoder_input_tokens": np.ones((ROWS, LENGTH), np.int32), CHARACTERS: characters[0]}
    if is_text:
        batch["encoder_segment_ids"] = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
    else:
        batch[BACKWARD_CHARACTERS] = characters[1]
    rows, after = [], {name: [] for name in states}
    for row, length in enumerate(lengths):
        halves = []
        for number, direction in enumerate(DIRECTIONS):
            own = characters[0 if is_text else number, row, :length]
            if is_text:
                own = np.concatenate([[boundary(257)], own, [boundary(258)]])
            x = reference.words(torch.tensor(own))
            flip = is_text and direction == "backward"
            found, states_after = reference.direction(
                direction, x.flip(0) if flip else x, {name: state[row] for name, state in before.items()}
            )
            found = [x, *(each.flip(0) if flip else each for each in found)]
            halves.append(torch.stack([each[1:-1] if is_text else each for each in found]))
            for name, state in states_after.items():
                if name.startswith(direction):
                    after[name].append(state)
        rows.append(torch.nn.functional.pad(torch.cat(halves, dim=-1), (0, 0, 0, LENGTH - length)))
    expected = torch.stack(rows, dim=1)
    (expected * torch.tensor(weights)).sum().backward()
    gradients, layers, hidden, carry = run(arrays, batch, states, weights)
    real = (np.arange(LENGTH) < lengths[:, None])[..., None]
    assert_parity(
        {"layers": layers * real, "hidden": hidden * real, **carry},
        {"layers": expected.detach(), "hidden": expected[-1].detach()}
        | {name: torch.stack(each).detach() for name, each in after.items()},
        "outputs",
    )
    assert_parity(
        parameters.named_leaves(gradients), {name: each.grad.numpy() for name, each in theirs.items()}, "gradients"
    )
    for name, kind_ in (("cell", CONFIG.cell_clip), ("hidden", CONFIG.projection_clip)):
        clipped = [
            np.any(np.abs(np.asarray(carry[each])) == np.float32(kind_)) for each in carry if f"_{name}_" in each
        ]
        assert any(clipped), f"no {name} is clipped, so the test does not see the clips"


@pytest.mark.parametrize("cells", [5, 7])
def test_cells_without_clips_are_those_of_torch(assert_parity, cells):
    """`torch.nn.LSTM`, with `proj_size` where outputs are projections of more cells."""
    config = dataclasses.replace(
        CONFIG, cell_dim=cells, num_layers=1, cell_clip=None, projection_clip=None, residual=False
    )
    rng = np.random.default_rng(0)
    layer = config.make(jax.random.key(0)).encoder.forward.layer_0
    assert layer.has_projection == (cells != 5)
    lstm = torch.nn.LSTM(5, cells, batch_first=True, proj_size=5 if layer.has_projection else 0)
    order = [0, 2, 1, 3]  # torch: i, f, g, o
    with torch.no_grad():
        for ours, theirs in ((layer.inputs, lstm.weight_ih_l0), (layer.recurrent, lstm.weight_hh_l0)):
            theirs.copy_(torch.tensor(np.asarray(ours.kernel[...])[:, order].reshape(5, 4 * cells).T))
        lstm.bias_ih_l0.copy_(torch.tensor([0.0] * cells + [1.0] * cells + [0.0] * 2 * cells))
        lstm.bias_hh_l0.zero_()
        if layer.has_projection:
            lstm.weight_hr_l0.copy_(torch.tensor(np.asarray(layer.outputs.kernel[...]).T))
    x = rng.normal(size=(2, 4, 5)).astype(np.float32)
    hidden, (_, cell) = layer(x, None, np.zeros((2, 4), bool))
    expected, (_, expected_cell) = lstm(torch.tensor(x))
    assert_parity(
        {"hidden": hidden, "cell": cell}, {"hidden": expected.detach(), "cell": expected_cell[0].detach()}, "outputs"
    )
