"""Measures memory and time of commands on synthetic pages of any size.

    python benchmarks/corpus.py pages big --text 'books/*.txt' --files=2 --megabytes=5
    python benchmarks/corpus.py measure --cache=cached/train -- t5x_like cache --cache_dir=cached …
    python benchmarks/corpus.py measure -- t5x_like train …
    python benchmarks/corpus.py start --shards 1 100 5000

`pages` writes files of pages with URLs and dates, which are runs of sentences of text files, with the lengths of web
pages. A file depends on the text, its number and its size alone. `measure` runs a command and prints its time and the
peak memory of its processes, sampled five times a second; pages of memory that processes share count in each. `start`
prints the CPU time of starting from a cache of 100,000 rows in some numbers of shards.
"""

import argparse
import glob
import json
import random
import re
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil
from array_record.python.array_record_module import ArrayRecordWriter

from t5x_like.data import batches, specs
from t5x_like.data.cached import CachedSource, Layout, Shard
from t5x_like.data.cached import manifest as manifests
from t5x_like.data.cached.rows import encode
from t5x_like.data.cached.writer import WRITER_OPTIONS

FORMATS = ("jsonl.zst", "parquet")
# The lengths of pages in sentences are log-normal: half of the pages have fewer than 14, a tenth more than 58.
MEDIAN_SENTENCES, DEVIATION = 14, 1.1
PAUSE = 0.2
# The rows of `start`.
LENGTHS, ROWS, BATCH_SIZE, BATCHES = {"inputs": 512, "targets": 114}, 100_000, 128, 20


def sentences_of(patterns: Sequence[str]) -> list[str]:
    """Returns the sentences of text files, in order."""
    paths = sorted(path for pattern in patterns for path in glob.glob(pattern))
    text = " ".join(" ".join(Path(path).read_text(encoding="utf-8").split()) for path in paths)
    if not (found := [sentence for sentence in re.split(r"(?<=[.!?]) ", text) if sentence]):
        raise SystemExit(f"--text {' '.join(patterns)}: no text found. Give text files.")
    return found


def pages(sentences: Sequence[str], file: int, size: int) -> Iterator[dict[str, str]]:
    """Yields pages with `size` bytes of text in total.

    Args:
      sentences: sentences of the pages, in order.
      file: number of the file, the seed.
      size: bytes of text.
    """
    draw, written, number = random.Random(file), 0, 0
    while written < size:
        length = max(1, round(MEDIAN_SENTENCES * draw.lognormvariate(0, DEVIATION)))
        start = draw.randrange(len(sentences))
        text = " ".join(sentences[start : start + length])
        date = f"20{draw.randrange(10, 26)}-{draw.randrange(1, 13):02d}-{draw.randrange(1, 29):02d}T00:00:00Z"
        yield {"url": f"https://www.example.org/{file}/{number}", "text": text, "timestamp": date}
        written, number = written + len(text.encode()), number + 1


def write(path: Path, found: Iterator[dict[str, str]]) -> None:
    """Writes the pages of a file; a Parquet file is one row group."""
    if path.suffix == ".parquet":
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        pq.write_table(pa.Table.from_pylist(list(found)), path, compression="zstd")
        return
    import zstandard  # noqa: PLC0415

    with zstandard.open(path, "wt", encoding="utf-8") as file:
        for page in found:
            file.write(json.dumps(page, ensure_ascii=False) + "\n")


def write_pages(arguments: argparse.Namespace) -> None:
    """Writes all files that do not exist."""
    sentences, directory = sentences_of(arguments.text), Path(arguments.output)
    directory.mkdir(parents=True, exist_ok=True)
    for file in range(arguments.files):
        path = directory / f"{file:05d}.{arguments.format}"
        if not path.exists():
            unfinished = path.with_name(f"unfinished.{arguments.format}")
            write(unfinished, pages(sentences, file, round(arguments.megabytes * 1e6)))
            unfinished.rename(path)
    sizes = [path.stat().st_size for path in directory.glob(f"*.{arguments.format}")]
    print(
        f"{len(sizes)} files of {arguments.megabytes:g} MB of text, {sum(sizes) / 1e6:,.1f} MB in all, in {directory}"
    )


