"""`t5x_like import_logits`: stores the log-probabilities of a served teacher as a cache with teacher logits."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import fsspec
import numpy as np
from absl import logging

from t5x_like import paths
from t5x_like.data import batches, served_outputs
from t5x_like.data.cached import logits, plain_rows
from t5x_like.data.cached import manifest as manifests
from t5x_like.data.cached.logits import LogitsManifest
from t5x_like.data.cached.logits_rows import IDS, LOG_TAIL, LOG_Z, VALUES, WEIGHTS, Stored, encode
from t5x_like.data.cached.logits_writer import LogitsPlan
from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.data.served_outputs import ServedText, ServedVocabulary
from t5x_like.errors import UserError
from t5x_like.objectives.base import Objective
from t5x_like.runtime import console_log
from t5x_like.vocabularies import vocabulary_digest
from t5x_like.vocabularies.late import LateVocabulary
from t5x_like.vocabularies.token_bytes import TokenBytes

DIRECTORY = "teacher_logits"
PREDICTION, TARGETS, INPUTS = "targets", "targets", "inputs"
_TARGET_TOKENS, _WEIGHTS = "decoder_target_tokens", "decoder_loss_weights"
_RESTS = ("bucket", "renormalised")


@console_log.enabled()
def import_logits(
    *,
    pattern: str | Sequence[str],
    cache_dir: str,
    objective: Objective,
    vocabulary_path: str,
    task_feature_lengths: Mapping[str, int],
    name: str = "served",
    split: str = "train",
    prompt_field: str | None = None,
    k: int | None = None,
    rest: Literal["bucket", "renormalised"] = "bucket",
    dtype: str = "float16",
    student_vocabulary_path: str | None = None,
    teacher_lengths: Mapping[str, int] | None = None,
) -> LogitsManifest:
    """Reads texts of a served teacher with their most probable tokens, and writes what `distill` reads of a teacher.

    The cache has one text per row, in the teacher's tokens, and the teacher logits of its tokens are stored beside it,
    as `cache_logits` stores them. Longer texts are cut. For a student with another tokenizer, the cache has its tokens;
    texts that are too long, that end within a character, or whose tokens are not those of the tokenizer for this text,
    are then left out.

    Args:
      pattern: Files of `data.served_outputs`, `.jsonl` or `.parquet`, as a pattern or a list of patterns.
      cache_dir: The cache to write; its teacher logits are in `teacher_logits`.
      objective: The objective of the student, which predicts text.
      vocabulary_path: The tokenizer of the teacher: a Hugging Face directory or a SentencePiece model.
      task_feature_lengths: Maximum lengths of `targets`, and of `inputs` for an objective that reads prompts.
      name: Name of the task in the cache.
      split: Name of the split.
      prompt_field: Field of a record with the prompt, for an objective that reads `inputs`.
      k: Number of tokens to store per position; None for as many as every position has.
      rest: What is known of all other tokens: their total probability as a `bucket`, or nothing: `renormalised`
        probabilities of the stored tokens.
      dtype: `float16` or `float32`.
      student_vocabulary_path: The tokenizer of the student, if it has another one, for losses across tokenizers.
      teacher_lengths: Maximum lengths in the teacher's tokens; by default those of the student's.

    Returns:
      The manifest of the teacher logits.

    Raises:
      UserError: A setting is invalid, or a record is; the message names its file and line.
    """
    # ---- Settings ----------------------------------------------------------------------------------------------------
    spec = objective.features
    _check(spec, rest=rest, dtype=dtype, k=k, prompt_field=prompt_field, name=name)
    lengths = spec.task_lengths(task_feature_lengths)
    directory = paths.join(cache_dir, split)
    if paths.exists(paths.join(directory, manifests.MANIFEST)):
        raise UserError(f"CACHE_DIR={directory} is a cache already. Give another directory, or remove this one.")
    vocabulary = ServedVocabulary(LateVocabulary(lambda: vocabulary_path, extra_ids=0))

    # ---- Texts -------------------------------------------------------------------------------------------------------
    files = find(pattern)
    texts = [text for file in files for text in served_outputs.read(file, vocabulary, prompt=prompt_field)]
    fewest = min(texts, key=lambda text: min(len(each.top) for each in text.positions))
    available = min(len(each.top) for each in fewest.positions)
    if k is not None and k > available:
        raise UserError(f"K={k}: {fewest.where} has a token with {available} log-probabilities. Give K={available}.")
    k = available if k is None else k
    of_teacher = spec.task_lengths(teacher_lengths or task_feature_lengths)
    pairs = [(text, _row(text, vocabulary, of_teacher)) for text in texts]
    if student_vocabulary_path is None:
        stored, rows, tokenizer = pairs, [row for _, row in pairs], vocabulary.tokens.vocabulary
    else:
        student = TokenBytes(LateVocabulary(lambda: student_vocabulary_path))
        stored, rows = _retokenized(pairs, vocabulary.tokens, student, lengths)
        tokenizer = student.vocabulary
    tokens, given = (
        sum(map(len, each)) for each in ([row[TARGETS] for _, row in stored], [t.positions for t in texts])
    )
    logging.info(
        "%s of %s texts of %d files, %s of %s tokens, %d log-probabilities each",
        *(f"{len(stored):,}", f"{len(texts):,}", len(files), f"{tokens:,}", f"{given:,}", k),
    )

    # ---- Cache and teacher logits ------------------------------------------------------------------------------------
    digest = _digest(files)
    manifest = plain_rows.write(
        *(directory, rows, spec, lengths),
        vocabulary=tokenizer,
        settings={
            **{
                "task": name,
                "split": split,
                "module": None,
                "task_arguments": None,
                "vocabulary_path": student_vocabulary_path or vocabulary_path,
            },
            **{"passes": 1, "served": digest},
        },
    )
    positions = spec.row_shapes(of_teacher)[_TARGET_TOKENS][0]
    served = vocabulary.tokens.vocabulary
    plan = LogitsPlan(
        directory=logits.directory_of(paths.join(cache_dir, DIRECTORY), manifest),
        cache=manifest,
        spec=spec.digest,
        teacher={
            "digest": digest,
            "vocabulary": vocabulary_digest.of_vocabulary(served),
            "dtype": None,
            "served": {"rest": rest, "vocabulary_path": vocabulary_path, "lengths": of_teacher},
        },
        teacher_path=", ".join(files),
        predictions={PREDICTION: Stored(positions, served.vocab_size, k, dtype)},
        temperature=1.0,
    )
    done = plan.begin()
    for unit, chosen in plan.units().items():
        if unit not in done:
            arrays = _arrays(spec, stored[chosen.start : chosen.stop], k, rest, of_teacher)
            plan.write_shard(unit, encode(plan.predictions, {PREDICTION: arrays}, len(chosen)))
    found = plan.finish()
    print(f"distill: TEACHER = {paths.join(cache_dir, DIRECTORY)!r}, CACHE_DIR = {cache_dir!r}, PACK = False")
    return found


def find(pattern: str | Sequence[str]) -> list[str]:
    """Returns the files of patterns, in the order of their names.

    Args:
      pattern: A pattern, or several.

    Raises:
      UserError: A pattern has no file.
    """
    found = []
    for each in (pattern,) if isinstance(pattern, str) else pattern:
        filesystem, inner = fsspec.core.url_to_fs(each)
        names = sorted(filesystem.glob(inner))
        if not names:
            raise UserError(f"PATTERN={each!r}: no file found. Give the files of the served outputs.")
        found += [filesystem.unstrip_protocol(name).removeprefix("file://") for name in names]
    return found


def _check(spec: FeatureSpec, *, rest: str, dtype: str, k: int | None, prompt_field: str | None, name: str) -> None:
    names = [feature.name for feature in spec.features]
    if _TARGET_TOKENS not in names or not {TARGETS} <= set(spec.task_features) <= {TARGETS, INPUTS}:
        raise UserError(
            f"OBJECTIVE reads {', '.join(spec.task_features)}: served outputs are texts. Give an objective that "
            "predicts text, such as objectives/causal_lm.gin."
        )
    if (INPUTS in spec.task_features) != (prompt_field is not None):
        raise UserError(
            f"PROMPT_FIELD={prompt_field!r}: the objective reads {', '.join(spec.task_features)}. "
            + ("Name the field of the prompt." if prompt_field is None else "Give an objective that reads `inputs`.")
        )
    if rest not in _RESTS:
        raise UserError(f"REST={rest!r} is unknown. Give {' or '.join(_RESTS)}.")
    if dtype not in ("float16", "float32"):
        raise UserError(f"LOGITS_DTYPE={dtype!r} is not supported. Give float16 or float32.")
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
        raise UserError(f"K={k!r} is not a positive integer. Give the number of tokens, or None.")
    if not paths.is_name(name):
        raise UserError(f"NAME={name!r} cannot name a task. Give a name without slashes.")


def _row(text: ServedText, vocabulary: ServedVocabulary, lengths: Mapping[str, int]) -> dict[str, list[int]]:
    row = {TARGETS: [position.id for position in text.positions]}
    if text.prompt is not None:
        row[INPUTS] = vocabulary.tokens.encode(text.prompt).ids.tolist()
    return {name: ids[: lengths[name]] for name, ids in row.items()}


def _retokenized(
    pairs: Sequence[tuple[ServedText, Mapping[str, list[int]]]],
    teacher: TokenBytes,
    student: TokenBytes,
    lengths: Mapping[str, int],
) -> tuple[list[tuple[ServedText, Mapping[str, list[int]]]], list[dict[str, list[int]]]]:
    """Returns the texts that a student with another tokenizer can read, and their rows in its tokens."""
    stored, rows = [], []
    for text, row in pairs:
        ids, eos = row[TARGETS], teacher.vocabulary.eos_id
        ends = ids[-1:] == [eos]
        body = ids[:-1] if ends else ids
        joined, _ = teacher.join(body)
        made = {TARGETS: student.encode(joined).ids.tolist()}
        if ends and student.vocabulary.eos_id is not None:
            made[TARGETS].append(student.vocabulary.eos_id)
        if text.prompt is not None:
            made[INPUTS] = student.encode(text.prompt).ids.tolist()
        is_whole = len(ids) == len(text.positions) and all(len(found) <= lengths[name] for name, found in made.items())
        if is_whole and teacher.encode(joined).ids.tolist() == body:
            stored.append((text, row))
            rows.append(made)
    if not rows:
        raise UserError(
            f"{pairs[0][0].where} and all other texts are longer than TASK_FEATURE_LENGTHS={dict(lengths)}, or have "
            "other tokens than VOCABULARY_PATH gives their texts. Give longer rows, or the tokenizer of the teacher."
        )
    return stored, rows


def _arrays(
    spec: FeatureSpec,
    stored: Sequence[tuple[ServedText, Mapping[str, list[int]]]],
    k: int,
    rest: str,
    lengths: Mapping[str, int],
) -> dict[str, np.ndarray]:
    """Returns what is stored of rows, at the positions where the objective predicts their tokens."""
    at, weights = _predicted_tokens(spec, [row for _, row in stored], lengths)
    shape = at.shape
    values, ids = np.zeros((*shape, k), np.float64), np.zeros((*shape, k), np.int64)
    tail = np.zeros(shape, np.float64)
    for row, position in _stored_positions(at, weights):
        given = stored[row][0].positions[at[row, position] - 1]
        log_p = np.array(given.log_p[:k])
        total = np.exp(log_p).sum()
        if rest == "renormalised":
            log_p, others = log_p - np.log(total), 0.0
        else:
            others = max(1.0 - total, 0.0)
        values[row, position], ids[row, position] = log_p, given.top[:k]
        tail[row, position] = np.log(others) if others else -np.inf
    return {VALUES: values, IDS: ids, LOG_TAIL: tail, LOG_Z: np.zeros(shape), WEIGHTS: weights}


def _predicted_tokens(
    spec: FeatureSpec, rows: Sequence[Mapping[str, list[int]]], lengths: Mapping[str, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the number of the target token that each position predicts, from 1, and the weights of the positions."""
    target = next(feature for feature in spec.features if feature.name == _TARGET_TOKENS)
    weight = next(feature for feature in spec.features if feature.name == _WEIGHTS)
    read = FeatureSpec(
        (ModelFeature("token", target.source, target.role), ModelFeature("weight", weight.source, weight.role)),
        packable=False,
    )
    counts = {name: np.array([len(row[name]) for row in rows]) for name in read.task_features}
    numbers = {
        name: np.tile(np.arange(1, lengths[name] + 1) * (name == TARGETS), (len(rows), 1))
        for name in read.task_features
    }
    made = batches.from_arrays(read, numbers, counts=counts)
    return made["token"], made["weight"]


def _stored_positions(at: np.ndarray, weights: np.ndarray) -> Iterator[tuple[int, int]]:
    yield from zip(*np.nonzero((at > 0) & (weights > 0)), strict=True)


def _digest(files: Sequence[str]) -> str:
    """Returns a hash of the contents of files, by which a run recognizes their teacher."""
    found = hashlib.blake2b(digest_size=16)
    for file in files:
        found.update(manifests.checksum(file).encode())
    return found.hexdigest()
