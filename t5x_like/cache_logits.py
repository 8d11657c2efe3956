"""`t5x_like cache_logits`: stores the logits of a teacher beside a cache, for distillation without the teacher."""

import collections
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from t5x_like import partitioning, paths
from t5x_like.axis_rules import LENGTH
from t5x_like.data import batches, buckets
from t5x_like.data.cached import CachedSource, MixtureFile
from t5x_like.data.cached.logits import LogitsManifest, directory_of
from t5x_like.data.cached.logits_rows import VALUES, Stored, encode
from t5x_like.data.cached.logits_writer import LogitsPlan
from t5x_like.data.cached.manifest import MIXTURE
from t5x_like.data.cached.source import RowReader
from t5x_like.data.features import FeatureSpec
from t5x_like.distillation import cached_logits
from t5x_like.distillation.teachers import Teacher
from t5x_like.errors import RunFailed, UserError
from t5x_like.inference.progress import Progress
from t5x_like.loading import open_teacher
from t5x_like.models import networks
from t5x_like.objectives.base import Objective
from t5x_like.runtime import console_log, distributed
from t5x_like.stored.loaded_teachers import LoadedTeacher
from t5x_like.training.program import check_inputs

DIRECTORY = "teacher_logits"
_DTYPES = ("float16", "float32")


@console_log.enabled()
@distributed.with_watchdog()
def cache_logits(
    *,
    cache_dir: str | Sequence[str],
    teacher: Teacher,
    logits_dir: str | None = None,
    objective: Objective | None = None,
    splits: str | Sequence[str] = ("train",),
    predictions: Sequence[str] | None = None,
    k: int | None = 64,
    dtype: str = "float16",
    temperature: float = 1.0,
    batch_size: int = 32,
    partitioner: partitioning.Partitioner | None = None,
) -> dict[str, LogitsManifest]:
    """Runs a teacher over the rows of a cache and stores its largest logits at each predicted position.

    Each row is what a training step reads: its packed examples do not see each other, so the cached logits are those
    that the teacher would compute in the step. Padding at the end of the rows of a batch is removed before, which only
    changes their rounding.

    A repeated command resumes after the complete shards, which are then not computed again, and rewrites lost files.
    Several processes compute different shards.

    Args:
      cache_dir: Directory that `t5x_like cache` wrote for a task or mixture, or a list of them for several tasks.
      teacher: The teacher. Its objective reads the rows.
      logits_dir: Directory to write to; by default `teacher_logits` in `cache_dir`.
      objective: Objective of the student, for a teacher that does not have one; see `distillation.teachers.Teacher`.
      splits: The split whose rows are read, or several.
      predictions: What is stored of the predictions of the teacher's objective; by default all predictions.
      k: Number of the largest logits to store; None for all. Predictions with fewer classes, such as labels, are stored
        as a whole.
      dtype: `float16`, or `float32`.
      temperature: Temperature of the losses that will read the logits. It determines the mass of the tail; without a
        tail it has no effect.
      batch_size: Rows per batch, rounded up to a multiple of the shards of a batch.
      partitioner: Device mesh and sharding rules; all devices by default.

    Returns:
      `TASK/SPLIT` -> manifest.

    Raises:
      UserError: A setting is invalid, the cache does not suit the teacher, or the directory contains other logits.
      RunFailed: The teacher computes logits that are not finite, or shards are missing after writing.
    """
    # ---- Teacher and caches: everything that is known without parameters and rows -----------------------------------
    logits_dir = check_settings(cache_dir, logits_dir, k, dtype, temperature, batch_size)
    partitioner = partitioner or partitioning.Partitioner()
    loaded = open_teacher(teacher, objective).on(partitioner)
    logging.info("teacher %s", loaded)
    sources = find_sources(cache_dir, splits)
    for source in sources.values():
        check_cache(source, loaded)

    # ---- Plans: which shards of which sidecars are missing -----------------------------------------------------------
    plans = {}
    for name, source in sources.items():
        stored = _stored(loaded, source, predictions, k, dtype)
        described = {
            "digest": loaded.digest,
            "vocabulary": loaded.vocabulary,
            "dtype": loaded.resolved.dtype,
        }
        plans[name] = LogitsPlan(
            directory_of(logits_dir, source.manifest),
            source.manifest,
            loaded.objective.features.digest,
            described,
            teacher.path,
            stored,
            temperature,
        )
    missing = {name: distributed.compute_in_main(functools.partial(_missing, plan)) for name, plan in plans.items()}
    total = sum(plan.rows for plan in plans.values())
    left = sum(len(plans[name].units()[unit]) for name, units in missing.items() for unit in units)

    # ---- Logits: each process computes and writes shards of its own --------------------------------------------------
    if left:
        distributed.check_agreement(logits_dir, repr(plans), "TEACHER_LOGITS")
        params, compute = loaded.read(), _program(loaded, temperature, partitioner)
        is_main, lengths = jax.process_index() == 0, collections.Counter()
        with Progress(total, total - left, enabled=is_main, noun="rows") as progress:
            for name, units in missing.items():
                writer = _Writer(
                    plans[name],
                    RowReader(sources[name], loaded.objective.features),
                    loaded.objective.features,
                    compute,
                    params,
                    partitioner,
                    batch_size,
                )
                writer.write(units, progress)
                lengths += writer.lengths
        if is_main:
            logging.info("%s", progress.summary(left, progress.tokens, lengths))

    # ---- Manifests: each completes a sidecar -------------------------------------------------------------------------
    for plan in plans.values():
        distributed.compute_in_main(lambda plan=plan: _finish(plan))
    return {name: LogitsManifest.read(plan.directory) for name, plan in plans.items()}


