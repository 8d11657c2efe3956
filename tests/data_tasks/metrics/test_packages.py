"""Errors for missing packages of metrics."""

import pytest

from data_tasks.metrics.packages import require
from t5x_like.errors import UserError


def test_missing_package_names_the_extra():
    assert require("json").dumps([]) == "[]"
    with pytest.raises(UserError, match=r"pip install -e '.\[eval\]'"):
        require("package_of_no_one.module")


def test_missing_dependency_of_a_package_is_shown(tmp_path, monkeypatch):
    (tmp_path / "needs_another.py").write_text("import package_of_no_one\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="package_of_no_one"):
        require("needs_another")
