"""Records that ON_BAD_RECORD=skip skips are counted where the user sees them: in `cache`, `train` and `vocabulary`."""

import dataclasses
import gzip
import io
import json

import pytest
from copying_run import CONFIG, run
from rich.console import Console

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.corpora import documents_of_files, file_source
from data_tasks.downstream import perplexity
from data_tasks.vocabulary_training import sample
from t5x_like import cache as cache_command
from t5x_like import vocabulary as vocabulary_command
from t5x_like.data.cached import manifest
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.skipped_records import SkippedRecords, describe
from t5x_like.metrics import read_metrics
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence

GOOD = "".join(json.dumps({"text": f"record {number} of the file"}) + "\n" for number in range(40))


@pytest.fixture
def files(tmp_path):
    """Returns a pattern: a file with five bad records, a truncated one, and one without the field `text`."""
    directory = tmp_path / "files"
    directory.mkdir()
    (directory / "a.jsonl").write_text(GOOD + "bad\n" * 5)
    (directory / "b.jsonl.gz").write_bytes(gzip.compress(GOOD.encode())[:-4])
    (directory / "c.jsonl").write_text('{"body": "no text"}\n')
    return f"{directory}/*"


def source_of(pattern, **changes):
    return SeqIOSource(
        mixture_or_task_name="text_files_span_corruption",
        task_feature_lengths={"inputs": 16, "targets": 8},
        batch_size=8,
        data_files=pattern,
        task_arguments={"validation_fraction": 0.0},
        on_bad_record="skip",
        **changes,
    )


@pytest.mark.full
def test_manifest_and_summary_of_a_cache_count_skipped_records(files, tmp_path):
    def cache():
        shown = io.StringIO()
        settings = {"objective": SequenceToSequence(), "processes": 1, "passes": 2, "shards": 3}
        console = Console(file=shown)
        cache_command.cache(data=source_of(files), cache_dir=str(tmp_path / "cache"), console=console, **settings)
        return shown.getvalue().splitlines()[-1], manifest.read(str(tmp_path / "cache" / "train"))

    printed, found = cache()
    assert printed.endswith("; skipped 6 bad records, 1 damaged file")
    first, second, third = (f"{tmp_path}/files/{name}" for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl"))
    of_a_pass = [{first: {"bad_records": 5}}, {second: {"damaged_files": 1}}, {third: {"bad_records": 1}}]
    assert found.skipped == {f"00{number}-0000{index}": of_a_pass[index] for number in (0, 1) for index in range(3)}
    assert [shard.file[9:14] for shard in found.shards] == ["00000", "00001"] * 2  # the third one has no rows
    # The counts of the shards that are not written again stay, also of those without rows.
    (tmp_path / "cache" / "train" / found.shards[0].file).unlink()
    assert cache() == (printed, found)


def test_damaged_file_of_several_shards_is_counted_once():
    skipped = {f"000-0000{shard}": {"a.jsonl": {"damaged_files": 1, "bad_records": 2}} for shard in range(3)}
    made = manifest.Manifest({}, None, (), {}, (), skipped=skipped)
    assert made.skipped_in_first_pass == {"damaged_files": 1, "bad_records": 6}


def test_second_pass_over_a_file_is_not_counted_again():
    skipped = SkippedRecords()
    for bad in (2, 2, 3):
        skipped.begin("a", 0)
        for _ in range(bad):
            skipped.add("a", 0, "bad_records")
            skipped.add("a", 0, "empty_records")
        assert skipped.bad == {"bad_records": bad} and skipped.per_file() == {"a": {"bad_records": bad}}


def test_counts_do_not_decrease_during_the_second_pass():
    skipped = SkippedRecords()
    for _ in range(2):
        skipped.begin("a", 0)
        skipped.add("a", 0, "bad_records")
        skipped.add("a", 0, "damaged_files")
    skipped.begin("a", 0)
    assert skipped.bad == {"bad_records": 1, "damaged_files": 1}
    skipped.add("a", 0, "bad_records")
    assert skipped.bad == {"bad_records": 1, "damaged_files": 1}
    assert skipped.per_file() == {"a": {"bad_records": 1, "damaged_files": 1}}


def test_counts_of_singular_and_plural():
    assert describe({"bad_records": 1, "damaged_files": 2_000}) == "1 bad record, 2,000 damaged files"


@pytest.mark.full
def test_metrics_do_not_decrease_in_the_middle_of_the_second_pass(files, monkeypatch):
    monkeypatch.setattr(file_source, "_SHUFFLED_BYTES", 200)  # a few lines per block
    monkeypatch.setattr(documents_of_files, "_KEPT_BYTES", 0)  # blocks are read again in each pass
    batches = source_of(files).host_iterator(SequenceToSequence().features)
    found = []
    for _ in range(60):
        next(batches)
        found.append(batches.metrics(len(found) + 1))
    first = found.index({"bad_records": 6, "damaged_files": 1})
    assert found[first:] == [found[first]] * (60 - first) and first < 30


@pytest.mark.full
def test_rows_of_metrics_count_skipped_records_of_training(files, tmp_path):
    model = dataclasses.replace(CONFIG, vocab_size=1024)
    run(tmp_path / "run", data=source_of(files), model=model, evaluations={}, total=20, save=20)
    rows = read_metrics(str(tmp_path / "run"))
    assert (rows[-1]["bad_records"], rows[-1]["damaged_files"]) == (6, 1)
    for name in ("b.jsonl.gz", "c.jsonl"):
        (tmp_path / "files" / name).unlink()
    (tmp_path / "files" / "a.jsonl").write_text(GOOD)
    run(tmp_path / "good", data=source_of(files), model=model, evaluations={}, total=1)
    assert not {"bad_records", "damaged_files"} & set(read_metrics(str(tmp_path / "good"))[-1])


def test_description_of_perplexity_data_counts_skipped_records(files):
    corpus = perplexity.read(files, on_bad_record="skip")
    assert corpus.describe().endswith("; skipped: 6 bad records, 1 damaged file")


@pytest.mark.parametrize("kind", ["words", "sentencepiece"])
def test_vocabulary_prints_the_number_of_skipped_records(kind, files, tmp_path, capsys):
    settings = {"min_count": 1} if kind == "words" else {"size": 285}
    output = str(tmp_path / "vocabulary")
    vocabulary_command.vocabulary(pattern=files, kind=kind, output=output, on_bad_record="skip", **settings)
    assert "skipped 6 bad records, 1 damaged file\n" in capsys.readouterr().out


@pytest.mark.beam
def test_workers_of_beam_count_skipped_records(files, tmp_path):
    def draw(beam):
        skipped = SkippedRecords()
        directory = str(tmp_path / "out")
        drawn = sample.draw(files, 1000, skipped, on_bad_record="skip", beam=beam, directory=directory)
        return drawn, skipped.per_file()

    alone, together = draw(None), draw([])
    counts = {"a.jsonl": {"bad_records": 5}, "b.jsonl.gz": {"damaged_files": 1}, "c.jsonl": {"bad_records": 1}}
    assert together == alone and alone[1] == {f"{tmp_path}/files/{name}": each for name, each in counts.items()}
