"""`cache` and `clean` on a cluster of Dask: a scheduler and two workers, one of which is killed in the middle."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import web_archives
from slow_steps import SlowStep
from test_cache import write

from t5x_like import beam_errors, cli
from t5x_like.clean import clean
from t5x_like.cleaning import decontamination, duplicate_lines, duplicates, urls
from t5x_like.errors import RunFailed, UserError

pytest.importorskip("distributed", reason="needs the extra dask")
pytestmark = [pytest.mark.beam, pytest.mark.full, pytest.mark.timeout(600)]

RUNNER = "--runner=apache_beam.runners.dask.dask_runner.DaskRunner"


class Cluster:
    """A scheduler and two workers on this machine.

    Args:
      directory: a directory for the address of the scheduler and the files of the workers.
    """

    def __init__(self, directory: Path):
        self._directory, self._file = directory, directory / "scheduler.json"
        self._scheduler = self._start("scheduler", "--port=0", "--host=127.0.0.1", f"--scheduler-file={self._file}")
        while not self._file.exists():
            assert self._scheduler.poll() is None
            time.sleep(0.1)
        options = (f"--scheduler-file={self._file}", "--nworkers=1", "--nthreads=1", "--no-nanny")
        self.workers = [self._start("worker", *options) for _ in range(2)]
        address = json.loads(self._file.read_text())["address"]
        self.options = [RUNNER, f"--dask_client_address={address}", "--dask_partition_size=1"]

    def _start(self, *words: str) -> subprocess.Popen:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "dask", *words, "--no-dashboard"]
        return subprocess.Popen(command, cwd=self._directory, env=environment, stderr=subprocess.DEVNULL)

    def kill_a_worker_after(self, started) -> threading.Thread:
        """Kills a worker as soon as `started()` is true."""

        def kill():
            while not started():
                time.sleep(0.05)
            self.workers[0].kill()
            self.workers[0].wait()  # otherwise its process is still listed

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        return thread

    def close(self):
        for process in (*self.workers, self._scheduler):
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path):
    (tmp_path / "cluster").mkdir()
    made = Cluster(tmp_path / "cluster")
    yield made
    made.close()


@pytest.mark.slow
def test_cache_has_the_same_bytes_although_a_worker_is_killed(tmp_path, cluster):
    (alone,) = write(tmp_path / "one", shards=6).values()
    directory = tmp_path / "dask"
    killing = cluster.kill_a_worker_after(lambda: any(directory.rglob("*.array_record")))
    (found,) = write(directory, shards=6, beam=cluster.options).values()
    killing.join()
    assert cluster.workers[0].returncode == -signal.SIGKILL
    assert found.fingerprint == alone.fingerprint
    assert not list(directory.rglob("*.tmp"))


def test_clean_has_the_same_bytes_although_a_worker_is_killed(tmp_path, cluster):
    """Steps that group pages, and one that is interrupted."""
    pages = web_archives.PAGES | {f"http://{n}.example/a": f"A page about the number {n}.\n" * 3 for n in range(40)}
    (tmp_path / "crawl").mkdir()
    for number in range(4):
        chosen = dict(list(pages.items())[number::4])
        web_archives.write(tmp_path / "crawl" / f"{number}.warc.wet.gz", chosen)
    (tmp_path / "evaluation.jsonl").write_text(json.dumps({"text": next(iter(web_archives.PAGES.values()))}))
    steps = [
        urls.NewestPage(),
        SlowStep(str(tmp_path / "started")),
        duplicate_lines.DuplicateLines(min_sentences=0),
        duplicates.ExactDuplicates(),
        decontamination.Decontamination(patterns=[str(tmp_path / "evaluation.jsonl")], min_characters=20),
    ]
    arguments = dict(data_files=f"{tmp_path}/crawl/*", steps=steps, shards=3, validation_fraction=0.1)
    alone = clean(output=str(tmp_path / "one"), **arguments)
    (tmp_path / "started").unlink()
    killing = cluster.kill_a_worker_after((tmp_path / "started").exists)
    found = clean(output=str(tmp_path / "dask"), beam=cluster.options, **arguments)
    killing.join()
    assert cluster.workers[0].returncode == -signal.SIGKILL
    assert found == alone and found.counters["slow"]["passed"] == len(pages)
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "dask").iterdir()} == files


def test_errors_of_workers_are_those_of_the_user(tmp_path, cluster):
    (tmp_path / "a.jsonl").write_text('{"body": "lemon"}')
    with pytest.raises(UserError, match=r"/a.jsonl:1: the line has no field 'text'.*skips and counts such records\.$"):
        clean(data_files=f"{tmp_path}/*.jsonl", output=str(tmp_path / "out"), steps=[], beam=cluster.options)


def test_missing_scheduler_is_named(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "lemon"}')
    options = [RUNNER, "--dask_client_address=127.0.0.1:1", "--dask_connection_timeout=1"]
    with pytest.raises(RunFailed, match=r"BEAM: Timed out .* tcp://127.0.0.1:1 .*correct its address"):
        clean(data_files=f"{tmp_path}/*.jsonl", output=str(tmp_path / "out"), steps=[], beam=options)


def test_vocabulary_refuses_the_runner(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("lemon\n" * 99)
    assert beam_errors.is_dask([RUNNER]) and not beam_errors.is_dask(["--runner=DirectRunner"])
    words = ["vocabulary", f"--pattern={tmp_path}/a.txt", f"--output={tmp_path}/v", f"--gin.BEAM=['{RUNNER}']"]
    assert cli.main(words) == 2
    assert "DaskRunner lacks the side inputs" in capsys.readouterr().err
