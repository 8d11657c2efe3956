"""The format of directories with weights, and explanations of unreadable ones."""

import json

import pytest

from t5x_like.checkpoints import weight_files


def directory(tmp_path, *names, config=None):
    for name in names:
        (tmp_path / name).touch()
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_config_and_safetensors_are_a_hugging_face_directory(tmp_path, name):
    assert weight_files.is_huggingface(directory(tmp_path, name, config={}))


def test_pickle_error_gives_conversion_command(tmp_path):
    path = directory(tmp_path, "pytorch_model.bin", config={"architectures": ["T5ForConditionalGeneration"]})
    assert not weight_files.is_huggingface(path)
    message = weight_files.explain_missing(path)
    assert "unsupported format of pytorch_model.bin, only safetensors" in message
    assert "from transformers import T5ForConditionalGeneration as Model; Model.from_pretrained(" in message
    (tmp_path / "config.json").write_text("[]")
    assert "import AutoModel as Model" in weight_files.explain_missing(path)


def test_missing_file_next_to_safetensors_is_named(tmp_path):
    assert "config.json not found next to model.safetensors" in weight_files.explain_missing(
        directory(tmp_path, "model.safetensors")
    )


def test_directory_without_weights_is_explained(tmp_path):
    for path in (str(tmp_path), f"{tmp_path}/none"):
        assert weight_files.explain_missing(path).startswith(f"{path}: no checkpoint found. Give a run directory, one")


def test_directory_of_an_adapter_is_explained(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    message = weight_files.explain_missing(str(tmp_path))
    assert f"only convert reads. Run `t5x_like convert --input={tmp_path} --output=RUN`" in message
