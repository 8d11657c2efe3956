"""Longformer in the format of transformers, and Longformers of RoBERTas."""

import dataclasses
import json

import numpy as np
import pytest
from families import FAMILIES, random_model

from t5x_like import interop, parameters
from t5x_like.conversion.settings import Changes, Source, Target
from t5x_like.convert import convert
from t5x_like.errors import UserError
from t5x_like.models.longformer import BeforeSeparator, LongformerConfig

CONFIG = dataclasses.replace(FAMILIES["longformer"].config, global_tokens=None, max_global_tokens=64)
ROBERTA = FAMILIES["roberta"].config


def written(config, directory):
    params = {"model": random_model(config)}
    interop.to_huggingface(params, config, str(directory))
    return parameters.stack(parameters.named_leaves(params))


def test_separator_is_stored(tmp_path):
    config = dataclasses.replace(CONFIG, global_tokens=BeforeSeparator(separator_id=5))
    written(config, tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["sep_token_id"] == 5 and stored["attention_window"] == [6, 6]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_window": [4, 8]}, r"attention_window \[4, 8\]: not supported. Give all layers the same"),
        ({"attention_window": 5}, "attention_window 5: not supported"),
        ({"attention_window": []}, r"attention_window \[\]: not supported"),
    ],
)
def test_unsupported_windows_raise(changes, message, tmp_path):
    written(CONFIG, tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(UserError, match=message):
        interop.config_from_huggingface(str(tmp_path))


def test_roberta_becomes_a_longformer(tmp_path):
    old = written(ROBERTA, tmp_path / "roberta")
    run, exported, again = (str(tmp_path / name) for name in ("run", "exported", "again"))
    convert(Source(str(tmp_path / "roberta")), Target(run), Changes(long=40))
    model = LongformerConfig(
        **{f.name: getattr(ROBERTA, f.name) for f in dataclasses.fields(ROBERTA)} | {"max_length": 40}
    )
    convert(Source(run, model=model), Target(exported))
    config = interop.config_from_huggingface(exported)
    assert dataclasses.replace(config, special_tokens=None) == model
    new = interop.read(exported, config)
    table, offset = old["model/embeddings/position_embedder/embedding"], ROBERTA.position_offset
    rows = [*range(offset), *(offset + i % 16 for i in range(40))]
    np.testing.assert_array_equal(new.pop("model/embeddings/position_embedder/embedding"), table[rows])
    for name, leaf in new.items():
        np.testing.assert_array_equal(leaf, old[name.replace("_global", "")], err_msg=name)
    assert len(new) == len(old) - 1 + 6
    # A Longformer gets new copies of its projections.
    changed = written(CONFIG, tmp_path / "trained")
    kernel = "model/encoder/layers/attention/query_global/kernel"
    assert np.any(changed[kernel] != changed[kernel.replace("_global", "")])
    convert(Source(str(tmp_path / "trained")), Target(again), Changes(long=16))
    convert(Source(again, model=CONFIG), Target(str(tmp_path / "out")))
    found = interop.read(str(tmp_path / "out"), CONFIG)
    np.testing.assert_array_equal(found[kernel], changed[kernel.replace("_global", "")])


@pytest.mark.parametrize(
    ("config", "length", "message"),
    [
        (FAMILIES["bert"].config, 40, "LONG=40: the model is a BertConfig without the positions of RoBERTa"),
        (ROBERTA, 8, "LONG=8: the model has 16 positions. Give at least as many"),
    ],
)
def test_models_that_cannot_be_lengthened_raise(config, length, message, tmp_path):
    written(config, tmp_path / "model")
    with pytest.raises(UserError, match=message):
        convert(Source(str(tmp_path / "model")), Target(str(tmp_path / "run")), Changes(long=length))
