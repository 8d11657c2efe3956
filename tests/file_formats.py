"""Writes documents in each format that the tasks over files read."""

import bz2
import gzip
import io
import json
import lzma

import tensorflow as tf
import zstandard
from array_record.python.array_record_module import ArrayRecordWriter


def _jsonl(path, texts):
    return "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts).encode()


def _examples(texts):
    for text in texts:
        value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
        yield tf.train.Example(features=tf.train.Features(feature={"text": value})).SerializeToString()


def _tfrecord(path, texts):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in _examples(texts):
            writer.write(example)


def _array_record(path, texts):
    writer = ArrayRecordWriter(str(path), "group_size:4")
    for example in _examples(texts):
        writer.write(example)
    writer.close()


def table(texts, kind="string"):
    """Returns a table of pyarrow with the columns `id` and `text`."""
    import pyarrow as pa

    column = pa.array(texts, pa.string())
    return pa.table({"id": range(len(texts)), "text": column.dictionary_encode() if kind == "dictionary" else column})


def _parquet(path, texts):
    import pyarrow.parquet as pq

    pq.write_table(table(texts), path, row_group_size=7)


def _arrow(open_writer):
    def write(path, texts):
        import pyarrow as pa

        found = table(texts, "dictionary" if open_writer == "new_file" else "string")
        with pa.OSFile(str(path), "wb") as file, getattr(pa.ipc, open_writer)(file, found.schema) as writer:
            writer.write_table(found, max_chunksize=7)

    return write


def _web_archive(is_compressed):
    def write(path, texts):
        from warcio.warcwriter import WARCWriter

        with open(path, "wb") as file:
            writer = WARCWriter(file, gzip=is_compressed)
            writer.write_record(writer.create_warcinfo_record("a.warc", {"software": "a test"}))
            for text in texts:
                content = {"payload": io.BytesIO(text.encode()), "warc_content_type": "text/plain"}
                writer.write_record(writer.create_warc_record("https://example.org", "conversion", **content))

    return write


def _compressed(compress):
    return lambda path, texts: path.write_bytes(compress(_jsonl(path, texts)))


WRITERS = {
    "a.txt": lambda path, texts: path.write_text("\n".join(texts), newline="\r\n"),
    "a.jsonl": _compressed(bytes),
    "a.json.gz": _compressed(gzip.compress),
    "a.jsonl.bz2": _compressed(bz2.compress),
    "a.ndjson.xz": _compressed(lzma.compress),
    "a.jsonl.zst": _compressed(zstandard.ZstdCompressor().compress),
    "a.tfrecord-00000-of-00001": _tfrecord,
    "a.array_record": _array_record,
    "a.parquet": _parquet,
    "a.arrow": _arrow("new_stream"),
    "b.arrow": _arrow("new_file"),
    "a.warc.wet": _web_archive(False),
    "a.warc.wet.gz": _web_archive(True),
}
"""Name of a file -> function of its path and of texts without line ends."""

PACKAGES = {"parquet": "pyarrow", "arrow": "pyarrow", "warc": "warcio"}
"""Part of the name of a file -> the optional package that reads it."""
