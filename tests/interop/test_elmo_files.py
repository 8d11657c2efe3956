"""The published files of ELMo: hidden states of a NumPy rewrite over their arrays, round trips, invalid files."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close

from t5x_like.checkpoints import weight_files
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.embed import embed
from t5x_like.errors import UserError
from t5x_like.interop import elmo_files
from t5x_like.loading import open_model
from t5x_like.models.elmo import CHARACTERS
from t5x_like.partitioning import Partitioner
from t5x_like.vocabularies.word_characters import BEGIN_OF_TEXT, END_OF_TEXT, boundary

h5py = pytest.importorskip("h5py")

FILTERS, DIM, CELLS, SIZE, INNER = [[1, 4], [2, 5], [3, 3]], 3, 6, 5, 9
OPTIONS = {
    "lstm": {
        "use_skip_connections": True,
        "projection_dim": SIZE,
        "cell_clip": 0.5,
        "proj_clip": 0.3,
        "dim": CELLS,
        "n_layers": 2,
    },
    "char_cnn": {
        "activation": "relu",
        "filters": FILTERS,
        "n_highway": 1,
        "embedding": {"dim": DIM},
        "n_characters": 262,
        "max_characters_per_token": INNER,
    },
    "dropout": 0.1,
    "bidirectional": True,
    "n_tokens_vocab": 23,
}


def draw_arrays():
    """Returns arrays by the names and with the shapes of the published files."""
    size, shapes = sum(number for _, number in FILTERS), {"char_embed": (261, DIM)}
    for number, (width, count) in enumerate(FILTERS):
        shapes |= {f"CNN/W_cnn_{number}": (1, width, DIM, count), f"CNN/b_cnn_{number}": (count,)}
    for part in ("carry", "transform"):
        shapes |= {f"CNN_high_0/W_{part}": (size, size), f"CNN_high_0/b_{part}": (size,)}
    shapes |= {"CNN_proj/W_proj": (size, SIZE), "CNN_proj/b_proj": (SIZE,)}
    for direction in range(2):
        for layer in range(2):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes |= {f"{cell}/W_0": (2 * SIZE, 4 * CELLS), f"{cell}/B": (4 * CELLS,), f"{cell}/W_P_0": (CELLS, SIZE)}
    rng = np.random.default_rng(0)
    return {name: (rng.normal(size=shape) / 2).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def directory(tmp_path):
    write(tmp_path / "published", draw_arrays())
    return tmp_path / "published"


def write(path, arrays, options=OPTIONS):
    path.mkdir()
    with h5py.File(path / "weights.hdf5", "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
    (path / "options.json").write_text(json.dumps(options))


def read(path):
    found = {}
    with h5py.File(path / "weights.hdf5") as file:
        file.visititems(lambda name, item: found.update({name: item[...]} if hasattr(item, "shape") else {}))
    return found


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def states(arrays, characters):
    """Returns the three states of the words of a text `[words, characters]`, as bilm-tf computes them."""
    text = np.concatenate([[boundary(BEGIN_OF_TEXT, INNER)], characters, [boundary(END_OF_TEXT, INNER)]])
    x, pooled = arrays["char_embed"][text - 1], []
    for number, (width, _) in enumerate(FILTERS):
        kernel = arrays[f"CNN/W_cnn_{number}"][0]
        windows = np.stack([x[:, first : first + width] for first in range(INNER - width + 1)], axis=1)
        pooled.append(
            np.maximum(np.einsum("npwd,wdf->npf", windows, kernel).max(axis=1) + arrays[f"CNN/b_cnn_{number}"], 0)
        )
    x = np.concatenate(pooled, axis=1)
    carry = sigmoid(x @ arrays["CNN_high_0/W_carry"] + arrays["CNN_high_0/b_carry"])
    transformed = np.maximum(x @ arrays["CNN_high_0/W_transform"] + arrays["CNN_high_0/b_transform"], 0)
    x = (carry * transformed + (1 - carry) * x) @ arrays["CNN_proj/W_proj"] + arrays["CNN_proj/b_proj"]
    layers = [[x, x]]
    for layer in range(2):
        both = []
        for direction in range(2):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            inputs, c, h, outputs = (
                layers[-1][direction][:: -1 if direction else 1],
                np.zeros(CELLS),
                np.zeros(SIZE),
                [],
            )
            for word in inputs:
                gates = np.concatenate([word, h]) @ arrays[f"{cell}/W_0"] + arrays[f"{cell}/B"]
                i, j, f, o = np.split(gates, 4)
                c = np.clip(sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j), -0.5, 0.5)
                h = np.clip((sigmoid(o) * np.tanh(c)) @ arrays[f"{cell}/W_P_0"], -0.3, 0.3)
                outputs.append(h + word if layer else h)
            both.append(np.stack(outputs)[:: -1 if direction else 1])
        layers.append(both)
    return np.stack([np.concatenate(both, axis=1)[1:-1] for both in layers])


@pytest.mark.parametrize("prefix", ["", "elmo_2x4096_512_2048cnn_2xhighway_"])
def test_imported_model_has_the_states_of_the_published_code(prefix, directory, tmp_path):
    for name in ("options.json", "weights.hdf5"):  # published files have the name of the model before
        (directory / name).rename(directory / f"{prefix}{name}")
    convert(Source(str(directory)), Target(str(tmp_path / "run")))
    loaded = open_model(str(tmp_path / "run"), partitioner=Partitioner(rules="dp"))
    assert loaded.objective.max_characters == INNER
    characters = np.random.default_rng(1).integers(1, 262, (1, 6, INNER)).astype(np.int32)
    batch = {"encoder_input_tokens": np.ones((1, 6), np.int32), CHARACTERS: characters}
    captured = loaded.read_model()(batch, capture=("encoder/embedding", "encoder/layers/hidden")).captured
    found = jnp.concatenate([captured["encoder/embedding"][None], captured["encoder/layers/hidden"]])[:, 0]
    assert_close({"states": found}, {"states": states(draw_arrays(), characters[0])})


def test_round_trip_keeps_all_arrays(directory, tmp_path):
    for step in (1, 2):  # checkpoints that bilm-tf leaves in the same directory
        (directory / f"model.ckpt-{step}.index").touch()
    convert(Source(str(directory)), Target(str(tmp_path / "run")))
    model = open_model(str(tmp_path / "run")).config
    convert(Source(str(tmp_path / "run"), model=model), Target(str(tmp_path / "again")))
    expected, found = read(directory), read(tmp_path / "again")
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert weight_files.is_published(str(tmp_path / "again"))
    written = json.loads((tmp_path / "again" / "options.json").read_text())
    assert written["char_cnn"].pop("max_characters_per_token") == 50
    expected = json.loads(json.dumps(OPTIONS))
    del expected["char_cnn"]["max_characters_per_token"]
    assert written == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays, options: arrays.pop("CNN_proj/b_proj"), "array 'CNN_proj/b_proj' is missing"),
        (lambda arrays, options: arrays.update(other=np.zeros(1)), "unexpected array 'other'"),
        (lambda arrays, options: options["lstm"].update(dim=7), "B' has shape .24,.*needs shape .28,."),
        (lambda arrays, options: options["char_cnn"].pop("filters"), "options.json: char_cnn.filters: missing"),
        (lambda arrays, options: options["char_cnn"].update(activation="tanh"), "activation='tanh': not supported"),
        (lambda arrays, options: options.update(bidirectional=False), "bidirectional=False: not supported"),
        (lambda arrays, options: options["lstm"].update(n_layers=10**7), "lstm.n_layers 10000000: .* at most 64"),
        (lambda arrays, options: options["lstm"].update(dim=[4]), "options.json: lstm.dim .4.: must be a positive int"),
        (lambda arrays, options: options["lstm"].update(dim=2**31 - 1), "bytes of arrays in a file of"),
        (lambda arrays, options: options["char_cnn"].update(filters=[1, 2]), "char_cnn.filters=.1, 2.: must be a list"),
        (lambda arrays, options: arrays.update(char_embed=np.zeros((261, DIM), np.int32)), "has dtype int32"),
    ],
)
def test_invalid_files_raise(tmp_path, change, message):
    arrays, options = draw_arrays(), json.loads(json.dumps(OPTIONS))
    change(arrays, options)
    write(tmp_path / "published", arrays, options)
    with pytest.raises(UserError, match=message):
        elmo_files.read(str(tmp_path / "published"))


def replace(directory, name, create):
    with h5py.File(directory / "weights.hdf5", "a") as file:
        shape, dtype = file[name].shape, file[name].dtype
        del file[name]
        create(file, shape, dtype)


def external(file, shape, dtype):
    secret = file.filename.replace("weights.hdf5", "secret")
    file.create_dataset("char_embed", shape, dtype, external=[(secret, 0, h5py.h5f.UNLIMITED)])


def virtual(file, shape, dtype):
    layout = h5py.VirtualLayout(shape, dtype)
    layout[:] = h5py.VirtualSource(file.filename.replace("weights.hdf5", "other.hdf5"), "secret", shape)
    file.create_virtual_dataset("char_embed", layout)


@pytest.mark.parametrize("create", [external, virtual])
def test_values_in_other_files_are_not_read(directory, create):
    """Otherwise the weights of a stranger would copy a file of this machine into a model."""
    values = np.full((261, DIM), 7, np.float32)
    (directory / "secret").write_bytes(values.tobytes())
    with h5py.File(directory / "other.hdf5", "w") as file:
        file["secret"] = values
    replace(directory, "char_embed", create)
    with h5py.File(directory / "weights.hdf5") as file:
        np.testing.assert_array_equal(file["char_embed"], values)  # h5py follows the reference
    with pytest.raises(UserError, match="weights.hdf5: array 'char_embed' is stored in other files of this machine"):
        elmo_files.read(str(directory))


def test_values_that_are_not_stored_raise(directory):
    replace(directory, "char_embed", lambda file, *rest: file.create_dataset("char_embed", *rest, chunks=(9, DIM)))
    with pytest.raises(UserError, match="weights.hdf5: the file does not have the values of array 'char_embed'"):
        elmo_files.read(str(directory))


def test_truncated_file_raises(directory):
    file = directory / "weights.hdf5"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match="weights.hdf5: not an HDF5 file, or damaged"):
        elmo_files.read(str(directory))


def test_other_commands_name_convert(directory):
    with pytest.raises(UserError, match="published weights, which only convert reads"):
        open_model(str(directory))


def test_vectors_of_words(directory, tmp_path):
    """`embed` reads the characters of any word; all layers follow one another in a vector."""
    convert(Source(str(directory)), Target(str(tmp_path / "run")))
    loaded = open_model(str(tmp_path / "run"), partitioner=Partitioner(rules="dp"))
    (tmp_path / "in.txt").write_text("the naïve  extraordinary play\nplay\n")
    options = {"input_path": str(tmp_path / "in.txt"), "level": "token", "layers": "all"}
    found = np.load(embed(loaded, output_path=str(tmp_path / "out.npz"), **options))
    assert found["tokens"].tolist() == ["the", "naïve", "extraordinary", "play", "play"]
    for first, text in ((0, ["the", "naïve", "extraor", "play"]), (4, ["play"])):
        characters = [[259, *(1 + byte for byte in word.encode()), 260] for word in text]
        characters = np.array([each + [261] * (INNER - len(each)) for each in characters])
        expected = np.concatenate(states(draw_arrays(), characters), axis=-1)
        assert_close({"vectors": found["vectors"][first : first + len(text)]}, {"vectors": expected})
    (tmp_path / "ids.jsonl").write_text('{"inputs": [3, 4]}\n')
    with pytest.raises(UserError, match="ids.jsonl:1: .3, 4. is not text"):
        embed(loaded, **options | {"input_path": str(tmp_path / "ids.jsonl"), "output_path": str(tmp_path / "o.npz")})
