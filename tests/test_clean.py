"""`t5x_like clean` from web archives to files that tasks read, with a page about what each rule removed."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import web_archives
import zstandard

from t5x_like import clean as command
from t5x_like.cleaning import bad_words, duplicate_lines, lengths, lines, pages, reading, urls, writing
from t5x_like.errors import UserError

pytest.importorskip("warcio")


def clean(directory, output, *, steps=(), **settings):
    settings = {"validation_fraction": 0.0} | settings
    return command.clean(data_files=f"{directory}/*", output=str(output), steps=list(steps), **settings)


@pytest.fixture
def crawl(tmp_path):
    directory = tmp_path / "crawl"
    directory.mkdir()
    web_archives.write(directory / "a.warc.wet.gz", web_archives.PAGES)
    return directory


@pytest.mark.beam
@pytest.mark.clean
def test_page_about_lemons(crawl, tmp_path, run_command):
    (tmp_path / "words.txt").write_text("dratted\n")
    words = f"--gin.BAD_WORDS={{'en': '{tmp_path}/words.txt'}}"
    code, printed = run_command(["clean", f"--input={crawl}/*.gz", f"--output={tmp_path / 'out'}", words])
    assert code == 0 and "kept 2 of 7 pages" in printed, printed
    counters, kept = web_archives.read_cleaned(tmp_path / "out")
    shop, lemon = kept
    assert lemon["text"].splitlines() == [
        "The lemon, Citrus limon, is a small evergreen tree of the family Rutaceae. It is grown for juice.",
        "The juice is used for cooking, and also for cleaning brass and copper.",
        "The juice of the lemon is about five percent citric acid.",
        "The origin of the lemon is unknown, although it may have first grown in Assam.",
        "A study of the genes of lemons found that they are a cross of two fruits.",
    ]
    place = {"source": str(crawl / "a.warc.wet.gz"), "record": 1, "timestamp": "2026-01-02T03:04:05Z", "language": "en"}
    assert lemon | place | {"url": "https://www.example.org/lemon/"} == lemon
    # The page whose URL has the smallest hash keeps the line that both have.
    assert not shop["text"].startswith("The juice") and len(shop["text"].splitlines()) == 3
    cleaning = counters["clean-page"]
    assert {name.partition(":")[2]: number for name, number in cleaning.items() if "filtered:" in name and number} == {
        "no_endmark": 11,
        "too_short": 1,
        "javascript": 1,
        "policy": 1,
        "loremipsum": 1,
        "squigglybracket": 1,
        "too_few_sentences": 1,
    }
    assert counters["english-filter"]["filtered:ignored_language-de"] == 1
    assert counters["badwords-filter"]["filtered"] == 1
    report = (tmp_path / "out" / "report.html").read_text()
    for shown in ("<td>Menu</td>", "Please enable JavaScript", "Lorem ipsum dolor", "dratted", "uses cookies"):
        assert shown in report
    assert not re.search(r"<(script|link|img)|src=|href=", report)


@pytest.mark.beam
def test_result_depends_on_the_pages_alone(crawl, tmp_path):
    """Another division of the same pages into files gives the same shards."""
    split = tmp_path / "split"
    split.mkdir()
    for number, (url, text) in enumerate(reversed(web_archives.PAGES.items())):
        rows = [{"url": url, "text": text.replace("\n\n", "\n").strip(), "timestamp": "2026-01-02T03:04:05Z"}]
        (split / f"{number}.jsonl").write_text(json.dumps(rows[0]))
    settings = {"steps": [urls.NewestPage()], "shards": 3, "validation_fraction": 0.25}
    first = clean(crawl, tmp_path / "first", **settings)
    second = clean(split, tmp_path / "second", **settings)
    assert first.splits == second.splits
    assert set(first.splits) == {"train", "validation"} and len(first.splits["train"]) > 1
    texts = [
        [(page["url"], page["text"].split()) for page in web_archives.read_cleaned(tmp_path / name)[1]]
        for name in ("first", "second")
    ]
    assert texts[0] == texts[1]


@pytest.mark.beam
def test_listed_urls_are_read_from_compressed_files(tmp_path):
    (tmp_path / "urls").mkdir()
    (tmp_path / "urls" / "a.txt.gz").write_bytes(gzip.compress(b"https://www.a.example/one/\n\n"))
    (tmp_path / "urls" / "b.txt").write_text("b.example\r\nc.example")
    rows = [{"url": f"http://{url}", "text": "Text."} for url in ("a.example/one", "b.example", "d.example")]
    (tmp_path / "pages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    step = urls.UrlList(f"{tmp_path}/urls/*.txt*")
    cleaned = command.clean(
        data_files=f"{tmp_path}/*.jsonl", output=f"{tmp_path}/out", steps=[step], validation_fraction=0.0
    )
    assert cleaned.counters[step.namespace] == {"filtered": 1, "missing-page": 1, "passed": 2}
    with pytest.raises(UserError, match=r"pages.jsonl is not a text file. Give a URL per line"):
        urls.UrlList(f"{tmp_path}/pages.jsonl").check()


@pytest.mark.beam
def test_tasks_read_parquet_and_gzip(crawl, tmp_path):
    pytest.importorskip("pyarrow")
    from data_tasks.corpora import matching_files, text_files

    found = {}
    for kind in ("parquet", "jsonl.gz", "jsonl.zst"):
        cleaned = clean(crawl, tmp_path / kind, output_format=kind, shards=2)
        files = matching_files.files(f"{tmp_path / kind}/train-*.{kind}")
        found[kind] = list(text_files.documents(files))
        assert len(found[kind]) == sum(cleaned.splits["train"].values()) == len(web_archives.PAGES)
    assert found["parquet"] == found["jsonl.gz"] == found["jsonl.zst"]


BAD_FILES = {
    "truncated": (lambda data: data[:-200], r"b.warc.wet.gz: the archive is damaged or not complete", "damaged-file"),
    "wrong member": (lambda data: data + b"rubbish" * 9, r"b.warc.wet.gz: the archive is damaged", "damaged-file"),
    "encoding": (
        lambda data: b"\xff\xfe A lemon.",
        r"b.warc.wet.gz, record 1 .*UTF-8 \(byte 0",
        "bad-record",
    ),
    "NUL": (lambda data: b"A \0 lemon.", r"b.warc.wet.gz, record 1 .*NUL character \(byte 2", "bad-record"),
}


PARAGRAPHS = "".join(f"<p>{line}</p>" for line in web_archives.SHOP.splitlines())
HTML = (
    f"<html><body><nav><a href='/'>Home</a> <a href='/x'>Contact</a></nav><article>{PARAGRAPHS}</article></body></html>"
)


@pytest.mark.beam
@pytest.mark.clean
def test_pages_of_wget_are_converted_to_text(tmp_path, run_command):
    responses = [
        ("http://a.example/lemons", "200 OK", {"Content-Type": "text/html; charset=utf-8"}, HTML.encode()),
        ("http://a.example/none", "404 Not Found", {"Content-Type": "text/html"}, HTML.encode()),
        ("http://a.example/image", "200 OK", {"Content-Type": "image/png"}, b"\x89PNG"),
    ]
    web_archives.write_crawl(tmp_path / "crawl.warc.gz", responses, ["wget_arguments.txt", "wget.log"])
    command = ["clean", f"--input={tmp_path}/*.gz", "--gin.VALIDATION_FRACTION=0.0"]
    code, printed = run_command([*command, f"--output={tmp_path / 'out'}"])
    # Three requests, two responses and two logs are not pages.
    assert code == 0 and "kept 1 of 1 pages" in printed and "not read: 1 filtered:no_url, 7 other-record" in printed
    (page,) = web_archives.read_cleaned(tmp_path / "out")[1]
    assert page["text"] == web_archives.SHOP.strip() and page["url"] == "http://a.example/lemons"
    code, printed = run_command([*command, f"--output={tmp_path / 'none'}", "--gin.HTML_TEXT=None"])
    assert code == 2 and "none of its 9 records is plain text; 1 are HTML" in printed, printed


@pytest.mark.beam
@pytest.mark.parametrize(
    ("files", "counts"),
    [
        ({"a.jsonl": ""}, "1 empty-file"),
        ({"a.jsonl": '{"text": " "}', "b.jsonl": '{"body": "x"}'}, "1 filtered:no_content, 1 bad-record"),
        ({"a.warc": "", "b.jsonl.gz": ""}, "2 damaged-file"),
    ],
)
def test_files_without_pages_raise(files, counts, tmp_path):
    (tmp_path / "in").mkdir()
    for name, contents in files.items():
        (tmp_path / "in" / name).write_text(contents)
    with pytest.raises(UserError, match=rf"DATA_FILES=.*/in/\*: no page was read \({counts}\)\. Give files with"):
        clean(tmp_path / "in", tmp_path / "out", on_bad_record="skip")
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.beam
def test_missing_validation_files_and_pages_are_said(crawl, tmp_path, caplog):
    clean(crawl, tmp_path / "out", validation_fraction=0.001)
    assert "VALIDATION_FRACTION=0.001: none of the 7 pages is held out" in caplog.text
    clean(crawl, tmp_path / "none", steps=[lengths.MaxCharacters(characters=0)])
    assert "no page is left: the steps removed all of them" in caplog.text


@pytest.mark.beam
@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_input_is_named_and_skipped_only_on_request(name, crawl, tmp_path):
    change, message, counter = BAD_FILES[name]
    path = crawl / "b.warc.wet.gz"
    if counter == "bad-record":
        web_archives.write(path, {"http://a.example": change(b""), "http://b.example": "Good."})
    else:
        web_archives.write(path, {"http://b.example": "Good.", "http://c.example": "lemon " * 999})
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=message) as error:
        clean(crawl, tmp_path / "out")
    assert "ON_BAD_RECORD=skip" in str(error.value) and "while running" not in str(error.value)
    cleaned = clean(crawl, tmp_path / "out", on_bad_record="skip")
    assert cleaned.counters["split-wet-file"][counter] == 1
    assert "http://b.example" in {page["url"] for page in web_archives.read_cleaned(tmp_path / "out")[1]}
    assert [each.text for each in cleaned.examples if each.rule == counter and re.search(message, each.text)]


@pytest.mark.beam
def test_file_that_disappears_is_named_and_skipped_only_on_request(crawl, tmp_path, monkeypatch):
    web_archives.write(crawl / "b.warc.wet.gz", {"http://b.example": "Good."})
    run = command.run

    def lose(files, *rest):
        (crawl / "b.warc.wet.gz").unlink(missing_ok=True)
        return run(files, *rest)

    monkeypatch.setattr(command, "run", lose)
    message = f"{crawl}/b.warc.wet.gz: the file does not exist any more. Restore it."
    with pytest.raises(UserError, match=re.escape(message) + r" ON_BAD_RECORD=skip skips and counts"):
        clean(crawl, tmp_path / "out")
    web_archives.write(crawl / "b.warc.wet.gz", {"http://b.example": "Good."})
    cleaned = clean(crawl, tmp_path / "out", on_bad_record="skip")
    assert cleaned.counters["split-wet-file"]["damaged-file"] == 1
    assert sum(cleaned.splits["train"].values()) == len(web_archives.PAGES)
    assert [each.text for each in cleaned.examples if each.rule == "damaged-file"] == [message]


@pytest.mark.beam
def test_error_of_another_process_is_that_of_the_user(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "lemon"}')
    workers = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    with pytest.raises(UserError) as error:
        clean(tmp_path, tmp_path / "out", beam=workers)
    assert str(error.value).startswith(f"{tmp_path}/a.jsonl:1: the line has no field 'text'")
    assert str(error.value).endswith("ON_BAD_RECORD=skip skips and counts such records.")


@pytest.mark.beam
def test_overwriting_removes_other_shards(crawl, tmp_path):
    clean(crawl, tmp_path / "out", shards=7)
    with pytest.raises(UserError, match="not empty"):
        clean(crawl, tmp_path / "out")
    (tmp_path / "out" / "mine.txt").write_text("stays")
    clean(crawl, tmp_path / "out", shards=1, overwrite=True)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"train-00000-of-00001.jsonl.zst", "report.html", "counters.json", "mine.txt"}


@pytest.mark.beam
def test_overwriting_the_files_that_are_read_raises(crawl, tmp_path):
    clean(crawl, tmp_path / "out", shards=2)
    (tmp_path / "link").symlink_to(tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(UserError, match=r"--overwrite would remove .*/out/train-0000\d-.*zst, which DATA_FILES"):
        command.clean(
            data_files=f"{tmp_path}/link/train-*", output=str(tmp_path / "out"), steps=[], shards=2, overwrite=True
        )
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_missing_packages_and_files_raise(crawl, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(UserError, match=r"t5x_like clean needs apache_beam, which is not installed. Run `pip install"):
        clean(crawl, tmp_path / "out")
    monkeypatch.setitem(sys.modules, "punkt", None)
    with pytest.raises(UserError, match="counting sentences needs punkt, which is not installed"):
        lines.sentences.splitter.__wrapped__()
    with pytest.raises(UserError, match=r"BadWords.files\['en'\]=.*/none.txt: no such file"):
        bad_words.BadWords(files={"en": f"{tmp_path}/none.txt"}).check()
    with pytest.raises(UserError, match=r"BadWords.files='words.txt' is not a dictionary"):
        bad_words.BadWords(files="words.txt").check()
    for name, reason in (("none.json", "no such file"), ("", "is a directory")):
        with pytest.raises(UserError, match=f"^Domains.path={tmp_path}/{name}: {reason}"):
            urls.Domains(f"{tmp_path}/{name}").check()


@pytest.mark.clean
def test_detectors_agree_on_clear_texts():
    """CLD3 cannot be loaded in a process with TensorFlow, so the detectors run in another one."""
    program = (
        "import web_archives; from t5x_like.cleaning.detectors import NAMES, detector\n"
        "for name in NAMES:\n"
        "    print(name, *(detector(name)(text).language for text in (web_archives.SHOP, web_archives.GERMAN)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=Path(__file__).parent, timeout=60
    )
    assert done.stdout.split("\n")[:3] == ["langdetect en de", "langdetect_rs en de", "cld3 en de"], done.stderr


def kept(step, text, **fields):
    """Returns the texts that a step keeps, and its counters."""
    record = pages.Record(step.namespace)
    found = [page.text for page in step.process(pages.Page("http://example.org/a", text, **fields), record)]
    return found, {name: number for name, number in record.counts.items() if number}


def test_lengths():
    assert kept(lengths.MaxCharacters(characters=3), "abc") == (["abc"], {"passed": 1})
    assert kept(lengths.MaxCharacters(characters=3), "abcd") == ([], {"filtered": 1})
    assert kept(lengths.Paragraphs(paragraphs=2, characters=3), "abc\na\nabcd")[1] == {"passed": 1}
    assert kept(lengths.Paragraphs(paragraphs=2, characters=3), "abc\nab")[1] == {"filtered": 1}


def test_first_page_of_a_url_keeps_the_line():
    step = duplicate_lines.DuplicateLines(min_sentences=0)
    own = [
        pages.Page("http://a.example", text, record=index) for index, text in enumerate(("One.\nTwo.", "two.\nSix."))
    ]
    lines_of_url = [pages.text_hash(line) for line in ("one.", "two.")]
    for order in (own, own[::-1]):
        record = pages.Record(step.namespace)
        found = list(step.remove(("http://a.example", {"pages": order, "lines": lines_of_url}), record))
        assert [page.text for page in found] == ["One.\nTwo."]
        assert record.counts["line-filtered:local_duplicate"] == record.counts["line-filtered:global_duplicate"] == 1


def test_bad_words(tmp_path):
    (tmp_path / "en.txt").write_bytes("\ufeffbad\r\nworse word\n".encode())
    (tmp_path / "ja.txt").write_text("レモン\n")
    step = bad_words.BadWords(files={"en": f"{tmp_path}/en.txt", "ja": f"{tmp_path}/ja.txt"})
    step.check()
    assert kept(step, "BAD", language="en")[1] == {"filtered": 1, "en:filtered": 1}
    assert kept(step, "badly a worse\nword", language="en")[1] == {"passed": 1, "en:passed": 1}
    assert kept(step, "青いレモンの", language="ja")[1] == {"filtered": 1, "ja:filtered": 1}
    assert kept(step, "bad", language="de")[1] == {"passed": 1}
    soft = bad_words.BadWords(files={"en": f"{tmp_path}/en.txt"}, fraction=0.0)
    assert kept(soft, "bad", language="en")[1] == {"soft-passed": 1, "en:soft-passed": 1}


def read(path):
    """Returns the pages of a file, and the counters of the rules that removed some."""
    record = pages.Record("read")
    found = list(reading.ReadPages().process(str(path), record))
    return found, {name: number for name, number in record.counts.items() if name.startswith("filtered") and number}


def test_archives_are_known_by_their_suffix(tmp_path):
    """A path that contains `.wet` is not an archive, whose pages need dates and have headers."""
    path = tmp_path / "crawl.wet.d" / "a.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps({"url": "http://a.example", "text": "WARC is a format."}))
    found, removed = read(path)
    assert [page.text for page in found] == ["WARC is a format."] and not removed


def test_lone_surrogates_of_urls_are_replaced(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"url": "http://a.example/\\ud800", "text": "Text."}')
    assert [page.url for page in read(tmp_path / "a.jsonl")[0]] == ["http://a.example/?"]


@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.25, 0.3, 0.75])
def test_validation_split_has_its_fraction(fraction, tmp_path):
    write = writing.WritePages(directory=str(tmp_path), validation_fraction=fraction)
    number = 20_000
    splits = [write.shard_of(pages.Page(f"http://a.example/{index}", "text"))[0] for index in range(number)]
    # Four standard deviations.
    assert splits.count("validation") / number == pytest.approx(fraction, abs=4 * (fraction / number) ** 0.5)


@pytest.mark.beam
def test_languages_are_written_to_their_own_directories(tmp_path):
    """Of three languages, two have directories; each has the splits of its pages."""
    rows = [
        {"url": f"http://a.example/{n}", "text": f"Text {n}.", "language": ("de", "sw", "fr")[n % 3]} for n in range(60)
    ]
    (tmp_path / "pages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = tmp_path / "out"
    cleaned = command.clean(
        data_files=f"{tmp_path}/*.jsonl",
        output=str(output),
        steps=[],
        shards=2,
        by_language=("de", "sw"),
        validation_fraction=0.25,
    )
    names = {f"{language}{split}" for language in ("de/", "sw/", "") for split in ("train", "validation")}
    assert set(cleaned.splits) == names and {path.name for path in output.iterdir() if path.is_dir()} == {"de", "sw"}
    for language, directory in (("de", output / "de"), ("sw", output / "sw"), ("fr", output)):
        pages_of_language = []
        for path in directory.glob("*-of-*.jsonl.zst"):
            with zstandard.open(path, "rt", encoding="utf-8") as file:
                pages_of_language += map(json.loads, file)
        assert len(pages_of_language) == 20 and {page["language"] for page in pages_of_language} == {language}


def test_text_instead_of_a_list_of_languages_raises(tmp_path):
    with pytest.raises(UserError, match=r"BY_LANGUAGE='en' is not a list of languages"):
        writing.WritePages(directory=str(tmp_path), languages="en")


def test_truncated_plain_archive_ends_with_an_error(tmp_path):
    """An archive that is cut in the middle of a record, as a whole in one gzip member."""
    web_archives.write(tmp_path / "a.wet", web_archives.PAGES)
    data = (tmp_path / "a.wet").read_bytes()
    (tmp_path / "b.wet.gz").write_bytes(gzip.compress(data[: len(data) // 2]))
    record = pages.Record("read")
    with pytest.raises(UserError, match=r"b.wet.gz: the archive is damaged or not complete at record \d"):
        list(reading.ReadPages().process(str(tmp_path / "b.wet.gz"), record))
    assert 0 < record.counts["passed"] < len(web_archives.PAGES)
