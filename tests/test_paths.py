"""The same file operations on local paths and in a store."""

import os
import uuid

import pytest

from t5x_like import paths


@pytest.fixture(params=["local", "file", "store"])
def root(request, tmp_path):
    return {"local": str(tmp_path), "file": f"file://{tmp_path}", "store": f"memory://{uuid.uuid4().hex}"}[
        request.param
    ]


def test_what_is_written_is_found_and_read(root):
    file = paths.join(root, "run", "notes.txt")
    assert not paths.exists(file) and paths.listdir(paths.join(root, "run")) == []
    paths.write_atomic(file, "Grüße\n")
    paths.write_atomic(paths.join(root, "run", "deep", "data.bin"), b"\x00")
    assert paths.read_text(file) == "Grüße\n"
    assert paths.is_file(file) and not paths.is_file(paths.join(root, "run"))
    assert paths.exists(paths.join(root, "run"))
    assert paths.listdir(paths.join(root, "run")) == ["deep", "notes.txt"]
    paths.write_atomic(file, "new")
    assert paths.read_text(file) == "new"


def test_what_is_missing_raises(root):
    with pytest.raises(FileNotFoundError):
        paths.read_text(paths.join(root, "nothing"))


def test_a_failed_write_leaves_the_old_contents(tmp_path, monkeypatch):
    file = str(tmp_path / "file")
    paths.write_atomic(file, "old")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            paths.write_atomic(file, "new")
    assert paths.read_text(file) == "old"
    paths.write_atomic(file, "newer")
    assert os.listdir(tmp_path) == ["file"]


def test_home_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert paths.join("~/runs", "1") == "/home/someone/runs/1"
    assert paths.join("gs://bucket/~", "1") == "gs://bucket/~/1"


def test_which_paths_are_local():
    assert paths.is_local("runs/1") and paths.is_local("file:///runs/1")
    assert not paths.is_local("gs://bucket/runs") and not paths.is_local("memory://runs")
