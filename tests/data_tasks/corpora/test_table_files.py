"""Tests of tables in text files: formats, values, errors, and iterators whose state can be saved."""

import gzip

import pytest
import tensorflow as tf

from data_tasks.corpora.columns import Integer, Integers, Label, Number, Score, Text, Texts, unlabeled
from data_tasks.corpora.rows import RowSource
from data_tasks.corpora.table_files import Table, read_table
from t5x_like.data import records
from t5x_like.errors import UserError

LABELS = ("negative", "positive")
TABLE = Table.of({"text": Text(), "label": Label(LABELS), "idx": Integer()})


@pytest.fixture
def write(tmp_path):
    def write(name, contents):
        path = tmp_path / name
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        return str(path)

    return write


def values(rows):
    return {
        name: found.to_list() if isinstance(found, tf.RaggedTensor) else found.numpy().tolist()
        for name, found in rows.features.items()
    }


EXPECTED = {"text": [b'a "quoted" word', b"b,c\tx"], "label": [1, 0], "idx": [0, 1]}


def test_csv_tsv_and_jsonl_hold_the_same_rows(write):
    csv = write("a.csv", 'label,text\r\npositive,"a ""quoted"" word"\r\n\r\n0,"b,c\tx"\r\n')
    jsonl = write(
        "a.jsonl", '{"text": "a \\"quoted\\" word", "label": 1}\n\n{"text": "b,c\\tx", "label": "negative"}\n'
    )
    assert values(read_table(csv, TABLE)) == values(read_table(jsonl, TABLE)) == EXPECTED
    tsv = write("a.tsv", '\ufefflabel\ttext\npositive\ta "quoted" word\n0\t"b,c\n')
    assert values(read_table(tsv, TABLE)) == {**EXPECTED, "text": [b'a "quoted" word', b'"b,c']}


def test_lines_of_quoted_text_and_unicode_separators_are_kept(write):
    rows = read_table(write("a.csv", 'text,label\n"two\nlines",0\n"\u2028\x85",1\n'), TABLE)
    assert values(rows)["text"] == [b"two\nlines", "\u2028\x85".encode()]
    rows = read_table(write("a.tsv", "text\tlabel\nx\u2028y\x85z\t1\n"), TABLE)
    assert values(rows)["text"] == ["x\u2028y\x85z".encode()]


def test_columns_by_position_lists_numbers_and_defaults(write):
    table = Table.of({"text": Text(3), "label": Label(LABELS, 1)})
    rows = read_table(write("cola.tsv", "gj04\t1\t\tA b.\ncj99\t0\t*\tB a.\n"), table)
    assert values(rows) == {"text": [b"A b.", b"B a."], "label": [1, 0]}
    table = Table.of({"names": Texts(), "score": Number(), "label": unlabeled(Label(LABELS))})
    rows = read_table(write("a.jsonl", '{"names": ["a", "b"], "score": 1}\n{"names": [], "score": "2.5"}'), table)
    assert values(rows) == {"names": [[b"a", b"b"], []], "score": [1.0, 2.5], "label": [-1, -1]}


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("a.tsv", "text\tlabel\na\tpositve\n", r"a.tsv:2, column 'label': 'positve' is not a label. Did you mean "),
        ("a.tsv", "text\tlabel\na\t2\n", r"a.tsv:2, .*'2' is not the index of a label. .* 2 labels count from 0 to 1."),
        ("a.csv", 'text,label\n"a\nb",1\nc,\n', r"a.csv:4, column 'label': '' is not a label"),
        ("a.jsonl", '{"text": 1, "label": 0}\n', r"a.jsonl:1, column 'text': 1 is not text. Give a string"),
        ("a.jsonl", '{"text": "a", "label": 0}\n\n{"text": "a"}\n', r"a.jsonl:3: column 'label' not found"),
        ("a.jsonl", '{"text": "a"\n', r"a.jsonl:1: not valid JSON"),
        ("a.jsonl", "[1]\n", r"a.jsonl:1: a list, not an object"),
        ("a.csv", "sentence,label\na,1\n", r"a.csv:1: column 'text' not found. The file has 'sentence', 'label'"),
        ("a.csv", "text,text\na,1\n", r"a.csv:1: column 'text' occurs more than once"),
        ("a.csv", "text,label\na, b,1\n", r"a.csv:2: 3 columns, but the header has 2. .* by a comma, and quote text"),
        ("a.csv", 'text,label\n"a" b,1\n', r"a.csv:2: not a valid CSV row"),
        ("a.csv", 'text,label\na,0\n"b,1\nc,0\n', r"a.csv:3: a quote that opens in this row is not closed"),
        ("a.tsv", "text\tlabel\na\n", r"a.tsv:2: 1 columns, but the header has 2. Separate the columns by a tab\."),
        ("a.tsv", "", r"a.tsv: the file is empty"),
        ("a.tsv", "text\tlabel\n", r"a.tsv: the file has no rows"),
        ("a.jsonl", "\n", r"a.jsonl: the file has no rows"),
        ("a.tsv", "text\tlabel\na\t1\nä\t0\n".encode("latin-1"), r"a.tsv:3: byte 1 .*0xe4, is not UTF-8.* ISO-8859-1"),
        ("a.tsv", "text\tlabel\n".encode("utf-16"), r"a.tsv:1: byte 1 .* is not UTF-8.* -f UTF-16"),
        ("a.xlsx", "x", r"a.xlsx: unknown format. Give a .tsv, .csv, .jsonl or .json file"),
    ],
)
def test_invalid_files_raise(write, name, contents, message):
    with pytest.raises(UserError, match=message):
        read_table(write(name, contents), TABLE)


