"""Data source that mixes the caches of several tasks while it reads them."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like import paths
from t5x_like.data import batches, mixing
from t5x_like.data.cached import manifest as manifests
from t5x_like.data.cached.iterator import CachedIterator
from t5x_like.data.cached.mixed_order import MixedOrder
from t5x_like.data.cached.mixture_file import MixtureFile
from t5x_like.data.cached.source import CachedSource, RowReader, number_of_threads
from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.vocabularies import vocabulary_digest, vocabulary_kind


@dataclasses.dataclass(frozen=True, kw_only=True)
class CachedMixture:
    """The caches of several tasks, whose rows are mixed at given rates; see `DataSource`.

    Rates are fractions of the examples. A row of short examples holds more of them than a row of long ones, so the
    fractions of the rows are computed from the numbers of rows and examples in the manifests. The order depends only on
    the caches, the rates, `seed` and `batch_size`; each process reads its part of every batch.

    Attributes:
      cache_dir: Directory that `t5x_like cache` wrote for the mixture; or a list of directories, each of the cache of
        one task.
      batch_size: Number of rows of a batch over all processes.
      split: Split of the data. Tasks without it are left out.
      shuffle: Whether the training rows of each task are shuffled; evaluation batches never are.
      seed: Seed of the order.
      mixture_or_task_name: Mixture that the directory must contain, or a name for a list of caches; None for any.
      rates: Task -> rate, or `mixing.Rates`, which reads the numbers of examples in the manifests, or `mixing.Stages`
        of both; None for the rates with which the mixture was cached.
      task_feature_lengths: Lengths for which the caches must be written; None for any.
      pack: Whether the rows must be packed; None for either.
      verify_checksums: Whether to read every file before the first batch to find altered ones.
      threads: Number of batches read concurrently. The default is 0 (on request) from a disk and 16 from a bucket.
      vocabulary_path: As in `SeqIOSource`, for text; by default the one that the caches were written with.
      continuous: As in `CachedSource`. True raises an error: the rows of several caches do not continue one another.
    """

    stores_rows = True

    cache_dir: str | Sequence[str]
    batch_size: int
    split: str = "train"
    shuffle: bool = True
    seed: int = 0
    mixture_or_task_name: str | None = None
    rates: mixing.MixingRates = None
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
            raise UserError(
                f"{self.name}: continuous=True: the rows of several caches do not continue one another. Write one "
                "cache of the mixture with `t5x_like cache --examples=N` and read it with data/cached.gin, or omit "
                "data/continuous.gin."
            )
        mixing.task_names(self.rates)  # raises if a rate is invalid

    @property
    def name(self) -> str:
        """The name of the mixture, or the path of its cache if no name is given."""
        if self.mixture_or_task_name or not isinstance(self.cache_dir, str):
            return self.mixture_or_task_name or f"the mixture of {len(self.cache_dir)} caches"
        return f"the cache {self.cache_dir}"

    @functools.cached_property
    def _stored(self) -> MixtureFile | None:
        """The description of the mixture; None for a list of caches."""
        if not isinstance(self.cache_dir, str):
            return None
        stored = MixtureFile.read(self.cache_dir)
        if self.mixture_or_task_name not in (None, stored.name):
            raise UserError(
                f"the cache {self.cache_dir} contains {stored.name}, not {self.mixture_or_task_name}. Set CACHE_DIR or "
                "MIXTURE_OR_TASK_NAME accordingly."
            )
        return stored

    @functools.cached_property
    def sources(self) -> dict[str, CachedSource]:
        """Task -> cache, for the tasks that have the split.

        Raises:
          UserError: a cache is not found, incomplete or damaged, no task has the split, or a task has two caches.
        """
        found = {
            task: self._source(directory, task)
            for task, directory in self._directories.items()
            if self.split in paths.listdir(directory)
        }
        if not found:
            raise UserError(f"{self.name} has no split {self.split!r} of any task. Write it with `t5x_like cache`.")
        return found

    @functools.cached_property
    def _directories(self) -> dict[str, str]:
        """Task -> directory of its cache, also for tasks without the split."""
        if (stored := self._stored) is not None:
            return {task: paths.join(self.cache_dir, task) for task in stored.tasks}
        directories: dict[str, str] = {}
        for directory in self.cache_dir:
            task = self._task_of(directory)
            if task in directories:
                raise UserError(f"CACHE_DIR: {directories[task]} and {directory} are both of {task}. Give one.")
            directories[task] = directory
        return directories

    def _task_of(self, directory: str) -> str:
        """Returns the task of a cache, which the manifest of each of its splits names."""
        splits = [self.split, *paths.listdir(directory)]
        caches = (paths.join(directory, split) for split in splits)
        found = next((cache for cache in caches if paths.exists(paths.join(cache, manifests.MANIFEST))), None)
        return manifests.read(found or paths.join(directory, self.split)).settings["task"]

    def _source(self, directory: str, task: str | None) -> CachedSource:
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(CachedSource)}
        return CachedSource(**shared | {"cache_dir": directory, "mixture_or_task_name": task})

    def mixing_fractions(self) -> dict[str, float]:
        """Returns task -> fraction of the examples, of the first stage if the rates change.

        Raises:
          UserError: the rates are missing or do not suit the tasks.
        """
        return self._stages()[0][1]

    def _stages(self) -> list[tuple[int, dict[str, float]]]:
        """Returns the first step and the fractions of each stage; one stage if the rates do not change."""
        if isinstance(self.rates, mixing.Stages):
            return [(step, self._fractions(rates)) for step, rates in self.rates.in_order]
        return [(0, self._fractions(self.rates))]

    def _fractions(self, rates: mixing.MixingRates) -> dict[str, float]:
        if rates is None and self._stored is None:
            raise UserError(
                "RATES: missing. Give the rates of the caches, such as --gin.RATES=@mixing.Rates() for rates in "
                "proportion to their numbers of examples."
            )
        mixing.check_names(rates, tuple(self._directories), self.name)
        if isinstance(rates, mixing.Rates):
            by_task = rates.of({task: _examples(source) for task, source in self.sources.items()})
        else:
            given = self._stored.rates if rates is None else rates
            by_task = {task: given.get(task, 0.0) for task in self.sources}
        return mixing.fractions(by_task, self.name)

    def provenance(self) -> list[dict[str, Any]]:
        """Returns the provenance of each cache; see `DataSource`."""
        return [entry for each in self.sources.values() for entry in each.provenance()]

    def describe(self) -> list[str]:
        """Returns a line for the mixture, one for its rates, and one for each cache."""
        (_, fractions), *others = self._stages()
        rows = self._row_fractions(fractions)
        lines = [
            f"data: caches of {len(fractions)} tasks, split {self.split}, batches of {self.batch_size} rows, "
            f"seed {self.seed}",
            mixing.describe(fractions, self.name),
            *(f"from step {step:,}: {mixing.describe(later, self.name)}" for step, later in others),
        ]
        for task, share in rows.items():
            source = self.sources[task]
            count = sum(source.manifest.rows_of_passes)
            lines.append(
                f"{task}: cache {source.directory} ({source.manifest.fingerprint}), {count:,} rows, {share:.2%} of the "
                f"rows of the mixture, {count / share / self.batch_size:,.1f} batches before they repeat"
            )
        return lines

    def text_problems(self, spec: FeatureSpec) -> list[str]:
        """Returns an empty list; see `CachedSource`."""
        return []

    def has_metrics(self) -> bool:
        """Returns False: a task computes its own metrics from texts, which are not in a cache."""
        return False

    def vocabularies(self) -> dict[str, Any]:
        """Returns task feature -> vocabulary; the only method that needs SeqIO and TensorFlow."""
        return next(iter(self.sources.values())).vocabularies()

    def text_vocabulary(self, spec: FeatureSpec) -> vocabulary_digest.TextVocabulary:
        """Returns the vocabulary of the text; see `CachedSource.text_vocabulary`."""
        return next(iter(self.sources.values())).text_vocabulary(spec)

    def vocabulary_kind(self, spec: FeatureSpec) -> vocabulary_kind.VocabularyKind | None:
        """Returns the kind of the vocabulary of the text; see `DataSource`."""
        return next(iter(self.sources.values())).vocabulary_kind(spec)

    def add_eos(self) -> Mapping[str, bool]:
        """Returns task feature -> whether its text ends in EOS; see `CachedSource.add_eos`."""
        return next(iter(self.sources.values())).add_eos()

    def check_vocabulary(self, embeddings: int) -> None:
        """Checks that a model has an embedding for each token id; see `DataSource`."""
        for source in self.sources.values():
            source.check_vocabulary(embeddings)

    def check(self, spec: FeatureSpec) -> None:
        """Checks that the rows of all caches are those that the objective reads; no row is read.

        Raises:
          UserError: a cache is incomplete, was written for other features, lengths or packing, or has no rows; or the
            lengths or vocabularies of two caches differ.
        """
        (first, reference), *others = self.sources.items()
        reference.check(spec)
        for task, source in others:
            source.check(spec)
            found = reference.manifest.layout.differences(source.manifest.layout)
            if _known(reference.manifest) != _known(source.manifest):
                found.append("their vocabularies differ")
            if found:
                raise UserError(
                    f"the caches {reference.directory} and {source.directory} cannot be mixed: {'; '.join(found)}. "
                    f"Write the caches of {first} and {task} with the same settings."
                )

    def per_task(self) -> list[CachedSource]:
        """Returns a source for each task that has the split."""
        return list(self.sources.values())

    def batch_shapes(self, spec: FeatureSpec) -> dict[str, tuple[int, ...]]:
        """Returns model feature -> shape of a batch over all processes."""
        return next(iter(self.sources.values())).batch_shapes(spec)

    def host_iterator(self, spec: FeatureSpec, *, process_index: int = 0, process_count: int = 1) -> CachedIterator:
        """Returns the training batches of one process: its rows of each batch.

        Args:
          spec: Features that the objective reads.
          process_index: Index of this process.
          process_count: Number of processes that share each batch.

        Raises:
          UserError: a cache is incomplete, or the caches do not suit the spec or each other.
        """
        mine = batches.rows_of_process(self.batch_size, process_index, process_count)
        self.check(spec)
        stages = self._stages()
        tasks = list(dict.fromkeys(task for _, fractions in stages for task in fractions))
        readers = {task: RowReader(self.sources[task], spec) for task in tasks}
        order = MixedOrder(
            {task: self.sources[task].manifest.rows_of_passes for task in tasks},
            [(step * self.batch_size, self._row_fractions(fractions)) for step, fractions in stages],
            shuffle=self.shuffle,
            seed=self.seed,
        )

        def read(batch: int) -> dict[str, np.ndarray]:
            return _read_mixed(readers, [order[batch * self.batch_size + row] for row in mine])

        return CachedIterator(
            read,
            identity={
                "caches": {task: self.sources[task].manifest.fingerprint for task in tasks},
                **_identity(readers),
                "rates": self.mixing_fractions(),
                "stages": {str(step): fractions for step, fractions in stages[1:]} or None,
                "batch_size": self.batch_size,
                "shuffle": self.shuffle,
                "seed": self.seed,
            },
            batches_without_repeating=order.rows // self.batch_size,
            threads=number_of_threads(self.threads, next(iter(self.sources.values())).cache_dir),
            metrics=lambda batches: {
                f"epochs/{task}": n for task, n in order.epochs(batches * self.batch_size).items()
            },
        )

    def eval_batches(
        self, spec: FeatureSpec, num_batches: int | None = None, *, process_index: int = 0, process_count: int = 1
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the batches of the first pass of each task: a batch of each task in turn, until all have ended.

        Args:
          spec: Features that the objective reads.
          num_batches: Maximum number of batches; None for all.
          process_index: Index of this process.
          process_count: Number of processes; all see the same number of batches.
        """
        left = [
            source.eval_batches(spec, process_index=process_index, process_count=process_count)
            for source in self.per_task()
        ]
        in_turn = (batch for turn in itertools.zip_longest(*left) for batch in turn if batch is not None)
        yield from itertools.islice(in_turn, num_batches)

    def _row_fractions(self, fractions: Mapping[str, float]) -> dict[str, float]:
        """Returns task -> fraction of the rows that gives its fraction of the examples."""
        rates = {}
        for task, fraction in fractions.items():
            shards = self.sources[task].manifest.shards
            rows, examples = sum(shard.rows for shard in shards), sum(shard.examples for shard in shards)
            rates[task] = fraction * rows / max(examples, 1)
        return mixing.fractions(rates, self.name)


