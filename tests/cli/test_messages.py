"""Messages about wrong input: they name the setting, its value, the problem and the next step."""

import re

import pytest
import small_models

from t5x_like import config
from t5x_like.checkpoints import weight_files
from t5x_like.config import search
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError

FINETUNE = ["train", "--gin_file=runs/finetune.gin", "--gin.TRAIN_STEPS=2"]


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--gin.TRAIN_STEPS=-5"], "TRAIN_STEPS=-5 is not positive. Give a positive integer."),
        (["train", "--gin.MICROBATCHES=0"], "MICROBATCHES=0 is not positive. Give a positive integer."),
        (
            ["inspect", "a", "--gin.TASK_ARGUMENTS={data_dir: 'x'}"],
            "--gin.TASK_ARGUMENTS={data_dir: 'x'} is not a gin value: text within it needs quotes: 'data_dir'",
        ),
        (["train", "--gin.LEARNING_RATE=-0.1"], "LEARNING_RATE=-0.1: negative or not finite. Give a positive number"),
        (
            [*FINETUNE, "--gin_file=models/t5_1_1/small.gin", "--gin.MIXTURE_OR_TASK_NAME=a"],
            "INITIAL_CHECKPOINT_PATH is required (gin_configs/runs/pretrain.gin:* uses it): the pretrained weights, "
            "which HF_PATH sets too; None: random weights. Give --gin.INITIAL_CHECKPOINT_PATH=…",
        ),
        (
            [*FINETUNE, "--gin.HF_PATH=google-t5/t5-small", "--gin.MIXTURE_OR_TASK_NAME=a"],
            "HF_PATH=google-t5/t5-small: not found. * Hub must be downloaded first: "
            "`hf download google-t5/t5-small --local-dir google-t5/t5-small`",
        ),
        (
            ["convert", "--input=bert-base-uncased", "--output=out"],
            "CHECKPOINT_PATH=bert-base-uncased: not found. Give a run directory, * `hf download bert-base-uncased",
        ),
        (
            ["train", "--gin_file=runs/quickstart.gin", "--gin_file=hardware/v5e.gin"],
            "compiler_options['xla_tpu_scoped_vmem_limit_kib']: an XLA option for TPUs, but the devices of this run "
            "are cpu. Omit the --gin_file=hardware/…",
        ),
        (
            ["distill", "--gin_file=models/bert/mini.gin", "--gin_file=distillation/hinton.gin", "--gin.TRAIN_STEPS=2"],
            "the recipe of the student is missing. Give the gin files of its training run, then one with the losses, "
            "such as `t5x_like distill --gin_file=models/t5_1_1/small.gin --gin_file=runs/pretrain.gin",
        ),
        (
            ["bench", "--gin_file=models/bert/tiny.gin"],
            "*bench.gin:*: t5x_like.training.recipe.Recipe requires model, * which is not set. Give a --gin_file",
        ),
        (
            ["train", "--gin.WEIGHT_DECAY=0.1"],
            "command line: WEIGHT_DECAY is not used by the files of this run. Shipped files that use it: *adamw.gin",
        ),
        (
            ["train", "--gin.T5Config.hidden_size=8"],
            "command line: t5x_like.models.t5.T5Config has no parameter hidden_size. Its parameters are vocab_size, e",
        ),
        (["eval", "--gin.MODEL_DIR=runs/1"], "MODEL_DIR=runs/1 is not a run directory: directory not found. Give"),
        (["inspect"], "MIXTURE_OR_TASK_NAME is required (* uses it): a SeqIO task or mixture. Give TASK, or"),
        (["report"], "MODEL_DIRS is required (* uses it): one or several run directories. Give MODEL_DIR, or"),
        (["report", "a", "--output=a.pdf"], "OUTPUT_PATH=a.pdf: the report is an HTML page. Give a file"),
        (["plan"], "TOPOLOGY is required (* uses it): a TPU slice, such as v5e:4x8, or GPUs, such as h100:8. Give"),
        (["train", "--gin_file=hardware/v5e.gin"], "*train.gin:*: t5x_like.training.recipe.Recipe requires *"),
        (["convert", "--input=bert", "--output=a", "--heads=some"], "CHECKPOINT_PATH=bert: not found. Give a run"),
        (["vocabulary", "--pattern=a/*.txt"], "pattern 'a/*.txt': no file matches *. Give an existing file, or a"),
        (["vocabulary", "--pattern=a.txt", "--size=-1"], "SIZE=-1 is not positive. Give a positive integer."),
        (
            ["inspect", "qqqqqqqq"],
            "MIXTURE_OR_TASK_NAME='qqqqqqqq' is not registered. No registered name is similar; they begin with * "
            "For your own task, set MIXTURE_OR_TASK_MODULE",
        ),
    ],
)
def test_wrong_settings(directory, run_command, arguments, message):
    code, output = run_command(arguments)
    last = output[output.rindex(f"t5x_like {arguments[0]}: ") :]
    pattern = re.escape(f"t5x_like {arguments[0]}: {message}").replace("\\*", ".*")
    assert code == 2 and re.match(pattern, last), output
    assert list(directory.iterdir()) == []


def test_file_of_word_vectors_as_run_names_convert(directory, run_command):
    (directory / "vectors.vec").write_text("1 2\nplay 1.0 2.0\n")
    code, output = run_command(["embed", "--gin.MODEL_DIR=vectors.vec", "--neighbours=play"])
    assert code == 2 and "MODEL_DIR=vectors.vec: a file of word vectors, which only convert reads." in output
    assert "Run `t5x_like convert --input=vectors.vec --output=RUN`, and give RUN" in output