def check_settings(
    cache_dir: str | Sequence[str], logits_dir: str | None, k: int | None, dtype: str, temperature: float, rows: int
) -> str:
    """Checks the settings, and returns the directory to write to.

    Args:
      cache_dir: The cache, or a list of caches.
      logits_dir: The directory to write to, or None.
      k: Number of logits to store, or None.
      dtype: Their dtype.
      temperature: Temperature of the losses.
      rows: Rows of a batch.

    Raises:
      UserError: A setting is invalid.
    """
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
        raise UserError(f"K={k!r} is not a positive integer. Give the number of logits to store, or None for all.")
    if dtype not in _DTYPES:
        raise UserError(f"LOGITS_DTYPE={dtype!r} is not supported. Give one of {', '.join(_DTYPES)}.")
    if not temperature > 0:
        raise UserError(
            f"SOFTMAX_TEMPERATURE={temperature} is not positive. Give the temperature of the losses, such as 1.0."
        )
    if rows < 1:
        raise UserError(f"BATCH_SIZE={rows} is not a positive integer. Give the rows of a batch.")
    if logits_dir is None and not isinstance(cache_dir, str):
        raise UserError("TEACHER_LOGITS: missing, and CACHE_DIR is a list. Give the directory to write to.")
    return paths.join(cache_dir, DIRECTORY) if logits_dir is None else logits_dir


def check_cache(source: CachedSource, teacher: LoadedTeacher) -> None:
    """Checks that the rows of a cache are those that the teacher reads.

    Args:
      source: The cache.
      teacher: The teacher.

    Raises:
      UserError: It reads other features, or the cache has other lengths, another vocabulary or no rows.
    """
    read, has = teacher.objective.features.task_features, source.manifest.layout.lengths
    if set(read) != set(has):
        raise UserError(
            f"TEACHER={teacher.path}: {type(teacher.objective).__name__} reads {_names(read)}, but the cache "
            f"{source.directory} has {_names(has)}. Give a teacher with the objective of the cache."
        )
    source.check(teacher.objective.features)
    source.check_vocabulary(teacher.config.vocab_size)
    digest = source.text_vocabulary(teacher.objective.features).digest
    if None not in (digest, teacher.vocabulary) and digest != teacher.vocabulary:
        raise UserError(
            f"TEACHER={teacher.path}: its vocabulary ({teacher.vocabulary}) is not the cache's "
            f"{source.directory} ({digest}). Give a teacher with the vocabulary of the cache."
        )


def _names(features: Iterable[str]) -> str:
    return ", ".join(sorted(map(repr, features)))


