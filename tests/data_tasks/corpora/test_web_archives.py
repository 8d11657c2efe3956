"""Web archives: what is a page, and archives that are damaged or hold no text."""

import gzip
import re
import zlib

import pytest
import web_archives

from data_tasks.corpora import documents_of_files, matching_files, text_lines
from data_tasks.corpora.formats.base import Reading
from t5x_like.data.skipped_records import SkippedRecords
from t5x_like.errors import UserError

pytest.importorskip("warcio")

HTML = "<html><body><p>Lemon tea: café.</p></body></html>"
TEXTS = {f"http://example.org/{name}": f"A page about {name}.\n\nThe end of {name}." for name in ("tea", "oil", "rum")}


def read(path, on_bad_record="error", html_text=None):
    """Returns the texts of an archive, and the counts of what was skipped."""
    files = matching_files.files(str(path))
    rules = documents_of_files.Rules(Reading(html_text=html_text), on_bad_record=on_bad_record)
    skipped = SkippedRecords()
    reader = documents_of_files.BlockReader(files, rules, skipped, block_bytes=100)
    found = [document.text.decode() for document in documents_of_files.iterate(reader, documents_of_files.Part(0))]
    return found, skipped


def as_text(source, url):
    """Stands in for an extraction: removes tags."""
    source = source if isinstance(source, str) else source.decode()
    return f"{url}: {re.sub('<[^>]*>', '', source)}"


def chunked(body):
    half = len(body) // 2
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:], b""))


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Content-Type": "text/html; charset=UTF-8"}, HTML.encode()),
        ({"Content-Type": "text/html;charset=ISO-8859-1"}, HTML.encode("cp1252")),
        ({"Content-Type": "application/xhtml+xml", "Transfer-Encoding": "chunked"}, chunked(HTML.encode())),
        ({"Content-Type": "text/html", "Content-Encoding": "gzip"}, gzip.compress(HTML.encode())),
        ({"Content-Type": "Text/HTML", "Content-Encoding": "deflate"}, zlib.compress(HTML.encode())[2:-4]),
        ({"Content-Type": "text/html", "Content-Encoding": "br"}, HTML.encode()),  # stored without its compression
    ],
    ids=["UTF-8", "Latin-1", "chunked", "gzip", "deflate", "decompressed"],
)
def test_html_response_is_decoded_by_its_headers(tmp_path, headers, body):
    web_archives.write_crawl(tmp_path / "a.warc.gz", [("http://example.org/a", "200 OK", headers, body)])
    assert read(tmp_path / "a.warc.gz", html_text=as_text)[0] == ["http://example.org/a: Lemon tea: café."]


def test_only_pages_of_a_crawl_are_read(tmp_path, caplog):
    html, text = {"Content-Type": "text/html"}, {"Content-Type": "text/plain; charset=latin-1"}
    responses = [
        ("http://example.org/a", "200 OK", html, HTML.encode()),
        ("http://example.org/b", "404 Not Found", html, b"<p>Not found.</p>"),
        ("http://example.org/c", "200 OK", {"Content-Type": "image/png"}, b"\x89PNG"),
        ("http://example.org/d", "200 OK", text, "Plain café.".encode("latin-1")),
        ("http://example.org/e", "200 OK", html | {"Content-Encoding": "br"}, b"\x8b\x00\x80"),
    ]
    web_archives.write_crawl(tmp_path / "a.warc.gz", responses, ["wget.log", "wget_arguments.txt"])
    with pytest.raises(UserError, match=r"a.warc.gz, record 10 .*: the response is compressed by 'br'"):
        read(tmp_path / "a.warc.gz", html_text=as_text)
    found, skipped = read(tmp_path / "a.warc.gz", "skip", as_text)
    assert found == ["http://example.org/a: Lemon tea: café.", "Plain café."] and skipped.bad == {"bad_records": 1}
    # Tasks do not convert HTML: they say what they leave out.
    found, skipped = read(tmp_path / "a.warc.gz")
    assert found == ["Plain café."] and skipped.bad == {"html_responses": 2}
    assert "a.warc.gz: skipped: 10 other records, 2 html responses" in caplog.text


