"""File operations on local paths and in a store."""

import errno
import os
import uuid

import fsspec
import pytest

from t5x_like import paths
from t5x_like.errors import RunFailed, UserError
from t5x_like.metrics import line_files


@pytest.fixture(params=["local", "file", "store"])
def root(request, tmp_path):
    return {"local": str(tmp_path), "file": f"file://{tmp_path}", "store": f"memory://{uuid.uuid4().hex}"}[
        request.param
    ]


def test_written_files_are_found_and_read(root):
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


def test_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)  # as /dev/stdout may be
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for file in (pipe, link):
        paths.write_atomic(file, "text")
        assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert pipe.is_fifo() and link.is_symlink() and sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_standard_output_is_appended_to_if_it_is_a_file(tmp_path, monkeypatch):
    """As root, a mistake would replace the /dev/stdout of the machine, so the test has another /dev."""
    file, devices = tmp_path / "output", tmp_path / "dev"
    devices.mkdir()
    (devices / "stdout").symlink_to(file)
    file.write_text("first")
    monkeypatch.setattr(paths, "_DEVICES", str(devices))
    paths.check_output_file("OUTPUT_PATH", devices / "stdout", overwrite=False)
    paths.write_atomic(devices / "stdout", "second")
    assert file.read_text() == "firstsecond" and os.listdir(devices) == ["stdout"]
    assert (devices / "stdout").is_symlink()


def test_names_and_paths_inside_a_directory():
    assert all(map(paths.is_name, ["train", "a.b", "...", "train[:1%]", "é"]))
    assert not any(map(paths.is_name, ["", ".", "..", "a/b", "/a", "a\\b", "a\0", "gs://a", None, 3]))
    assert all(map(paths.is_inside, ["a", "pass-000/0.array_record", "a/.../b"]))
    assert not any(map(paths.is_inside, ["", "/a", "a//b", "a/../b", "a/", "./a", "gs://a", None, ["a"]]))


def test_missing_file_raises(root):
    with pytest.raises(FileNotFoundError):
        paths.read_text(paths.join(root, "nothing"))


@pytest.mark.parametrize("error", [PermissionError("Forbidden"), TimeoutError(), ValueError("HTTP 401")])
@pytest.mark.parametrize("read", [paths.exists, paths.is_file, paths.listdir])
def test_store_that_cannot_be_read_is_not_empty(monkeypatch, read, error):
    """A run whose checkpoints cannot be listed must not begin again."""

    def info(self, path, **options):
        raise error

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "info", info)
    with pytest.raises(OSError, match=r"memory://bucket/run cannot be read: .*Check the network") as raised:
        read("memory://bucket/run")
    assert raised.value.__cause__ is error


def test_failed_write_keeps_the_old_contents(tmp_path, monkeypatch):
    file = str(tmp_path / "file")
    paths.write_atomic(file, "old")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            paths.write_atomic(file, "new")
    assert paths.read_text(file) == "old"
    paths.write_atomic(file, "newer")
    assert os.listdir(tmp_path) == ["file"]


def test_invalid_utf8_raises_and_names_file_and_line(root):
    file = paths.join(root, "config.gin")
    paths.write_atomic(file, b"a = 1\r\nb = '\xff'\n")
    with pytest.raises(UserError, match=r"config.gin, line 2: not valid UTF-8 \(byte 0xff\)"):
        paths.read_text(file)


def test_full_disk_overwrites_in_place(tmp_path, monkeypatch):
    file = tmp_path / "status.json"
    file.write_text("running, and longer than the next one")

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    paths.write_despite_full_disk(str(file), "failed")
    assert file.read_text() == "failed" and os.listdir(tmp_path) == ["status.json"]
    with pytest.raises(OSError, match="No space"):
        paths.write_despite_full_disk(str(tmp_path / "new"), "")


def test_home_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert paths.join("~/runs", "1") == "/home/someone/runs/1"
    assert paths.join("gs://bucket/~", "1") == "gs://bucket/~/1"


def test_is_local():
    assert paths.is_local("runs/1") and paths.is_local("file:///runs/1")
    assert not paths.is_local("gs://bucket/runs") and not paths.is_local("memory://runs")


@pytest.mark.parametrize("name", ["missing", "", "file/below"])
def test_unopenable_path_is_a_user_error(tmp_path, name):
    (tmp_path / "file").write_text("")
    path = tmp_path / name
    with pytest.raises(UserError, match=f"INPUT_PATH={path}: (no such file|is a directory|not a directory)"):
        with paths.explain_path_errors("INPUT_PATH", path):
            path.read_text()


def test_connection_error_is_not_converted():
    with pytest.raises(ConnectionResetError), paths.explain_path_errors("INPUT_PATH", "gs://bucket/x"):
        raise ConnectionResetError


def test_check_writable_does_not_create_the_directory(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    paths.check_writable("MODEL_DIR", tmp_path / "a" / "b")
    paths.check_writable("MODEL_DIR", "gs://bucket/run")
    assert not (tmp_path / "a").exists()
    with pytest.raises(UserError, match=f"MODEL_DIR={tmp_path}/file/run: {tmp_path}/file is not a directory"):
        paths.check_writable("MODEL_DIR", tmp_path / "file" / "run")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root can write everywhere
    with pytest.raises(UserError, match=f"{tmp_path} is not writable"):
        paths.check_writable("MODEL_DIR", tmp_path / "a")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        RuntimeError("write() failed: No space left on device; writing shard; Failed to close chunk_writer"),
    ],
)
def test_full_disk_is_explained(error):
    with pytest.raises(RunFailed) as raised, paths.explain_storage_errors("CACHE_DIR", "a/cache"):
        raise error
    assert str(raised.value) == (
        "CACHE_DIR=a/cache cannot be written: No space left on device. Free space or repair the storage, then repeat "
        "the command."
    )


def test_errors_of_something_else_than_storage_stay():
    for error in (KeyError("a"), OSError(errno.ECONNRESET, "connection reset"), UserError("No space left on device")):
        with pytest.raises(type(error)) as raised, paths.explain_storage_errors("CACHE_DIR", "a/cache"):
            raise error
        assert raised.value is error


@pytest.mark.parametrize("url", ["nothing://bucket/run", "s3://bucket/run"])
def test_url_without_a_package_is_a_user_error(url, monkeypatch):
    def missing(url):
        raise ImportError("Install s3fs to access S3")

    if url.startswith("s3"):
        monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(
        UserError, match=f"{url} cannot be opened: (Protocol not known|Install s3fs).* Give a local path"
    ):
        paths.exists(url)


def test_writing_does_not_follow_links(tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.write_text("of the user")
    for planted in (".file.tmp", "appended", "status"):
        (tmp_path / planted).symlink_to(other)
    with pytest.raises(OSError, match="symbolic link"):
        paths.write_atomic(str(tmp_path / "file"), "text")
    paths.write_atomic(str(tmp_path / "file"), "text")  # the link has been removed
    with pytest.raises(OSError, match="symbolic link"):
        line_files.AppendedFile(str(tmp_path / "appended")).append("line")

    def fail(path, contents):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(paths, "write_atomic", fail)
    with pytest.raises(OSError, match="symbolic link"):
        paths.write_despite_full_disk(str(tmp_path / "status"), "text")
    assert other.read_text() == "of the user" and (tmp_path / "file").read_text() == "text"
