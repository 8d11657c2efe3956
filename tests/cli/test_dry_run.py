"""`--dry_run` checks and describes a command without computing or writing anything."""

import jax
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_like import cli, interop
from t5x_like.interop import safetensors_files
from t5x_like.models.t5 import T5Config

TASK = "tests_dry_run"
TINY = "--gin_file=models/t5_1_1/tiny.gin"
LENGTHS = "--gin.TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 4}"
TRAIN = [
    "train",
    "--dry_run",
    TINY,
    "--gin_file=runs/pretrain.gin",
    "--gin.TRAIN_STEPS=7",
    LENGTHS,
    "--gin.BATCH_SIZE=2",
]


@pytest.fixture(scope="module", autouse=True)
def task():
    rows = seqio.FunctionDataSource(
        lambda split, shuffle_files=False, seed=None: tf.data.Dataset.from_tensors({"inputs": "a", "targets": "b"}),
        splits=["train", "validation"],
    )
    features = {name: seqio.Feature(seqio.ByteVocabulary()) for name in ("inputs", "targets")}
    seqio.TaskRegistry.add(TASK, source=rows, preprocessors=[seqio.preprocessors.tokenize], output_features=features)
    yield
    seqio.TaskRegistry.remove(TASK)


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    for name in ("JAX_PLATFORMS", "NO_GCE_CHECK"):
        monkeypatch.setenv(name, "cpu")  # so that what the command sets is taken back
    monkeypatch.setattr("t5x_like.cli.execute.prepare", lambda arguments: None)  # keeps logging and import paths
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_dry_run_describes_train_and_writes_nothing(empty_directory, capsys):
    assert cli.main([*TRAIN, f"--gin.MIXTURE_OR_TASK_NAME={TASK}", "--gin.MODEL_DIR=runs/new"]) == 0
    shown = capsys.readouterr().out
    assert "model: T5Config, 518,240 parameters" in shown and "steps: 7" in shown
    assert f"data: {TASK}, split train" in shown and f"validation: {TASK}, split validation" in shown
    assert "encoder_input_tokens [2, 8] int32" in shown and "decoder_target_tokens [2, 4] int32" in shown
    assert "writes model_dir=runs/new" in shown and "nothing was computed or written" in shown
    assert list(empty_directory.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["--gin.MIXTURE_OR_TASK_NAME=tests_dry_rum"],
            "'tests_dry_rum' is not registered. The nearest names are tests_dry_run",
        ),
        (["--gin.train/SeqIOSource.split=trian"], "has no split 'trian'"),
        (["--gin.TASK_FEATURE_LENGTHS={'inputs': 8}"], "no length for 'targets'"),
        (["--gin.T5Config.vocab_size=128"], "only 128 embeddings"),
        (
            ["--gin.INITIAL_CHECKPOINT_PATH=runs/none"],
            "INITIAL_CHECKPOINT_PATH=runs/none: not found. Give a run directory",
        ),
        (["--gin.MODEL_DIR=/dev/null/run"], "MODEL_DIR=/dev/null/run: /dev/null is not a directory"),
        (["--gin.SAVE_PERIOD=0"], "SAVE_PERIOD=0 is not positive"),
        (["--gin.LOGGERS=wandb,tensorbord"], "LOGGERS=wandb,tensorbord: 'tensorbord' is unknown. Give tensorboard,"),
        (
            ["--gin_file=checkpoints/local.gin", "--gin.LOCAL_DIRECTORY=/tmp/local", "--gin.LOCAL_SAVE_PERIOD=1000"],
            "LOCAL_SAVE_PERIOD=1000 is not less than SAVE_PERIOD=1000",
        ),
        (
            ["--gin_file=checkpoints/local.gin", "--gin.LOCAL_DIRECTORY=gs://bucket/local"],
            "LOCAL_DIRECTORY=gs://bucket/local is not a local path",
        ),
        (
            ["--gin_file=checkpoints/local.gin", "--gin.LOCAL_DIRECTORY=run/local", "--gin.MODEL_DIR=run"],
            "LOCAL_DIRECTORY=run/local is in MODEL_DIR=run",
        ),
        (["--gin.TRAIN_STEPS=many"], "must be an integer"),
        (["--gin_file=models/t5_1_1/tini.gin"], "did you mean models/t5_1_1/tiny.gin"),
    ],
)
def test_invalid_settings_are_reported(capsys, changes, message):
    assert cli.main([*TRAIN, f"--gin.MIXTURE_OR_TASK_NAME={TASK}", *changes]) == 2
    assert message in capsys.readouterr().err


def write_tiny(directory, change):
    """Writes the model of `TINY` for transformers, with weights that are 0, after a change of its tensors."""
    config = T5Config(embed_dim=8, mlp_dim=16, num_heads=4, head_dim=3, encoder_layers=2, decoder_layers=2)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(config.make, jax.random.key(0)))
    interop.to_huggingface({"model": zeros}, config, str(directory))
    tensors = dict(safetensors_files.Tensors(str(directory)))
    change(tensors)
    safetensors_files.write(str(directory), tensors)


