"""Writes pages to shards, in an order that depends on the pages alone."""

import dataclasses
import fractions
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from t5x_like import paths
from t5x_like.cleaning.packages import require
from t5x_like.cleaning.pages import Page, text_hash, url_hash
from t5x_like.errors import UserError

if TYPE_CHECKING:
    import apache_beam as beam

TRAIN, VALIDATION = "train", "validation"
# C4 holds out the pages with one of 1,000 hashes.
VALIDATION_FRACTION = 0.001
Format = Literal["jsonl.zst", "jsonl.gz", "parquet"]
FORMATS = ("jsonl.zst", "jsonl.gz", "parquet")
_SHARD = re.compile(rf"({TRAIN}|{VALIDATION})-\d+-of-\d+\.({'|'.join(map(re.escape, FORMATS))})")
_COLUMNS = ("text", "url", "timestamp", "language", "source", "record", "content-type", "content-length")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritePages:
    """Writes each split to files such as `train-00000-of-00008.jsonl.zst`.

    A page belongs to the split and the shard that the hash of its normalized URL determines. The pages of a shard are
    in the order of these hashes, so the files do not depend on the runner, and a worker that is retried writes the
    same file again. A worker holds one shard in memory.

    Attributes:
      directory: the directory to write to, local or in a bucket.
      shards: number of files of the training split.
      file_format: `jsonl.zst`, `jsonl.gz` or `parquet`.
      validation_fraction: fraction of the pages to hold out.
      languages: one subdirectory per language; empty for none.
    """

    directory: str
    shards: int = 8
    file_format: Format = "jsonl.zst"
    validation_fraction: float = VALIDATION_FRACTION
    languages: Sequence[str] = ()

    def __post_init__(self):
        if self.shards < 1:
            raise UserError(f"NUM_SHARDS={self.shards} is not a positive integer. Give at least 1.")
        if self.file_format not in FORMATS:
            raise UserError(f"OUTPUT_FORMAT={self.file_format!r}: unknown format. Give one of {', '.join(FORMATS)}.")
        if not 0 <= self.validation_fraction < 1:
            raise UserError(
                f"VALIDATION_FRACTION={self.validation_fraction} is out of range. Give a fraction in [0, 1)."
            )
        if isinstance(self.languages, str):
            raise UserError(f"BY_LANGUAGE={self.languages!r} is not a list of languages. Give one, such as ['en'].")
        if self.file_format == "parquet":
            require("pyarrow.parquet", "OUTPUT_FORMAT=parquet")

    def expand(self, pages: "beam.PCollection") -> "beam.PCollection":
        """Writes all pages, and returns (split, file, number of pages) of each file."""
        import apache_beam as beam

        return (
            pages
            | "key by shard" >> beam.Map(lambda page: (self.shard_of(page), page))
            | "group shards" >> beam.GroupByKey()
            | "write pages" >> beam.MapTuple(self._write)
        )

    def earlier_shards(self) -> list[str]:
        """Returns the shards that an earlier pipeline has written to the directory."""
        directories = [self.directory, *(paths.join(self.directory, language) for language in self.languages)]
        return [
            paths.join(directory, name)
            for directory in directories
            for name in paths.listdir(directory)
            if _SHARD.fullmatch(name)
        ]

    def shard_of(self, page: Page) -> tuple[str, int]:
        """Returns the split of a page, after its language if pages are written by language, and its shard."""
        # The shortest decimal of the fraction: 0.001 is 1 / 1000, as in C4.
        held_out, parts = fractions.Fraction(str(self.validation_fraction)).as_integer_ratio()
        digest = url_hash(page)
        split = VALIDATION if digest % parts < held_out else TRAIN
        name = f"{page.language}/{split}" if page.language in self.languages else split
        # Other bits than those of the split.
        return name, 0 if split == VALIDATION else (digest >> 64) % self.shards

    def _write(self, shard: tuple[str, int], pages: Iterable[Page]) -> tuple[str, str, int]:
        split, index = shard
        count = 1 if split.endswith(VALIDATION) else self.shards
        name = f"{split}-{index:05d}-of-{count:05d}.{self.file_format}"
        ordered = sorted(pages, key=_order)
        rows = (page.row() for page in ordered)
        encode = _parquet if self.file_format == "parquet" else _json_lines
        paths.write_output("OUTPUT_PATH", paths.join(self.directory, *name.split("/")), encode(rows, self.file_format))
        return split, name, len(ordered)


def _order(page: Page) -> tuple[str, str, int, str]:
    return text_hash(page.normalized_url), page.source, page.record, page.text  # pieces of a page differ in their texts


def _json_lines(rows: Iterator[dict], file_format: str) -> bytes:
    import gzip

    import zstandard

    lines = (json.dumps({name: row[name] for name in _COLUMNS if name in row}, ensure_ascii=False) for row in rows)
    data = "".join(f"{line}\n" for line in lines).encode()
    return zstandard.ZstdCompressor().compress(data) if file_format == "jsonl.zst" else gzip.compress(data, mtime=0)


def _parquet(rows: Iterator[dict], file_format: str) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = [(name, pa.int64() if name == "record" else pa.string()) for name in _COLUMNS]
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), pa.schema(fields)), file, compression="zstd")
    return file.getvalue()
