"""All processes read the same weights: the sample of files, and two processes with other copies on their machines."""

import os
import sys

import copying_run
import numpy as np
import pytest
import small_models
from several_processes import CONFIGS, finish, output, start_processes
from t5x_layouts import LAYOUTS

from t5x_like.interop import safetensors_files
from t5x_like.models.t5 import T5Config
from t5x_like.stored import weight_agreement

pytestmark = pytest.mark.notf

# The model of run.gin.
MODEL = T5Config(vocab_size=32, embed_dim=16, mlp_dim=32, num_heads=4, head_dim=4, encoder_layers=1, decoder_layers=1)
BASE = "base/checkpoints/1"


def test_sample_has_each_tensor_of_a_hugging_face_directory(tmp_path):
    small_models.write_bert(tmp_path)
    tensors = dict(safetensors_files.Tensors(str(tmp_path)))
    tensors["large"] = np.arange(1_000_000, dtype=np.float32)
    file = tmp_path / safetensors_files.SINGLE
    safetensors_files.write(str(tmp_path), tensors)
    expected, contents = weight_agreement.sample(str(tmp_path)), file.read_bytes()
    assert expected.keys() == {"config.json", safetensors_files.SINGLE}
    start, ranges = safetensors_files.tensor_ranges(str(file))
    assert len(ranges) == len(tensors)
    for first, last in ranges:
        for position in {first, last - 1}:
            changed = bytearray(contents)
            changed[start + position] ^= 1
            file.write_bytes(changed)
            assert weight_agreement.sample(str(tmp_path)) != expected, position
    file.write_bytes(contents)
    (tmp_path / "README.md").write_text("Other texts do not matter.")
    assert weight_agreement.sample(str(tmp_path)) == expected


@pytest.mark.full
def test_sample_of_other_formats(tmp_path):
    directory = tmp_path / "run"
    copying_run.run(directory, model=MODEL, total=1)
    assert weight_agreement.sample(str(directory)) == weight_agreement.sample(str(directory / "checkpoints" / "1"))
    assert len(weight_agreement.sample(str(directory))) == 1
    for layout, write in LAYOUTS.items():
        samples = []
        for value in range(2):
            path = tmp_path / f"{layout}{value}"
            write(path, {"encoder/encoder_norm/scale": np.full(4, value, np.float32)})
            samples.append(weight_agreement.sample(str(path)))
        assert samples[0] != samples[1] and len(samples[0]) > 0, layout


# ---- two processes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """Returns a directory with the working directories 0 and 1 of two machines, each with its own run `base`."""
    directory = tmp_path_factory.mktemp("machines")
    for machine in range(2):
        copying_run.run(directory / str(machine) / "base", model=MODEL, total=1, seed=machine)
    return directory


def start(machines, name, *words):
    """Starts a command in the working directories of both machines. The output is beside them."""
    script = ["bash", "-c", f'cd {machines}/$T5X_LIKE_PROCESS_ID; exec "$@"', ""]
    return start_processes(machines / name, [*script, sys.executable, *words])


def check_refused(machines, name, processes, code):
    assert finish(processes) == [code] * 2, output(machines / name, 0)[-3000:]
    for process in range(2):
        message = f"{BASE}: process 1 of 2 has other weights than process 0"
        assert message in output(machines / name, process), output(machines / name, process)[-3000:]


@pytest.mark.full
@pytest.mark.parametrize("command", ["train", "distill"])
def test_training_from_other_copies_raises(machines, command):
    words = ["-m", "t5x_like", command, f"--gin_search_paths={CONFIGS}", f"--gin.MODEL_DIR={machines}/{command}_run"]
    words += ["--gin_file=synthetic.gin"]
    if command == "train":
        words += [f"--gin.weight_source.InitialWeights.path={os.path.dirname(os.path.dirname(BASE))}"]
    else:
        words += ["--gin_file=distillation/hinton.gin", "--gin.TEACHER=base"]
    check_refused(machines, command, start(machines, command, *words), 2)
    assert not list((machines / f"{command}_run").glob("checkpoints/*"))


@pytest.mark.full
def test_opening_other_copies_raises(machines):
    """As `eval`, `infer` and the other commands that read a model do."""
    code = (
        "from t5x_like.runtime import distributed; distributed.join()\n"
        "from t5x_like.loading import open_model; from t5x_like.models.t5 import T5Config\n"
        f"try: open_model('base', model={MODEL!r}).read_model()\n"
        "except Exception as error: distributed.exit_without_waiting(3, error)\n"
    )
    check_refused(machines, "open", start(machines, "open", "-c", code), 3)
