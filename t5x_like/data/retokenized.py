"""Rows in the tokens of a second vocabulary: the same texts, aligned with the tokens of the first one by their bytes.

A student and a teacher with different tokenizers read the same text. The teacher's features are computed on the host
from the token ids of each batch, so that they exist for live tasks and for caches, and have fixed shapes in the step.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int32

from t5x_like.data import batches
from t5x_like.data.attached import Computed
from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.data.feed import HostBatch, HostIterator
from t5x_like.data.source import DataSource, is_packed
from t5x_like.errors import UserError
from t5x_like.vocabularies.alignment import align
from t5x_like.vocabularies.token_bytes import TokenBytes

STUDENT_GROUPS, TEACHER_GROUPS = "student_groups", "teacher_groups"
STUDENT_WORDS, TEACHER_WORDS = "student_words", "teacher_words"
PREFIX = "retokenized"
_TARGETS, _WEIGHTS = "decoder_target_tokens", "decoder_loss_weights"
# Ids of a special token that a vocabulary does not have: -1 in SentencePiece.
NO_ID = (None, -1)

Arrays = Mapping[str, np.ndarray]


def array_name(teacher: str, feature: str) -> str:
    """Returns the name of an array in a batch."""
    return f"{PREFIX}/{teacher}/{feature}"


@dataclasses.dataclass(frozen=True)
class _Tokens:
    """The text of a task feature of a row in the teacher's tokens. Groups are counted from 1; 0 stands for none."""

    ids: list[int]
    groups: list[int]
    of_student: list[int]


