"""Small files that claim much: each is answered within 10 seconds and 1 GiB of memory."""

import contextlib
import gzip
import json
import struct
import time

import fsspec
import numpy as np
import pytest
import small_models
from damage import BYTES, SECONDS, memory_limit
from readers import NOT_WRITTEN, small_config

from t5x_like import convert_vectors, interop, limits
from t5x_like.analysis import treebank
from t5x_like.data import npy_files
from t5x_like.errors import UserError
from t5x_like.interop import fasttext_files, registry
from t5x_like.vocabularies import word_counts

pytestmark = pytest.mark.full

MILLION = 1_000_000
FAMILIES = [family for family in registry.families() if family.model_types[0] not in NOT_WRITTEN]


@contextlib.contextmanager
def refused(message):
    """Within the context, a file is refused in the time and memory that a small file may take."""
    started = time.monotonic()
    with memory_limit(), pytest.raises(UserError, match=message):
        yield
    assert time.monotonic() - started < SECONDS and BYTES == 1 << 30


def npy(shape, dtype="<f4", values=b"12345678"):
    header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + values


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((1 << 37,), "<f4", "549,755,813,888"),  # 512 GiB
        ((1 << 62, 1 << 62), "<f4", "8 bytes of values"),
        ((-1, -1), "<f4", "not of numbers"),
        ((2,), "|O", "not of numbers"),
        ((2,), "<f4,<i4", "not of numbers|not an array"),
        (("2",), "<f4", "not an array in the format of NumPy"),
    ],
)
def test_npy_arrays_are_as_large_as_their_files(shape, dtype, message):
    with refused(f"a.npy: .*({message})"):
        npy_files.parse("a.npy", npy(shape, dtype))


def test_npy_arrays_are_read(tmp_path):
    for array in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3))):
        np.save(tmp_path / "a.npy", array)
        found = npy_files.parse("a.npy", (tmp_path / "a.npy").read_bytes())
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_types[0])
def test_numbers_of_layers_are_limited(family, tmp_path):
    """Each number of config.json is 10^7 in turn, or a number with 5,000 digits."""
    described = family.config_to_json(small_config(family.config_class, family.config_to_json), [])
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    for key, value in described.items():
        for large in (2**31 - 1,) if type(value) is int else ():
            text = json.dumps({**described, key: large})
            (tmp_path / "config.json").write_text(text)
            with refused(str(tmp_path)):
                interop.model_shapes(str(tmp_path), interop.config_from_huggingface(str(tmp_path)))
    assert any(type(value) is int for value in described.values())


def test_numbers_with_many_digits_are_not_read(tmp_path):
    digits = "9" * 5000
    assert (
        limits.is_count("18") and not limits.is_count(digits) and not limits.is_count("٣") and not limits.is_count("")
    )
    small_models.write_bert(tmp_path / "bert")
    config = tmp_path / "bert" / "config.json"
    config.write_text(config.read_text().replace('"hidden_size": 8', f'"hidden_size": {digits}'))
    with refused("config.json: not valid JSON"):
        interop.config_from_huggingface(str(tmp_path / "bert"))
    (tmp_path / "a.vec").write_text(f"{digits} 4\n")
    (tmp_path / "vocab.txt").write_text(f"the {digits}\n")
    (tmp_path / "a.conllu").write_text("\t".join([digits, "a", *"_" * 4, digits, "_", "_", "_"]) + "\n\n")
    for read in (
        lambda: convert_vectors.read(str(tmp_path / "a.vec"), None),
        lambda: word_counts.read(str(tmp_path / "vocab.txt")),
    ):
        with refused(str(tmp_path)):
            read()
    assert not treebank._sentence("a", [[digits, *"a" * 9]]).words


@pytest.mark.parametrize(("rows", "columns"), [(-1, -1), (-2, -2), (1 << 40, 1 << 20), (2, 0), (2, -4)])
def test_matrices_of_fasttext_have_the_size_of_the_file(rows, columns):
    from t5x_like.data.subwords import Subwords
    from t5x_like.vocabularies.word_counts import WordCounts

    words = WordCounts(("the", "lemon"), np.array([7, 2]))
    values = np.ones((2, 4), np.float32)
    contents = fasttext_files.to_bytes(fasttext_files.FastTextModel(words, Subwords(0, 0, 0), values, values))
    size = struct.pack("<qq", 2, 4)
    assert contents.count(size) == 2
    with refused("model.bin: "):
        fasttext_files.read("model.bin", contents.replace(size, struct.pack("<qq", rows, columns), 1))


def test_line_of_vectors_is_limited(tmp_path):
    with gzip.open(tmp_path / "a.vec.gz", "wb", 1) as file:
        file.write(b"the" + b" 1" * (100 * MILLION))
    (tmp_path / "a.vec").write_bytes(b"the" + b" 1" * MILLION)
    with refused("a.vec: a line of 1,048,576 bytes or more"):
        convert_vectors.read(str(tmp_path / "a.vec"), None)
    with refused("a.vec.gz: a line of 1,048,576 bytes or more"):
        interop.word_vectors.read(str(tmp_path / "a.vec.gz"))


RECORD = b"WARC/1.0\r\nWARC-Type: %b\r\nContent-Type: %b\r\nContent-Length: %b\r\n\r\n%b\r\n\r\n"
TEXT = RECORD % (b"conversion", b"text/plain", b"5", b"hello")
LONG = b"a" * (200 * MILLION)


@pytest.mark.parametrize(
    "contents",
    [
        b"WARC/1.0\r\nX: " + LONG,
        b"WARC/1.0\r\n" + b"a: b\r\n" * (20 * MILLION),
        TEXT + b"\n" * (100 * MILLION),
        RECORD % (b"conversion", b"text/plain", b"9" * 5000, b"hello"),
        RECORD % (b"response", b"application/http", b"200000000", b"HTTP/1.1 200 OK\r\nX: " + LONG),
    ],
    ids=["line", "lines", "blank lines", "digits", "response"],
)
def test_headers_of_web_archives_are_limited(contents, tmp_path):
    pytest.importorskip("warcio")
    from data_tasks.corpora.formats.base import Cursor, Reading
    from data_tasks.corpora.formats.web_archives import WebArchive

    with gzip.open(tmp_path / "a.warc.gz", "wb", 1) as file:
        file.write(contents)
    assert (tmp_path / "a.warc.gz").stat().st_size < 2 * MILLION
    with refused("a.warc.gz: the archive is damaged"):
        list(WebArchive().records(fsspec.open(tmp_path / "a.warc.gz"), Cursor(), Reading()))
