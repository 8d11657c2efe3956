"""The report of `t5x_like inspect`."""

import importlib.abc
import inspect
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import seqio
import tensorflow as tf
from lanes import others_are_full
from rich.console import Console

from data_tasks import preprocessors  # noqa: F401  registers the tasks
from data_tasks.corpora.documents import Corpus, DocumentSource
from data_tasks.downstream import (  # noqa: F401  registers the tasks
    own_tables,
)
from data_tasks.pretraining import (  # noqa: F401  registers the tasks
    python_docs_tasks,
)
from data_tasks.pretraining.span_corruption import add_span_corruption_task
from t5x_like import data, inspect_task
from t5x_like.data import seqio_feed, specs
from t5x_like.errors import UserError
from t5x_like.vocabularies import shipped

TEXT = "It is a truth universally acknowledged, that a single man must be in want of a wife. "


def run(name, *, task_feature_lengths=(), batch_size=1, **kwargs):
    """Inspects a task, and returns the result and what was printed."""
    output = io.StringIO()
    fields = {"mixture_or_task_name": name, "task_feature_lengths": dict(task_feature_lengths)}
    own = inspect.signature(inspect_task.inspect).parameters
    fields |= {key: kwargs.pop(key) for key in [*kwargs] if key not in own}
    data_source = seqio_feed.SeqIOSource(**fields, batch_size=batch_size, shuffle=False, pack=False)
    found = inspect_task.inspect(data_source, console=Console(file=output, width=100), sample=50, **kwargs)
    return found, output.getvalue()


def source(documents):
    corpus = Corpus(name="tiny", splits={"train": documents, "validation": []}, origin="a test", skipped={})
    return DocumentSource(lambda: corpus)


@pytest.fixture
def register():
    """Returns a function that registers tasks for one test."""
    names = []

    def add(name, source, *, preprocessor=None, reads=("inputs", "targets")):
        vocabulary = seqio.ByteVocabulary(extra_ids=100)
        names.append(name)
        if preprocessor is None:
            return add_span_corruption_task(name, source, vocabulary)
        features = {
            feature: seqio.Feature(vocabulary if feature in ("inputs", "targets") else seqio.PassThroughVocabulary(0))
            for feature in reads
        }
        return seqio.TaskRegistry.add(name, source, preprocessors=[preprocessor], output_features=features)

    yield add
    for name in names:
        seqio.TaskRegistry.remove(name)


def test_task_without_problems():
    lengths = {"inputs": 128, "targets": 32}
    found, output = run("python_docs_span_corruption", split="validation", task_feature_lengths=lengths)
    assert found.problems == []
    assert "no problems found" in output
    assert "python_docs: documents" in output and "hash" in output
    assert "1,024 ids: padding 0, EOS 1, unknown 2, 100 sentinels from 1023 down to 924" in output
    assert "<extra_id_0>" in output and "</s>" in output and "[padding × 3]" in output
    assert found.lengths["inputs"].max() == 128 and found.lengths["targets"].max() == 29
    assert found.trimmed == {"inputs": 0, "targets": 0}
    assert 0.9 < found.efficiency["inputs"] <= 1


@pytest.mark.full
def test_default_lengths_suit_the_task(register):
    found, output = run("python_docs_span_corruption", split="validation")
    assert "lengths inputs 128, targets 29," in output and found.problems == []
    copied = {"inputs": [70] * 100, "targets": [71] * 100}
    register("shown_copies", source([b"x"] * 5), preprocessor=lambda ds: ds.map(lambda _: copied))
    found, output = run("shown_copies")
    assert "lengths inputs 128, targets 128," in output and found.problems == []


@pytest.mark.full
def test_skipped_documents_are_counted_by_reason(register):
    register("shown_dirty", source([b"", b"\xff\xff", TEXT.encode() * 3, b" "]))
    found, output = run("shown_dirty", task_feature_lengths={"inputs": 64, "targets": 20})
    assert found.skipped == {"empty": 2, "not valid UTF-8": 1}
    assert found.documents == 4
    assert "skipped documents among the first 4: 2 empty, 1 not valid UTF-8" in output
    assert any("75% of the documents are skipped" in problem for problem in found.problems)


def tokens(**lengths):
    def preprocess(ds):
        return ds.map(lambda _: {name: tf.fill([length], 70) for name, length in lengths.items()})

    return preprocess


