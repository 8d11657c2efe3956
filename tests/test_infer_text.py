"""Inference of text with a checkpoint: predictions, scores, interruptions, vocabularies."""

import json

import numpy as np
import pytest
from letters import CONFIG, LENGTHS, partitioner, source
from opened import call

from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.eval import evaluate
from t5x_like.infer import infer
from t5x_like.inference import codec
from t5x_like.models.gpt import GPTConfig
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL

pytestmark = pytest.mark.usefixtures("letters_run")

DECODER = GPTConfig(vocab_size=384, embed_dim=64, mlp_dim=64, num_heads=4, head_dim=16, num_layers=1, max_length=32)


def infer_lines(letters_run, tmp_path, lines, suffix="txt", **changes):
    path = tmp_path / f"input.{suffix}"
    path.write_text("".join(line + "\n" for line in lines))
    options = dict(data=source("validation"), batch_size=4, partitioner=partitioner())
    output = call(
        infer,
        model=CONFIG,
        checkpoint_path=letters_run,
        input_path=str(path),
        output_path=str(tmp_path / "output.jsonl"),
        overwrite=True,
        **options | changes,
    )
    return [json.loads(line) for line in open(output)]


@pytest.mark.full
def test_infer_predicts_text(letters_run, tmp_path):
    rows = infer_lines(letters_run, tmp_path, ["a", "d", "c", "b", "a"])
    assert [(row["index"], row["inputs"], row["prediction"]) for row in rows] == [
        *((0, "a", "a"), (1, "d", "d"), (2, "c", "c"), (3, "b", "b"), (4, "a", "a"))
    ]
    assert all(-0.5 < row["log_probability"] < 0 for row in rows)


def test_token_ids_need_no_vocabulary(letters_run, tmp_path):
    a = 3 + ord("a")
    lines = [json.dumps({"inputs": [a + offset, 1]}) for offset in range(3)]
    rows = infer_lines(letters_run, tmp_path, lines, "jsonl", data=None, task_feature_lengths=LENGTHS)
    assert [row["prediction"] for row in rows] == [[a], [a + 1], [a + 2]]


def test_scores_of_learned_targets_are_higher(letters_run, tmp_path):
    lines = [json.dumps({"inputs": "b", "targets": target}) for target in ("b", "c")]
    right, wrong = infer_lines(letters_run, tmp_path, lines, "jsonl", mode="score")
    assert wrong["score"] < -3 < right["score"] < 0
    assert (right["greedy"], wrong["greedy"], right["tokens"]) == (True, False, 1)


def test_sum_of_scores_is_the_loss_of_all_tokens(letters_run, tmp_path):
    here = partitioner()
    results = call(
        evaluate,
        model=CONFIG,
        objective=SequenceToSequence(),
        data=source("other"),
        checkpoint_path=letters_run,
        partitioner=here,
        task_metrics=False,
    )
    lines = [json.dumps({"inputs": text, "targets": text}) for text in "abcdab"]
    rows = infer_lines(letters_run, tmp_path, lines, "jsonl", mode="score", score_eos=True)
    assert [row["tokens"] for row in rows] == [2] * 6
    np.testing.assert_allclose(-sum(row["score"] for row in rows), 12 * results["loss"], rtol=1e-4)


def test_interrupted_infer_resumes_after_finished_parts(letters_run, tmp_path, monkeypatch):
    from t5x_like.inference import windows as module

    monkeypatch.setattr(module, "_BATCHES_PER_WINDOW", 1)
    written = []
    original = module.PartFiles.write

    def write(self, start, rows):
        if len(written) == 1:
            raise KeyboardInterrupt
        written.append(start)
        original(self, start, rows)

    monkeypatch.setattr(module.PartFiles, "write", write)
    lines = ["a", "b", "c", "d", "a", "b"]
    with pytest.raises(KeyboardInterrupt):
        infer_lines(letters_run, tmp_path, lines)
    assert not (tmp_path / "output.jsonl").exists()
    with pytest.raises(UserError, match="unfinished output of another command"):
        infer_lines(letters_run, tmp_path, lines, decoding=Decoding(beams=2))
    with pytest.raises(UserError, match="unfinished output of another command"):
        infer_lines(letters_run, tmp_path, lines, data=source("validation", vocabulary_path="other"))
    monkeypatch.setattr(
        module.PartFiles, "write", lambda self, start, rows: (written.append(start), original(self, start, rows))
    )
    rows = infer_lines(letters_run, tmp_path, lines)
    assert written == [0, 4]
    assert [row["prediction"] for row in rows] == lines


@pytest.mark.parametrize("option", ["per_position", "score_eos"])
def test_option_of_scoring_raises_without_it(tmp_path, option):
    with pytest.raises(UserError, match=f"{option.upper()}=True: only affects scoring. Give MODE=score"):
        infer_lines("none", tmp_path, ["a"], **{option: True})


def test_directory_without_checkpoint_raises(tmp_path):
    with pytest.raises(ValueError, match="no checkpoint found"):
        infer_lines(str(tmp_path / "nothing"), tmp_path, ["a"])


def test_token_ids_as_inputs_give_token_ids(letters_run, tmp_path):
    """No vocabulary is loaded, even if a task is given."""
    for data in (source("validation"), source("validation", mixture_or_task_name=None)):
        (row,) = infer_lines(letters_run, tmp_path, ['{"inputs": [100, 1]}'], "jsonl", data=data)
        assert row["prediction"] == [100]
        (tmp_path / "output.jsonl").unlink()
    without_task = source("validation", mixture_or_task_name=None)
    with pytest.raises(UserError, match="INPUT_PATH: contains text, but neither a task nor VOCABULARY_PATH"):
        codec.vocabularies_for(without_task, [{"inputs": "a"}])
    (row,) = infer_lines(letters_run, tmp_path, ["a"], data=without_task)  # the run stores its vocabulary
    assert isinstance(row["prediction"], str)


def test_vocabulary_that_is_larger_than_the_model_raises(letters_run, tmp_path):
    data = source("validation", mixture_or_task_name="", vocabulary_path=str(PYTHON_DOCS_MODEL))
    with pytest.raises(UserError, match=rf"{PYTHON_DOCS_MODEL}: the vocabulary of 'targets' has .* Set vocab_size="):
        infer_lines(letters_run, tmp_path, ["a"], data=data)


def test_infer_with_unsupported_model_raises(letters_run, tmp_path):
    path = tmp_path / "input.jsonl"
    path.write_text('{"inputs": [100, 1]}')
    options = dict(checkpoint_path=letters_run, input_path=str(path), output_path=str(tmp_path / "out"))
    with pytest.raises(UserError, match="GPTConfig does not fit sequence-to-sequence generation.*objectives/"):
        call(infer, model=DECODER, task_feature_lengths=LENGTHS, partitioner=partitioner(), **options)
    with pytest.raises(UserError, match="no length for inputs. Give both; for a decoder, inputs are prompts"):
        call(infer, model=DECODER, task_feature_lengths={"targets": 4}, **options)
