"""`t5x_like cache` with PROVENANCE: the documents of rows; and how shards divide files and are read by the thousand."""

import json
import re
import resource
from fractions import Fraction

import pytest
import web_archives
from array_record.python.array_record_module import ArrayRecordWriter
from rich.console import Console

from t5x_like import cache as command
from t5x_like import inspect_task
from t5x_like.data.cached import CachedSource, origins_file, shards
from t5x_like.data.cached.manifest import StoredFile
from t5x_like.data.cached.source import RowReader
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.errors import RunFailed, UserError
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence

LETTERS = "abcdefghij"
TEXTS = [f"{first}{second}" * 2 for first in LETTERS for second in LETTERS]
"""A hundred words of one document each, with different words."""


def text_of(number):
    return " ".join([TEXTS[number]] * (1 + number % 7))


def write_jsonl(path):
    for file in range(2):
        numbers = range(50 * file, 50 * file + 50)
        rows = [{"text": text_of(n), "url": f"http://a.example/{n}", "timestamp": "2020-01-02"} for n in numbers]
        (path / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_parquet(path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"text": text_of(n), "url": f"http://a.example/{n}", "timestamp": "2020-01-02"} for n in range(100)]
    pq.write_table(pa.Table.from_pylist(rows), path / "0.parquet", row_group_size=7)


def write_archive(path):
    pytest.importorskip("warcio")
    pages = [(f"http://a.example/{n}", text_of(n)) for n in range(100)]
    web_archives.write(path / "0.wet.gz", pages, date="2020-01-02")


def write_text(path):
    lines = [line for n in range(100) for line in (text_of(n), *[""] * 63)]  # a document is 64 lines
    (path / "0.txt").write_text("\n".join(lines) + "\n")


def source(path, task="text_files_causal_lm", lengths=None, **changes):
    settings = {"task_feature_lengths": lengths or {"targets": 40}, "batch_size": 1, "data_files": f"{path}/*.*"}
    arguments = {"validation_fraction": 0.0}
    return SeqIOSource(mixture_or_task_name=task, task_arguments=arguments, **(settings | changes))


def write_cache(path, objective=None, provenance=True, shards=2, **changes):
    name = path / f"cache_{provenance}"
    settings = {"objective": objective or CausalLM(), "shards": shards, "processes": 1, "console": Console(quiet=True)}
    (written,) = command.cache(
        data=source(path, **changes), cache_dir=str(name), provenance=provenance, **settings
    ).values()
    return CachedSource(cache_dir=str(name), batch_size=4, seed=1), written


def documents_in(vocabulary, ids):
    """Returns the numbers of the documents whose words are in a row, in their order."""
    found = []
    for number in ids.tolist():  # decoding ends at the first EOS
        found = [*found, []] if number == vocabulary.eos_id or not found else found
        if number not in (0, vocabulary.eos_id):
            found[-1].append(number)
    words = re.findall("[a-j]{4}", " ".join(map(vocabulary.decode, found)))
    return list(dict.fromkeys(TEXTS.index(word) for word in words if word in TEXTS))


@pytest.fixture(scope="module")
def jsonl_cache(tmp_path_factory):
    """Returns a directory with files of JSON lines, their cache, which tests must not change, and its manifest."""
    path = tmp_path_factory.mktemp("jsonl")
    write_jsonl(path)
    return path, *write_cache(path)