def test_long_examples_and_padding_are_reported(register):
    register("shown_long", source([b"x"] * 10), preprocessor=tokens(inputs=50, targets=4))
    found, _ = run("shown_long", task_feature_lengths={"inputs": 40, "targets": 40}, pack=False)
    assert found.trimmed == {"inputs": 10, "targets": 0}
    assert found.efficiency == {"inputs": 1.0, "targets": 0.1}
    trimmed, padded = found.problems
    assert "10 of the first 10 examples have more than 40 tokens in 'inputs'" in trimmed and "up to 50" in trimmed
    assert "90% of 'targets' is padding. Set pack=True" in padded


def test_examples_per_row_are_counted(register):
    register("shown_packed", source([b"x"] * 12), preprocessor=tokens(inputs=10, targets=5))
    found, output = run("shown_packed", task_feature_lengths={"inputs": 40, "targets": 40})
    assert found.examples_per_row == 4
    assert found.efficiency == {"inputs": 1.0, "targets": 0.5}
    assert "┃" in output


def test_unknown_tokens_are_reported(register):
    def preprocess(ds):
        return ds.map(lambda _: {"inputs": tf.constant([2, 70, 70, 70]), "targets": tf.constant([70])})

    register("shown_unknown", source([b"x"] * 5), preprocessor=preprocess)
    found, _ = run("shown_unknown", task_feature_lengths={"inputs": 4, "targets": 1})
    assert found.unknown == {"inputs": 0.25, "targets": 0.0}
    assert any("25.0% of the tokens of 'inputs' are unknown" in problem for problem in found.problems)


def test_preprocessor_error_is_a_problem(register):
    def preprocess(ds):
        return ds.map(lambda example: {"inputs": tf.constant([5])})

    register("shown_broken", source([b"x"]), preprocessor=preprocess)
    found, output = run("shown_broken")
    assert any("missing expected output feature after preprocessing: targets" in problem for problem in found.problems)
    assert "ByteVocabulary" in output


def test_unsaveable_pipeline_is_reported(register):
    def preprocess(ds):
        def fill(_):
            value = tf.py_function(lambda: 7, [], tf.int32)
            return {"inputs": tf.fill([4], tf.ensure_shape(value, [])), "targets": tf.fill([4], 7)}

        return ds.map(fill)

    register("shown_python", source([b"x"] * 100), preprocessor=preprocess)
    found, _ = run("shown_python", task_feature_lengths={"inputs": 4, "targets": 4})
    assert any("position in this pipeline cannot be saved" in problem for problem in found.problems)


def test_empty_split_is_reported(register):
    register("shown_short", source([b"x"]))
    found, _ = run("shown_short", task_feature_lengths={"inputs": 32, "targets": 20})
    assert any("no example" in problem for problem in found.problems)


def test_masked_task_shows_masks_and_original_tokens():
    found, output = run("python_docs_masked_lm", split="validation")
    assert found.problems == []
    assert "lengths inputs 128, targets 20" in output and "vocabulary of inputs and targets" in output
    assert " [CLS] " in output and " [SEP] " in output and "[MASK]→" in output
    assert "→ masked_" not in output
    assert found.lengths["targets"].max() == 19 and found.unknown["targets"] == 0
    assert set(found.efficiency) == {"inputs", "targets"} and found.efficiency["targets"] > 0.5


def test_language_model_reads_targets_only():
    found, output = run("python_docs_causal_lm", split="validation")
    assert found.problems == []
    assert "lengths targets 128," in output and "targets → decoder_target_tokens" in output
    assert set(found.lengths) == set(found.efficiency) == {"targets"}


@pytest.mark.full
def test_spec_can_be_given():
    for spec in (specs.PREFIX_LM, "PREFIX_LM"):
        found, output = run("python_docs_prefix_lm", split="validation", spec=spec)
        assert "inputs + targets → decoder_target_tokens" in output
        assert set(found.efficiency) == {"inputs + targets"}
    with pytest.raises(ValueError, match="FEATURES='PREFIXLM': unknown feature spec. Give one of .*PREFIX_LM"):
        run("python_docs_prefix_lm", spec="PREFIXLM")


@pytest.mark.parametrize(
    ("separator", "row", "longest"),
    others_are_full(
        [(None, "a </s> b </s>", 2), ("", "a b </s>", 1), ("\n> ", "a↵>  b </s>", 4)], [("\n> ", "a↵>  b </s>", 4)]
    ),
)
def test_rows_of_a_decoder_have_the_separator(tmp_path, separator, row, longest):
    (tmp_path / "train.jsonl").write_text(json.dumps({"inputs": "a", "targets": "b"}) + "\n")
    arguments = {"train": str(tmp_path / "train.jsonl")}
    vocabulary = str(Path(shipped.__file__).parent / "python_docs.model")
    settings = {"task_arguments": arguments, "vocabulary_path": vocabulary, "separator": separator}
    for name in ("PREFIX_LM", "PROMPTED_WITH_BOS"):
        found, output = run("text_table", spec=name, **settings)
        assert f"\n{row}  [padding" in output and found.lengths["inputs"].max() == longest
    _, output = run("text_table", **settings)
    assert "inputs → encoder_input_tokens\na </s>  [padding" in output


