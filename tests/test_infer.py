"""Reading and encoding records, decoder prompts, and output in parts."""

import io
import json
import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from opened import call

from t5x_like import interop
from t5x_like.data.specs import MASKED_LM
from t5x_like.decoding.generated import Generated
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.infer import infer
from t5x_like.inference.codec import Codec
from t5x_like.inference.layout import Layout
from t5x_like.inference.part_files import PartFiles
from t5x_like.inference.records import read
from t5x_like.models.gpt import GPTConfig
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.prefix_lm import PrefixLM
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.partitioning import Partitioner
from t5x_like.runtime.protocol import COORDINATOR, NUM_PROCESSES, PROCESS_ID


def values(path):
    return [record.values for record in read(str(path))]


def test_reads_text_and_jsonl_records(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n two \r\n", encoding="utf-8")
    assert values(tmp_path / "a.txt") == [{"inputs": "one"}, {"inputs": ""}, {"inputs": " two "}]
    (tmp_path / "b.jsonl").write_text('{"inputs": [5, 6], "targets": "x"}\n')
    assert values(tmp_path / "b.jsonl") == [{"inputs": [5, 6], "targets": "x"}]
    (tmp_path / "c.tsv").write_text("inputs\ttargets\nx\ty\n")
    assert values(tmp_path / "c.tsv") == [{"inputs": "x", "targets": "y"}]


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("b.jsonl", '{"inputs": "x"}\n{', r"b\.jsonl:2: not valid JSON"),
        (
            "b.jsonl",
            '{"inputs": "x \\ud83d\\ude00"}\n{"inputs": "\\ude00"}',
            r"b\.jsonl:2: \\ude00 is a lone surrogate",
        ),
        ("b.jsonl", '{"inputs": "x"}\n[1]', r"b\.jsonl:2: a list, not an object"),
        ("b.csv", "inputs,targets\nx\n", r"b\.csv:2: 1 columns, but the header has 2"),
        ("a.txt", "", "INPUT_PATH=.*a.txt: the file is empty"),
        ("a.json", "{}", "INPUT_PATH=.*a.json: unknown format. Give one of .txt, .jsonl"),
    ],
)
def test_invalid_file_raises(tmp_path, name, contents, message):
    (tmp_path / name).write_text(contents)
    with pytest.raises(UserError, match=message):
        read(str(tmp_path / name))


class Words:
    """A vocabulary of letters, with the ids a = 2, b = 3 and so on."""

    eos_id = 1

    def encode(self, text):
        return [ord(letter) - 95 for letter in text]

    def decode(self, ids):
        return "".join(chr(token + 95) for token in ids)


def test_text_gets_eos_and_long_sequences_are_truncated():
    lengths, vocabularies = {"inputs": 4, "targets": 3}, {"inputs": Words(), "targets": Words()}
    codec = Codec(vocabularies, lengths, inputs_eos=True, targets_eos=True)
    assert codec.encode("q.jsonl:1", {"inputs": "abc"}, needs_targets=False) == {"inputs": [2, 3, 4, 1]}
    assert codec.encode("q.jsonl:2", {"inputs": "abcd", "targets": "ab"}, needs_targets=True) == {
        "inputs": [2, 3, 4, 1],
        "targets": [2, 3, 1],
    }
    assert codec.truncated == 1
    without = Codec(vocabularies, lengths)
    assert without.encode("q.jsonl:3", {"inputs": "abcde"}, needs_targets=False) == {"inputs": [2, 3, 4, 5]}


def test_targets_are_scored_as_given():
    codec = Codec({"inputs": Words(), "targets": Words()}, {"inputs": 4, "targets": 3})
    for given, scored in (("ab", [2, 3]), ("abcd", [2, 3, 4]), ([7, 8], [7, 8]), ([7, 8, 9, 5], [7, 8, 9])):
        assert codec.encode("q.jsonl:1", {"inputs": "a", "targets": given}, needs_targets=True)["targets"] == scored
    assert codec.truncated == 2
    ended = Codec(None, {"inputs": 4, "targets": 3}, targets_eos=True)
    assert ended.encode("q.jsonl:1", {"inputs": [2], "targets": [7, 8]}, needs_targets=True)["targets"] == [7, 8]