# ---- the documents of rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "place"),
    [
        (write_jsonl, "{path}/{file}.jsonl:{line}"),
        pytest.param(write_parquet, "{path}/0.parquet, row {number} (from 0)", marks=pytest.mark.full),
        # Record 0 describes the archive.
        pytest.param(write_archive, "{path}/0.wet.gz, record {line} (from 0)", marks=pytest.mark.full),
        pytest.param(write_text, "{path}/0.txt:{first}", marks=pytest.mark.full),
    ],
)
def test_each_row_names_its_documents(tmp_path, jsonl_cache, write, place):
    if write is write_jsonl:
        tmp_path, cached, written = jsonl_cache
    else:
        write(tmp_path)
        cached, written = write_cache(tmp_path)
    vocabulary, read = cached.vocabularies()["targets"], RowReader(cached, CausalLM().features)
    rows = sum(written.rows_of_passes)
    assert rows > 20
    for row in range(rows):
        named = [document for example in origins_file.read(cached, row) for document in example]
        numbers = documents_in(vocabulary, read([row])["decoder_target_tokens"][0])
        by_place = {
            place.format(path=tmp_path, file=n // 50, line=(n % 50 if write is write_jsonl else n) + 1, number=n,
                         first=64 * n + 1): n
            for n in range(100)
        }  # fmt: skip
        found = [by_place[document["place"]] for document in named]
        # A document of which the row has a part of a word only is named, too.
        assert set(numbers) <= set(found) and len(found) <= len(numbers) + 2
        assert found == sorted(found)
        if write is not write_text:
            expected = [(f"http://a.example/{n}", "2020-01-02") for n in found]
            assert [(document["url"], document["timestamp"]) for document in named] == expected


@pytest.mark.parametrize(
    ("task", "objective", "lengths"),
    [
        ("text_files_span_corruption", SequenceToSequence(), {"inputs": 48, "targets": 20}),
        pytest.param("text_files_masked_lm", MaskedLM(), {"inputs": 24, "targets": 4}, marks=pytest.mark.slow),
        pytest.param("text_files_full_sentences", MaskedLM(), {"inputs": 24, "targets": 4}, marks=pytest.mark.full),
    ],
)
def test_rows_are_the_same_with_provenance(tmp_path, task, objective, lengths, request):
    write_jsonl(tmp_path)
    changes = {"task": task, "objective": objective, "lengths": lengths, "pack": objective.features.packable}
    if objective.features.packable is False:
        changes["vocabulary_path"] = request.getfixturevalue("wordpiece")
    without, with_documents = (write_cache(tmp_path, provenance=given, **changes) for given in (False, True))
    assert [shard.checksum for shard in with_documents[1].shards] == [shard.checksum for shard in without[1].shards]
    examples = sum(len(origins_file.read(with_documents[0], n)) for n in range(sum(without[1].rows_of_passes)))
    assert examples == sum(shard.examples for shard in without[1].shards)
    with pytest.raises(UserError, match=r"does not contain the documents of its rows.*PROVENANCE=True"):
        origins_file.read(without[0], 0)


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wordpiece")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    (directory / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (directory / "config.json").write_text(json.dumps({"model_type": "bert"}))
    return str(directory)


def test_inspect_prints_the_documents_of_a_row_of_a_batch(jsonl_cache):
    path, cached, _ = jsonl_cache
    iterator = cached.host_iterator(CausalLM().features)
    next(iterator)
    wanted = next(iterator)["decoder_target_tokens"][2]
    console = Console(record=True, width=200, quiet=True)
    live = SeqIOSource(
        mixture_or_task_name="text_files_causal_lm",
        task_feature_lengths={},
        batch_size=4,
        seed=1,
        data_files=f"{path}/*.jsonl",
    )
    found = inspect_task.inspect(live, cache_dir=cached.cache_dir, row=2, step=2, console=console)
    numbers = documents_in(cached.vocabularies()["targets"], wanted)
    assert len(numbers) > 1 and set(numbers) <= {int(fields["url"].rpartition("/")[2]) for _, fields in found.origins}
    rows = sum(cached.manifest.rows_of_passes)
    with pytest.raises(UserError, match=rf"ROW={rows}: the cache .* has the rows 0 to {rows - 1}"):
        origins_file.read(cached, rows)


