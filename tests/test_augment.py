"""`augment`: copies of rows in which a masked language model, or word vectors, replace words."""

import collections
import json
import shutil

import jax
import numpy as np
import pytest
from opened import call

from t5x_like import interop
from t5x_like.augment import augment
from t5x_like.data.records import read_records
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.errors import UserError
from t5x_like.inference.augmentation import Augmentation, draw_copies
from t5x_like.inference.word_vectors import WordVectors
from t5x_like.models.bert import BertConfig
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.partitioning import Partitioner

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "the film plot is dull moving fine slow warm funny it star cast un ##seen ##s , . 1999".split()
SST2 = "sentence\tlabel\nThe film is dull , slow .\t0\nUnseen plot\t1\nit is 1999 .\t1\nfine\t1\n"
MRPC = (
    "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    '1\t7\t8\tThe film is "dull".\tA dull film.\n0\t9\t3\tWarm cast\tfunny, moving plot\n'
)
GLOVE = "film 1 0 0\ncast 0.9 0.1 0\nunseen 0 0 1\nhidden 0 0.1 0.9\nplot 0.1 1 0\nsecret 0 0.2 0.9\n"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """Returns a directory with a small BERT, its configuration and its parameters."""
    pieces = [*SPECIAL, *WORDS]
    sizes = dict(embed_dim=8, mlp_dim=16, num_heads=2, head_dim=4, num_layers=1, max_length=24)
    config = BertConfig(vocab_size=len(pieces), **sizes)
    model = config.make(jax.random.key(0))
    params = {"model": model, "objective": MaskedLM().init(jax.random.key(1), model)}
    params = jax.tree.map(lambda x: x + 0.5 * jax.random.normal(jax.random.key(x.size), x.shape), params)
    directory = tmp_path_factory.mktemp("bert")
    interop.to_huggingface(params, config, str(directory))
    (directory / "vocab.txt").write_text("\n".join(pieces) + "\n")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(directory), config, params


def source(path):
    return SeqIOSource(mixture_or_task_name="", task_feature_lengths={}, batch_size=1, vocabulary_path=path)


def run(bert, tmp_path, text, columns, *, suffix=".tsv", **options):
    (tmp_path / f"in{suffix}").write_text(text)
    paths = {"input_path": str(tmp_path / f"in{suffix}"), "output_path": str(tmp_path / f"out{suffix}")}
    settings = dict(overwrite=True, model=bert[1], checkpoint_path=bert[0], data=source(bert[0]), columns=columns)
    return call(augment, **settings | paths | options)


def records(path, **options):
    return [dict(record.values) for record in read_records(path, open(path).read(), **options)]


def most_probable(bert, words, index, count):
    """Returns the most probable words at the position of a word, computed without batches."""
    pieces = [*SPECIAL, *WORDS]
    ids = [pieces.index(piece) for piece in words]
    row = [2, *ids, 3, *ids, 3]
    row[1 + index] = 4
    batch = {
        "encoder_input_tokens": np.array([row]),
        "token_types": np.array([[0] * (len(ids) + 2) + [1] * (len(ids) + 1)]),
    }
    head, hidden = bert[2]["objective"]["masked_lm"], bert[2]["model"](batch).hidden
    logits = bert[2]["model"].unembed(head(hidden))[0, 1 + index] + head.bias[...]
    return [pieces[i] for i in np.argsort(-np.asarray(logits))[:count]]