def find_sources(cache_dir: str | Sequence[str], splits: str | Sequence[str]) -> dict[str, CachedSource]:
    """Returns `TASK/SPLIT` -> cache. Tasks of a mixture without a split are left out.

    Args:
      cache_dir: Directory of a task or mixture, or a list of directories.
      splits: The split, or several.

    Raises:
      UserError: A cache is not found or given twice.
    """
    if not isinstance(cache_dir, str):
        directories = list(cache_dir)
    elif paths.exists(paths.join(cache_dir, MIXTURE)):
        directories = [paths.join(cache_dir, task) for task in MixtureFile.read(cache_dir).tasks]
    else:
        directories = [cache_dir]
    found: dict[str, CachedSource] = {}
    for split in (splits,) if isinstance(splits, str) else splits:
        having = [each for each in directories if split in paths.listdir(each)] or directories[:1]
        for source in (CachedSource(cache_dir=each, split=split, batch_size=1) for each in having):
            name = f"{source.manifest.settings['task']}/{split}"  # raises if the cache does not exist
            if name in found:
                raise UserError(f"CACHE_DIR: {found[name].directory} and {source.directory} are both {name}. Give one.")
            found[name] = source
    return found


def _stored(
    teacher: LoadedTeacher, source: CachedSource, names: Sequence[str] | None, k: int | None, dtype: str
) -> dict[str, Stored]:
    """Returns what is stored of each prediction, from the shapes of a row."""
    objective, config = teacher.objective, teacher.config
    shapes, dtypes = source.batch_shapes(objective.features), objective.features.dtypes
    check_inputs(config, objective, shapes)
    names = tuple(objective.coefficients) if names is None else tuple(names)

    def logits(key, batch):
        params = networks.make(objective, config, key)
        predicted = cached_logits.predictions_of(objective, params, batch, names)
        return {name: each.logits(each.hidden) for name, each in predicted.items()}

    batch = {name: jax.ShapeDtypeStruct(shape, dtypes[name]) for name, shape in shapes.items()}
    found = jax.eval_shape(logits, jax.random.key(0), batch)
    return {
        name: Stored(positions, classes, classes if k is None else min(k, classes), dtype)
        for name, (_, positions, classes) in ((name, each.shape) for name, each in found.items())
    }


def _missing(plan: LogitsPlan) -> list[str]:
    done = plan.begin()
    if done:
        logging.info("%s: %d shards of %d are complete", plan.directory, len(done), len(plan.units()))
    return [unit for unit in plan.units() if unit not in done]


def _finish(plan: LogitsPlan) -> None:
    manifest = plan.finish()
    size = sum(shard.size for shard in manifest.shards)
    each = ", ".join(f"{name} {stored.bytes_per_position:,}" for name, stored in manifest.predictions.items())
    logging.info(
        "%s: %s rows, bytes per position: %s, %.1f MB in %d files",
        *(plan.directory, f"{plan.rows:,}", each, size / 1e6, len(manifest.shards)),
    )


# ---- computing -------------------------------------------------------------------------------------------------------


def _program(teacher: LoadedTeacher, temperature: float, partitioner: partitioning.Partitioner) -> Callable:
    """Returns `compute(params, batch, predictions)`, jitted. It is compiled once per length of a batch."""

    def compute(params: Any, batch: Mapping[str, jax.Array], predictions: tuple[tuple[str, Stored], ...]) -> Any:
        with teacher.bound():
            return cached_logits.compute(teacher.objective, params, batch, dict(predictions), temperature)

    # Every process gets the logits of all rows.
    return partitioner.jit(compute, static_argnums=2, out_shardings=partitioner.replicated)


