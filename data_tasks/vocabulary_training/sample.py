"""A uniform sample of the documents of files, drawn in this process or by Beam, with the same result."""

import functools
import hashlib
import heapq
import json
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import fsspec
from absl import logging

from data_tasks.corpora import matching_files, text_files
from t5x_like import beam_errors, paths
from t5x_like.data.skipped_records import SkippedRecords
from t5x_like.errors import UserError

PROGRESS_SECONDS = 15.0
# Beam selects documents by their hashes alone: about 1.2 times the size of the sample, and 100 of the longest documents
# more, because the number of documents below a hash varies. This process reduces them to the sample.
_MARGIN, _MARGIN_BYTES = 1.2, 100 * text_files.MAX_DOCUMENT_BYTES
_SHARDS = ".sample"
_SKIPPED = "skipped"


class Sample(NamedTuple):
    """Documents, and the size of the text from which they were drawn, in bytes."""

    documents: list[str]
    read_bytes: int


class _Place(NamedTuple):
    """A document and its position: number of the file, number in the file."""

    file: int
    number: int
    text: bytes


def draw(
    pattern: str,
    max_bytes: int,
    skipped: SkippedRecords,
    *,
    text_column: str = "text",
    on_bad_record: str = "error",
    beam: Sequence[str] | None = None,
    directory: str = "",
) -> Sample:
    """Reads the documents of files, or the ones with the smallest hashes, as many as fit.

    Args:
      pattern: the files; see `matching_files.files`.
      max_bytes: size of the sample. Memory holds the sample and one document.
      skipped: counts what is skipped.
      text_column: column, or field of a record, with the text.
      on_bad_record: `error` or `skip`.
      beam: options of an Apache Beam pipeline that reads the files, twice; None to read them in this process, once.
      directory: directory for the files with which the workers of Beam return the sample.

    Returns:
      The documents in the order of the files. They do not depend on `beam`.

    Raises:
      UserError: no file matches, a record is bad, the files have no text, or Beam is not installed.
    """
    files = [matching_files.path_of(file) for file in matching_files.files(pattern)]
    read = functools.partial(_read, text_column=text_column, on_bad_record=on_bad_record)
    if beam is None:
        places = (place for item in enumerate(files) for place in read(item, skipped))
        chosen, read_bytes = _smallest(places, max_bytes, len(files))
    else:
        chosen, read_bytes = _with_beam(files, read, max_bytes, skipped, beam, directory)
    documents = [place.text.decode() for place in sorted(chosen)]
    size = sum(len(place.text) for place in chosen)
    kept = f"{len(documents):,} documents of {size / 1e6:.1f} MB"
    logging.info("%d files of %s: %.1f MB of text, training on %s", len(files), pattern, read_bytes / 1e6, kept)
    if not documents:
        raise UserError(f"PATTERN={pattern}: no text found in {len(files)} files. Give files with UTF-8 text.")
    return Sample(documents, read_bytes)


def read_all(
    pattern: str, skipped: SkippedRecords, *, text_column: str = "text", on_bad_record: str = "error"
) -> Iterator[bytes]:
    """Yields all documents of files, one at a time, and counts what is skipped; see `draw`."""
    return text_files.documents(
        matching_files.files(pattern),
        text_column=text_column,
        max_document_bytes=None,
        on_bad_record=on_bad_record,
        skipped=skipped,
    )


def _read(item: tuple[int, str], skipped: SkippedRecords, *, text_column: str, on_bad_record: str) -> Iterator[_Place]:
    index, path = item
    filesystem, inner = fsspec.url_to_fs(path)
    file = fsspec.core.OpenFile(filesystem, inner, "rb")
    documents = text_files.documents([file], text_column=text_column, on_bad_record=on_bad_record, skipped=skipped)
    for number, document in enumerate(documents):
        yield _Place(index, number, document)