def test_lost_documents_are_written_again(jsonl_cache):
    path, cached, written = jsonl_cache
    file = path / "cache_True" / "train" / origins_file.name(written.shards[1].file)
    whole, first = file.read_bytes(), written.shards[0].rows
    file.write_bytes(whole[:-70])
    with pytest.raises(UserError, match=rf"{re.escape(origins_file.name(written.shards[1].file))} in the cache .*read"):
        origins_file.read(cached, first)
    file.unlink()
    write_cache(path)
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    ("changes", "examples", "message"),
    [
        ({}, None, "PROVENANCE=True: cache_text does not carry the places .*; docs/corpus.md names the tasks"),
        (
            {"continuous": True, "shuffle": False, "pack": False},
            None,
            "PROVENANCE=True, CONTINUOUS: .* Remove CONTINUOUS, or set PROVENANCE=False",
        ),
        (
            {"mixture_or_task_name": "cache_mixture", "task_feature_lengths": {"inputs": 48, "targets": 24}},
            10,
            "PROVENANCE=True, EXAMPLES: exclude each other",
        ),
    ],
)
def test_rows_without_places_raise(tmp_path, changes, examples, message):
    settings = {"mixture_or_task_name": "cache_text", "module": "cache_tasks", "task_feature_lengths": {"targets": 40}}
    with pytest.raises(UserError, match=message):
        command.cache(
            data=SeqIOSource(**settings | changes, batch_size=1),
            objective=CausalLM(),
            cache_dir=str(tmp_path / "cache"),
            examples=examples,
            provenance=True,
        )
    assert not (tmp_path / "cache").exists()


# ---- thousands of shards ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("files", "count"), [(8, 3), (8, 8), (3, 8), (1000, 512), (1, 4), (7, 1)])
def test_shards_are_balanced_and_cover_each_file_once(files, count):
    from data_tasks.corpora.documents_of_files import parts_of_shard

    every = [parts_of_shard(files, index, count) for index in range(count)]
    parts = {}
    for file, index, number in [part for shard in every for part in shard]:
        parts.setdefault(file, []).append((index, number))
    assert {file: sorted(found) for file, found in parts.items()} == {
        file: [(index, len(parts[file])) for index in range(len(parts[file]))] for file in range(files)
    }
    sizes = [sum(Fraction(1, part.count) for part in shard) for shard in every]
    assert max(sizes) - min(sizes) <= Fraction(1, 2)


def test_open_files_are_limited(tmp_path, monkeypatch):
    for number in range(5):
        writer = ArrayRecordWriter(str(tmp_path / str(number)), "group_size:1,uncompressed")
        for row in range(3):
            writer.write(b"%d" % (3 * number + row))
        writer.close()
    monkeypatch.setattr(shards, "allow_open_files", lambda number: 2)
    found = shards.Shards(str(tmp_path), [StoredFile(str(number), 3, 0, "") for number in range(5)])
    assert found.read(range(14, -1, -1)) == [b"%d" % row for row in range(14, -1, -1)]
    assert len(found._readers) == 2


def test_limit_of_open_files_is_raised_for_many_shards():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(soft, 256)
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    try:
        assert shards.allow_open_files(low // 2) == low // 2
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == low
        assert shards.allow_open_files(low) == resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 > low // 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- workers ---------------------------------------------------------------------------------------------------------


@pytest.mark.beam
def test_error_of_a_beam_worker_names_file_and_line(tmp_path):
    write_jsonl(tmp_path)
    rows = (tmp_path / "1.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "1.jsonl").write_text("".join([*rows[:30], "{}\n", *rows[30:]]))
    with pytest.raises(UserError, match=r"1.jsonl:31: the line has no field 'text'.*") as raised:
        command.cache(data=source(tmp_path), objective=CausalLM(), cache_dir=str(tmp_path / "cache"), shards=2, beam=[])
    assert "while running" not in str(raised.value)
    assert [path.name for path in (tmp_path / "cache").rglob("*.tmp")] == []


@pytest.mark.slow
def test_killed_worker_is_reported_and_the_next_command_resumes(tmp_path, monkeypatch):
    write_jsonl(tmp_path)
    _, whole = write_cache(tmp_path, provenance=False, shards=6)
    marker = tmp_path / "kill"
    marker.touch()
    monkeypatch.setenv("CACHE_TASKS_KILL", str(marker))
    settings = {"objective": CausalLM(), "shards": 6, "processes": 2, "cache_dir": str(tmp_path / "killed")}
    with pytest.raises(RunFailed, match="a worker of 2 was killed while it wrote .*killed/train.*Repeat the command"):
        command.cache(data=source(tmp_path, module="cache_tasks"), **settings)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed").rglob("0*.array_record")}
    (continued,) = command.cache(data=source(tmp_path, module="cache_tasks"), **settings).values()
    assert before and all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert [shard.checksum for shard in continued.shards] == [shard.checksum for shard in whole.shards]
