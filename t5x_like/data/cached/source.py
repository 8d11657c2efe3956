"""Where batches come from: a cache that `t5x_like cache` wrote."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like import paths
from t5x_like.data.cached import manifest as manifests
from t5x_like.data.cached.iterator import CachedIterator, RowOrder
from t5x_like.data.cached.layout import Layout
from t5x_like.data.cached.rows import Decoder, batch_dtype
from t5x_like.data.cached.shards import Shards
from t5x_like.data.features import FeatureSpec
from t5x_like.data.token_ids import check_ids
from t5x_like.errors import UserError

# Of a bucket, rows take tens of milliseconds each: many batches are on their way at once.
THREADS_FOR_A_BUCKET = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class CachedSource:
    """A cache of packed rows; a stand-in for `SeqIOSource` that needs neither TensorFlow nor SeqIO.

    The order of rows depends on the cache, `seed` and `batch_size` alone; each of several processes reads its part of
    every batch. Nothing is opened before a method is called.

    Attributes:
      cache_dir: the directory that `t5x_like cache` was given; local, or `gs://…`.
      batch_size: rows of a batch over all processes.
      split: of the data.
      shuffle: whether training batches come in a random order; evaluation's never do.
      seed: of that order.
      mixture_or_task_name: what the cache must be of; None for any.
      task_feature_lengths: what it must have been written for; None for any.
      pack: whether its rows must be packed; None for either.
      verify_checksums: read every file once before the first batch, to find altered ones; sizes are always compared.
      threads: batches that are read at the same time; by default 0 (each when it is wanted) from a disk, 16 from a
        bucket.
    """

    cache_dir: str
    batch_size: int
    split: str = "train"
    shuffle: bool = True
    seed: int = 0
    mixture_or_task_name: str | None = None
    task_feature_lengths: Mapping[str, int] | None = None
    pack: bool | None = None
    verify_checksums: bool = False
    threads: int | None = None

    def __post_init__(self):
        if self.batch_size < 1:
            raise UserError(f"BATCH_SIZE={self.batch_size} must be at least 1")

    @property
    def directory(self) -> str:
        """That of the split."""
        return paths.join(self.cache_dir, self.split)

    @property
    def name(self) -> str:
        """The name of the task, or the path of the cache if no task is given."""
        return self.mixture_or_task_name or f"the cache {self.directory}"

    @functools.cached_property
    def manifest(self) -> manifests.Manifest:
        """What the cache is, once it has been found to be whole.

        Raises:
          UserError: there is none, or it is half-written.
          UserError: it is damaged, of another task, or where ArrayRecord cannot read.
        """
        if not paths.is_local(self.cache_dir) and not self.cache_dir.startswith("gs://"):
            raise UserError(
                f"CACHE_DIR={self.cache_dir}: rows are read from local paths and gs:// alone; copy the cache there"
            )
        manifest = manifests.read(self.directory)
        task = manifest.settings["task"]
        if self.mixture_or_task_name not in (None, task):
            raise UserError(f"the cache {self.directory} is of {task}, not of {self.mixture_or_task_name}")
        manifests.check_files(self.directory, manifest, checksums=self.verify_checksums)
        return manifest

    def describe(self) -> list[str]:
        """What is read, a line."""
        manifest = self.manifest
        passes, lengths = manifest.rows_of_passes, manifest.layout.lengths
        ids = max((about["ids"] for about in manifest.vocabularies.values()), default=0)
        return [
            f"data: cache {self.directory} ({manifest.fingerprint}) of {manifest.settings['task']}, "
            f"split {self.split}, lengths {', '.join(f'{name} {length}' for name, length in lengths.items())}, "
            f"{sum(passes):,} rows in {len(passes)} {'pass' if len(passes) == 1 else 'passes'}, "
            f"{sum(passes) / self.batch_size:,.1f} batches of {self.batch_size} before rows repeat, seed {self.seed}, "
            f"{ids:,} token ids"
        ]

    def has_metrics(self) -> bool:
        """Never: a task's own metrics are computed on its texts, which are not in the cache."""
        return False

    def vocabularies(self) -> dict[str, Any]:
        """Task feature -> vocabulary, from the task itself: this alone needs SeqIO and TensorFlow."""
        from t5x_like.data.seqio_feed import SeqIOSource

        settings = self.manifest.settings
        return SeqIOSource(
            mixture_or_task_name=settings["task"],
            task_feature_lengths=self.manifest.layout.lengths,
            batch_size=self.batch_size,
            module=settings["module"],
            task_arguments=settings["task_arguments"],
        ).vocabularies()

    def check_vocabulary(self, embeddings: int) -> None:
        """Refuses a cache with more token ids than a model has embeddings.

        Raises:
          UserError: with both numbers.
        """
        for name, about in self.manifest.vocabularies.items():
            if about["ids"] > embeddings:
                raise UserError(
                    f"the vocabulary of {name!r} in the cache {self.directory} has {about['ids']} ids (sentinels "
                    f"included), the model {embeddings} embeddings: give the model vocab_size={about['ids']} or more"
                )

    def check(self, spec: FeatureSpec) -> None:
        """Checks that the rows of the cache are those that the objective reads; no row is read.

        Raises:
          UserError: the cache is incomplete, or was written for other features, lengths or packing.
        """
        _refuse_other_layout(self, self.manifest.layout, spec)
        _refuse_other_dtypes(self, self.manifest, spec)

    def batch_shapes(self, spec: FeatureSpec) -> dict[str, tuple[int, int]]:
        """Model feature -> (batch, length) over all processes; the cache is not opened where lengths are given."""
        lengths = self.task_feature_lengths or self.manifest.layout.lengths
        return {name: (self.batch_size, length) for name, length in spec.model_lengths(lengths).items()}

    def host_iterator(self, spec: FeatureSpec, *, process_index: int = 0, process_count: int = 1) -> CachedIterator:
        """Training batches of this process: its rows of each.

        Args:
          spec: what the objective reads.
          process_index: which process this is.
          process_count: how many read together.

        Raises:
          FileNotFoundError, ValueError: the cache is not whole, or not what this run reads.
        """
        mine, reader = self._rows(process_index, process_count), _Reader(self, spec)
        manifest = self.manifest
        order = RowOrder(manifest.rows_of_passes, shuffle=self.shuffle, seed=self.seed)

        def read(batch: int) -> dict[str, np.ndarray]:
            first = batch * self.batch_size
            return reader([order[first + row] for row in mine])

        threads = self.threads
        if threads is None:
            threads = 0 if paths.is_local(self.cache_dir) else THREADS_FOR_A_BUCKET
        return CachedIterator(
            read,
            identity={
                "cache": manifest.fingerprint,
                "batch_size": self.batch_size,
                "shuffle": self.shuffle,
                "seed": self.seed,
            },
            batches_without_repeating=order.rows // self.batch_size,
            threads=threads,
        )

    def eval_batches(
        self, spec: FeatureSpec, num_batches: int | None = None, *, process_index: int = 0, process_count: int = 1
    ) -> Iterator[dict[str, np.ndarray]]:
        """The first pass once through as it is stored; the last batch is filled up with rows of zeros, without weight.

        Args:
          spec: what the objective reads.
          num_batches: how many at most; None for all.
          process_index: which process this is.
          process_count: how many there are; all see the same number of batches.
        """
        mine, reader = self._rows(process_index, process_count), _Reader(self, spec)
        rows = self.manifest.rows_of_passes[0]
        batches = -(-rows // self.batch_size)
        for batch in range(batches if num_batches is None else min(batches, num_batches)):
            first = batch * self.batch_size
            there = [first + row for row in mine if first + row < rows]
            yield {name: np.pad(array, [(0, len(mine) - len(there)), (0, 0)]) for name, array in reader(there).items()}

    def _rows(self, process_index: int, process_count: int) -> range:
        """The rows of each batch that are this process's."""
        if self.batch_size % process_count:
            raise UserError(f"BATCH_SIZE={self.batch_size} must be a multiple of the {process_count} processes")
        rows = self.batch_size // process_count
        return range(process_index * rows, (process_index + 1) * rows)


class _Reader:
    """Reads rows by number, as batches of an objective."""

    def __init__(self, source: CachedSource, spec: FeatureSpec):
        source.check(spec)
        manifest = source.manifest
        self._decode = Decoder(manifest.layout, manifest.dtypes, spec)
        self._shards = Shards(source.directory, manifest.shards)
        self._data = f"the cache {source.directory} of {manifest.settings['task']}"
        self._limits = spec.id_limits({name: about["ids"] for name, about in manifest.vocabularies.items()})

    def __call__(self, rows: Sequence[int]) -> dict[str, np.ndarray]:
        batch = self._decode(self._shards.read(rows))
        check_ids(batch, self._limits, data=self._data, holder="its vocabulary")
        return batch


def _refuse_other_layout(source: CachedSource, layout: Layout, spec: FeatureSpec) -> None:
    wanted = Layout.of(
        spec,
        {**layout.lengths, **(source.task_feature_lengths or {})},
        pack=layout.pack if source.pack is None else source.pack,
    )
    if found := layout.differences(wanted):
        raise UserError(
            f"the cache {source.directory} was written for another run: {'; '.join(found)}. Set TASK_FEATURE_LENGTHS "
            "and PACK to what it has, or write another with `t5x_like cache` and the gin files of this run"
        )


def _refuse_other_dtypes(source: CachedSource, manifest: manifests.Manifest, spec: FeatureSpec) -> None:
    for value, dtype in zip(manifest.layout.values, manifest.dtypes, strict=True):
        wanted = "int32" if value.within else spec.task_dtype(value.sources[0])
        if batch_dtype(dtype) != wanted:
            raise UserError(
                f"the cache {source.directory} holds {'+'.join(value.sources)!r} as {batch_dtype(dtype)}, but the "
                f"objective reads {wanted}: write another cache with `t5x_like cache` and the gin files of this run"
            )