def test_csv_text_has_any_length(write):
    text = "word " * 50_000
    rows = read_table(write("a.csv", f'text,label\n{text},0\n"{text}",1\n'), TABLE)
    assert values(rows)["text"] == [text.encode()] * 2


def test_missing_file_and_missing_position_raise(write, tmp_path):
    with pytest.raises(UserError, match=r"none.tsv: file not found. Give the path of an existing file"):
        read_table(str(tmp_path / "none.tsv"), TABLE)
    with pytest.raises(UserError, match=r"a.tsv:1: column 4 not found. The file has 2 columns"):
        read_table(write("a.tsv", "a\tb\n"), Table.of({"text": Text(3)}))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (Number(), "x", "'x' is not a number"),
        (Number(), "nan", "'nan' is not a number"),
        (Score(), "-0.5", "'-0.5' is negative, like an unknown score"),
        (Integer(), 1.5, "1.5 is not an integer"),
        (Integer(), 2**40, "is too large"),
        (Texts(), "a", "'a' is not a list of texts"),
    ],
)
def test_invalid_values_raise(column, value, message):
    with pytest.raises(ValueError, match=message):
        column.parse(value)


def test_iterators_are_restored_and_every_epoch_has_another_order(write):
    path = write("a.tsv", "text\tlabel\n" + "".join(f"{n}\t{n % 2}\n" for n in range(20)))
    source = RowSource(lambda split: read_table(path, TABLE), ["train"], lambda: "")
    assert source.num_input_examples("train") == 20

    def make():
        return source.get_dataset("train", shuffle=True, seed=3).repeat(2)

    indices = [int(row["idx"]) for row in make()]
    assert sorted(indices[:20]) == sorted(indices[20:]) == list(range(20)) and indices[:20] != indices[20:]
    iterator = iter(make())
    for _ in range(7):
        next(iterator)
    saved = tf.train.Checkpoint(iterator).write(f"{path}.state")
    restored = iter(make())
    tf.train.Checkpoint(restored).read(saved)
    assert [int(row["idx"]) for row in restored] == indices[7:]
    with pytest.raises(UserError, match="split 'dev' not found. Give one of train"):
        source.get_dataset("dev")


def test_json_and_compressed_files_are_read(write):
    """A .json file is one record, which `expand` divides into rows. Lists of integers are ragged."""
    table = Table.of({"text": Text(), "starts": Integers()}, expand=lambda document: document["rows"])
    document = '{"rows": [\n{"text": "a", "starts": [1, 2]},\n{"text": "b", "starts": []}]}'
    expected = {"text": [b"a", b"b"], "starts": [[1, 2], []]}
    assert values(read_table(write("a.json", document), table)) == expected
    assert values(read_table(write("a.json.gz", gzip.compress(document.encode())), table)) == expected
    tsv = gzip.compress(b"text\tlabel\na\t1\n")
    assert values(read_table(write("a.tsv.gz", tsv), TABLE)) == {"text": [b"a"], "label": [1], "idx": [0]}


def test_file_that_is_too_large_when_decompressed_raises(write, monkeypatch):
    path = write("a.tsv.gz", gzip.compress(b"text\tlabel\tidx\n" + 99 * b"a\tpositive\t0\n"))
    monkeypatch.setattr(records, "MAX_DECOMPRESSED_BYTES", 1000)
    with pytest.raises(UserError, match=r"a\.tsv\.gz: has more than 1,000 bytes when it is decompressed"):
        read_table(path, TABLE)


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("a.json", '{\n"rows": [}', r"a\.json:2: not valid JSON .* Write one object\."),
        ("a.json", "[1]", r"a\.json:1: a list, not an object\. Write one object\."),
        ("a.json", '{"rows": [{"text": "a", "starts": 3}]}', r"'starts': 3 is not a list of integers\. Give a list"),
        ("a.json", '{"rows": [{"text": "a", "starts": ["x"]}]}', r"'starts': 'x' is not an integer"),
        ("a.tsv.gz", b"text\tlabel\n", r"a\.tsv\.gz: not a complete gzip file"),
    ],
)
def test_invalid_json_and_compressed_files_raise(write, name, contents, message):
    table = Table.of({"text": Text(), "starts": Integers()}, expand=lambda document: document["rows"])
    with pytest.raises(UserError, match=message):
        read_table(write(name, contents), table)