def _read_mixed(readers: Mapping[str, RowReader], rows: Sequence[tuple[str, int]]) -> dict[str, np.ndarray]:
    """Reads rows of several caches as one batch, with one call per cache."""
    batch: dict[str, np.ndarray] = {}
    for task in dict.fromkeys(task for task, _ in rows):
        indices = [index for index, (other, _) in enumerate(rows) if other == task]
        for name, found in readers[task]([rows[index][1] for index in indices]).items():
            if name not in batch:
                batch[name] = np.zeros((len(rows), *found.shape[1:]), found.dtype)
            batch[name][indices] = found
    return batch


def _identity(readers: Mapping[str, RowReader]) -> dict[str, dict[str, Any]]:
    """Returns the identity of the arrays that are attached to the rows of each task; empty without any."""
    found: dict[str, dict[str, Any]] = {}
    for task, reader in readers.items():
        for name, fingerprints in reader.identity.items():
            found.setdefault(name, {})[task] = fingerprints
    return found


def _examples(source: CachedSource) -> int:
    """Returns the number of examples of one pass."""
    return sum(shard.examples for shard in source.manifest.shards if shard.number_of_pass == 0)


def _known(manifest: manifests.Manifest) -> dict[str, Any]:
    """Returns the vocabularies of a cache without digests, which caches of earlier versions do not have."""
    return {
        name: {key: value for key, value in about.items() if key != "digest"}
        for name, about in manifest.vocabularies.items()
    }
