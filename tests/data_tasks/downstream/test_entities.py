"""Types of entities and relations: marked texts, labels, and the features of a model."""

import json

import numpy as np
import pytest
import seqio

from data_tasks.downstream import entities
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.errors import UserError
from t5x_like.objectives.heads.entity_heads import PooledWithEntities
from t5x_like.objectives.multi_label_classification import MultiLabelClassification
from t5x_like.objectives.sequence_classification import SequenceClassification

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "#", "$", "。", "dy", "##lan", "wrote", "it", "."]
RECORD = {"text": "Dylan wrote it.", "mentions": [[0, 5, "Q392"], [12, 14, 0]]}
RELATION = RECORD | {"head": [0, 5], "tail": [12, 14], "label": "author"}
TYPING = RECORD | {"span": [12, 14], "labels": ["song", "work"]}
TASK, HEAD = "a_task_of_entities", PooledWithEntities(entity_dim=3)


@pytest.fixture
def add(tmp_path):
    """Returns a function that writes records and registers a task."""
    (tmp_path / "names.txt").write_text("Q1\nQ392")
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.txt").write_text("\n".join(PIECES))
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    )
    np.save(tmp_path / "vectors.npy", np.arange(6.0).reshape(2, 3))

    def register(function, records, labels):
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
        paths = {"entities_path": str(tmp_path / "names.txt"), "vectors_path": str(tmp_path / "vectors.npy")}
        function(TASK, {"train": str(tmp_path / "a.jsonl")}, labels=labels, **paths)
        return SeqIOSource(
            mixture_or_task_name=TASK,
            task_feature_lengths={"inputs": 12, "entity_positions": 3},
            task_arguments={"vocabulary_path": str(tmp_path / "tokenizer")},
            batch_size=1,
            pack=False,
            shuffle=False,
        )

    yield register
    seqio.TaskRegistry.remove(TASK)


def pieces(row):
    return [PIECES[each] for each in row if each]


def test_relation_has_markers_of_both_entities(add):
    unlabeled = {name: value for name, value in RELATION.items() if name != "label"}
    source = add(entities.add_relation_task, [RELATION, unlabeled], ["none", "author"])
    first, second = source.eval_batches(SequenceClassification(["none", "author"], head=HEAD).features)
    expected = ["[CLS]", "#", "dy", "##lan", "#", "wrote", "$", "it", "$", ".", "[SEP]"]
    assert pieces(first["encoder_input_tokens"][0]) == expected
    assert first["entity_positions"].tolist() == [[2, 7, 0]] and first["entities"].tolist() == [[2, 1, 0]]
    assert first["entity_vectors"].tolist() == [[[3, 4, 5], [0, 1, 2], [0, 0, 0]]]
    assert first["label"].tolist() == [[1]] and second["label"].tolist() == [[-1]]
    assert not first["token_types"].any()


def test_types_are_targets_of_each_label(add):
    unlabeled = {name: value for name, value in TYPING.items() if name != "labels"}
    labels = ["person", "song", "work"]
    source = add(entities.add_entity_typing_task, [TYPING, unlabeled], labels)
    first, second = source.eval_batches(MultiLabelClassification(labels, head=HEAD).features)
    assert pieces(first["encoder_input_tokens"][0])[3:] == ["wrote", "。", "it", "。", ".", "[SEP]"]
    assert first["label"].tolist() == [[0, 1, 1]] and second["label"].tolist() == [[-1, -1, -1]]
    assert first["entity_positions"].tolist() == [[1, 5, 0]]


def test_markers_that_meet_and_nested_mentions_move():
    text, found = entities.enclose("abcd", [(0, 4, 1), (1, 2, 2), (2, 3, 3)], [(1, 2, "#"), (2, 4, "$")])
    assert text == "a# b #$ cd $"
    assert [text[start:end] for start, end, _ in found] == ["a# b #$ cd", "b", "c"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            RELATION | {"label": "editor"},
            "a.jsonl:1: label 'editor' is unknown. The labels .* are none, author",
        ),
        (RELATION | {"tail": [12, 99]}, r"span of '\$' \(12, 99\) does not have offsets"),
        (TYPING, "not a record with 'text', 'head', 'tail' .'head'"),
    ],
)
def test_invalid_records_raise(add, record, message):
    source = add(entities.add_relation_task, [record], ["none", "author"])
    with pytest.raises(UserError, match=message):
        list(source.eval_batches(SequenceClassification(["none", "author"], head=HEAD).features))
