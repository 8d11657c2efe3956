"""The vocabulary of a run: stored in its directory, read from there, exported, and never exchanged for another."""

import json
import shutil

import pytest

from t5x_like.data import specs
from t5x_like.errors import UserError
from t5x_like.stored import run_tokenizer
from t5x_like.vocabularies.vocabulary_digest import TextVocabulary
from t5x_like.vocabulary import vocabulary

LINE = "The river and the stone  were near: café\n\tline {}, paper = {{{}}};\n"
TRAIN = (
    *("train", "--gin_file=runs/gpt.gin", "--gin.MIXTURE_OR_TASK_NAME=text_files_causal_lm_byte_bpe"),
    *("--gin.TASK_FEATURE_LENGTHS={'targets': 32}", "--gin.BATCH_SIZE=4", "--gin.WARMUP_STEPS=0"),
    *("--gin.TRAIN_STEPS=1", "--gin.EVAL_PERIOD=None"),
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Returns a directory with a text and two vocabularies of the same size."""
    pytest.importorskip("tokenizers")
    path = tmp_path_factory.mktemp("text")
    lines = "".join(LINE.format(number, number % 7) for number in range(200))
    for name, written in (("own", lines), ("other", lines.upper())):
        (path / f"{name}.txt").write_text(written, encoding="utf-8")
        vocabulary(pattern=str(path / f"{name}.txt"), kind="byte_bpe", size=290, output=str(path / name))
    return path


def arguments(text, **others):
    return f"--gin.TASK_ARGUMENTS={dict(pattern=str(text / 'own.txt'), validation_fraction=0.5, **others)}"


@pytest.mark.full
def test_vocabulary_in_task_arguments_belongs_to_the_run(text, tmp_path, run_command, monkeypatch):
    shutil.copytree(text, here := tmp_path / "here")
    monkeypatch.chdir(here)
    own = [*TRAIN, "--gin_file=models/gpt2/tiny.gin", "--gin.GPTConfig.vocab_size=512", "--gin.BOS_ID=289"]
    code, output = run_command([*own, arguments(text, vocabulary_path="own"), "--gin.MODEL_DIR=run"])
    assert code == 0, output
    assert {path.name for path in here.joinpath("run/tokenizer").iterdir()} >= {"vocab.json", "merges.txt"}

    shutil.move(here / "own", here / "elsewhere")
    for more in ([], ["--dry_run"]):
        code, output = run_command([*own, arguments(text, vocabulary_path="own"), "--gin.MODEL_DIR=run", *more])
        assert code == 0 and "VOCABULARY_PATH=own not found; its copy in the run directory" in output, output

    monkeypatch.chdir(tmp_path)
    run, exported = str(shutil.move(here / "run", tmp_path / "moved")), tmp_path / "exported"
    shutil.rmtree(here)
    evaluate = ["eval", f"--gin.MODEL_DIR={run}", "--gin.EVAL_STEPS=1"]
    code, output = run_command(evaluate)
    assert code == 0, output
    other = [*evaluate, arguments(text, vocabulary_path=str(text / "other"))]
    code, output = run_command(other)
    assert code and "differs from the vocabulary of the data" in output and "OTHER_VOCABULARY=True" in output, output
    assert run_command([*other, "--gin.OTHER_VOCABULARY=True", "--dry_run"])[0] == 0

    code, output = run_command(["convert", f"--input={run}", f"--output={exported}"])
    assert code == 0, output
    config = json.loads((exported / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (289, 289)
    again = [*TRAIN, f"--gin.HF_PATH={exported}", arguments(text), "--dry_run"]
    code, output = run_command([*again, f"--gin.MODEL_DIR={tmp_path / 'continued'}"])
    assert code == 0 and "fit" in output, output
    code, output = run_command([*again, f"--gin.VOCABULARY_PATH={text / 'other'}"])
    assert code and "INITIAL_OTHER_VOCABULARY=True" in output, output

    shutil.rmtree(tmp_path / "moved/tokenizer")
    code, output = run_command(["convert", f"--input={run}", f"--output={tmp_path / 'bare'}"])
    assert code == 0 and "exported without a tokenizer" in output, output
    words = ["convert", f"--input={run}", f"--output={tmp_path / 'given'}"]
    assert run_command([*words, f"--gin.VOCABULARY_PATH={text / 'other'}"])[0]
    assert run_command([*words, f"--gin.VOCABULARY_PATH={text / 'own'}"])[0] == 0
    assert json.loads((tmp_path / "given/config.json").read_text()) == config


def test_cache_with_another_vocabulary_raises(text):
    class Cache:
        name = "rows"

        def text_vocabulary(self, spec):
            return TextVocabulary("digest of the rows", str(text / "own"))

    with pytest.raises(UserError, match="VOCABULARY_PATH=.*own: .* differs from the vocabulary of rows .digest of the"):
        run_tokenizer.of_data(Cache(), specs.CAUSAL_LM, None)
