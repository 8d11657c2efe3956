"""Models that transformers or t5x_like do not support are refused."""

import pytest
from families import FAMILIES, random_model

from t5x_like import interop
from t5x_like.errors import UserError


def test_unknown_model_type_and_missing_config_raise(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "squid"}')
    with pytest.raises(
        UserError, match="config.json: model_type 'squid': not supported. Supported: albert, bart, bert, .*t5"
    ):
        interop.config_from_huggingface(str(tmp_path))
    with pytest.raises(UserError, match="nowhere/config.json: file not found"):
        interop.config_from_huggingface(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if not family.huggingface])
def test_unsupported_families_raise_and_write_nothing(name, tmp_path):
    config = FAMILIES[name].config
    with pytest.raises(UserError, match="transformers"):
        interop.to_huggingface({"model": random_model(config)}, config, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