@pytest.mark.parametrize(
    "record, message",
    [
        ({"text": "a"}, r"q.jsonl:7: missing 'inputs'. Fields of this line: text. Add"),
        ({"inputs": "a"}, "q.jsonl:7: 'inputs' is text without a vocabulary. Give VOCABULARY_PATH"),
        ({"inputs": [1, "a"]}, "q.jsonl:7: 'inputs' must be text or a list of token ids"),
        ({"inputs": 3}, "q.jsonl:7: 'inputs' must be text or a list of token ids"),
    ],
)
def test_invalid_record_raises(record, message):
    with pytest.raises(ValueError, match=message):
        Codec(None, {"inputs": 4, "targets": 4}).encode("q.jsonl:7", record, needs_targets=False)


def test_output_in_another_format_raises():
    with pytest.raises(UserError, match="OUTPUT_PATH=a.csv: the output has one JSON object per line. Give .* .jsonl"):
        infer(None, input_path="a.txt", output_path="a.csv")


# ---- decoders ----------------------------------------------------------------------------------------------------

CAUSAL = Layout.of(CausalLM(bos_id=9).features)
WINDOWS = Layout.of(CausalLM(bos_id=None).features)
PREFIX = Layout.of(PrefixLM().features)
LENGTHS = {"inputs": 3, "targets": 2}


def test_layout_depends_on_the_objective():
    assert Layout.of(PrefixLM(bos_id=7, causal_inputs=True).features) == Layout(encoder=False, bos=(7,))
    assert PREFIX.prefix and not CAUSAL.prefix
    assert (CAUSAL.bos, WINDOWS.bos) == ((9,), ())
    bart = Layout.of(SequenceToSequence(bos_id=2).features)
    assert bart == Layout(bos=(2,)) and bart.encoder
    assert bart.batch([{"inputs": [5], "targets": [7, 8]}], 1, LENGTHS)["decoder_input_tokens"].tolist() == [[2, 7]]
    with pytest.raises(ValueError, match="reads encoder_input_tokens.*, but text needs a decoder"):
        Layout.of(MASKED_LM)


def test_prompt_is_truncated_at_its_start():
    codec = Codec({"targets": Words()}, LENGTHS, CAUSAL)
    assert codec.encode("q.jsonl:1", {"inputs": "ab"}, needs_targets=False) == {"inputs": [2, 3]}
    assert codec.encode("q.jsonl:1", {"inputs": "abcde", "targets": "f"}, needs_targets=True) == {
        "inputs": [4, 5, 6],
        "targets": [7],
    }


def test_empty_prompt_without_bos_raises():
    assert Codec(None, LENGTHS, CAUSAL).encode("q.jsonl:1", {"inputs": []}, needs_targets=False) == {"inputs": []}
    with pytest.raises(ValueError, match="q.jsonl:4: 'inputs' is empty, and the objective has no BOS"):
        Codec(None, LENGTHS, WINDOWS).encode("q.jsonl:4", {"inputs": []}, needs_targets=False)


@pytest.mark.parametrize(
    ("layout", "prompts", "prefix"),
    [
        (CAUSAL, [[9, 5, 0, 0], [9, 5, 6, 0], [0] * 4], None),
        (WINDOWS, [[5, 0, 0], [5, 6, 0], [0] * 3], None),
        (PREFIX, [[0, 5, 0, 0], [0, 5, 6, 0], [0] * 4], [[1, 1, 0, 0], [1, 1, 1, 0], [0] * 4]),
    ],
    ids=["causal", "windows", "prefix"],
)
def test_segment_ids_mark_the_length_of_prompts(layout, prompts, prefix):
    batch = layout.batch([{"inputs": [5]}, {"inputs": [5, 6]}], 3, LENGTHS)
    np.testing.assert_array_equal(batch["decoder_input_tokens"], prompts)
    front = len(layout.bos)
    np.testing.assert_array_equal(batch["decoder_segment_ids"].sum(axis=1), [1 + front, 2 + front, 0])
    assert ("decoder_prefix" in batch) == layout.prefix
    if prefix:
        np.testing.assert_array_equal(batch["decoder_prefix"], prefix)
    assert "decoder_loss_weights" not in batch