@pytest.mark.full
def test_replaced_words_are_the_most_probable_ones(bert, tmp_path):
    settings = Augmentation(copies=200, candidates=4, probability=0.5)
    rows = records(run(bert, tmp_path, SST2, "sentence", augmentation=settings))
    originals = records(str(tmp_path / "in.tsv"))
    starts = [rows.index(row) for row in originals]
    assert starts == sorted(starts) and starts[0] == 0
    words = "the film is dull , slow .".split()
    copies = [row["sentence"].split(" ") for row in rows[1 : starts[1]]]
    assert {row["label"] for row in rows[: starts[1]]} == {"0"}
    for index, word in enumerate(words):
        replacements = {copy[index] for copy in copies}
        if word in ("film", "dull", "slow"):
            best = most_probable(bert, words, index, 4)
            usable = {piece for piece in best if not piece.startswith("##") and piece not in SPECIAL}
            assert replacements == usable | {word}
        else:
            assert replacements == {word}
    assert len(copies) == len({tuple(copy) for copy in copies})  # each copy once
    # Words of several pieces stay without word vectors; a row without words to replace has no copies.
    assert {row["sentence"].split()[0] for row in rows[starts[1] + 1 : starts[2]]} == {"unseen"}
    assert starts[3] == starts[2] + 1 and rows[starts[2]] == originals[2]


@pytest.mark.full
def test_copies_depend_on_the_seed_alone(bert, tmp_path):
    options = dict(augmentation=Augmentation(copies=4), columns="sentence", text=SST2)
    first = open(run(bert, tmp_path, **options, partitioner=Partitioner(devices=jax.devices()[:1]))).read()
    assert open(run(bert, tmp_path, **options, batch_size=3)).read() == first
    assert open(run(bert, tmp_path, **options, seed=1)).read() != first


def test_pairs_keep_the_other_text(bert, tmp_path, run_command):
    (tmp_path / "train.tsv").write_text(MRPC)
    paths = [f"--gin.HF_PATH={bert[0]}", f"--input={tmp_path}/train.tsv", f"--output={tmp_path}/out/train.tsv"]
    (tmp_path / "out").mkdir()
    columns = "--columns=#1 String,#2 String"
    code, output = run_command(["augment", "--dry_run", *paths, columns])
    assert code == 0 and f"{bert[0]} fits" in output and not (tmp_path / "out" / "train.tsv").exists()
    code, output = run_command(["augment", *paths, columns, "--gin.COPIES=5"])
    assert code == 0, output
    assert (tmp_path / "out" / "train.tsv").read_text().splitlines()[:2] == MRPC.splitlines()[:2]
    rows, (first, second) = records(str(tmp_path / "out" / "train.tsv")), records(str(tmp_path / "train.tsv"))
    changed = collections.Counter()
    for row in rows:
        original = first if row["#1 ID"] == "7" else second
        differing = [name for name, value in row.items() if value != original[name]]
        assert differing in ([], ["#1 String"], ["#2 String"])
        changed[row["#1 ID"], *differing] += 1
    assert changed["7",] == changed["9",] == 1 and len(changed) == 6 and max(changed.values()) <= 5


@pytest.mark.full
def test_columns_by_position_and_other_formats(bert, tmp_path):
    settings = Augmentation(copies=3, probability=1.0)
    rows = records(run(bert, tmp_path, "gj04\t1\t\tfilm cast\n", "3", augmentation=settings), has_header=False)
    assert rows[0] == {0: "gj04", 1: "1", 2: "", 3: "film cast"} and len(rows) > 1
    assert all(row | {3: "film cast"} == rows[0] for row in rows)
    text = json.dumps({"a": "film", "n": [1]}) + "\n"
    rows = records(run(bert, tmp_path, text, ["a"], suffix=".jsonl", augmentation=settings))
    assert rows[0] == {"a": "film", "n": [1]} and all(row["n"] == [1] for row in rows)
    rows = records(run(bert, tmp_path, 'a,b\n"film, cast",x\n', "a", suffix=".csv", augmentation=settings))
    assert rows[0] == {"a": "film, cast", "b": "x"} and len(rows) > 1