@pytest.mark.full
def test_sentence_pairs_are_not_packed(register):
    def preprocess(ds):
        pair = {"inputs": [9] * 8 + [8] * 8, "targets": [7] * 4, "masked_positions": [0, 1, 2, 3]}
        pair |= {"token_types": [0] * 8 + [1] * 8}
        fixed = {name: tf.constant(value) for name, value in pair.items()}
        return ds.enumerate().map(lambda index, _: fixed | {"next_sentence_label": tf.cast([index % 2], tf.int32)})

    reads = ("inputs", "targets", "masked_positions", "token_types", "next_sentence_label")
    register("shown_pairs", source([b"x"] * 5), preprocessor=preprocess, reads=reads)
    found, output = run("shown_pairs", task_feature_lengths={"inputs": 20, "targets": 4})
    assert found.problems == [] and found.examples_per_row == 1
    assert "0 × 8, 1 × 8" in output and "next_sentence_label → next_sentence_label" in output
    found, _ = run("shown_pairs", task_feature_lengths={"inputs": 20, "targets": 4}, pack=True)
    assert any("cannot share a row. Set PACK=False" in problem for problem in found.problems)
    found, _ = run("shown_pairs")
    assert found.problems == []  # padding at default lengths is not a problem
    found, _ = run("shown_pairs", task_feature_lengths={"inputs": 20, "targets": 9})
    assert found.problems == [
        "56% of 'targets' is padding. Decrease 'targets' to 4, the length of its longest example here."
    ]


def test_unreadable_task_raises(register):
    register("shown_labels", source([b"x"]), preprocessor=lambda ds: ds, reads=("labels",))
    with pytest.raises(ValueError, match="task features 'labels': no objective reads them"):
        run("shown_labels")


def test_missing_tensorflow_is_reported(monkeypatch):
    class NoSeqIO(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name == "tensorflow":
                raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")

    for name in [name for name in sys.modules if name.startswith(("t5x_like.data.seqio_feed", "tensorflow"))]:
        if name == "tensorflow" or name.startswith("t5x_like."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(data, "seqio_feed", seqio_feed)  # is restored, so that the module is not loaded twice
    monkeypatch.setattr(sys, "meta_path", [NoSeqIO(), *sys.meta_path])
    with pytest.raises(UserError, match="'tensorflow' is not installed.* Run `pip install seqio tensorflow"):
        run("python_docs_span_corruption")


def test_carriage_returns_and_undecodable_bytes_are_counted(register):
    register(
        "shown_windows", source([b"one\r\ntwo", "für".encode("latin-1")]), preprocessor=tokens(inputs=4, targets=4)
    )
    found, _ = run("shown_windows")
    undecodable, returns = found.problems
    assert "1 bytes of the first 2 examples of the source are not UTF-8" in undecodable
    assert "1 carriage returns (␍) in the first 2 examples" in returns


def test_feature_that_limits_packing_is_reported(register):
    register("shown_blocked", source([b"x"] * 40), preprocessor=tokens(inputs=10, targets=9))
    found, _ = run("shown_blocked", task_feature_lengths={"inputs": 64, "targets": 20})
    (padded,) = found.problems
    assert "69% of 'inputs' is padding. Increase 'targets', which fills up first (90%)," in padded
    assert "or decrease 'inputs' to 10" in padded


def test_choices_are_shown_one_by_one(register):
    example = {"inputs_0": [72, 105], "inputs_1": [72, 111, 33], "token_types_0": [0, 1], "token_types_1": [0, 1, 1]}
    example["targets"] = [1]
    register("shown_choices", source([b"x"] * 5), preprocessor=lambda ds: ds.map(lambda _: example), reads=example)
    found, output = run("shown_choices", task_feature_lengths={"inputs": 8})
    assert "inputs_1 → encoder_input_tokens" in output and "inputs_2" not in output
    assert found.examples_per_row == 1 and found.efficiency == {"inputs": 5 / 16}
    assert found.lengths["inputs_1"].tolist() == [3] * 5 and found.trimmed["inputs_1"] == 0
    assert any("69% of 'inputs' is padding. Decrease 'inputs' in TASK" in problem for problem in found.problems)


def write_table(path, labels):
    path.write_text("text\tlabel\n" + "".join(f"film {number}\t{label}\n" for number, label in enumerate(labels)))


@pytest.fixture
def inspect_table(tmp_path):
    """Returns a function that inspects a task of the labels `bad` and `good`, given the labels of two splits."""
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "film"]))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')

    def inspect(train, validation):
        files = {split: str(tmp_path / f"{split}.tsv") for split in ("train", "validation")}
        write_table(tmp_path / "train.tsv", train)
        write_table(tmp_path / "validation.tsv", validation)
        task = own_tables.add_classification_task(
            "shown_table", files, texts=("text",), label="label", labels=("bad", "good")
        )
        try:
            return run("shown_table", vocabulary_path=str(tmp_path))
        finally:
            seqio.TaskRegistry.remove(task.name)

    return inspect