@pytest.mark.parametrize(
    ("layout", "read", "predicted", "weights"),
    [
        (CAUSAL, [9, 5, 0, 7, 0], [5, 0, 7, 1, 0], [0, 0, 1, 1, 0]),
        (WINDOWS, [5, 0, 7, 0], [0, 7, 1, 0], [0, 1, 1, 0]),
    ],
    ids=["causal", "windows"],
)
def test_only_targets_are_scored_including_token_id_0(layout, read, predicted, weights):
    batch = layout.batch([{"inputs": [5, 0], "targets": [7, 1]}], 1, LENGTHS)
    np.testing.assert_array_equal(batch["decoder_input_tokens"], [read])
    np.testing.assert_array_equal(batch["decoder_target_tokens"], [predicted])
    np.testing.assert_array_equal(batch["decoder_loss_weights"], [weights])


def test_trailing_token_id_0_is_kept():
    batch = Layout().batch([{"inputs": [5, 0], "targets": [7, 0]}], 2, LENGTHS)
    np.testing.assert_array_equal(batch["encoder_segment_ids"], [[1, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(batch["decoder_loss_weights"], [[1, 1], [0, 0]])


@pytest.mark.parametrize(("tokens", "expected"), [([5, 0], [5, 0]), ([5, 1], [5]), ([0, 0, 7], [0, 0, 7]), ([6], [])])
def test_prediction_ends_before_any_eos_and_keeps_token_id_0(tokens, expected):
    result = Generated(np.array([[*tokens, 0]]), np.array([len(tokens)]), np.zeros(1), np.zeros(1))
    codec = Codec(None, LENGTHS, CAUSAL, decoding=Decoding(eos_ids=(1, 6)))
    assert codec.decode("predict", result) == {"prediction": expected, "log_probability": 0}


def test_samples_are_listed_and_cut_at_stop_strings():
    result = Generated(np.array([[2, 3, 4], [3, 3, 1]]), np.array([3, 3]), np.array([-1.0, -2.0]), np.zeros(2))
    codec = Codec({"targets": Words()}, LENGTHS, CAUSAL, decoding=Decoding(stop_strings=("c", "bc")))
    assert codec.decode("predict", result) == {
        "prediction": "a",
        "log_probability": -1.0,
        "predictions": ["a", "bb"],
        "log_probabilities": [-1.0, -2.0],
    }


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    """Returns a directory with a small GPT-2, and the model."""
    config = GPTConfig(vocab_size=23, embed_dim=16, mlp_dim=64, num_heads=2, head_dim=8, num_layers=2, max_length=12)
    model = config.make(jax.random.key(0))
    model = jax.tree.map(lambda x: x + 0.2 * jax.random.normal(jax.random.key(x.size), x.shape), model)
    directory = str(tmp_path_factory.mktemp("gpt"))
    interop.to_huggingface({"model": model}, config, directory)
    return directory, model


def run(gpt, tmp_path, lines, **options):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = call(
        infer,
        model=gpt[1].config,
        checkpoint_path=gpt[0],
        input_path=str(tmp_path / "in.jsonl"),
        output_path=str(tmp_path / "out.jsonl"),
        overwrite=True,
        **options,
    )
    return values(output)


def test_decoder_continues_prompts_and_scores_targets(gpt, tmp_path):
    prompts, new = [[3, 4, 5], [6], [7, 8]], 4
    options = dict(objective=CausalLM(bos_id=22), task_feature_lengths={"inputs": 3, "targets": new}, eos_id=22)
    rows = run(gpt, tmp_path, [{"inputs": prompt} for prompt in prompts], **options)

    def following(tokens):
        """Returns the log-probabilities of the next token at each position."""
        batch = {"decoder_input_tokens": np.array([tokens])}
        return np.asarray(jax.nn.log_softmax(gpt[1].unembed(gpt[1](batch).hidden)))[0]

    for prompt, row in zip(prompts, rows, strict=True):
        tokens, total = [22, *prompt], 0.0
        for _ in range(new):
            after = following(tokens)[-1]
            tokens, total = [*tokens, int(after.argmax())], total + after.max()
        assert 22 not in tokens[1:]
        assert row["prediction"] == tokens[1 + len(prompt) :]
        assert row["log_probability"] == pytest.approx(total, rel=1e-5)
    pairs = [{"inputs": row["inputs"], "targets": row["prediction"]} for row in rows]
    scores = [row["score"] for row in run(gpt, tmp_path, pairs, mode="score", **options)]
    np.testing.assert_allclose(scores, [row["log_probability"] for row in rows], rtol=1e-5)


SAMPLED = Decoding(temperature=1.0, samples=2)
PROMPTS = [{"inputs": [3 + index] * (1 + index % 3)} for index in range(10)]
SHORT = dict(objective=CausalLM(bos_id=22), task_feature_lengths={"inputs": 3, "targets": 5}, eos_id=22)


@pytest.fixture(scope="module")
def samples(gpt, tmp_path_factory):
    """Returns the rows for `PROMPTS`, from one device and batches of three."""
    one = Partitioner(devices=jax.devices()[:1])
    return run(gpt, tmp_path_factory.mktemp("one"), PROMPTS, decoding=SAMPLED, batch_size=3, partitioner=one, **SHORT)


def same(rows, others):
    assert [row["predictions"] for row in rows] == [row["predictions"] for row in others]
    for row, other in zip(rows, others, strict=True):
        assert row["prediction"] == row["predictions"][0] and row["log_probability"] == row["log_probabilities"][0]
        np.testing.assert_allclose(row["log_probabilities"], other["log_probabilities"], rtol=1e-4)


@pytest.mark.full
def test_samples_do_not_depend_on_batches_and_devices(gpt, tmp_path, samples):
    same(run(gpt, tmp_path, PROMPTS, decoding=SAMPLED, batch_size=8, partitioner=Partitioner(), **SHORT), samples)
    assert len({tuple(text) for row in samples for text in row["predictions"]}) > 10
    other = run(gpt, tmp_path, PROMPTS, decoding=SAMPLED, batch_size=8, seed=1, **SHORT)
    assert [row["predictions"] for row in other] != [row["predictions"] for row in samples]


@pytest.mark.full
def test_two_processes_write_the_rows_of_one(gpt, tmp_path, samples):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in PROMPTS))
    words = ["infer", "--cpu_devices=1", f"--gin.HF_PATH={gpt[0]}", "--input=in.jsonl", "--output=out.jsonl"]
    macros = dict(BOS_ID=22, EOS_ID=22, TEMPERATURE=1.0, SAMPLES=2, BATCH_SIZE=4, PARTITIONING="dp")
    macros["TASK_FEATURE_LENGTHS"] = {"inputs": 3, "targets": 5}
    words += [f"--gin.{name}={value}" for name, value in macros.items()]
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = opened.getsockname()[1]
    shared = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        COORDINATOR: f"127.0.0.1:{port}",
        NUM_PROCESSES: "2",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "t5x_like", *words],
            **dict(env=shared | {PROCESS_ID: str(index)}, cwd=tmp_path, text=True),
            **dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT),
        )
        for index in range(2)
    ]
    try:
        logs = [process.communicate(timeout=150)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], logs
    same(values(tmp_path / "out.jsonl"), samples)
    tokens = sum(min(len(text) + 1, 5) for row in samples for text in row["predictions"])
    assert f"10 records, {tokens} tokens in" in logs[0] and "compiled for 1 length: 4" in logs[0]
    assert "10 records" not in logs[1] and not (tmp_path / "out.jsonl.parts").exists()


