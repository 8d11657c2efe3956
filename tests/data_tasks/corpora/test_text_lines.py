"""Lines of compressed files: equal to the plain file's, bounded in memory, and named if they are damaged."""

import bz2
import gzip
import lzma
import re
import tracemalloc

import pytest
import zstandard

from data_tasks.corpora import matching_files, text_files, text_lines
from t5x_like.data import records
from t5x_like.errors import UserError

COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=0),  # with a small dictionary
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}
TEXT = "\N{BYTE ORDER MARK}first é\r\nsecond\rthird\n\nlast".encode()


def lines_of(path, count_bytes=lambda number_of_bytes: None):
    (file,) = matching_files.files(str(path))
    return list(text_lines.lines(file, count_bytes))


def documents_of(path):
    return list(text_files.documents(matching_files.files(str(path))))


@pytest.fixture(params=COMPRESS)
def suffix(request):
    return request.param


def test_compressed_lines_equal_plain_lines(tmp_path, suffix):
    (tmp_path / "a.txt").write_bytes(TEXT)
    (tmp_path / f"b.txt{suffix}").write_bytes(COMPRESS[suffix](TEXT))
    expected = ["first é\n".encode(), b"second\n", b"third\n", b"\n", b"last"]
    assert lines_of(tmp_path / "a.txt") == lines_of(tmp_path / f"b.txt{suffix}") == expected


def test_long_line_is_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "_PIECE_BYTES", 4)
    (tmp_path / "a.txt").write_bytes(b"123456789\n12345678\n\n1")
    spent = []
    assert lines_of(tmp_path / "a.txt", spent.append) == [b"123456789\n", b"12345678\n", b"\n", b"1"]
    assert sum(spent) == 21 and max(spent) == 4


@pytest.mark.parametrize("damage", ["truncated", "changed"])
def test_damaged_file_is_named_with_its_line(tmp_path, suffix, damage):
    data = COMPRESS[suffix](b"".join(b"line %d\n" % (index**3) for index in range(20_000)))
    middle = len(data) // 2
    damaged = data[:middle] if damage == "truncated" else data[:middle] + b"\0" * 32 + data[middle + 32 :]
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(damaged)
    with pytest.raises(
        UserError, match=rf"a\.txt{suffix}:\d+: the compressed file is damaged or not complete .* Copy"
    ) as raised:
        lines_of(path)
    assert re.search(r"bytes of text, at least [\d,]+ bytes before its end \(", str(raised.value))


def test_parts_of_a_compressed_file_are_joined(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(b"".join(COMPRESS[suffix](b"part %d\n" % number) for number in range(3)))
    assert lines_of(path) == [b"part 0\n", b"part 1\n", b"part 2\n"]


# A piece of a zstd file may decompress to 32 MiB before it is counted.
@pytest.mark.parametrize(
    ("suffix", "size"), [(".gz", 16), (".bz2", 16), (".xz", 16), (".zst", 96)], indirect=["suffix"]
)
def test_small_file_with_a_huge_line_is_refused_before_it_is_in_memory(tmp_path, suffix, size, monkeypatch):
    monkeypatch.setattr(text_lines, "MAX_LINE_BYTES", 1 << 20)
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](b"a" * (size << 20)))
    tracemalloc.start()
    with pytest.raises(UserError, match=rf"a\.txt{suffix}:1: the document is longer than 1 MiB"):
        documents_of(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (size << 20) / 2


@pytest.mark.parametrize("name", ["a.txt", "a.txt.bz2.gz", "a.jsonl"])
def test_compressed_text_under_another_name_raises(tmp_path, suffix, name):
    data = COMPRESS[suffix](b'{"text": "a"}')
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(UserError, match=rf"{name}: the text is compressed in a way that the name does not end in"):
        documents_of(tmp_path / name)


@pytest.mark.parametrize("line", ["[" * 100_000, '{"text": ' + "9" * 5_000 + "}"])
def test_extreme_json_is_named_with_its_line(tmp_path, line):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n' + line)
    with pytest.raises(UserError, match=r"a\.jsonl:2: the line is not JSON"):
        documents_of(tmp_path / "a.jsonl")
    with pytest.raises(UserError, match=r"x\.jsonl:7: not valid JSON"):
        records.json_object("x.jsonl", 7, line)
