"""Caches of packed rows with random examples, and teachers with random parameters, for tests of cached logits."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from objective_case import Case
from objective_cases import CASES

from t5x_like import cache_logits
from t5x_like.data.cached import Layout, Manifest, Shard, manifest
from t5x_like.data.cached.rows import encode
from t5x_like.distillation.cached_logits import CachedLogits
from t5x_like.distillation.teachers import Teacher
from t5x_like.stored.loaded_teachers import LoadedTeacher

LENGTHS = {"inputs": 8, "targets": 8}
IDS = 40
DIGEST = "digest of the vocabulary"


def write_cache(
    directory,
    case: Case,
    *,
    rows=10,
    seed=0,
    task="a_task",
    split="train",
    lengths=None,
    ids=IDS,
    vocabulary=DIGEST,
):
    """Writes a cache of packed rows in two shards. Some examples have no targets.

    Args:
      directory: Directory of the split; it must not exist.
      case: Its objective reads the rows.
      rows: Number of rows.
      seed: Seed of the examples.
      task: Name of the task.
      split: Name of the split.
      lengths: Task feature -> length.
      ids: Number of token ids.
      vocabulary: Digest of the vocabulary.
    """
    spec, lengths, rng = case.objective.features, lengths or LENGTHS, np.random.default_rng(seed)
    layout = Layout.of(spec, {**LENGTHS, **lengths}, pack=spec.packable)
    stored = _stack([_row(layout, spec, rng, ids) for _ in range(rows)])
    dtypes, written, first = ("<u2",) * len(layout.values), [], 0
    for number, count in enumerate((rows // 2, rows - rows // 2)):
        path = directory / "pass-000" / f"{number}.array_record"
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = ArrayRecordWriter(str(path), "group_size:1")
        chosen = {name: array[first : first + count] for name, array in stored.items()}
        for record in encode(chosen, layout, dtypes):
            writer.write(record)
        writer.close()
        examples = int(max(chosen[f"segments {index}"].max(axis=1).sum() for index in range(len(layout.tracks))))
        digest, size = manifest.checksum(str(path)), path.stat().st_size
        written.append(
            Shard(str(path.relative_to(directory)), count, size, digest, 0, examples, (0,) * len(layout.tracks))
        )
        first += count
    settings = {"task": task, "split": split, "module": None, "task_arguments": None}
    vocabularies = {name: {"kind": "a", "ids": ids, "sample": "", "digest": vocabulary} for name in layout.lengths}
    Manifest(settings, layout, dtypes, vocabularies, tuple(written)).write(str(directory))


def _row(layout: Layout, spec, rng, ids) -> dict[str, np.ndarray]:
    """Returns the stored values of a row with up to three examples of random lengths."""
    examples = int(rng.integers(1, 4)) if layout.pack else 1
    leads = dict.fromkeys(name for track in layout.tracks for name in track)
    counts = {
        name: rng.integers(0 if name == "targets" else 2, layout.lengths[name] // 3 + 1, examples) for name in leads
    }
    row = {}
    for index, track in enumerate(layout.tracks):
        items = sum(counts[name] for name in track)
        row[f"segments {index}"] = _padded(np.repeat(np.arange(1, examples + 1), items), layout.track_length(index))
        if len(track) > 1:
            last = [np.arange(total) >= total - end for total, end in zip(items, counts[track[-1]], strict=True)]
            row[f"last {index}"] = _padded(np.concatenate(last), layout.track_length(index))
    for index, value in enumerate(layout.values):
        found = []
        for example in range(examples):
            number = sum(int(counts[name][example]) for name in map(spec.lead, value.sources) if name in counts)
            if value.track is None:
                found.append(rng.integers(0, 2, value.length))
            elif value.within:
                before = sum(int(counts[name][:example].sum()) for name in value.within)
                inside = sum(int(counts[name][example]) for name in value.within)
                found.append(before + np.sort(rng.integers(0, inside, number)))
            else:
                is_mask = value.sources[0].startswith("loss_mask")
                found.append(
                    rng.integers(1 - is_mask, 2 if is_mask or value.sources[0] == "token_types" else ids, number)
                )
        row[f"value {index}"] = _padded(np.concatenate(found), value.length)
    return row


def _padded(items: np.ndarray, length: int) -> np.ndarray:
    return np.pad(items.astype(np.int32), (0, length - len(items)))


def _stack(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def teacher_of(case: Case, *, vocabulary=DIGEST, **changes: Any) -> LoadedTeacher:
    """Returns a teacher with the random parameters of a case."""
    params = case.params(**changes)

    class WithParams(LoadedTeacher):
        digest = "digest of the teacher"

        def read(self, checkpoint_path=None):
            return jax.tree.map(jax.device_put, params, self.partitioner.shardings(params))

    return WithParams(path="a/teacher", config=params["model"].config, objective=case.objective, vocabulary=vocabulary)


def with_attached(case: Case, attached):
    """Returns the spec of a case with attached arrays."""
    return dataclasses.replace(case.objective.features, attached=tuple(attached))


def write_logits(case: Case, cache_dir, teacher: LoadedTeacher | None = None, **settings: Any):
    """Runs `cache_logits` with a teacher of a case."""
    given = {"batch_size": 8, "dtype": "float32", "k": None} | settings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_logits, "open_teacher", lambda *_: teacher or teacher_of(case))
        return cache_logits.cache_logits(cache_dir=str(cache_dir), teacher=Teacher("a/teacher"), **given)


def opened(case, cache_dir, digest="digest of the teacher"):
    return CachedLogits.open("teacher", f"{cache_dir}/teacher_logits", digest=digest, spec=case.objective.features)


PACKED = {name: CASES[name] for name in ("masked_lm", "causal_lm", "sequence_to_sequence", "prefix_lm")}
