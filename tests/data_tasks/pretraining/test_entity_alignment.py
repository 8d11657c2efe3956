"""Sentence pairs with entities: from records and vectors of TransE to the features of a model."""

import json

import numpy as np
import pytest
import seqio

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.corpora import python_docs_modules, transe
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.specs import SENTENCE_PAIRS, spec_for_task, with_entities
from t5x_like.errors import UserError

SIZE = 4
CITIES = ["Bonn", "Rome", "Oslo", "Bern", "Lima", "Cairo"]
# `Cairo` has two pieces, of which the first has the entity.
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "from", "to", ".", "cai", "##ro", *map(str.lower, CITIES[:5])]
TASK = "text_files_entity_alignment"


@pytest.fixture
def arguments(tmp_path):
    """Writes documents of a route through all cities; a city is near to the next. Returns the task's arguments."""
    records = []
    for number in range(40):
        lines, found, start = [], [], 0
        for step in range(4):
            city = (number * 5 + step * (1 + number % 3)) % 6
            line = f"From {CITIES[city]} to {CITIES[city - 1]}."
            for name, index in ((CITIES[city], CITIES[city]), (CITIES[city - 1], (city - 1) % 6)):
                at = start + line.index(name)
                found.append([at, at + len(name), index])
            lines.append(line)
            start += len(line) + 1
        records.append(json.dumps({"text": "\n".join(lines), "mentions": found}))
    (tmp_path / "a.jsonl").write_text("\n".join(records))
    (tmp_path / "names.txt").write_text("\n".join(CITIES))
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    triples = [(city, 0, (city + 1) % 6) for city in range(6)]
    np.save(tmp_path / "transe.npy", transe.train(triples, entities=6, relations=1, size=SIZE, epochs=20))
    return {
        "pattern": f"{tmp_path}/*.jsonl",
        "entities_path": str(tmp_path / "names.txt"),
        "vectors_path": str(tmp_path / "transe.npy"),
        "vocabulary_path": str(tmp_path / "vocab.txt"),
    }


def source(arguments, **changes):
    settings = {
        "mixture_or_task_name": TASK,
        "task_feature_lengths": {"inputs": 32, "targets": 5, "entity_positions": 6},
        "task_arguments": arguments,
        "batch_size": 8,
        "pack": False,
    }
    return SeqIOSource(**settings | changes)


def test_entities_are_at_the_first_tokens_of_their_mentions(arguments):
    spec = with_entities(SENTENCE_PAIRS, SIZE)
    iterator, seen = source(arguments).host_iterator(spec), set()
    table = np.load(arguments["vectors_path"])
    for _ in range(4):
        batch = next(iterator)
        assert batch["entity_vectors"].shape == (8, 6, SIZE) and batch["entity_vectors"].dtype == np.float32
        for row in range(8):
            tokens = batch["encoder_input_tokens"][row].copy()
            masked = batch["masked_weights"][row] > 0
            tokens[batch["masked_positions"][row][masked]] = batch["masked_targets"][row][masked]
            numbers, positions = batch["entities"][row], batch["entity_positions"][row]
            assert (numbers > 0).sum() >= 5, "pairs with fewer entities are dropped"
            text = [PIECES[each] for each in tokens]
            expected = [at for at, piece in enumerate(text) if piece == "cai" or piece.title() in CITIES][:6]
            assert positions[: len(expected)].tolist() == expected and (numbers[len(expected) :] == 0).all()
            for number, position, vector in zip(numbers, positions, batch["entity_vectors"][row], strict=True):
                if number:
                    assert CITIES[number - 1].lower().startswith(text[position])
                    np.testing.assert_array_equal(vector, table[number - 1])
                else:
                    assert position == 0 and not vector.any()
            seen |= set(numbers.tolist())
    assert seen - {0} == set(range(1, 7))


def test_features_are_recognized_and_another_size_raises(arguments):
    found = source(arguments)
    names = seqio.TaskRegistry.get(TASK).output_features
    example = {"entity_vectors": np.zeros((2, SIZE), np.float32)}
    assert spec_for_task(names, lambda: example) == with_entities(SENTENCE_PAIRS, SIZE)
    with pytest.raises(UserError, match=rf"entity_vectors.*{SIZE} values per item, but"):
        next(found.host_iterator(with_entities(SENTENCE_PAIRS, SIZE + 1)))


@pytest.mark.full
def test_mentions_of_modules_in_the_documentation_have_their_vectors():
    names = python_docs_modules.names()
    assert {"os", "json", "json.decoder", "concurrent"} <= set(names)
    document = next(each for each in python_docs_modules.read().splits["train"] if b"\x1fhtml.parser\x1d" in each)
    number = names.index("html.parser") + 1
    assert f"\x1d{number}\x1fhtml.parser\x1d".encode() in document
    assert len(python_docs_modules.triples()) > 1000
    vectors = python_docs_modules.vectors(SIZE)
    assert vectors.shape == (len(names), SIZE) and len(np.unique(vectors, axis=0)) == len(names)
