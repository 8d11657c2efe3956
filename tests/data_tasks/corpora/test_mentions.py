"""Documents with marked mentions: marks, records and their errors, and TransE's vectors."""

import json

import numpy as np
import pytest

from data_tasks.corpora import mentions, transe
from data_tasks.pretraining.sentences import split_lines, split_prose
from t5x_like.errors import UserError

NAMES = ["Q1", "Q2", "Q3"]


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes records and returns the arguments of `mentions.read`."""
    (tmp_path / "names.txt").write_text("\n".join(NAMES))

    def records(*given):
        lines = (json.dumps(each) if isinstance(each, dict) else each for each in given)
        (tmp_path / "a.jsonl").write_text("\n".join(lines))
        return {"pattern": f"{tmp_path}/*.jsonl", "entities_path": str(tmp_path / "names.txt"), "split": split_lines}

    return records


def test_mentions_are_marked_within_their_sentences():
    text = "Zoë sah Bonn.\nBonn \x1eliegt am Rhein.".encode()
    found = [(0, 4, 7), (9, 13, 2), (15, 19, 2), (27, 29, 1), (14, 16, 9), (28, 35, 3)]
    marked = mentions.mark(text, found, [b"Zo\xc3\xab sah Bonn.", b"Bonn \x1eliegt am Rhein."])
    # The mention that begins in the line break and the one that overlaps are left out. A mark in the text is a space.
    first, second = marked.decode().split("\x1e")
    assert first == "\x1d7\x1fZoë\x1d sah \x1d2\x1fBonn\x1d."
    assert second == "\x1d2\x1fBonn\x1d  liegt \x1d1\x1fam\x1d Rhein."


def test_records_have_names_or_numbers_of_entities(write):
    text = "ä Bonn. Rom!\nB"
    arguments = write(
        {"text": text, "mentions": [[2, 6, "Q2"], [8, 11, 2], [13, 14, "Q9"], [0, 1, 3]]}, "", {"text": " "}
    )
    corpus = mentions.read(**arguments, validation_fraction=0.0)
    assert [each.decode() for each in corpus.splits["train"]] == ["ä \x1d2\x1fBonn\x1d. \x1d3\x1fRom\x1d!\x1eB"]
    assert corpus.skipped == {"mentions of entities that are not in entities_path": 2, "empty": 1}
    prose = mentions.read(**{**arguments, "split": split_prose}, validation_fraction=0.0)
    assert prose.splits["train"][0].count(mentions.SENTENCE) == 2


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "a.jsonl:1 is not JSON"),
        ({"title": "x"}, "has no text in the field 'text'"),
        ({"text": "abc", "mentions": [[1, 2]]}, r"mention \[1, 2\] is not \[start, end, entity\]"),
        ({"text": "abc", "mentions": [[1, 4, "Q1"]]}, r"mention \(1, 4\) does not have .* a text of 3 characters"),
    ],
)
def test_invalid_records_raise(write, record, message):
    with pytest.raises(UserError, match=message):
        mentions.read(**write(record))


def test_vectors_must_match_the_names(tmp_path):
    np.save(tmp_path / "vectors.npy", np.zeros((2, 5)))
    with pytest.raises(UserError, match=r"shape \(2, 5\), but entities_path has 3 names"):
        mentions.read_vectors(str(tmp_path / "vectors.npy"), 3)
    with pytest.raises(UserError, match="vectors_path='/nowhere.npy': file not found"):
        mentions.read_vectors("/nowhere.npy", 3)
    with pytest.raises(UserError, match="has no 'entities_path'"):
        mentions.read_names("")


def test_transe_brings_entities_of_the_same_group_together():
    """Three groups of six entities, each of which is a part of its group and precedes another one of the group."""
    groups, members = np.repeat(np.arange(3), 6), np.arange(18)
    triples = [(3 + each, 0, groups[each]) for each in members]
    triples += [(3 + each, 1, 3 + groups[each] * 6 + (each + 1) % 6) for each in members]
    vectors = transe.train(triples, entities=21, relations=2, size=8, epochs=100, batch_size=8)
    assert vectors.shape == (21, 8) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    distances = np.linalg.norm(vectors[3:, None] - vectors[3:], axis=-1)
    same = groups[:, None] == groups
    assert distances[same & ~np.eye(18, dtype=bool)].mean() < 0.5 * distances[~same].mean()
    with pytest.raises(UserError, match="TransE: 1 triples of 2 entities"):
        transe.train([(0, 0, 2)], entities=2, relations=1)