def test_standard_input_and_output(gpt, monkeypatch, capsys):
    options = dict(model=gpt[1].config, checkpoint_path=gpt[0], input_path="-", output_path="-", **SHORT)

    def infer_from(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        call(infer, **options)

    infer_from('{"inputs": [3]}\n{"inputs": [4, 5]}\n')
    assert [json.loads(line)["inputs"] for line in capsys.readouterr().out.splitlines()] == [[3], [4, 5]]
    with pytest.raises(UserError, match="INPUT_PATH=-: standard input is empty"):
        infer_from("")
    with pytest.raises(UserError, match="contains text, but neither a task nor VOCABULARY_PATH"):
        infer_from("a\n")


def test_scores_per_position_are_those_of_the_targets(gpt, tmp_path):
    pairs = [{"inputs": [3, 4], "targets": [5, 6, 7]}, {"inputs": [8], "targets": [9]}]
    rows = run(gpt, tmp_path, pairs, mode="score", per_position=True, **SHORT)
    for pair, row in zip(pairs, rows, strict=True):
        assert row["tokens"] == len(row["token_scores"]) == len(pair["targets"])
        tokens = np.array([[22, *pair["inputs"], *pair["targets"]]])
        logits = gpt[1].unembed(gpt[1]({"decoder_input_tokens": tokens}).hidden)
        every = np.asarray(jax.nn.log_softmax(logits))[0]
        first = len(pair["inputs"])
        expected = [every[first + position, token] for position, token in enumerate(pair["targets"])]
        np.testing.assert_allclose(row["token_scores"], expected, rtol=1e-4)
        assert row["score"] == pytest.approx(sum(expected), rel=1e-4)


@pytest.mark.parametrize(
    ("mode", "record"), [("predict", {"inputs": [3, 23]}), ("score", {"inputs": [3], "targets": [23]})]
)
def test_token_id_outside_the_vocabulary_raises(gpt, tmp_path, mode, record):
    options = dict(objective=CausalLM(bos_id=22), task_feature_lengths={"inputs": 3, "targets": 4}, eos_id=22)
    with pytest.raises(UserError, match="jsonl:2: token id 23 in '(inp|targ).*: the model only has the ids 0 … 22"):
        run(gpt, tmp_path, [{"inputs": [1], "targets": [2]}, record], mode=mode, **options)


# ---- output ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_parts_are_resumed_and_joined(tmp_path, scheme):
    path = f"{scheme}{tmp_path}/out.jsonl"
    ranges = [(0, 2), (2, 4)]
    parts = PartFiles(path)
    parts.open("predict with x")
    assert parts.missing(ranges) == ranges
    parts.write(2, [{"index": 2}, {"index": 3, "prediction": "é"}])
    parts.write(0, [{"index": "lost"}])  # of one of two processes
    resumed = PartFiles(path)
    resumed.open("predict with x")
    assert resumed.missing(ranges) == [(0, 2)]
    resumed.write(0, [{"index": 0}, {"index": 1}])
    resumed.finish()
    assert values(path) == [{"index": 0}, {"index": 1}, {"index": 2}, {"index": 3, "prediction": "é"}]
    resumed.open("score with y")
    assert resumed.missing(ranges) == ranges


def test_parts_of_another_command_raise(tmp_path):
    parts = PartFiles(str(tmp_path / "out.jsonl"))
    parts.open("predict with x")
    parts.write(0, [{}])
    with pytest.raises(
        ValueError, match="unfinished output of another command .predict with x.. This command is: score with y"
    ):
        parts.open("score with y")
    assert json.loads((tmp_path / "out.jsonl.parts" / "000000000-000000001.jsonl").read_text()) == {}