def test_label_names_and_counts_are_shown(inspect_table):
    found, output = inspect_table(["bad", "good", "good", "good"], ["good"])
    assert found.classes == {"targets": {"bad": 1, "good": 3}}
    assert "labels of targets in the first 4 examples" in output and "75.0%" in output
    assert not any("splits" in problem or "labels" in problem for problem in found.problems)


def test_equal_splits_and_a_single_label_are_problems(inspect_table):
    found, _ = inspect_table(["good"] * 3, ["good"] * 3)
    same = "the splits 'train' and 'validation' of shown_table are the same data (3 examples were compared)"
    assert any(problem.startswith(same) for problem in found.problems)
    assert any("all 3 labels of 'targets' in the first 3 examples are 'good'" in problem for problem in found.problems)


def test_continuous_rows_continue_one_another_with_marks_where_documents_begin(register):
    from data_tasks.pretraining.language_model import add_causal_lm_task

    register("shown_continuous", source([b"unused"]))
    seqio.TaskRegistry.remove("shown_continuous")
    documents = [b"abcdefg", b"hij", b"klmnopqrstu", b"v"]
    add_causal_lm_task("shown_continuous", source(documents), seqio.ByteVocabulary(extra_ids=0))
    settings = {"continuous": True, "batch_size": 2, "task_feature_lengths": {"targets": 4}}
    found, output = run("shown_continuous", **settings)
    rows = {
        title: line.strip()
        for title, line in zip(output.splitlines(), output.splitlines()[1:], strict=False)
        if title.startswith("row ")
    }
    assert rows == {
        "row 0 of batch 0, targets → decoder_target_tokens": "┃ abcd",
        "row 0 of batch 1, targets → decoder_target_tokens": "efg </s>",
        "row 1 of batch 0, targets → decoder_target_tokens": "┃ hij </s>",
        "row 1 of batch 1, targets → decoder_target_tokens": "┃ klmn",
    }
    assert "4 rows of 2 batches, each row continues the batch before" in output
    assert found.trimmed == {"targets": 0} and found.problems == []  # documents are not trimmed


@pytest.mark.full
def test_characters_of_words_are_shown_as_words():
    found, output = run("python_docs_word_characters", split="validation", continuous=True, batch_size=2)
    shown = output.split("characters → decoder_input_characters")[1]
    assert " the " in shown and "┃ " in shown


@pytest.mark.full
def test_process_ends_after_an_error_of_a_file(tmp_path):
    """Threads that read files with Python code do not keep the process from ending."""
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"content": ["a text"] * 100}), tmp_path / "bad.parquet")
    words = ["inspect", "text_files_span_corruption", f"--gin.DATA_FILES={tmp_path}/*.parquet"]
    result = subprocess.run(
        [sys.executable, "-m", "t5x_like", *words], capture_output=True, text=True, timeout=100, check=False
    )
    assert result.returncode == 2, result.stderr
    assert "bad.parquet: column 'text' not found" in result.stderr.splitlines()[-1]


def test_find_prints_where_documents_come_from(tmp_path, run_command):
    rows = [{"text": f"Text {number} about lemons.", "url": f"http://a.example/{number}"} for number in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = [f"--gin.DATA_FILES={tmp_path}/*.jsonl", "--gin.TASK_ARGUMENTS={'validation_fraction': 0.0}"]
    code, output = run_command(["inspect", "text_files_causal_lm", *files, "--find=Text 7 about"])
    assert code == 0 and f"{tmp_path}/a.jsonl:8  url: http://a.example/7" in output
    assert "a.jsonl:9" not in output and "no problems found" in output
    code, output = run_command(["inspect", "text_files_causal_lm", *files, "--find=oranges"])
    assert "no document of the split 'train' contains 'oranges'" in output
    code, output = run_command(["inspect", "python_docs_causal_lm", "--find=oranges"])
    assert code == 2 and "python_docs_causal_lm does not read files of documents" in output