def _smallest(places: Iterator[_Place], max_bytes: int, files: int) -> tuple[list[_Place], int]:
    """Returns the documents with the smallest hashes, and the size of all documents."""
    kept: list[tuple[float, _Place]] = []  # (-hash, document): the first one is removed first
    # The last document that was removed. Documents with larger hashes are not kept, even if they are short: otherwise,
    # the sample would depend on the order in which the documents are read.
    removed = None
    read = size = 0
    logged = time.monotonic()
    for place in places:
        read += len(place.text)
        item = (-_hash_fraction(place.text), place)
        if removed is None or item > removed:
            size += len(place.text)
            heapq.heappush(kept, item)
        while size > max_bytes and len(kept) > 1:
            removed = heapq.heappop(kept)
            size -= len(removed[1].text)
        if time.monotonic() - logged >= PROGRESS_SECONDS:
            logging.info("read %.0f MB of text from %d files", read / 1e6, files)
            logged = time.monotonic()
    return [place for _, place in kept], read


def _with_beam(
    files, read, max_bytes: int, skipped: SkippedRecords, options: Sequence[str], directory: str
) -> tuple[list[_Place], int]:
    """Draws a slightly larger sample with Beam, and reduces it as without Beam."""
    try:
        import apache_beam as beam
    except ModuleNotFoundError as error:
        raise UserError(
            "BEAM: Apache Beam is not installed. Run `pip install -e '.[cache]' -c constraints.txt`, or omit BEAM."
        ) from error
    if beam_errors.is_dask(options):
        raise UserError(
            f"BEAM={list(options)}: DaskRunner lacks the side inputs and tagged outputs of this pipeline. Give another "
            "runner, or omit BEAM."
        )
    prefix, total = paths.join(directory, f"{_SHARDS}-text"), paths.join(directory, f"{_SHARDS}-bytes")
    skipped_prefix = paths.join(directory, f"{_SHARDS}-{_SKIPPED}")
    with beam_errors.explained(), beam_errors.make_pipeline(options) as pipeline:
        found = pipeline | beam.Create(list(enumerate(files))) | beam.Reshuffle()
        found |= beam.FlatMap(_read_in_pipeline, read).with_outputs(_SKIPPED, main="places")
        places = found["places"]
        size = places | "sizes" >> beam.Map(lambda place: len(place.text)) | beam.CombineGlobally(sum)
        wanted = beam.pvalue.AsSingleton(size)
        chosen = places | "sample" >> beam.Filter(_is_wanted, max_bytes, wanted)
        _ = chosen | beam.Map(_to_json) | "write sample" >> beam.io.WriteToText(prefix)
        _ = found[_SKIPPED] | "write skipped" >> beam.io.WriteToText(skipped_prefix)
        _ = size | "write size" >> beam.Map(lambda found: paths.write_atomic(total, str(found)))
    read_bytes = int(paths.read_text(total))
    names = [name for name in paths.listdir(directory) if name.startswith(_SHARDS)]

    def lines(kind: str) -> Iterator[str]:
        shards = (name for name in names if name.startswith(f"{_SHARDS}-{kind}"))
        return (line for name in shards for line in _lines(paths.join(directory, name)))

    kept, _ = _smallest(map(_from_json, lines("text")), max_bytes, len(files))
    for line in lines(_SKIPPED):
        skipped.merge(json.loads(line))
    for name in names:
        paths.remove(paths.join(directory, name))
    return kept, read_bytes


def _read_in_pipeline(item, read):
    """Yields the documents of a file, and then the counts of what was skipped as a tagged output."""
    import apache_beam as beam

    skipped = SkippedRecords()
    yield from read(item, skipped)
    yield beam.pvalue.TaggedOutput(_SKIPPED, json.dumps(skipped.per_file()))


def _is_wanted(place: _Place, max_bytes: int, total: int) -> bool:
    return _hash_fraction(place.text) * total <= max_bytes * _MARGIN + _MARGIN_BYTES


def _to_json(place: _Place) -> str:
    return json.dumps([place.file, place.number, place.text.decode()])


def _from_json(line: str) -> _Place:
    file, number, text = json.loads(line)
    return _Place(file, number, text.encode())


def _lines(path: str) -> Iterator[str]:
    return iter(paths.read_text(path).split("\n")[:-1])


def _hash_fraction(document: bytes) -> float:
    """Hashes a document to [0, 1), so that the sample is the same each time."""
    return int.from_bytes(hashlib.blake2b(document, digest_size=4, person=b"vocabulary").digest()) / 2**32