@pytest.mark.full
def test_neighbors_replace_words_of_several_pieces(bert, tmp_path):
    (tmp_path / "glove.txt").write_text(GLOVE)
    options = dict(augmentation=Augmentation(copies=50, candidates=2, probability=0.5), columns="sentence")
    text = "sentence\nunseen 1999\n"
    rows = records(run(bert, tmp_path, text, glove_path=str(tmp_path / "glove.txt"), **options))
    assert {row["sentence"] for row in rows} == {"unseen 1999", "hidden 1999", "secret 1999"}


def test_nearest_words_by_cosine(tmp_path):
    (tmp_path / "glove.txt").write_text(GLOVE + "nothing 0 0 0\n")
    vectors = WordVectors.read(str(tmp_path / "glove.txt"))
    assert vectors.nearest("unseen", 2) == ("hidden", "secret") and vectors.nearest("Film", 1) == ("Cast",)
    assert vectors.nearest("nothing", 3) == vectors.nearest("other", 3) == ()
    assert len(vectors.nearest("film", 100)) == 5
    for contents, message in (
        ("", "no vectors found"),
        ("a 1 2\nb 1 x\n", "glove.txt:2: not a word and its vector"),
        ("a 1 2\nb 1\n", "glove.txt:2: 1 numbers, but 2 are expected"),
    ):
        (tmp_path / "glove.txt").write_text(contents)
        with pytest.raises(UserError, match=message):
            WordVectors.read(str(tmp_path / "glove.txt"))


def test_words_are_replaced_with_the_given_probability():
    words = ["a"] * 1000
    (copy,) = draw_copies("", words, {index: ("b", "c") for index in range(500)}, Augmentation(copies=1), (0,))
    counts = collections.Counter(copy.split(" ")[:500])
    # 500 words with p = 0.4: a standard deviation is 11 words.
    assert abs(500 - counts["a"] - 200) < 44 and abs(counts["b"] - counts["c"]) < 60
    assert copy.split(" ")[500:] == words[500:]
    assert draw_copies("a b", ["a", "b"], {0: ("a",)}, Augmentation(copies=3), (0,)) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": "title"}, "in.tsv:2, COLUMNS: column 'title': not found. Columns of the row: 'sentence', 'label'"),
        ({"columns": "a,a"}, "COLUMNS='a,a': not different columns"),
        ({"output_path": "out.csv"}, "OUTPUT_PATH=out.csv: INPUT_PATH is a .tsv file"),
        ({"text": "sentence\n"}, "INPUT_PATH=.*: the file has no rows"),
        ({"model": GPTConfig(vocab_size=99, max_length=24)}, "the model needs 'decoder_input_tokens'"),
        ({"model": T5Config(vocab_size=99), "data": source(None)}, "MODEL: T5Config is not an encoder with a maximum"),
        ({"data": source(None)}, "MIXTURE_OR_TASK_NAME is not set. Give a registered .* VOCABULARY_PATH"),
        ({"augmentation": Augmentation(candidates=25)}, "CANDIDATES=25: more than the 24 tokens of the model"),
    ],
)
def test_invalid_setting_raises(bert, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        run(bert, tmp_path, **{"text": SST2, "columns": "sentence"} | changes)


def test_another_vocabulary_raises(bert, tmp_path):
    other = shutil.copytree(bert[0], tmp_path / "other")
    pieces = (other / "vocab.txt").read_text().splitlines()
    (other / "vocab.txt").write_text("\n".join([*pieces[:-2], *pieces[:-3:-1]]) + "\n")
    with pytest.raises(
        UserError, match="CHECKPOINT_PATH=.*: its vocabulary .* differs from .*/other .*omit VOCABULARY_P"
    ):
        run(bert, tmp_path, SST2, "sentence", data=source(str(other)))
    assert not (tmp_path / "out.tsv").exists()


def test_invalid_augmentation_raises():
    for changes in ({"copies": 0}, {"candidates": 1.5}, {"probability": 0}, {"probability": 1.1}):
        with pytest.raises(UserError, match=f"{next(iter(changes)).upper()}="):
            Augmentation(**changes)