def test_huggingface_directory_without_tokenizer(directory, run_command):
    small_models.write_gpt2(directory / "gpt2")
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (directory / "gpt2" / name).unlink()
    arguments = [*FINETUNE, "--gin.HF_PATH=gpt2", "--gin.TASK_FEATURE_LENGTHS={'inputs': 16, 'targets': 8}"]
    code, output = run_command([*arguments, "--gin.BOS_ID=256", "--gin.MIXTURE_OR_TASK_NAME=glue_sst2_v002"])
    assert code == 2 and "HF_PATH=gpt2: tokenizer files not found, and the task has no vocabulary of its own." in output


@pytest.mark.notf
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--train-steps=10"], "unknown flag --train-steps; did you mean --gin.TRAIN_STEPS?"),
        (["train", "my.gin"], "unexpected argument 'my.gin'; did you mean --gin_file=my.gin?"),
        (["eval", "runs/1"], "unexpected argument 'runs/1'; did you mean --gin.MODEL_DIR=runs/1?"),
        (["convert", "runs/1"], "unexpected argument 'runs/1'; did you mean --input=runs/1?"),
        (
            ["train", "a"],
            "unexpected argument 'a'. Files are given as --gin_file=FILE, and settings as --gin.NAME=VALUE",
        ),
    ],
)
def test_words_that_are_not_flags(run_command, arguments, message):
    assert run_command(arguments) == (2, f"t5x_like: {arguments[0]}: {message}\n")


def test_command_without_a_run_names_a_model_file(directory, run_command):
    code, output = run_command(["eval"])
    assert code == 2 and "undefined macro %MODEL: give a file that defines it first, such as --gin_file=mod" in output
    assert output.strip().endswith("give --gin.MODEL_DIR=DIRECTORY and no file of a model.")
    code, output = run_command(["convert", "--heads=some", "--input=-", "--output=a"])
    assert code == 2 and "--gin.MODEL_DIR" not in output


@pytest.mark.parametrize(
    "damage",
    [
        "BATCH_SIZE = (\n",
        "BATCH_SIZE = {'a'\n",
        "EVAL_STEPS = true\n",
        f"BATCH_SIZE = {'[' * 5000}{']' * 5000}\n",
        f"BATCH_SIZE = {'(' * 100_000}",
        f"BATCH_SIZE = {'{1:' * 3000}1{'}' * 3000}\n",
    ],
    ids=["parenthesis", "brace", "true", "lists", "parentheses", "dicts"],
)
def test_damaged_stored_configuration(directory, run_command, damage):
    (directory / "run").mkdir()
    (directory / "run/config.gin").write_text(f"TRAIN_STEPS = 3\n{damage}")
    code, output = run_command(["eval", "--gin.MODEL_DIR=run"])
    assert code == 2 and "run/config.gin:" in output, output
    assert "run/config.gin is the stored configuration of the run, and is damaged. Restore it from a copy; or" in output


def test_deleted_working_directory(directory, run_command):
    directory.rmdir()
    code, output = run_command(["report", "run"])
    assert code == 2 and "t5x_like report: the working directory was deleted or renamed. Change to" in output


@pytest.mark.notf
def test_name_in_an_existing_directory_is_not_taken_for_one_of_the_hub(tmp_path):
    error = weight_files.not_found("HF_PATH", f"{tmp_path}/model", "a directory")
    assert str(error) == f"HF_PATH={tmp_path}/model: not found. Give a directory."


def test_part_of_a_run_names_the_run(directory, run_command):
    (directory / "run/checkpoints").mkdir(parents=True)
    (directory / "run/config.gin").touch()
    code, output = run_command(["eval", "--gin.MODEL_DIR=run/checkpoints"])
    assert code == 2 and output.endswith("is not a run directory: config.gin not found. Give MODEL_DIR=run.\n"), output


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        ("import seqioo\n", "ModuleNotFoundError: No module named 'seqioo'"),
        ("\n1 / 0\n", "ZeroDivisionError: division by"),
    ],
)
def test_task_module_with_an_error(directory, run_command, contents, reason):
    (directory / "wrong_tasks.py").write_text(contents)
    code, output = run_command(["inspect", "a", "--gin.MIXTURE_OR_TASK_MODULE=wrong_tasks"])
    line = contents.rstrip().count("\n") + 1
    assert code == 2 and f"MIXTURE_OR_TASK_MODULE='wrong_tasks': {reason}" in output, output
    assert f"wrong_tasks.py:{line}). Correct the module; --log_level=debug shows the traceback." in output


@pytest.mark.notf
def test_generation_names_the_missing_fields():
    with pytest.raises(UserError, match=r"Decoding: missing max_length, bos_id. Give Decoding\(max_length=…, bos_id"):
        generate(None, {}, Decoding(eos_ids=(1,)))


@pytest.mark.notf
def test_every_required_macro_of_shipped_files_has_a_comment():
    bare = []
    for file in sorted(config.SHIPPED_ROOT.rglob("*.gin")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            where = f"gin_configs/{file.relative_to(config.SHIPPED_ROOT)}:{number}"
            if re.match(r"[A-Z_]+ = %gin.REQUIRED", line) and not search.comment_of(where):
                bare.append(where)
    assert bare == []
