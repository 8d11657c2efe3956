"""Data source that reads a cache written by `t5x_like cache`."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like import paths
from t5x_like.data import batches, continuous, prompts, task_arguments, text_vocabulary
from t5x_like.data.cached import logits
from t5x_like.data.cached import manifest as manifests
from t5x_like.data.cached.iterator import CachedIterator, RowOrder, Streams
from t5x_like.data.cached.layout import Layout
from t5x_like.data.cached.rows import Decoder, batch_dtype
from t5x_like.data.cached.shards import Shards
from t5x_like.data.features import FeatureSpec
from t5x_like.data.token_ids import check_ids
from t5x_like.errors import UserError
from t5x_like.vocabularies import vocabulary_digest
from t5x_like.vocabularies.vocabulary_kind import VocabularyKind

# A row from a bucket takes tens of milliseconds, so many batches are read concurrently.
THREADS_FOR_A_BUCKET = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class CachedSource:
    """A cache of packed rows, which replaces `SeqIOSource` without TensorFlow and SeqIO; see `DataSource`.

    The order of rows depends only on the cache, `seed` and `batch_size`; each process reads its part of every batch.
    Constructing a source opens no file.

    Attributes:
      cache_dir: Directory given to `t5x_like cache`: a local path or `gs://…`.
      batch_size: Number of rows of a batch over all processes.
      split: Split of the data.
      shuffle: Whether training batches are shuffled; evaluation batches never are.
      seed: Seed of the order.
      mixture_or_task_name: Task that the cache must contain; None for any.
      task_feature_lengths: Lengths for which the cache must be written; None for any.
      pack: Whether the rows must be packed; None for either.
      verify_checksums: Whether to read every file before the first batch to find altered ones. File sizes are always
        compared.
      threads: Number of batches read concurrently. The default is 0 (on request) from a disk and 16 from a bucket.
      vocabulary_path: As in `SeqIOSource`, for text; by default the one that the cache was written with.
      continuous: Whether row i of a batch continues row i of the batch before. The stored rows are cut into as many
        parts as a batch has rows; row i reads part i in order, then part i + 1. The cache must be written with
        continuous rows.
    """

    stores_rows = True

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
    vocabulary_path: str | None = None
    continuous: bool = False

    def __post_init__(self):
        if self.batch_size < 1:
            raise UserError(f"BATCH_SIZE={self.batch_size} is not a positive integer. Give the rows of a batch.")
        if self.continuous:
            continuous.check_settings(self.name, shuffle=self.shuffle, pack=self.pack)

    @property
    def directory(self) -> str:
        """The directory of the split."""
        return paths.join(self.cache_dir, self.split)

    @property
    def name(self) -> str:
        """The name of the task, or the path of the cache if no task is given."""
        return self.mixture_or_task_name or f"the cache {self.directory}"

    @functools.cached_property
    def manifest(self) -> manifests.Manifest:
        """The manifest of the cache, after a check that the cache is complete.

        Raises:
          UserError: the cache is not found, incomplete, damaged, of another task, or at a path that ArrayRecord cannot
            read.
        """
        if not paths.is_local(self.cache_dir) and not self.cache_dir.startswith("gs://"):
            raise UserError(
                f"CACHE_DIR={self.cache_dir} is neither a local path nor gs://, the only ones that ArrayRecord reads. "
                "Copy the cache to one of them."
            )
        manifest = manifests.read(self.directory)
        task = manifest.settings["task"]
        if self.mixture_or_task_name not in (None, task):
            raise UserError(
                f"the cache {self.directory} contains {task}, not {self.mixture_or_task_name}. Set CACHE_DIR or "
                "MIXTURE_OR_TASK_NAME accordingly."
            )
        manifests.check_files(self.directory, manifest.shards, checksums=self.verify_checksums)
        return manifest

    def describe(self) -> list[str]:
        """Returns a line that describes the cache."""
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

    def provenance(self) -> list[dict[str, Any]]:
        """Returns the fingerprint and the sizes of the cache; see `DataSource`."""
        manifest = self.manifest
        return [
            {
                "task": manifest.settings["task"],
                "split": self.split,
                "cache": self.directory,
                "fingerprint": manifest.fingerprint,
                "rows": sum(manifest.rows_of_passes),
                "passes": len(manifest.rows_of_passes),
                "examples": sum(shard.examples for shard in manifest.shards if shard.number_of_pass == 0),
            }
        ]

    def text_problems(self, spec: FeatureSpec) -> list[str]:
        """Returns an empty list: `t5x_like cache` measures the text when it writes a cache."""
        return []

    def has_metrics(self) -> bool:
        """Returns False: a task computes its own metrics from texts, which are not in the cache."""
        return False

    def vocabularies(self) -> dict[str, Any]:
        """Returns task feature -> vocabulary of the task; the only method that needs SeqIO and TensorFlow."""
        from t5x_like.data.seqio_feed import SeqIOSource

        settings = self.manifest.settings
        arguments = settings["task_arguments"]
        if self.vocabulary_path and arguments:
            arguments = task_arguments.without(arguments, task_arguments.VOCABULARY)
        return SeqIOSource(
            mixture_or_task_name=settings["task"],
            task_feature_lengths=self.manifest.layout.lengths,
            batch_size=self.batch_size,
            module=settings["module"],
            task_arguments=arguments,
            vocabulary_path=self.vocabulary_path or settings.get("vocabulary_path"),
        ).vocabularies()

    def text_vocabulary(self, spec: FeatureSpec) -> vocabulary_digest.TextVocabulary:
        """Returns digest and location of the vocabulary of the text. Caches of earlier versions have no digest."""
        settings, stored = self.manifest.settings, self.manifest.vocabularies
        path = self.vocabulary_path or settings.get("vocabulary_path")
        path = path or task_arguments.find(settings["task_arguments"] or {}, task_arguments.VOCABULARY)
        digest = stored.get(text_vocabulary.text_feature(spec), {}).get("digest")
        return vocabulary_digest.TextVocabulary(digest or (vocabulary_digest.of_path(path) if path else None), path)

    def vocabulary_kind(self, spec: FeatureSpec) -> VocabularyKind | None:
        """Returns the kind of the vocabulary of the text; see `DataSource`."""
        known = self.manifest.vocabularies
        names = [name for name in spec.task_features if spec.is_token_ids(name) and name in known]
        kinds = {(known[name]["kind"], known[name]["ids"], known[name].get("digest")) for name in names}
        return VocabularyKind(*next(iter(kinds))[:2]) if len(kinds) == 1 else None

    def add_eos(self) -> Mapping[str, bool]:
        """Returns task feature -> whether its text ends in EOS; empty for caches of earlier versions."""
        return self.manifest.add_eos

    def check_vocabulary(self, embeddings: int) -> None:
        """Checks that a model has an embedding for each token id.

        Raises:
          UserError: a vocabulary has more ids than `embeddings`.
        """
        # The values of an item, such as its characters, have embeddings of their own.
        others = {name for value in self.manifest.layout.values if value.inner for name in value.sources}
        for name, about in self.manifest.vocabularies.items():
            if name not in others and about["ids"] > embeddings:
                raise UserError(
                    f"the cache {self.directory}: the vocabulary of {name!r} has {about['ids']} ids (including "
                    f"sentinels), but the model has only {embeddings} embeddings. Set vocab_size={about['ids']} or "
                    "more for the model."
                )

    def check(self, spec: FeatureSpec) -> None:
        """Checks that the rows of the cache are those that the objective reads; no row is read.

        Raises:
          UserError: the cache is incomplete, was written for other features, lengths or packing, or has no rows; or
            the attached arrays of the spec do not belong to it.
        """
        self.logits_of(spec)

    def logits_of(self, spec: FeatureSpec) -> Mapping[str, logits.LogitsManifest]:
        """Returns directory -> manifest of the teacher logits of a spec, which is checked once; see `check`."""
        if spec not in self._checked:
            if not self.manifest.rows_of_passes[0]:
                raise UserError(f"the cache {self.directory} has no rows. Write it again from a split with examples.")
            if self.continuous:
                _check_continuous(self, self.manifest, spec)
            _check_encoder_bos(self, bool(self.manifest.settings.get("encoder_bos")), spec)
            _check_separator(self, self.manifest.settings.get("separator"), spec.separator)
            _check_layout(self, self.manifest.layout, spec)
            _check_dtypes(self, self.manifest, spec)
            self._checked[spec] = logits.check(self.manifest, spec, checksums=self.verify_checksums)
        return self._checked[spec]

    @functools.cached_property
    def _checked(self) -> dict[FeatureSpec, Mapping[str, logits.LogitsManifest]]:
        return {}

    def per_task(self) -> "list[CachedSource]":
        """Returns `[self]`: a cache has one task, or the examples of a mixture in the order in which they are read."""
        return [self]

    def batch_shapes(self, spec: FeatureSpec) -> dict[str, tuple[int, ...]]:
        """Returns model feature -> shape of the global batch; opens the cache only if no lengths are given."""
        lengths = self.task_feature_lengths or self.manifest.layout.lengths
        return {name: (self.batch_size, *shape) for name, shape in spec.row_shapes(lengths).items()}

    def host_iterator(self, spec: FeatureSpec, *, process_index: int = 0, process_count: int = 1) -> CachedIterator:
        """Returns the training batches of one process: its rows of each batch.

        Args:
          spec: Features that the objective reads.
          process_index: Index of this process.
          process_count: Number of processes that share each batch.

        Raises:
          UserError: the cache is incomplete, or was written for other features, lengths or packing.
        """
        mine, reader = batches.rows_of_process(self.batch_size, process_index, process_count), RowReader(self, spec)
        manifest = self.manifest
        order = RowOrder(manifest.rows_of_passes, shuffle=self.shuffle, seed=self.seed)
        streams = Streams(order.rows, self.batch_size) if self.continuous else None

        def read(batch: int) -> dict[str, np.ndarray]:
            first = batch * self.batch_size
            return reader([order[first + row] if streams is None else streams.row(batch, row) for row in mine])

        return CachedIterator(
            read,
            identity={
                "cache": manifest.fingerprint,
                **reader.identity,
                "batch_size": self.batch_size,
                "shuffle": self.shuffle,
                "seed": self.seed,
                **({"continuous": True} if self.continuous else {}),
            },
            batches_without_repeating=order.rows // self.batch_size,
            threads=number_of_threads(self.threads, self.cache_dir),
        )

    def eval_batches(
        self, spec: FeatureSpec, num_batches: int | None = None, *, process_index: int = 0, process_count: int = 1
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the batches of the first pass in stored order.

        The last batch is padded with rows of zeros, which have no weight.

        Args:
          spec: Features that the objective reads.
          num_batches: Maximum number of batches; None for all.
          process_index: Index of this process.
          process_count: Number of processes; all see the same number of batches.
        """
        mine, reader = batches.rows_of_process(self.batch_size, process_index, process_count), RowReader(self, spec)
        rows = self.manifest.rows_of_passes[0]
        available = -(-rows // self.batch_size)
        for batch in range(available if num_batches is None else min(available, num_batches)):
            first = batch * self.batch_size
            numbers = [row * available + batch if self.continuous else first + row for row in mine]
            present = [number < rows for number in numbers]
            found = reader([number for number in numbers if number < rows])
            yield {name: batches.place_rows(array, present) for name, array in found.items()}


def number_of_threads(threads: int | None, directory: str) -> int:
    """Returns the number of batches that are read concurrently; `threads`, or a number that suits the directory."""
    if threads is not None:
        return threads
    return 0 if paths.is_local(directory) else THREADS_FOR_A_BUCKET


class RowReader:
    """Reads rows by number as batches of an objective.

    Attributes:
      identity: Part of the position in the data that describes the arrays attached to the rows; see `LogitsReader`.
    """

    def __init__(self, source: CachedSource, spec: FeatureSpec):
        manifest, of_teachers = source.manifest, source.logits_of(spec)
        self._decode = Decoder(manifest.layout, manifest.dtypes, spec)
        self._shards = Shards(source.directory, manifest.shards)
        self._data = f"the cache {source.directory} of {manifest.settings['task']}"
        self._limits = spec.id_limits({name: about["ids"] for name, about in manifest.vocabularies.items()})
        self._attached = logits.LogitsReader(manifest, spec, of_teachers)
        self.identity = self._attached.identity

    def __call__(self, rows: Sequence[int]) -> dict[str, np.ndarray]:
        """Returns model feature or attached array -> values of the rows with these numbers."""
        batch = self._decode(self._shards.read(rows))
        check_ids(batch, self._limits, data=self._data, holder="its vocabulary")
        return batch | self._attached(rows)


def _check_layout(source: CachedSource, layout: Layout, spec: FeatureSpec) -> None:
    wanted = Layout.of(
        spec,
        {**layout.lengths, **(source.task_feature_lengths or {})},
        pack=layout.pack if source.pack is None else source.pack,
    )
    if found := layout.differences(wanted):
        raise UserError(
            f"the cache {source.directory} does not suit this run: {'; '.join(found)}. Set TASK_FEATURE_LENGTHS and "
            "PACK as in the cache, or write another cache with `t5x_like cache` and the gin files of this run."
        )


def _check_encoder_bos(source: CachedSource, found: bool, spec: FeatureSpec) -> None:
    wanted = prompts.encoder_bos(spec) is not None
    if found != wanted and (found or not source.add_eos().get(prompts.INPUTS, True)):
        raise UserError(
            f"ENCODER_BOS={wanted}: the cache {source.directory} was written with ENCODER_BOS={found}, and inputs of "
            f"its task do not end in EOS, which BOS replaces. Write it with {wanted}, or give {found}."
        )


def _check_separator(source: CachedSource, found: str | None, wanted: str | None) -> None:
    if found != wanted:
        raise UserError(
            f"the cache {source.directory} does not suit this run: inputs and targets are separated by {found!r}, not "
            f"by {wanted!r} (None: EOS). Set SEPARATOR as in the cache, or write another cache with `t5x_like cache` "
            "and the gin files of this run."
        )


def _check_continuous(source: CachedSource, manifest: manifests.Manifest, spec: FeatureSpec) -> None:
    continuous.check_spec(source.name, spec)
    if not manifest.settings.get("continuous"):
        raise UserError(
            f"the cache {source.directory}: its rows do not continue one another. Write another cache with `t5x_like "
            "cache` and the gin files of this run, among them data/continuous.gin, or omit this file."
        )


def _check_dtypes(source: CachedSource, manifest: manifests.Manifest, spec: FeatureSpec) -> None:
    for value, dtype in zip(manifest.layout.values, manifest.dtypes, strict=True):
        wanted = "int32" if value.within else spec.task_dtype(value.sources[0])
        if batch_dtype(dtype) != wanted:
            raise UserError(
                f"the cache {source.directory} contains {'+'.join(value.sources)!r} as {batch_dtype(dtype)}, but the "
                f"objective reads {wanted}. Write another cache with `t5x_like cache` and the gin files of this run."
            )
