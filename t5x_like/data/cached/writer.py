"""Writes a SeqIO task to shards of packed rows. The contents of a shard depend only on the plan and its number."""

import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf
from absl import logging
from array_record.python.array_record_module import ArrayRecordWriter

from t5x_like import paths
from t5x_like.data import continuous, origins, prompts, skipped_records
from t5x_like.data.cached import manifest as manifests
from t5x_like.data.cached import origins_file, shard_files, unfinished, vocabularies
from t5x_like.data.cached.layout import Layout, Value
from t5x_like.data.cached.manifest import Manifest, Shard
from t5x_like.data.cached.rows import REAL, encode, storage_dtype
from t5x_like.data.features import FeatureSpec
from t5x_like.data.seqio_feed import SeqIOSource, empty_data, example_rows, task_errors
from t5x_like.data.seqio_feed.task_access import NEXT_FIT
from t5x_like.data.skipped_records import SkippedRecords
from t5x_like.data.token_ids import check_ids
from t5x_like.errors import RunFailed, UserError
from t5x_like.version import __version__

_ROWS_AT_ONCE = 64
_NAMED = 3  # maximum number of files that a message names


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a cache: what to write and where.

    Attributes:
      directory: Directory of the cache.
      source: Task, split, lengths, packing and seed. Its order and batch size do not affect the cache.
      spec: Features that the objective reads.
      passes: Number of passes over the data, each with different random numbers.
      examples: Number of examples of a cache of a mixture, which is infinite; otherwise None.
      shards: Number of files per pass.
      single_thread: Whether each shard is read by one thread, because several shards are written concurrently.
      provenance: Whether to write the documents of each row beside the rows; see `origins_file`.
    """

    directory: str
    source: SeqIOSource
    spec: FeatureSpec
    passes: int = 1
    examples: int | None = None
    shards: int = 8
    single_thread: bool = False
    provenance: bool = False

    def __post_init__(self):
        for name, value in (("PASSES", self.passes), ("NUM_SHARDS", self.shards), ("EXAMPLES", self.examples)):
            if value is not None and value < 1:
                raise UserError(f"{name}={value} is not a positive integer. Give at least 1.")
        if self.examples is not None and self.passes > 1:
            raise UserError(f"PASSES={self.passes}, EXAMPLES={self.examples}: exclude each other. Give one of them.")

    @property
    def layout(self) -> Layout:
        """The layout of the rows."""
        return Layout.of(self.spec, self.source.task_feature_lengths, pack=self.source.pack)

    @functools.cached_property
    def vocabularies(self) -> dict[str, dict[str, Any]]:
        """Task feature that is read -> description of its vocabulary."""
        return {
            name: vocabularies.describe(vocabulary)
            for name, vocabulary in self.source.vocabularies().items()
            if name in self.spec.task_features
        }

    def settings(self) -> dict[str, Any]:
        """Returns the settings that determine the contents of the shards, as JSON values."""
        source = self.source
        corpora = [task.source.describe() for task in source.tasks if hasattr(task.source, "describe")]
        return {
            "task": source.mixture_or_task_name,
            "module": source.module if source.module is None or isinstance(source.module, str) else [*source.module],
            "task_arguments": {**source.file_arguments, **(source.task_arguments or {})} or None,
            **({"vocabulary_path": source.vocabulary_path} if source.vocabulary_path else {}),
            "use_cached": source.use_cached,
            "split": source.split,
            "corpora": corpora,
            "seed": source.seed,
            "passes": self.passes,
            "examples": self.examples,
            "num_shards": self.shards,
            **({} if self.spec.separator is None else {"separator": self.spec.separator}),
            # Inputs that end in EOS are stored alike in both cases.
            **({} if prompts.missing_eos(source, self.spec) is None else {"encoder_bos": True}),
            **({"continuous": True} if source.continuous else {}),
            **({} if source.packing == NEXT_FIT else {"packing": source.packing}),
            **({"provenance": True} if self.provenance else {}),
        }

    def dtypes(self) -> tuple[str, ...]:
        """Returns the storage dtype of each value: the narrowest one for its vocabulary or its range of positions."""
        return tuple(map(self._dtype, self.layout.values))

    def _dtype(self, value: Value) -> str:
        if value.within:
            return storage_dtype(sum(self.layout.lengths[name] for name in value.within))
        if self.spec.task_dtype(value.sources[0]) == "float32":
            return REAL
        ids = max(self.vocabularies[name]["ids"] for name in value.sources)
        return storage_dtype(ids, signed=not all(map(self.spec.is_token_ids, value.sources)))  # a label can be -1

    def check(self) -> None:
        """Checks that the cache can be written, before anything is written.

        Raises:
          UserError: the task lacks the split or a feature, its lengths or packing do not suit the objective, or the
            split is empty.
        """
        source, features = self.source, self.source.provider.output_features
        if not paths.is_name(source.mixture_or_task_name):
            raise UserError(
                f"MIXTURE_OR_TASK_NAME={source.mixture_or_task_name!r} cannot name the directory of a cache. Give a "
                "name without slashes."
            )
        if missing := [name for name in self.spec.task_features if name not in features]:
            raise UserError(
                f"{source.mixture_or_task_name} has no feature {', '.join(map(repr, missing))}, which the objective "
                f"reads; it has {', '.join(map(repr, features))}. Give a task or an objective that fits."
            )
        if source.continuous:
            continuous.check_spec(source.name, self.spec)
        empty_data.check_not_empty(source, self.spec)  # raises too if the split or the offline cache does not exist
        if self.provenance:
            self._check_provenance()
        _ = self.layout

    def _check_provenance(self) -> None:
        source, is_mixed = self.source, len(self.source.tasks) > 1
        refused = {"CONTINUOUS": source.continuous, "USE_CACHED_TASKS": source.use_cached, "EXAMPLES": is_mixed}
        for name in (name for name, is_set in refused.items() if is_set):
            raise UserError(
                f"PROVENANCE=True, {name}: exclude each other, because such rows do not carry the places of their "
                f"documents. Remove {name}, or set PROVENANCE=False."
            )
        with origins.recorded(origins.Recorder()):
            carried = origins.DOCUMENTS in source.task_dataset().element_spec
        if not carried:
            raise UserError(
                f"PROVENANCE=True: {source.mixture_or_task_name} does not carry the places of its documents; "
                "docs/corpus.md names the tasks that do. Give one of them, or set PROVENANCE=False."
            )

    def units(self) -> list[tuple[int, int]]:
        """Returns (pass, shard) of every file, in order."""
        return [(number, shard) for number in range(self.passes) for shard in range(self.shards)]

    # ---- progress and completion -------------------------------------------------------------------------------------

    def begin(self) -> dict[tuple[int, int], Shard]:
        """Claims the directory, and returns the shards that an earlier, interrupted command has completed.

        A shard is complete if its record exists and its file has the recorded size.

        Raises:
          UserError: the directory contains another incomplete cache.
        """
        claimed = self._unfinished()
        claimed.claim()
        units = {manifests.shard_name(unit): unit for unit in self.units()}
        found = claimed.shards({name: self.file(unit) for name, unit in units.items()})
        return {units[name]: Shard.from_json(shard) for name, shard in found.items()}

    def completed_manifest(self) -> Manifest | None:
        """Returns the manifest if this cache is already complete, otherwise None.

        A complete cache with missing or truncated files becomes an incomplete cache again, without these files.

        Raises:
          UserError: the directory contains another cache.
        """
        if not paths.exists(paths.join(self.directory, manifests.MANIFEST)):
            return None
        manifest = manifests.read(self.directory)
        stored = {
            "settings": manifest.settings,
            "layout": manifest.layout.to_json(),
            "vocabularies": manifest.vocabularies,
        }
        if found := self._unfinished().differences(stored):
            raise UserError(
                f"{self.directory} contains a cache with other settings ({'; '.join(found)}). Give another CACHE_DIR."
            )
        sizes = manifests.sizes(self.directory)
        if lost := [
            shard.file
            for shard in manifest.shards
            if sizes.get(shard.file) != shard.size or (self.provenance and origins_file.name(shard.file) not in sizes)
        ]:
            self._reopen(manifest, lost)
            return None
        return manifest

    def _reopen(self, manifest: Manifest, lost: Sequence[str]) -> None:
        """Makes a cache incomplete: records all shards but the lost ones, then removes the manifest."""
        logging.warning(
            "%s: %d files of the complete cache are missing or truncated (%s); writing them again",
            *(self.directory, len(lost), ", ".join(lost[:_NAMED])),
        )
        written = {shard.file: shard for shard in manifest.shards}
        empty = (0,) * len(self.layout.tracks)  # shards that the manifest does not list have no rows
        self._unfinished().reopen(
            {
                (name := manifests.shard_name(unit)): {
                    **dataclasses.asdict(written.get(file) or Shard("", 0, 0, "", unit[0], 0, empty)),
                    "skipped": manifest.skipped.get(name, {}),
                }
                for unit in self.units()
                if (file := self.file(unit)) not in lost
            }
        )

    def finish(self) -> Manifest:
        """Writes the manifest, once all shards are complete.

        Raises:
          RunFailed: shards are missing or truncated.
          UserError: none of the shards has a row.
        """
        done = self.begin()
        if missing := [self.file(unit) for unit in self.units() if unit not in done]:
            raise RunFailed(
                f"{len(missing)} of {len(self.units())} shards of {self.directory} are missing or truncated "
                f"({', '.join(missing[:_NAMED])}{', …' if len(missing) > _NAMED else ''}). Repeat the command, which "
                "writes only these. With BEAM, every worker must be able to write to CACHE_DIR, such as gs://…."
            )
        shards = tuple(done[unit] for unit in self.units())
        if not sum(shard.rows for shard in shards):
            raise UserError(
                f"{self.source.mixture_or_task_name}, split {self.source.split!r}, has no examples to cache. Run "
                "`t5x_like inspect` to see which documents are skipped."
            )
        manifest = Manifest(
            settings=self.settings(),
            layout=self.layout,
            dtypes=self.dtypes(),
            vocabularies=self.vocabularies,
            shards=tuple(shard for shard in shards if shard.rows),
            versions={
                "t5x_like": __version__,
                "tensorflow": tf.__version__,
                "seqio": getattr(seqio, "__version__", ""),
            },
            add_eos=prompts.add_eos(self.source, self.spec),
            skipped={manifests.shard_name(unit): shard.skipped for unit, shard in done.items() if shard.skipped},
        )
        manifest.write(self.directory)
        self._unfinished().remove()
        shard_files.remove_stale(self.directory)  # of workers that a runner of Beam has replaced
        written = sum(shard.examples for shard in shards)
        if self.examples is not None and written < self.examples and not self.source.continuous:
            logging.warning(
                "%s has %d examples with tokens, not %d: some are empty, or a shard has none (decrease NUM_SHARDS)",
                *(self.source.mixture_or_task_name, written, self.examples),
            )
        return manifest

    def record_shard(self, unit: tuple[int, int], shard: Shard) -> None:
        """Records that a shard is complete."""
        unfinished.record(self.directory, manifests.shard_name(unit), dataclasses.asdict(shard))

    def file(self, unit: tuple[int, int]) -> str:
        """Returns the path of a shard's file relative to the directory."""
        return f"pass-{unit[0]:03d}/{unit[1]:05d}-of-{self.shards:05d}.array_record"

    def _unfinished(self) -> unfinished.Unfinished:
        settings = {"settings": self.settings(), "layout": self.layout.to_json(), "vocabularies": self.vocabularies}
        return unfinished.Unfinished(self.directory, settings, "cache", "CACHE_DIR")

    # ---- rows --------------------------------------------------------------------------------------------------------

    def dataset(self, unit: tuple[int, int], recorder: origins.Recorder | None = None) -> tf.data.Dataset:
        """Returns the stored values of a shard's rows in batches of `_ROWS_AT_ONCE`; see `Layout.storage_spec`.

        With a recorder, another value and its segments follow: the documents of each row.

        Documents go to the shards in the order of the source, because the reader shuffles rows; the documents of
        a shard follow one another in the windows of continuous data. Each shard and pass has its own seed: with one
        seed, SeqIO would give the n-th document of every shard the same random numbers.
        """
        number, shard = unit
        seed = hashlib.blake2b(f"{self.source.seed} {number} {shard}".encode(), digest_size=4).digest()
        source = dataclasses.replace(self.source, seed=int.from_bytes(seed) // 2)
        info = seqio.ShardInfo(shard, self.shards) if self.shards > 1 else None
        with origins.recorded(recorder):
            epochs = None if self.examples else 1
            ds = source.task_dataset(num_epochs=epochs, shard_info=info, separator=self.spec.separator)
        if self.examples:
            ds = ds.take(self.examples // self.shards + (shard < self.examples % self.shards))
        spec = self.spec if recorder is None else origins_file.with_documents(self.spec)
        # A row has fewer documents than tokens. A greater length would change the windows of packing.
        most = {origins.DOCUMENTS: max(self.spec.task_lengths(source.task_feature_lengths).values())}
        lengths = {**source.task_feature_lengths, **(most if recorder else {})}
        source = dataclasses.replace(source, task_feature_lengths=lengths)
        stored = Layout.of(spec, lengths, pack=source.pack).storage_spec(spec)
        ds = example_rows.make(source, ds, spec, batch_size=1, to_the_end=True, converted=stored)
        ds = ds.batch(_ROWS_AT_ONCE)
        options = tf.data.Options()
        options.deterministic = True
        if self.single_thread:
            options.threading.private_threadpool_size = 1
        return ds.with_options(options)


def write_shard(plan: Plan, unit: tuple[int, int], wrote: Callable[[int, int], None] | None = None) -> Shard:
    """Writes one shard atomically.

    Args:
      plan: Plan of the cache.
      unit: Pass and shard.
      wrote: Called with the numbers of rows and tokens written since the last call.

    Returns:
      The description of the shard.
    """
    file = plan.file(unit)
    target = paths.join(plan.directory, file)
    layout, dtypes = plan.layout, plan.dtypes()
    limits = layout.storage_spec(plan.spec).id_limits({name: about["ids"] for name, about in plan.vocabularies.items()})
    rows, examples, tokens = 0, 0, [0] * len(layout.tracks)
    recorder, documents = (origins.Recorder() if plan.provenance else None), origins_file.name(target)
    skipped = SkippedRecords()
    with contextlib.ExitStack() as stack:
        stack.enter_context(skipped_records.counted(skipped))
        local = stack.enter_context(shard_files.local_file(target))
        writer = ArrayRecordWriter(local, shard_files.WRITER_OPTIONS)
        if recorder is not None:
            local_documents = stack.enter_context(shard_files.local_file(documents))
            documents_writer = ArrayRecordWriter(local_documents, origins_file.WRITER_OPTIONS)
        for stored in _arrays(plan, unit, recorder):
            check_ids(stored, limits, data=plan.source.mixture_or_task_name, holder="its vocabulary")
            for record in encode(stored, layout, dtypes):
                writer.write(record)
            if recorder is not None:
                places = stored[f"value {len(layout.values)}"], stored[f"segments {len(layout.tracks)}"]
                for record in origins_file.encode(*places, recorder):
                    documents_writer.write(record)
            segments = [stored[f"segments {index}"] for index in range(len(layout.tracks))]
            counts = [int((track > 0).sum()) for track in segments]
            tokens = [total + count for total, count in zip(tokens, counts, strict=True)]
            examples += int(np.max([track.max(axis=1) for track in segments], axis=0).sum())
            rows += len(segments[0])
            if wrote:
                wrote(len(segments[0]), sum(counts))
        writer.close()
        size, digest = os.path.getsize(local), manifests.checksum(local)
        if rows and recorder is not None:
            documents_writer.close()
            shard_files.store(local_documents, documents)
        if rows:
            shard_files.store(local, target)
    shard = Shard(file if rows else "", rows, size, digest, unit[0], examples, tuple(tokens), skipped.per_file())
    plan.record_shard(unit, shard)
    return shard


def _arrays(plan: Plan, unit: tuple[int, int], recorder: origins.Recorder | None) -> Iterator[Mapping[str, Any]]:
    with task_errors.explain_errors(plan.source):
        yield from plan.dataset(unit, recorder).as_numpy_iterator()
