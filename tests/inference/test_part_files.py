"""The output of a command in parts, of which only complete ones are read."""

import errno
import os

import pytest
from fsspec.implementations.local import LocalFileSystem

from t5x_like.errors import RunFailed, UserError
from t5x_like.inference.part_files import PartFiles


@pytest.mark.parametrize("failing", ["000000000-000000002.jsonl.writing", "out.jsonl.writing"])
def test_full_disk_leaves_complete_parts_only(failing, tmp_path, monkeypatch):
    output = PartFiles(str(tmp_path / "out.jsonl"))
    output.open("a command")
    original = LocalFileSystem.open

    def full(filesystem, path, mode="rb", **options):
        if path.endswith(failing):
            original(filesystem, path, mode, **options).close()
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(filesystem, path, mode, **options)

    def write():
        output.write(0, [{"a": 1}, {"a": 2}])
        output.finish()

    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "open", full)
        with pytest.raises(RunFailed, match="OUTPUT_PATH=.*out.jsonl cannot be written: No space .* complete parts"):
            write()
    assert not list(tmp_path.rglob("*.writing")) and not (tmp_path / "out.jsonl").exists()
    write()
    assert os.listdir(tmp_path) == ["out.jsonl"] and (tmp_path / "out.jsonl").read_text() == '{"a": 1}\n{"a": 2}\n'


def test_a_pipe_is_refused(tmp_path):
    """It would be replaced by the file of all parts."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="OUTPUT_PATH=.*/pipe: a device or a pipe.* Give the path of a file"):
        PartFiles(str(pipe))