@pytest.mark.parametrize(
    ("change", "cut", "code", "message"),
    [
        (lambda tensors: None, None, 0, "initial weights: weights fits"),
        (lambda tensors: None, -1, 2, "model.safetensors is truncated"),
        (lambda tensors: tensors.pop("shared.weight"), None, 2, "tensor 'shared.weight' is missing"),
        (
            lambda tensors: tensors.update({"encoder.final_layer_norm.weight": np.zeros(7, np.float32)}),
            None,
            2,
            "tensor 'encoder.final_layer_norm.weight' has shape (7,)",
        ),
        (lambda tensors: tensors.update(extra=np.zeros(7, np.float32)), None, 2, "unexpected tensors"),
    ],
    ids=["complete", "truncated", "missing", "misshapen", "unexpected"],
)
def test_files_of_initial_weights_are_checked(empty_directory, capsys, change, cut, code, message):
    write_tiny(empty_directory / "weights", change)
    file = empty_directory / "weights" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    changes = ["--gin.INITIAL_CHECKPOINT_PATH=weights", "--gin.INITIAL_OTHER_VOCABULARY=True"]
    assert cli.main([*TRAIN, f"--gin.MIXTURE_OR_TASK_NAME={TASK}", *changes]) == code
    shown = capsys.readouterr()
    assert message in (shown.err if code else shown.out)
    words = [TINY, "--gin_file=commands/eval.gin", f"--gin.MIXTURE_OR_TASK_NAME={TASK}"]
    words += ["--gin.CHECKPOINT_PATH=weights", "--gin.OTHER_VOCABULARY=True"]
    assert cli.main(["eval", "--dry_run", *words]) == code
    shown = capsys.readouterr()
    assert message.removeprefix("initial ") in (shown.err if code else shown.out)


def test_unreachable_buckets_are_reported_as_not_checked(capsys, monkeypatch):
    monkeypatch.setattr("t5x_like.cli.dry_run.ANSWER_SECONDS", 3.0)
    line = [*TRAIN, f"--gin.MIXTURE_OR_TASK_NAME={TASK}", "--gin.MODEL_DIR=gs://bucket/run"]
    assert cli.main([*line, "--gin.INITIAL_CHECKPOINT_PATH=memory://bucket/none"]) == 0
    shown = capsys.readouterr().out
    assert "writes model_dir=gs://bucket/run (not checked)" in shown
    assert "reads initial_checkpoint_path=memory://bucket/none (not checked: memory://bucket/none not found" in shown


def test_mesh_for_another_machine_is_reported_as_not_checked(capsys):
    assert cli.main([*TRAIN, f"--gin.MIXTURE_OR_TASK_NAME={TASK}", "--gin.ICI={'fsdp': 4096}"]) == 0
    assert "mesh: not checked on the " in capsys.readouterr().out


def test_unknown_rule_set_raises(capsys):
    assert cli.main([*TRAIN, f"--gin.MIXTURE_OR_TASK_NAME={TASK}", "--gin.PARTITIONING=fdsp"]) == 2
    assert "PARTITIONING='fdsp' is unknown. Give one of dp, fsdp," in capsys.readouterr().err


def test_dry_run_describes_every_cell_of_an_ablation(capsys, empty_directory):
    (empty_directory / "cell.gin").write_text(
        "include 'models/t5_1_1/tiny.gin'\ninclude 'runs/pretrain.gin'\n"
        f"MIXTURE_OR_TASK_NAME = '{TASK}'\nTRAIN_STEPS = 1\n"
    )
    grid = "{'T5': {'one': 'cell.gin', 'two': 'cell.gin'}}"
    assert cli.main(["ablate", "--dry_run", "--output=study", f"--gin.GRID={grid}", "--gin.GIN_FILES=()"]) == 0
    shown = capsys.readouterr().out
    assert "T5, one:" in shown and "T5, two:" in shown and shown.count("model: T5Config, 518,240 parameters") == 2


def test_dry_run_describes_cache_infer_and_eval(capsys, empty_directory):
    task = f"--gin.MIXTURE_OR_TASK_NAME={TASK}"
    assert cli.main(["cache", "--dry_run", "--gin_file=runs/pretrain.gin", task, LENGTHS, "--cache_dir=cache"]) == 0
    assert "writes cache_dir=cache" in capsys.readouterr().out
    (empty_directory / "weights" / "checkpoints" / "3").mkdir(parents=True)
    (empty_directory / "in.txt").write_text("text\n")
    checkpoint = "--gin.CHECKPOINT_PATH=weights"
    files = [TINY, "--gin_file=commands/infer.gin"]
    assert cli.main(["infer", "--dry_run", *files, task, checkpoint, "--input=in.txt", "--output=out.jsonl"]) == 0
    shown = capsys.readouterr().out
    assert "reads checkpoint_path=weights" in shown and "writes output_path=out.jsonl" in shown
    assert cli.main(["eval", "--dry_run", TINY, "--gin_file=commands/eval.gin", task, checkpoint]) == 0
    assert "data: tests_dry_run, split validation" in capsys.readouterr().out
    assert not (empty_directory / "cache").exists() and not (empty_directory / "out.jsonl").exists()


def test_dry_run_of_unsupported_command_raises(capsys):
    assert cli.main(["plan", "--dry_run"]) == 2
    assert "unknown flag --dry_run" in capsys.readouterr().err
