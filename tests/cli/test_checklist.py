"""A dry run notes the checks that are not possible on its machine, and raises the errors of all others."""

import time

import pytest

from t5x_like import stores
from t5x_like.cli import checklist
from t5x_like.cli.checklist import Checklist
from t5x_like.errors import UserError
from t5x_like.mesh import DeviceMismatchError
from t5x_like.packages import MissingPackageError


def raising(error, cause=None):
    def check():
        raise error from cause

    return check


def test_results_are_returned():
    checks = Checklist()
    assert checks.run("the data", lambda: 7) == 7
    assert list(checks.lines()) == []


@pytest.mark.parametrize(
    "error",
    [
        MissingPackageError("seqio is not installed"),
        DeviceMismatchError("the mesh needs 8 devices"),
        stores.StoreUnreachable("gs://bucket cannot be read"),
        ConnectionError("refused"),
    ],
)
def test_errors_of_the_machine_are_noted(error):
    checks = Checklist()
    assert checks.run("the data", raising(error)) is None
    assert checks.run("the teacher", raising(UserError("TEACHER=x: not read"), error)) is None
    assert list(checks.lines()) == [f"not checked: the data: {error}", "not checked: the teacher: TEACHER=x: not read"]


def test_mesh_that_does_not_fit_known_devices_is_an_error():
    with pytest.raises(DeviceMismatchError):
        Checklist(knows_devices=True).run("the mesh", raising(DeviceMismatchError("the mesh needs 8 devices")))


def test_damaged_message_of_protobuf_is_an_error():
    cause = type("DecodeError", (Exception,), {"__module__": "google.protobuf.message"})()
    with pytest.raises(UserError, match="damaged"):
        Checklist().run("the vocabulary", raising(UserError("spiece.model is damaged. Copy it again."), cause))


def test_subjects_with_one_reason_are_one_line():
    checks = Checklist()
    for subject in ("the data", "the teacher"):
        checks.skip(subject, "seqio is not installed")
    assert set(checks.unchecked) == {"the data", "the teacher"}
    assert list(checks.lines()) == ["not checked: the data: seqio is not installed"]


def test_errors_of_the_clients_of_stores_are_noted():
    error = type("HttpError", (Exception,), {"__module__": "gcsfs.retry"})("Anonymous caller: 401")
    checks = Checklist()
    assert checks.run("the data", raising(error)) is None
    assert list(checks.lines()) == ["not checked: the data: Anonymous caller: 401"]


def test_missing_objects_are_noted_if_their_store_does_not_answer(monkeypatch):
    error = UserError("pattern 'gs://bucket/x*': no file matches gs://bucket/x*.")
    for answers in (True, False):
        monkeypatch.setattr(checklist, "_answers", lambda url, answers=answers: answers)
        checks = Checklist()
        if answers:
            with pytest.raises(UserError, match="no file matches"):
                checks.run("the data", raising(error))
        else:
            assert checks.run("the data", raising(error)) is None and len(checks.unchecked) == 1


@pytest.mark.parametrize("link", ["file:///here/x", "https://example.com/page"])
def test_local_files_and_links_are_not_stores(link):
    with pytest.raises(UserError):
        Checklist().run("the data", raising(UserError(f"no file matches {link}. Give one.")))


def test_absolute_paths_may_exist_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in ("DATA=/mnt/x/y.txt: not found.", "pattern '/mnt/x/*.txt': no file matches file:///mnt/x/*.txt."):
        checks = Checklist(elsewhere=True)
        assert checks.run("the data", raising(UserError(text))) is None and checks.unchecked
        with pytest.raises(UserError):
            Checklist().run("the data", raising(UserError(text)))
    for text in (f"DATA={tmp_path}/y.txt: not found.", "DATA=y.txt: not found.", "DATA=/tmp: is a directory."):
        with pytest.raises(UserError):
            Checklist(elsewhere=True).run("the data", raising(UserError(text)))


def test_check_without_an_answer_is_noted(monkeypatch):
    monkeypatch.setattr(checklist, "ANSWER_SECONDS", 0.05)
    checks = Checklist()
    assert checks.run("the data", lambda: time.sleep(5)) is None
    assert list(checks.lines()) == ["not checked: the data: no answer within 0 s"]