def test_archive_without_pages_raises(tmp_path):
    html = {"Content-Type": "text/html"}
    web_archives.write_crawl(tmp_path / "a.warc", [], ["wget.log"])
    web_archives.write_crawl(tmp_path / "b.warc", [("http://example.org/a", "200 OK", html, HTML.encode())])
    web_archives.write_crawl(tmp_path / "c.warc", [])
    with pytest.raises(UserError, match=r"a\.warc: none of its 2 records is plain text or HTML\. Give WET files"):
        read(tmp_path / "a.warc")
    with pytest.raises(UserError, match=r"b\.warc: none of its 3 .* plain text; 1 are HTML, which `t5x_like clean`"):
        read(tmp_path / "b.warc")
    with pytest.raises(UserError, match=r"c\.warc: none of its 1 records is plain text"):
        read(tmp_path / "c.warc")
    assert read(tmp_path / "a.warc", "skip")[1].bad == {"damaged_files": 1}


@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz", "a.jsonl.gz", "a.txt.bz2", "a.txt.xz", "a.jsonl.zst"])
def test_empty_file_is_damaged(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError, match=rf"{name}.*(file is empty|has no records).* Copy the file again"):
        read(tmp_path / name)
    assert read(tmp_path / name, "skip")[1].bad == {"damaged_files": 1}


@pytest.mark.parametrize("is_compressed", [False, True])
def test_archive_cut_anywhere_is_damaged(tmp_path, is_compressed):
    """A cut between two records leaves a shorter archive; after the last text, nothing is lost."""
    web_archives.write(tmp_path / "a.wet", TEXTS)
    data = (tmp_path / "a.wet").read_bytes()
    ends = [match.end() for match in re.finditer(rb"\r\n\r\n(?=WARC/1.0\r\n|$)", data)]
    path = tmp_path / ("b.wet.gz" if is_compressed else "b.wet")
    for cut in range(1, len(data)):
        path.write_bytes(gzip.compress(data[:cut], 0) if is_compressed else data[:cut])
        complete = sum(end - 4 <= cut for end in ends)  # without the empty lines after a record
        inside = min(abs(cut - end + 2) for end in ends) > 2
        try:
            found = read(path)[0]
        except UserError as error:
            assert inside or complete == 1, (cut, error)  # the description alone is no text
        else:
            assert not inside and found == list(TEXTS.values())[: complete - 1], cut


@pytest.mark.parametrize("kind", ["warcinfo", "request", "conversion"])
@pytest.mark.parametrize("change", [-30, 7, 300, 10**9])
def test_wrong_length_of_a_record_does_not_hide_others(tmp_path, kind, change, monkeypatch):
    monkeypatch.setattr(text_lines, "MAX_LINE_BYTES", 10_000)
    web_archives.write(tmp_path / "text.wet", TEXTS)
    web_archives.write_crawl(tmp_path / "a.warc", [("http://example.org/a", "200 OK", {}, b"words")])
    data = (tmp_path / "a.warc").read_bytes() + (tmp_path / "text.wet").read_bytes()

    def changed(match):
        return match[1] + b"%d" % max(int(match[2]) + change, 0)

    pattern = rb"(WARC-Type: %s\r\n(?:[^\r]+\r\n)*?Content-Length: )(\d+)" % kind.encode()
    (tmp_path / "b.warc").write_bytes(re.sub(pattern, changed, data, count=1))
    with pytest.raises(UserError, match=r"b.warc: the archive is damaged or not complete at record \d"):
        read(tmp_path / "b.warc")
    found, skipped = read(tmp_path / "b.warc", "skip")
    assert skipped.bad == {"damaged_files": 1} and set(found) <= set(TEXTS.values())


@pytest.mark.parametrize("place", [12, -6], ids=["in the data", "in the checksum"])
def test_records_after_a_damaged_member_are_read(tmp_path, place):
    web_archives.write(tmp_path / "a.wet", TEXTS)
    records = re.split(rb"(?<=\r\n\r\n)(?=WARC/1.0\r\n)", (tmp_path / "a.wet").read_bytes())
    members = [bytearray(gzip.compress(record)) for record in records]
    members[2][place] ^= 0xFF
    (tmp_path / "b.wet.gz").write_bytes(b"".join(members))
    with pytest.raises(UserError, match=r"b.wet.gz, record 2 \(from 0\): it is damaged \(Error -3 while decompressing"):
        read(tmp_path / "b.wet.gz")
    found, skipped = read(tmp_path / "b.wet.gz", "skip")
    texts = list(TEXTS.values())
    assert found == [texts[0], *texts[2:]] and len(texts) > 2 and skipped.bad == {"bad_records": 1}
    members[-1][-6] ^= 0xFF  # nothing follows
    (tmp_path / "b.wet.gz").write_bytes(b"".join(members))
    found, skipped = read(tmp_path / "b.wet.gz", "skip")
    assert found == [texts[0], *texts[2:-1]] and skipped.bad == {"bad_records": 1, "damaged_files": 1}
