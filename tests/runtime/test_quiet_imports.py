"""Importing TensorFlow prints no start-up lines, keeps other output, and does not import what Keras wraps."""

import os
import sys

import pytest

from t5x_like.runtime import quiet_imports

LIBRARY = """
import os
os.write(2, b"I0000 00:00:1.2 3 cudart_stub.cc:31] Could not find cuda drivers\\n")
os.write(2, b"something that went wrong\\n")
try:
    import wrapped_library
    FOUND = True
except ImportError:
    FOUND = False
"""


def test_only_start_up_lines_and_wrapped_packages_are_suppressed(tmp_path, monkeypatch, capfd):
    (tmp_path / "loud_library.py").write_text(LIBRARY)
    (tmp_path / "wrapped_library.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(quiet_imports, "PACKAGES", ("loud_library",))
    monkeypatch.setattr(quiet_imports, "_OPTIONAL_IN_KERAS", ("wrapped_library",))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    quiet_imports.install()
    quiet_imports.install()
    import loud_library

    assert not loud_library.FOUND
    import wrapped_library  # noqa: F401 (it is found later)

    assert capfd.readouterr().err == "something that went wrong\n"


def test_stderr_is_restored_after_an_exception(capfd):
    with pytest.raises(ImportError), quiet_imports.without_startup_lines():
        raise ImportError
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "later\n"
