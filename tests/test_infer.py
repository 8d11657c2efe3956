"""Reading records, encoding them, and an output that survives an interruption."""

import json

import pytest

from t5x_like.infer import Codec, PartFiles, read_records


def test_text_and_jsonl_records(tmp_path):
    (tmp_path / "a.txt").write_text("one\n two \n", encoding="utf-8")
    assert list(read_records(str(tmp_path / "a.txt"))) == [{"inputs": "one"}, {"inputs": " two "}]
    (tmp_path / "b.jsonl").write_text('{"inputs": [5, 6], "targets": "x"}\n')
    assert list(read_records(str(tmp_path / "b.jsonl"))) == [{"inputs": [5, 6], "targets": "x"}]


@pytest.mark.parametrize(
    "line, message", [("{", r"b\.jsonl:2 is not JSON"), ("[1]", r"b\.jsonl:2 must be an object with 'inputs'")]
)
def test_a_bad_line_is_named(tmp_path, line, message):
    (tmp_path / "b.jsonl").write_text('{"inputs": "x"}\n' + line + "\n")
    with pytest.raises(ValueError, match=message):
        list(read_records(str(tmp_path / "b.jsonl")))


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match="is empty"):
        list(read_records(str(tmp_path / "a.txt")))


class Words:
    """A vocabulary of letters: a is 2, b is 3, …"""

    def encode(self, text):
        return [ord(letter) - 95 for letter in text]

    def decode(self, ids):
        return "".join(chr(token + 95) for token in ids)


def test_text_gets_eos_and_what_is_too_long_is_cut_and_counted():
    codec = Codec({"inputs": Words(), "targets": Words()}, {"inputs": 4, "targets": 3})
    assert codec.encode(1, {"inputs": "abc"}, needs_targets=False) == {"inputs": [2, 3, 4, 1]}
    assert codec.encode(2, {"inputs": "abcd", "targets": "ab"}, needs_targets=True) == {
        "inputs": [2, 3, 4, 1],
        "targets": [2, 3, 1],
    }
    assert codec.cut == 1


@pytest.mark.parametrize(
    "record, message",
    [
        ({"text": "a"}, r"line 7 has no 'inputs', only \['text'\]"),
        ({"inputs": "a"}, "line 7: 'inputs' is text; give MIXTURE_OR_TASK_NAME"),
        ({"inputs": [1, "a"]}, "line 7: 'inputs' must be text or a list of token ids"),
        ({"inputs": 3}, "line 7: 'inputs' must be text or a list of token ids"),
    ],
)
def test_records_that_cannot_be_encoded_are_named(record, message):
    with pytest.raises(ValueError, match=message):
        Codec(None, {"inputs": 4, "targets": 4}).encode(7, record, needs_targets=False)


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_parts_are_resumed_and_joined(tmp_path, scheme):
    path = f"{scheme}{tmp_path}/out.jsonl"
    parts = PartFiles(path, "predict with x")
    parts.write(0, [{"index": 0}])
    parts.write(1, [{"index": 1}])
    resumed = PartFiles(path, "predict with x")
    assert resumed.count() == 2
    resumed.write(2, [{"index": 2, "prediction": "é"}])
    resumed.finish()
    records = list(read_records(path))
    assert records == [{"index": 0}, {"index": 1}, {"index": 2, "prediction": "é"}]
    assert PartFiles(path, "predict with x").count() == 0


def test_parts_of_another_command_are_refused(tmp_path):
    PartFiles(str(tmp_path / "out.jsonl"), "predict with x").write(0, [{}])
    with pytest.raises(
        ValueError, match="unfinished output of another command: predict with x. This one is score with y"
    ):
        PartFiles(str(tmp_path / "out.jsonl"), "score with y")
    assert json.loads((tmp_path / "out.jsonl.parts" / "000000.jsonl").read_text()) == {}
