"""Errors for missing optional packages."""

import pytest

from t5x_like.errors import UserError
from t5x_like.packages import require


def test_missing_package_names_the_extra():
    assert require("json", "a test", extra="eval").dumps([]) == "[]"
    with pytest.raises(UserError, match=r"a test needs package_of_no_one, .*pip install -e '.\[eval\]'"):
        require("package_of_no_one.module", "a test", extra="eval")


def test_missing_dependency_of_a_package_is_shown(tmp_path, monkeypatch):
    (tmp_path / "needs_another.py").write_text("import package_of_no_one\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="package_of_no_one"):
        require("needs_another", "a test", extra="eval")