@dataclasses.dataclass(frozen=True, eq=False)
class Retokenizer:
    """Computes the features of a teacher with another vocabulary, and the groups of tokens that cover the same bytes.

    Token ids of the student become text, one text between two EOS or other special tokens. The teacher's tokenizer
    encodes each of them, and EOS becomes its EOS, if it has one; other special tokens have no counterpart. A text that
    was cut within a character begins or ends with the next complete one.

    Attributes:
      name: Name of the teacher.
      student: The tokens of the student's vocabulary.
      teacher: The tokens of the teacher's vocabulary.
      student_spec: Features of the student, with one example per row.
      teacher_spec: Features of the teacher's objective, of the same task features.
      lengths: Task feature -> maximum length in the teacher's tokens. Groups of later tokens are left out.
      predictions: Number of predictions of the student per row.
    """

    name: str
    student: TokenBytes
    teacher: TokenBytes
    student_spec: FeatureSpec
    teacher_spec: FeatureSpec
    lengths: Mapping[str, int]
    predictions: int

    def __post_init__(self):
        for network, spec in (("the student", self.student_spec), (f"teacher {self.name!r}", self.teacher_spec)):
            names = [feature.name for feature in spec.features]
            if _TARGETS not in names or _WEIGHTS not in names:
                raise UserError(
                    f"{network} predicts no text, but reads {', '.join(names)}. A loss across tokenizers compares "
                    "predicted texts: give an objective of text, such as causal_lm."
                )
        if unknown := sorted(set(self.teacher_spec.task_features) - set(self.student_spec.task_features)):
            raise UserError(
                f"teacher {self.name!r} reads {unknown[0]!r}, the student only "
                f"{', '.join(map(repr, self.student_spec.task_features))}. Give an objective that reads the same "
                "features with TEACHER_OBJECTIVE."
            )
        if masks := [name for name in self.teacher_spec.task_features if not self.teacher_spec.is_token_ids(name)]:
            raise UserError(
                f"teacher {self.name!r} reads {masks[0]!r}, which belongs to the tokens of the student. Give an "
                "objective that reads tokens alone with TEACHER_OBJECTIVE, such as @causal_lm.CausalLM() with the "
                "teacher's bos_id."
            )
        if missing := [name for name in self.teacher_spec.length_keys if name not in self.lengths]:
            raise UserError(
                f"TEACHER_LENGTHS={dict(self.lengths)}: no length for {missing[0]!r}. Give the length of each feature "
                "in the teacher's tokens."
            )
        for name, length in self.lengths.items():
            if type(length) is not int or length < 1:
                raise UserError(
                    f"TEACHER_LENGTHS={dict(self.lengths)}: the length of {name!r} is not a positive integer. Give a "
                    "number of the teacher's tokens."
                )

    @property
    def attached(self) -> tuple[Computed, ...]:
        """The arrays of a batch: the teacher's features, and groups and words at the predictions of both networks.

        `student_groups` and `teacher_groups` have the number of a group, counted from 1, at each prediction of one of
        its tokens, and 0 elsewhere. `student_words` and `teacher_words` number the smallest runs of groups after which
        a word is complete: the next token begins with whitespace or is EOS, or the last token is EOS.
        """
        shapes = self.teacher_spec.row_shapes(self.lengths)
        found = {feature.name: shapes[feature.name] for feature in self.teacher_spec.features}
        positions = {name: length for name, (length,) in found.items()}
        return tuple(
            Computed(name=array_name(self.name, name), positions=length)
            for name, length in {
                **positions,
                **dict.fromkeys((TEACHER_GROUPS, TEACHER_WORDS), positions[_TARGETS]),
                **dict.fromkeys((STUDENT_GROUPS, STUDENT_WORDS), self.predictions),
            }.items()
        )

    def select(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the teacher's features and the groups of a batch, by their names without the teacher's."""
        prefix = array_name(self.name, "")
        return {name.removeprefix(prefix): array for name, array in rows.items() if name.startswith(prefix)}

    def __call__(self, batch: HostBatch) -> dict[str, Int32[np.ndarray, "rows positions"]]:
        """Computes the arrays of a batch of the student.

        Groups of which a network does not predict every token, such as a first token without BOS, are left out.

        Args:
          batch: The features of the student, `[rows, length]`.

        Returns:
          `attached` by their names.
        """
        given, counts = self._task_tokens(batch)
        rows = [
            self._retokenize({name: ids[row, : counts[name][row]].tolist() for name, ids in given.items()})
            for row in range(len(batch[_TARGETS]))
        ]
        teacher, teacher_groups = self._features_of_teacher(rows)
        of_student = {name: _padded([row[name].of_student for row in rows], given[name].shape[1]) for name in given}
        at_student = _at_predictions(self.student_spec, of_student, counts)[:, : self.predictions]
        at_student *= batch[_WEIGHTS] > 0
        at_teacher = teacher_groups * (teacher[_WEIGHTS] > 0)
        for number, row in enumerate(rows):
            kept = _complete(at_student[number], [group for each in row.values() for group in each.of_student])
            kept &= _complete(at_teacher[number], [group for each in row.values() for group in each.groups])
            for groups in (at_student, at_teacher):
                groups[number] = _numbered(groups[number], kept)
        words = self._words(at_student, batch)
        found = {
            **teacher,
            STUDENT_GROUPS: at_student,
            TEACHER_GROUPS: at_teacher,
            STUDENT_WORDS: np.take_along_axis(words, at_student, axis=1),
            TEACHER_WORDS: np.take_along_axis(words, at_teacher, axis=1),
        }
        return {array_name(self.name, name): array.astype(np.int32) for name, array in found.items()}

    def _words(self, groups: np.ndarray, batch: HostBatch) -> np.ndarray:
        """Returns the word of each group, `[rows, 1 + groups]`, counted from 1; 0 for incomplete words and group 0."""
        tokens, predicted = batch[_TARGETS], batch[_WEIGHTS] > 0
        starts = self.student.word_starts
        begins = predicted & (tokens < len(starts)) & starts[np.minimum(tokens, len(starts) - 1)]
        closes = np.pad(begins, ((0, 0), (0, 1)))[:, 1:] | (tokens == self.student.vocabulary.eos_id)
        is_last = groups != np.pad(groups, ((0, 0), (0, 1)))[:, 1:]
        found = np.zeros((len(groups), groups.shape[1] + 1), np.int32)
        for row, last, closed in zip(found, is_last & (groups > 0), closes, strict=True):
            complete = closed[last]  # of groups 1, 2, …
            word = 1 + np.cumsum(complete) - complete
            row[1 : 1 + len(word)] = np.where(word <= complete.sum(), word, 0)
        return found

    def _task_tokens(self, batch: HostBatch) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Returns the token ids of each task feature of the student, `[rows, length]`, and their numbers `[rows]`."""
        ids, counts = {}, {}
        segments = {each.source: each.name for each in self.student_spec.features if each.role == "segment_ids"}
        for feature in self.student_spec.features:
            if feature.role != "tokens" or feature.source not in segments:
                continue
            tokens, number = batch[feature.name], (batch[segments[feature.source]] > 0).sum(axis=1)
            if len(feature.sources) == 1:
                ids[feature.sources[0]], counts[feature.sources[0]] = tokens, number
                continue
            before = self._items_before_targets(batch, number)
            prompt, targets = feature.sources
            ids |= {prompt: tokens, targets: _shifted(tokens, before)}
            counts |= {prompt: before, targets: number - before}
        return ids, counts

    def _items_before_targets(self, batch: HostBatch, number: np.ndarray) -> np.ndarray:
        role = next(each.role for each in self.student_spec.features if each.name == _WEIGHTS)
        predicted = batch[_WEIGHTS] > 0
        first = np.argmax(predicted, axis=1) + role.startswith("next")
        return np.where(predicted.any(axis=1), first, number)

    def _retokenize(self, row: Mapping[str, list[int]]) -> dict[str, _Tokens]:
        found, group = {}, 0
        for name, ids in row.items():
            made = _Tokens([], [], [])
            for part, special in _parts(ids, self.student):
                text, ends = self.student.join(part)
                encoded = self.teacher.encode(text)
                aligned = align(ends, encoded.ends)
                made.ids.extend(encoded.ids.tolist())
                made.of_student.extend((aligned.first + 1 + group * (aligned.first >= 0)).tolist())
                made.groups.extend((aligned.second + 1 + group * (aligned.second >= 0)).tolist())
                group += aligned.number
                eos = self.teacher.vocabulary.eos_id
                is_pair = special is not None and special == self.student.vocabulary.eos_id and eos not in NO_ID
                if is_pair:
                    group += 1
                    made.ids.append(eos)
                    made.groups.append(group)
                if special is not None:
                    made.of_student.append(group if is_pair else 0)
            found[name] = made
        return found

    def _features_of_teacher(self, rows: list[dict[str, _Tokens]]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        names = self.teacher_spec.task_features
        lengths = self.teacher_spec.task_lengths(self.lengths)
        counts = {name: np.array([min(len(row[name].ids), lengths[name]) for row in rows]) for name in names}
        ids = {name: _padded([row[name].ids for row in rows], lengths[name]) for name in names}
        groups = {name: _padded([row[name].groups for row in rows], lengths[name]) for name in names}
        made = batches.from_arrays(self.teacher_spec, ids, counts=counts)
        return made, _at_predictions(self.teacher_spec, groups, counts)


def _parts(ids: list[int], tokens: TokenBytes) -> Iterator[tuple[list[int], int | None]]:
    """Yields the runs of ids that are text, each with the special token after it, or None at the end."""
    begin = 0
    for at, index in enumerate(ids):
        if index >= len(tokens) or tokens.of[index] is None:
            yield ids[begin:at], index
            begin = at + 1
    if begin < len(ids):
        yield ids[begin:], None


def _at_predictions(spec: FeatureSpec, groups: Arrays, counts: Arrays) -> np.ndarray:
    """Returns the group of the token that each prediction of a spec predicts."""
    target = next(feature for feature in spec.features if feature.name == _TARGETS)
    read = FeatureSpec((ModelFeature("groups", target.source, target.role),), packable=False)
    given, numbers = ({name: each[name] for name in read.task_features} for each in (groups, counts))
    return batches.from_arrays(read, given, counts=numbers)["groups"]


def _complete(predicted: np.ndarray, groups: list[int]) -> set[int]:
    """Returns the groups of which all tokens are predicted."""
    size = max([0, *groups]) + 1
    numbers = [np.bincount(np.asarray(each, int), minlength=size) for each in (predicted, groups)]
    return set(np.flatnonzero((numbers[0] == numbers[1]) & (numbers[1] > 0)).tolist()) - {0}


def _numbered(groups: np.ndarray, kept: set[int]) -> list[int]:
    """Returns groups with the numbers 1, 2, … instead of those that are kept, and 0 for the others."""
    numbers = {group: index for index, group in enumerate(sorted(kept), start=1)}
    return [numbers.get(group, 0) for group in groups.tolist()]


def _padded(rows: list[list[int]], length: int) -> np.ndarray:
    made = np.zeros((len(rows), length), np.int32)
    for row, values in zip(made, rows, strict=True):
        row[: len(values)] = values[:length]
    return made


def _shifted(tokens: np.ndarray, by: np.ndarray) -> np.ndarray:
    at = np.minimum(np.arange(tokens.shape[1]) + by[:, None], tokens.shape[1] - 1)
    return np.take_along_axis(tokens, at, axis=1)


@dataclasses.dataclass(frozen=True)
class RetokenizedSource:
    """A data source whose batches also have the features of teachers with other vocabularies; see `DataSource`.

    All other attributes belong to the source of the student.

    Attributes:
      source: The data of the student.
      retokenizers: Name of a teacher -> what computes its features.
    """

    source: DataSource
    retokenizers: Mapping[str, Retokenizer]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and pickling look up methods that this class does not have
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.source, name)

    def check(self, spec: FeatureSpec) -> None:
        """Checks that the data can be read as `spec` requires; see `DataSource`."""
        self.source.check(self._of_source(spec))

    def batch_shapes(self, spec: FeatureSpec) -> dict[str, tuple[int, ...]]:
        """Returns model feature or attached array -> shape over all processes; see `DataSource`."""
        found = self.source.batch_shapes(self._of_source(spec))
        size = found[_TARGETS][0]
        return found | {each.name: (size, *each.shape) for each in spec.attached if not each.is_stored}

    def per_task(self) -> "list[RetokenizedSource]":
        """Returns a source for each task of a mixture; see `DataSource`."""
        return [dataclasses.replace(self, source=each) for each in self.source.per_task()]

    def host_iterator(self, spec: FeatureSpec, **processes: int) -> "_RetokenizedIterator":
        """Returns the training batches of one process; see `DataSource`."""
        return _RetokenizedIterator(self.source.host_iterator(self._of_source(spec), **processes), self, spec)

    def eval_batches(
        self, spec: FeatureSpec, num_batches: int | None = None, **processes: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the batches of one pass over the data; see `DataSource`."""
        for batch in self.source.eval_batches(self._of_source(spec), num_batches, **processes):
            yield self.add(batch, spec)

    def _of_source(self, spec: FeatureSpec) -> FeatureSpec:
        """Returns the part of a spec that the source reads; rows of one example stay the rows of a packable spec."""
        stored = tuple(each for each in spec.attached if each.is_stored)
        student = next(iter(self.retokenizers.values())).student_spec
        packable = spec.packable or (student.packable and not is_packed(self.source))
        return dataclasses.replace(spec, attached=stored, packable=packable)

    def add(self, batch: HostBatch, spec: FeatureSpec) -> dict[str, np.ndarray]:
        """Returns a batch with the arrays that a spec attaches; none for the student's own objective."""
        if all(each.is_stored for each in spec.attached):
            return dict(batch)
        return {**batch, **{name: x for each in self.retokenizers.values() for name, x in each(batch).items()}}


class _RetokenizedIterator:
    """A host iterator whose batches have further arrays. Its position is the position of the wrapped iterator."""

    def __init__(self, batches: HostIterator, source: RetokenizedSource, spec: FeatureSpec):
        self._batches, self._source, self._spec = batches, source, spec

    def __next__(self) -> HostBatch:
        return self._source.add(next(self._batches), self._spec)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._batches, name)
