"""WikiHop's records as rows with a global token per candidate, by hand."""

import json

import gold_predictions
import pytest

from t5x_like.errors import UserError

LETTERS = "a b c d e f g h i j".split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, "?", "##k"]
RECORDS = [
    {"id": "1", "query": "c d", "candidates": ["a", "bk j", "e"], "answer": "bk j", "supports": ["f g? H", "i a? J"]},
    {"id": "2", "query": "c", "candidates": ["d", "e"], "answer": "d", "supports": ["f g h i j a b c d e? F"]},
    {"id": "3", "query": "c", "candidates": ["e"], "supports": ["f"]},
]
CASES = [
    ("[CLS] c d [SEP] a b ##k j e [SEP] f g ? h i a ? j [SEP]", [1, 4, 5, 8, 10, 13, 14, 17], [0, 1, 1, 1], 1),
    # The row ends in the documents.
    ("[CLS] c [SEP] d e [SEP] f g h i j a b c d e ? f [SEP]", [1, 3, 4, 6, 17], [0, 1, 1], 0),
    ("[CLS] c [SEP] e [SEP] f [SEP]", [1, 3, 5], [0, 1], -1),
]


def read(directory, records, length=20, most=8):
    (directory / "dev.json").write_text(json.dumps(records))
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    tokenizer = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    options = {"task_feature_lengths": {"inputs": length, "global_positions": most}}
    options["task_arguments"] = {"data_dir": str(directory), "vocabulary_path": str(directory)}
    return gold_predictions.read("wikihop_candidates", "validation", 10, **options)


def test_rows_of_three_records(tmp_path):
    for row, (pieces, positions, flags, target) in zip(read(tmp_path, RECORDS), CASES, strict=True):
        inputs = [PIECES[index] for index in row["inputs"]]
        assert inputs == pieces.split()
        assert list(row["global_positions"]) == positions
        assert list(row["is_candidate"]) == flags + [0] * (len(positions) - len(flags))
        types = [int(index > inputs.index("[SEP]")) for index in range(len(inputs))]
        assert list(row["token_types"]) == types and list(row["targets"]) == [target]


def test_parts_beyond_the_lengths_have_no_global_token(tmp_path):
    row = read(tmp_path, RECORDS[:1], length=8)[0]
    assert [PIECES[index] for index in row["inputs"]] == "[CLS] c d [SEP] a b ##k [SEP]".split()
    assert list(row["global_positions"]) == [1, 4, 5] and list(row["is_candidate"]) == [0, 1, 1]
    row = read(tmp_path, RECORDS[:1], most=3)[0]
    assert list(row["global_positions"]) == [1, 4, 5] and list(row["is_candidate"]) == [0, 1, 1]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"answer": "x"}, "question '1': the answer 'x' is not among its candidates"),
        ({"candidates": []}, "question '1' has no candidates"),
        ({"candidates": ["a", " "]}, "question '1' has an empty candidate"),
        ({"candidates": ["a", "a"]}, "question '1' has the candidate 'a' twice"),
        ({"candidates": "a b", "answer": "a"}, "'a b' is not a list of texts. Give a list of strings"),
    ],
)
def test_invalid_records_raise(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, [RECORDS[0] | changes])


def test_records_to_predict_may_have_no_answer(tmp_path):
    (row,) = read(tmp_path, [RECORDS[0] | {"answer": None}])
    assert list(row["targets"]) == [-1]


def test_file_without_a_list_raises(tmp_path):
    with pytest.raises(UserError, match="dev.json:1: .*the file is not a list of records, as WikiHop's are"):
        read(tmp_path, {"data": RECORDS})
