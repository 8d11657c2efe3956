"""Rows in the tokens of a teacher: features and groups by hand, for each kind of features of a decoder."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import two_tokenizers

from t5x_like.data import conversation_specs, specs
from t5x_like.data.batches import from_arrays
from t5x_like.data.numbered import NumberedSource
from t5x_like.data.retokenized import RetokenizedSource, Retokenizer
from t5x_like.errors import UserError

pytestmark = pytest.mark.notf

STUDENT, TEACHER = two_tokenizers.student(), two_tokenizers.teacher()
CAUSAL = dataclasses.replace(specs.CAUSAL_LM, packable=False)


def ids_of(tokens, *pieces):
    """Returns the ids of pieces, where None is EOS."""
    table = {token: index for index, token in enumerate(tokens.of) if token is not None}
    return [tokens.vocabulary.eos_id if piece is None else table[piece.encode()] for piece in pieces]


def retokenizer(spec=CAUSAL, teacher_spec=CAUSAL, lengths=None, predictions=8, teacher=TEACHER):
    return Retokenizer(
        "t", STUDENT, teacher, spec, teacher_spec, lengths or {"targets": 8, "inputs": 8}, predictions=predictions
    )


def batch_of(spec, **rows):
    """Makes a batch of task features, given as lists of ids."""
    counts = {name: [len(row) for row in each] for name, each in rows.items()}
    padded = {name: np.array([row + [0] * (8 - len(row)) for row in each], np.int32) for name, each in rows.items()}
    return from_arrays(spec, padded, counts=counts)


def arrays(made, batch):
    return {name: array.tolist() for name, array in made.select(made(batch)).items()}


def test_groups_of_a_causal_language_model():
    # "cat cat" + EOS: c, at, " c", at, EOS for the student; cat, " ", cat, EOS for the teacher.
    row = ids_of(STUDENT, "c", "at", " c", "at", None)
    found = arrays(retokenizer(), batch_of(CAUSAL, targets=[row]))
    assert found["decoder_target_tokens"] == [ids_of(TEACHER, "cat", " ", "cat", None) + [0] * 4]
    assert found["decoder_loss_weights"] == [[1, 1, 1, 1, 0, 0, 0, 0]]
    assert found["student_groups"] == [[1, 1, 2, 2, 3, 0, 0, 0]]
    assert found["teacher_groups"] == [[1, 2, 2, 3, 0, 0, 0, 0]]
    assert found["student_words"] == [[1, 1, 2, 2, 3, 0, 0, 0]]
    assert found["teacher_words"] == [[1, 2, 2, 3, 0, 0, 0, 0]]


def test_words_join_groups_until_whitespace_or_the_end():
    # "bat b": b, at, " ", b and b, a, t, " b": the word "bat" is complete before the space, "b" is not complete.
    row = ids_of(STUDENT, "b", "at", " ", "b")
    found = arrays(retokenizer(), batch_of(CAUSAL, targets=[row]))
    assert found["student_groups"] == [[1, 2, 3, 3, 0, 0, 0, 0]]
    assert found["teacher_groups"] == [[1, 2, 2, 3, 0, 0, 0, 0]]
    assert found["student_words"] == [[1, 1, 0, 0, 0, 0, 0, 0]]
    assert found["teacher_words"] == [[1, 1, 1, 0, 0, 0, 0, 0]]


def test_eos_within_a_row_separates_texts():
    row = ids_of(STUDENT, "c", None, "at")  # two documents: no "cat" across EOS
    found = arrays(retokenizer(), batch_of(CAUSAL, targets=[row]))
    assert found["decoder_target_tokens"][0][:4] == ids_of(TEACHER, "c", None, "a", "t")
    assert (found["student_groups"][0][:3], found["teacher_groups"][0][:4]) == ([1, 2, 3], [1, 2, 3, 3])


def test_first_token_without_bos_has_no_group():
    spec = dataclasses.replace(specs.NEXT_TOKEN, packable=False)
    row = ids_of(STUDENT, "c", "at", "b", "t")
    # The teacher has BOS, and predicts "cat", of which the student does not predict "c".
    found = arrays(retokenizer(spec), batch_of(spec, targets=[row]))
    assert found["student_groups"] == [[0, 1, 2, 0, 0, 0, 0, 0]]  # "b" at the position of "at", "t" at that of "b"
    assert found["teacher_groups"] == [[0, 1, 2, 0, 0, 0, 0, 0]]
    # Both without BOS: neither predicts its first token.
    found = arrays(retokenizer(spec, spec), batch_of(spec, targets=[row]))
    assert found["teacher_groups"] == [[1, 2, 0, 0, 0, 0, 0, 0]]


def test_prompts_are_read_but_not_compared():
    spec = dataclasses.replace(specs.PROMPTED_WITH_BOS, packable=False)
    batch = batch_of(spec, inputs=[ids_of(STUDENT, "c", "at")], targets=[ids_of(STUDENT, " c", "at", None)])
    found = arrays(retokenizer(spec, spec, predictions=16), batch)
    assert found["decoder_target_tokens"][0][:4] == ids_of(TEACHER, "cat", " ", "cat", None)
    assert found["decoder_loss_weights"][0][:5] == [0, 1, 1, 1, 0]
    assert found["student_groups"][0][:6] == [0, 0, 1, 1, 2, 0]
    assert found["teacher_groups"][0][:5] == [0, 1, 1, 2, 0]


def test_encoder_decoder_reads_inputs_in_the_tokens_of_the_teacher():
    spec = dataclasses.replace(specs.ENCODER_DECODER, packable=False)
    batch = batch_of(spec, inputs=[ids_of(STUDENT, "c", "at", None)], targets=[ids_of(STUDENT, "at", None)])
    found = arrays(retokenizer(spec, spec), batch)
    assert found["encoder_input_tokens"][0][:3] == ids_of(TEACHER, "cat", None, "a")[:2] + [0]
    assert found["teacher_groups"][0][:4] == [1, 1, 2, 0] and found["student_groups"][0][:3] == [1, 2, 0]


def test_rows_that_are_too_long_for_the_teacher_lose_their_last_groups():
    row = ids_of(STUDENT, "at", "at", "at")
    found = arrays(retokenizer(lengths={"targets": 3}), batch_of(CAUSAL, targets=[row]))
    assert found["decoder_target_tokens"] == [ids_of(TEACHER, "a", "tt"[0], "a")]
    assert found["student_groups"] == [[1, 0, 0, 0, 0, 0, 0, 0]] and found["teacher_groups"] == [[1, 1, 0]]


def test_characters_cut_by_the_row_have_no_group():
    row = ids_of(STUDENT, "at", "b") + [STUDENT.of.index(b"\xc3")]
    found = arrays(retokenizer(), batch_of(CAUSAL, targets=[row]))
    assert found["student_groups"][0][:3] == [1, 2, 0]
    assert found["decoder_target_tokens"][0][:4] == ids_of(TEACHER, "a", "t", "b") + [0]


def test_rows_of_padding_have_no_groups():
    found = arrays(retokenizer(), batch_of(CAUSAL, targets=[[], ids_of(STUDENT, "c")]))
    assert not any(map(any, (found[name][0] for name in ("student_groups", "teacher_groups", "decoder_loss_weights"))))


def test_texts_are_aligned_at_random():
    """Every group covers the same bytes, and all tokens have one if both predict the whole text."""
    rng, made = np.random.default_rng(0), retokenizer(lengths={"targets": 32}, predictions=8)
    rows = [rng.integers(2, len(STUDENT), rng.integers(1, 9)).tolist() for _ in range(30)]
    rows = [[index for index in row if STUDENT.of[index] not in (b"\xc3", b"\xa9", None)] for row in rows]
    found = arrays(made, batch_of(CAUSAL, targets=rows))
    for ids, ours, targets, theirs in zip(
        rows, *(found[n] for n in ("student_groups", "decoder_target_tokens", "teacher_groups")), strict=True
    ):
        for group in range(1, max([0, *ours]) + 1):
            pieces = [
                b"".join(table.of[index] for index, each in zip(tokens, groups, strict=False) if each == group)
                for table, tokens, groups in ((STUDENT, ids, ours), (TEACHER, targets, theirs))
            ]
            assert pieces[0] == pieces[1] != b""
        assert all(ours[: len(ids)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows(NumberedSource):
    """Rows of one text."""

    batch_size: int = 2
    name = "rows"

    def batch_shapes(self, spec):
        assert not spec.attached
        return {name: (self.batch_size, *shape) for name, shape in spec.row_shapes({"targets": 8}).items()}

    def batch(self, spec, number, rows):
        ids = [ids_of(STUDENT, *["at"] * (1 + number % 3), None) for _ in rows]
        return batch_of(spec, targets=ids)


def test_source_adds_the_arrays_and_keeps_its_position():
    made = retokenizer()
    source = RetokenizedSource(Rows(), {"t": made})
    spec = dataclasses.replace(CAUSAL, attached=made.attached)
    source.check(spec)
    assert source.batch_size == 2 and source.per_task()[0].retokenizers == {"t": made}
    iterator = source.host_iterator(spec)
    first, second = next(iterator), next(iterator)
    assert {name: array.shape for name, array in first.items()} == source.batch_shapes(spec)
    assert {name: str(array.dtype) for name, array in first.items()} == spec.dtypes
    assert hasattr(iterator, "state_before")
    iterator.restore(iterator.state_before(1))
    again = next(iterator)
    assert all(np.array_equal(again[name], second[name]) for name in second)
    (evaluated,) = source.eval_batches(spec, 1)
    assert np.array_equal(evaluated["retokenized/t/student_groups"], first["retokenized/t/student_groups"])
    assert set(next(source.eval_batches(CAUSAL, 1))) == {feature.name for feature in CAUSAL.features}
    assert pickle.loads(pickle.dumps(Rows())) == Rows()


def test_teacher_without_eos_reads_none():
    """SentencePiece has the id -1 for it."""

    class WithoutEOS:
        eos_id = -1
        encode = staticmethod(TEACHER.vocabulary.encode)

    without = copy.copy(TEACHER)
    without.vocabulary = WithoutEOS()
    row = ids_of(STUDENT, "c", None, "at", None)
    found = arrays(retokenizer(teacher=without), batch_of(CAUSAL, targets=[row]))
    assert found["decoder_target_tokens"] == [ids_of(TEACHER, "c", "a", "t") + [0] * 5]
    assert (found["student_groups"][0][:4], found["teacher_groups"][0][:4]) == ([1, 0, 2, 0], [1, 2, 2, 0])


def test_unsuitable_objectives_are_refused():
    with pytest.raises(UserError, match="the student predicts no text"):
        retokenizer(spec=specs.MASKED_LM)
    with pytest.raises(UserError, match="teacher 't' reads 'inputs', the student only 'targets'"):
        retokenizer(teacher_spec=specs.ENCODER_DECODER)
    masked = dataclasses.replace(conversation_specs.CONVERSATION, packable=False)
    with pytest.raises(UserError, match="teacher 't' reads 'loss_mask', which belongs to the tokens of the student"):
        retokenizer(masked, masked)
    assert retokenizer(masked).student_spec == masked  # of a student, it selects predictions
    with pytest.raises(UserError, match="TEACHER_LENGTHS={'inputs': 3}: no length for 'targets'"):
        retokenizer(lengths={"inputs": 3})
    with pytest.raises(UserError, match="TEACHER_LENGTHS={'targets': 0}: the length of 'targets' is not a positive"):
        retokenizer(lengths={"targets": 0})
