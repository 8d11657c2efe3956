"""`--dry_run` checks and describes a command without computing or writing anything."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_like import cli, interop, stores
from t5x_like.interop import safetensors_files
from t5x_like.models.t5 import T5Config
from t5x_like.runtime import protocol
from t5x_like.vocabularies import shipped

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
    "--gin.BATCH_SIZE=8",
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
    assert "model: T5Config, 4,309,888 parameters" in shown and "steps: 7" in shown
    assert f"data: {TASK}, split train" in shown and f"validation: {TASK}, split validation" in shown
    assert "encoder_input_tokens [8, 8] int32" in shown and "decoder_target_tokens [8, 4] int32" in shown
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
        (["--gin.BATCH_SIZE=12"], "BATCH_SIZE=12 must be a multiple of 8"),
        (["--gin.KEEP_CHECKPOINTS=0"], "KEEP_CHECKPOINTS=0 is not positive"),
        (["--gin.KEEP_BEST=1", "--gin.BEST_METRIC=f1"], "f1"),
        (["--gin_file=models/t5_1_1/tini.gin"], "did you mean models/t5_1_1/tiny.gin"),
    ],
)
def test_invalid_settings_are_reported(capsys, changes, message):
    assert cli.main([*TRAIN, f"--gin.MIXTURE_OR_TASK_NAME={TASK}", *changes]) == 2
    assert message in capsys.readouterr().err


def write_tiny(directory, change):
    """Writes the model of `TINY` for transformers, with weights that are 0, after a change of its tensors."""
    config = T5Config(embed_dim=64, mlp_dim=128, num_heads=2, head_dim=32, encoder_layers=2, decoder_layers=2)
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


def test_stores_without_access_are_reported_as_not_checked(capsys, monkeypatch):
    def refuse(path):
        raise stores.StoreUnreachable(f"{path} cannot be read: Forbidden.")

    monkeypatch.setattr(stores, "entry_type", refuse)
    line = [*TRAIN, f"--gin.MIXTURE_OR_TASK_NAME={TASK}", "--gin.MODEL_DIR=gs://bucket/run"]
    assert cli.main(line) == protocol.NOT_CHECKED
    shown = capsys.readouterr().out
    assert "not checked: MODEL_DIR=gs://bucket/run: gs://bucket/run/checkpoints cannot be read: Forbidden." in shown
    assert "not checked: writing to MODEL_DIR=gs://bucket/run" in shown
    assert f"data: {TASK}, split train" in shown and "steps: 7" in shown, "other checks go on"
    assert cli.main([*line, "--gin.INITIAL_CHECKPOINT_PATH=gs://bucket/none"]) == protocol.NOT_CHECKED
    assert "not checked: the configuration: gs://bucket/none cannot be read" in capsys.readouterr().out


def test_weights_that_a_store_does_not_have_are_an_error(capsys):
    line = [*TRAIN, f"--gin.MIXTURE_OR_TASK_NAME={TASK}", "--gin.INITIAL_CHECKPOINT_PATH=memory://bucket/none"]
    assert cli.main(line) == 2
    assert "memory://bucket/none" in capsys.readouterr().err


@pytest.mark.full
def test_mesh_for_another_machine_is_reported_as_not_checked(capsys):
    line = [*TRAIN, f"--gin.MIXTURE_OR_TASK_NAME={TASK}", "--gin.ICI={'fsdp': 4096}"]
    assert cli.main(line) == protocol.NOT_CHECKED
    assert "not checked: the mesh: a mesh of ici={'fsdp': 4096}" in capsys.readouterr().out
    assert cli.main([*line, "--cpu_devices=8"]) == 2


def test_mesh_of_several_slices_is_checked_on_as_many_fake_devices(capsys):
    mesh = ["--gin.ICI={'fsdp': 4}", "--gin.DCN={'data': 2}"]
    assert cli.main([*TRAIN, f"--gin.MIXTURE_OR_TASK_NAME={TASK}", *mesh]) == 0
    assert "{'data': 2, 'fsdp': 4} on this machine" in capsys.readouterr().out
    assert cli.main([*TRAIN, f"--gin.MIXTURE_OR_TASK_NAME={TASK}", *mesh, "--gin.BATCH_SIZE=4"]) == 2


FILES = ["--gin.MIXTURE_OR_TASK_NAME=text_files_span_corruption", "--gin.EVAL_DATA=None"]


def test_missing_data_is_an_error(capsys):
    assert cli.main([*TRAIN, *FILES, "--gin.DATA_FILES=corpuss/*"]) == 2
    assert "DATA_FILES='corpuss/*': no file matches" in capsys.readouterr().err


def test_absolute_path_that_another_machine_may_have_is_not_checked(capsys):
    words = [*TRAIN, *FILES, "--dry_run=elsewhere", "--cpu_devices=8"]
    assert cli.main([*words, "--gin.DATA_FILES=/mnt/corpus/*.txt"]) == protocol.NOT_CHECKED
    shown = capsys.readouterr().out
    assert "not checked: the data text_files_span_corruption: DATA_FILES='/mnt/corpus/*.txt': no file matches" in shown
    assert cli.main([*words, "--gin.DATA_FILES=corpuss/*"]) == 2, "relative paths are sent with the code"


def test_data_is_not_checked_without_tensorflow(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "seqio", None)  # importing it raises ModuleNotFoundError
    assert cli.main([*TRAIN, f"--gin.MIXTURE_OR_TASK_NAME={TASK}"]) == protocol.NOT_CHECKED
    shown = capsys.readouterr().out
    assert f"not checked: the data {TASK}: 'seqio' is not installed" in shown and "steps: 7" in shown


@pytest.mark.full
def test_devices_of_another_machine_are_not_checked(capsys):
    words = [*TRAIN, f"--gin.MIXTURE_OR_TASK_NAME={TASK}", "--dry_run=elsewhere"]
    assert cli.main(words) == protocol.NOT_CHECKED
    assert "not checked: the mesh: the devices of the command are not used" in capsys.readouterr().out
    assert cli.main([*words, "--cpu_devices=8"]) == 0


def test_rows_beyond_the_positions_are_an_error(capsys, empty_directory):
    (empty_directory / "text.txt").write_text("one two three\n\n" * 40)
    files = ["--gin_file=models/gpt2/tiny.gin", "--gin_file=runs/gpt.gin", "--gin.DATA_FILES=text.txt"]
    words = ["train", "--dry_run", *files, "--gin.MIXTURE_OR_TASK_NAME=text_files_causal_lm", "--gin.BATCH_SIZE=8"]
    words += ["--gin.TRAIN_STEPS=4", "--gin.WARMUP_STEPS=1", "--gin.TASK_FEATURE_LENGTHS={'targets': 4000}"]
    assert cli.main(words) == 2
    assert "rows of 4000 tokens: longer than the positions of the model" in capsys.readouterr().err


@pytest.mark.full
def test_text_that_does_not_reach_a_row_is_reported(capsys, empty_directory):
    (empty_directory / "text.txt").write_text("one two . " * 400)
    (empty_directory / "held.txt").write_text("two one . " * 400)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "."]
    (empty_directory / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary))
    words = ["--gin_file=runs/bert.gin", "--gin.MIXTURE_OR_TASK_NAME=text_files_sentence_pairs", "--cache_dir=cache"]
    words += ["--gin.DATA_FILES=text.txt", "--gin.VALIDATION_FILES=held.txt", "--gin.VOCABULARY_PATH=vocab.txt"]
    words += ["--gin.TASK_ARGUMENTS={'one_sentence_a_line': True}"]
    words += ["--gin.TASK_FEATURE_LENGTHS={'inputs': 32, 'targets': 6}"]
    assert cli.main(["cache", "--dry_run", *words]) == 0
    assert "  warning: text_files_sentence_pairs: only " in capsys.readouterr().out


def test_settings_that_differ_from_the_stored_run_are_an_error(capsys, empty_directory):
    (empty_directory / "run" / "checkpoints" / "3").mkdir(parents=True)
    (empty_directory / "run" / "config.gin").write_text("t5x_like.training.recipe.Recipe.seed = 7\n")
    assert cli.main([*TRAIN, f"--gin.MIXTURE_OR_TASK_NAME={TASK}", "--gin.MODEL_DIR=run"]) == 2
    assert "MODEL_DIR=run was trained with another configuration" in capsys.readouterr().err


def test_unknown_rule_set_raises(capsys):
    assert cli.main([*TRAIN, f"--gin.MIXTURE_OR_TASK_NAME={TASK}", "--gin.PARTITIONING=fdsp"]) == 2
    assert "PARTITIONING='fdsp' is unknown. Give one of dp, fsdp," in capsys.readouterr().err


@pytest.mark.full
def test_dry_run_describes_every_cell_of_an_ablation(capsys, empty_directory):
    (empty_directory / "cell.gin").write_text(
        "include 'models/t5_1_1/tiny.gin'\ninclude 'runs/pretrain.gin'\n"
        f"MIXTURE_OR_TASK_NAME = '{TASK}'\nTRAIN_STEPS = 1\n"
    )
    grid = "{'T5': {'one': 'cell.gin', 'two': 'cell.gin'}}"
    assert cli.main(["ablate", "--dry_run", "--output=study", f"--gin.GRID={grid}", "--gin.GIN_FILES=()"]) == 0
    shown = capsys.readouterr().out
    assert "T5, one:" in shown and "T5, two:" in shown and shown.count("model: T5Config, 4,309,888 parameters") == 2


def test_dry_run_describes_cache_infer_eval_and_bench(capsys, empty_directory):
    task = f"--gin.MIXTURE_OR_TASK_NAME={TASK}"
    assert cli.main(["cache", "--dry_run", "--gin_file=runs/pretrain.gin", task, LENGTHS, "--cache_dir=cache"]) == 0
    assert "writes cache_dir=cache" in capsys.readouterr().out
    write_tiny(empty_directory / "weights", lambda tensors: None)
    (empty_directory / "in.txt").write_text("text\n")
    checkpoint = "--gin.CHECKPOINT_PATH=weights"
    files = [TINY, "--gin_file=commands/infer.gin", "--gin.OTHER_VOCABULARY=True", LENGTHS]
    assert cli.main(["infer", "--dry_run", *files, task, checkpoint, "--input=in.txt", "--output=out.jsonl"]) == 0
    shown = capsys.readouterr().out
    assert "reads checkpoint_path=weights" in shown and "writes output_path=out.jsonl" in shown
    words = [TINY, "--gin_file=commands/eval.gin", "--gin.OTHER_VOCABULARY=True", task, checkpoint]
    assert cli.main(["eval", "--dry_run", *words]) == 0
    assert "data: tests_dry_run, split validation" in capsys.readouterr().out
    assert cli.main(["bench", "--dry_run", *TRAIN[2:]]) == 0
    assert "model: T5Config, 4,309,888 parameters" in capsys.readouterr().out
    assert cli.main(["bench", "--dry_run", *TRAIN[2:], "--gin.BATCH_SIZE=12"]) == 2
    assert not (empty_directory / "cache").exists() and not (empty_directory / "out.jsonl").exists()


def test_dry_run_of_unsupported_command_raises(capsys):
    assert cli.main(["plan", "--dry_run"]) == 2
    assert "unknown flag --dry_run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train": "pairs.jsonl"}, "has no split 'validation'. Give one of train, or its file in TASK_ARGUMENTS"),
        ({"train": "pair.jsonl"}, "TASK_ARGUMENTS={'train': 'pair.jsonl'}: file not found"),
        ({"train": "pairs.jsonl", "validation": "held.jsonl"}, "TASK_ARGUMENTS={'validation': 'held.jsonl'}: file not"),
    ],
)
def test_missing_files_of_a_table_are_reported_with_their_setting(capsys, empty_directory, files, message):
    (empty_directory / "pairs.jsonl").write_text('{"inputs": "a", "targets": "b"}\n')
    words = [*TRAIN, "--gin.MIXTURE_OR_TASK_NAME=text_table", f"--gin.TASK_ARGUMENTS={files}"]
    words += [f"--gin.VOCABULARY_PATH={Path(shipped.__file__).parent / 'python_docs.model'}"]
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err