class _Writer:
    """Computes and writes the shards of one cache.

    Args:
      plan: Plan of the teacher logits of the cache.
      read: Reads rows of the cache.
      spec: Features that the teacher reads.
      compute: Result of `_program`.
      params: The parameters of the teacher.
      partitioner: Device mesh and sharding rules.
      batch_size: Rows per batch over all processes.

    Attributes:
      lengths: Lengths of the batches so far -> their number.
    """

    def __init__(
        self,
        plan: LogitsPlan,
        read: RowReader,
        spec: FeatureSpec,
        compute: Callable,
        params: Any,
        partitioner: partitioning.Partitioner,
        batch_size: int,
    ):
        self._plan, self._read, self._compute, self._params = plan, read, compute, params
        self._partitioner, self._axes, self._segments = partitioner, spec.axes, spec.segment_features
        self._shard, self._shards = partitioner.feed_shard
        batch_shards = partitioner.axis_size("batch")
        self._rows = -(-batch_size // batch_shards) * batch_shards // self._shards
        self.lengths: collections.Counter[int] = collections.Counter()
        owners = distributed.compute_everywhere(lambda: self._shard)
        # Processes between which the mesh splits only tensors compute the same rows; one of them writes.
        self._is_writer = owners.index(self._shard) == jax.process_index()

    def write(self, units: Sequence[str], progress: Progress) -> None:
        """Writes shards, each process one of its own at a time."""
        plan, rows = self._plan, self._plan.units()
        for first in range(0, len(units), self._shards):
            mine = units[first : first + self._shards][self._shard : self._shard + 1]  # one shard, or none at the end
            own = rows[mine[0]] if mine else range(0)
            records: dict[int, bytes] = {}
            for found in self._records(own, progress):
                records |= found

            def store(mine=mine, own=own, records=records) -> None:
                if mine and self._is_writer:
                    plan.write_shard(mine[0], [records[row] for row in own])

            distributed.compute_everywhere(store)

    def _records(self, rows: range, progress: Progress) -> Iterator[dict[int, bytes]]:
        """Yields row -> record, in batches of rows of similar length. The devices compute the next batch meanwhile."""
        features = self._read(rows)
        lengths = buckets.row_lengths(features) if len(rows) else np.zeros(0, int)
        order = np.argsort(-lengths, kind="stable")  # the longest first: if memory does not suffice, it fails first
        # The programs of all processes have the same shapes.
        of_processes = distributed.compute_everywhere(lambda: [int(lengths[row]) for row in order[:: self._rows]])
        batch_lengths = [max(of_batch) for of_batch in itertools.zip_longest(*of_processes, fillvalue=0)]
        waiting: tuple[np.ndarray, Any] | None = None
        for number, length in enumerate(batch_lengths):
            distributed.heartbeat("the logits of a batch")
            chosen = order[number * self._rows : (number + 1) * self._rows]
            computed = self._start(features, chosen, length)
            if waiting is not None:
                yield self._finish(rows, *waiting)
            waiting = chosen, computed
            tokens = sum(int((features[name][chosen] > 0).sum()) for name in self._segments)
            progress.advance(len(chosen) * self._shards, tokens * self._shards)
        if waiting is not None:
            yield self._finish(rows, *waiting)

    def _start(self, features: Mapping[str, np.ndarray], chosen: np.ndarray, length: int) -> Any:
        shards = self._partitioner.axis_size(LENGTH)
        length = buckets.bucket(length, buckets.full_length(features), shards)
        batch = {
            name: batches.pad_rows(array[chosen], self._rows - len(chosen))
            for name, array in buckets.trim(features, length, self._axes).items()
        }
        self.lengths[length] += 1
        predictions = tuple(self._plan.predictions.items())
        return self._compute(self._params, self._partitioner.put_batch(batch, self._axes), predictions)

    def _finish(self, rows: range, chosen: np.ndarray, computed: Any) -> dict[int, bytes]:
        first = self._shard * self._rows
        mine = jax.tree.map(lambda x: x[first : first + len(chosen)], jax.device_get(computed))
        for name, arrays in mine.items():
            if np.isnan(arrays[VALUES]).any():
                raise RunFailed(
                    f"the teacher computes logits of {name!r} that are not finite, in rows {rows[0]} to {rows[-1]} of "
                    f"{self._plan.cache.settings['task']}. Give another dtype with TEACHER_DTYPE, such as float32."
                )
        records = encode(self._plan.predictions, mine, len(chosen))
        return {rows[index]: record for index, record in zip(chosen, records, strict=True)}
