"""Commands that read the newest checkpoint of a live run, which deletes it meanwhile, choose again."""

import dataclasses
import json
import shutil
import threading

import copying_run
import pytest

from t5x_like.checkpoints import checkpoint_choice, checksums
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.errors import UserError
from t5x_like.eval import evaluate
from t5x_like.loading import open_model
from t5x_like.report import report

pytestmark = pytest.mark.notf


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished") / "run"
    copying_run.run(directory)
    return directory


@pytest.fixture
def rotating(finished, tmp_path, monkeypatch):
    """Returns a run that saves step 9 and deletes step 6 when step 6 is read."""
    directory = tmp_path / "run"
    shutil.copytree(finished, directory)
    read = Checkpoints.read

    def rotate_then_read(self, step, shapes):
        if step == 6:
            shutil.copytree(directory / "checkpoints" / "3", directory / "checkpoints" / "9")
            files = [path for path in (directory / "checkpoints" / "6").rglob("*") if path.is_file()]
            for file in files[::2]:
                file.unlink()
            # The rest is deleted a little later.
            threading.Timer(0.3, shutil.rmtree, [directory / "checkpoints" / "6"]).start()
        return read(self, step, shapes)

    monkeypatch.setattr(Checkpoints, "read", rotate_then_read)
    return directory


@dataclasses.dataclass
class Rows(copying_run.Copying):
    batch_size: int = 8

    def per_task(self):
        return [self]


def opened(directory, **options):
    return open_model(str(directory), model=copying_run.CONFIG, objective=copying_run.SequenceToSequence(), **options)


def test_model_is_read_from_the_next_checkpoint(rotating):
    loaded = opened(rotating)
    loaded.read()
    assert loaded.checkpoint_path == str(rotating / "checkpoints" / "9")


def evaluated(directory):
    return [result["step"] for result in json.loads((directory / "eval" / "results.json").read_text())]


def test_evaluation_uses_the_next_checkpoint(rotating):
    assert evaluate(opened(rotating), data=Rows(), eval_steps=2, task_metrics=False)["loss"] > 0
    assert evaluated(rotating) == [9]


def test_all_checkpoints_are_evaluated_but_the_deleted_one(rotating):
    loaded = opened(rotating, checkpoint=checkpoint_choice.ALL)
    evaluate(loaded, data=Rows(), eval_steps=2, task_metrics=False)
    assert evaluated(rotating) == [3]


def test_conversion_uses_the_next_checkpoint(rotating, tmp_path):
    convert(Source(str(rotating), model=copying_run.CONFIG), Target(str(tmp_path / "out")))
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_named_checkpoint_is_not_replaced(rotating):
    with pytest.raises(Exception, match="6"):
        opened(rotating, checkpoint=6).read()


def test_damaged_checkpoint_is_not_replaced(finished, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(finished, directory)
    file = max((directory / "checkpoints" / "6" / "state").rglob("*"), key=lambda file: file.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match="checkpoints/6 is damaged"):
        opened(directory).read()


def test_best_checkpoint_is_chosen_of_those_that_stay(finished, tmp_path, monkeypatch):
    directory = tmp_path / "run"
    shutil.copytree(finished, directory)
    verify = checksums.verify

    def delete_then_verify(about, *rest):
        shutil.rmtree(directory / "checkpoints" / "6", ignore_errors=True)
        return verify(about, *rest)

    monkeypatch.setattr(checksums, "verify", delete_then_verify)
    assert checkpoint_choice.choose(str(directory), "best") == [str(directory / "checkpoints" / "3")]


@pytest.mark.full
def test_report_of_a_live_run(finished, tmp_path):
    """Its checkpoints appear and disappear in a thread."""
    directory, ends = tmp_path / "run", threading.Event()
    shutil.copytree(finished, directory)

    def rotate():
        while not ends.is_set():
            shutil.copytree(directory / "checkpoints" / "3", directory / "checkpoints" / "9")
            shutil.rmtree(directory / "checkpoints" / "9")

    thread = threading.Thread(target=rotate)
    thread.start()
    try:
        for _ in range(5):
            report(model_dirs=str(directory), output=str(tmp_path / "report.html"))
            assert "No such file" not in (tmp_path / "report.html").read_text()
    finally:
        ends.set()
        thread.join()