def measure(arguments: argparse.Namespace) -> None:
    """Runs a command, and prints time and memory."""
    command = arguments.command[arguments.command[:1] == ["--"] :]
    started, process = time.monotonic(), psutil.Popen(command)
    peaks: dict[int, int] = {}
    total = 0
    while process.poll() is None:
        sizes = dict(_sizes(process))
        peaks |= {pid: max(size, peaks.get(pid, 0)) for pid, size in sizes.items()}
        total = max(total, sum(sizes.values()))
        time.sleep(PAUSE)
    seconds, used = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise SystemExit(process.returncode)
    cpu_seconds, first = used.ru_utime + used.ru_stime, peaks.pop(process.pid, 0)
    others = f", {max(peaks.values()) / 1e6:,.0f} MB the largest of {len(peaks)} others" if peaks else ""
    print(f"time: {seconds:,.1f} s, {cpu_seconds:,.1f} CPU seconds")
    print(f"peak memory: {first / 1e6:,.0f} MB the command{others}, {total / 1e6:,.0f} MB together")
    if arguments.cache:
        shards = json.loads(Path(arguments.cache, "manifest.json").read_text())["shards"]
        tokens = sum(sum(shard["tokens"]) for shard in shards)
        print(f"cache: {tokens:,} tokens, {tokens / cpu_seconds:,.0f} per CPU second")


def write_cache(directory: Path, number: int) -> None:
    """Writes a cache of rows of random ids to a number of shards."""
    layout, draw = Layout.of(specs.ENCODER_DECODER, LENGTHS, pack=False), np.random.default_rng(0)
    dtypes, spec = ("<u2",) * len(layout.values), layout.storage_spec(specs.ENCODER_DECODER)
    (directory / "pass-000").mkdir(parents=True)
    stored = []
    for shard in range(number):
        rows = ROWS // number
        tokens = {name: draw.integers(1, 32_000, (rows, length), np.int32) for name, length in LENGTHS.items()}
        file = f"pass-000/{shard:05d}-of-{number:05d}.array_record"
        writer = ArrayRecordWriter(str(directory / file), WRITER_OPTIONS)
        for record in encode(batches.from_arrays(spec, tokens), layout, dtypes):
            writer.write(record)
        writer.close()
        counts = tuple(rows * length for length in LENGTHS.values())
        stored.append(Shard(file, rows, (directory / file).stat().st_size, "", 0, rows, counts))
    settings = {"task": "random", "split": directory.name, "module": None, "task_arguments": None}
    vocabularies = {name: {"kind": "", "ids": 32_000, "sample": ""} for name in LENGTHS}
    manifests.Manifest(settings, layout, dtypes, vocabularies, tuple(stored)).write(str(directory))


def start(arguments: argparse.Namespace) -> None:
    """Prints a row of a table per number of shards."""
    print("shards | manifest | sizes and manifest | first batch | further batches, each (CPU milliseconds)")
    for number in arguments.shards:
        with tempfile.TemporaryDirectory() as root:
            directory = Path(root, "train")
            write_cache(directory, number)
            times = [time.process_time()]
            manifests.check_files(str(directory), manifests.read(str(directory)).shards)
            times.append(time.process_time())
            iterator = CachedSource(cache_dir=root, batch_size=BATCH_SIZE).host_iterator(specs.ENCODER_DECODER)
            next(iterator)
            times.append(time.process_time())
            for _ in range(BATCHES):
                next(iterator)
            times.append(time.process_time())
            checked, first, others = 1000 * np.diff(times)
            size = (directory / manifests.MANIFEST).stat().st_size / 1e3
            print(f"{number} | {size:,.0f} kB | {checked:.0f} | {first:.0f} | {others / BATCHES:.1f}")


def _sizes(process: psutil.Process) -> Iterator[tuple[int, int]]:
    """Yields the id and the resident memory of a process and of the processes that it has started."""
    try:
        for each in (process, *process.children(recursive=True)):
            yield each.pid, each.memory_info().rss
    except psutil.NoSuchProcess:
        return  # a process has just ended


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    of_pages = commands.add_parser("pages", help="write synthetic pages")
    of_pages.add_argument("output", help="directory to write to; files that exist are kept")
    of_pages.add_argument("--text", nargs="+", required=True, help="patterns of text files")
    of_pages.add_argument("--files", type=int, default=2)
    of_pages.add_argument("--megabytes", type=float, default=5.0, help="text per file")
    of_pages.add_argument("--format", choices=FORMATS, default=FORMATS[0])
    of_pages.set_defaults(run=write_pages)
    of_command = commands.add_parser("measure", help="run a command and print its time and memory")
    of_command.add_argument("--cache", help="directory of the split of a cache that the command writes")
    of_command.add_argument("command", nargs=argparse.REMAINDER)
    of_command.set_defaults(run=measure)
    of_start = commands.add_parser("start", help="measure the start from caches of many shards")
    of_start.add_argument("--shards", type=int, nargs="+", default=[1, 100, 5000])
    of_start.set_defaults(run=start)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
