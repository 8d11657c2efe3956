"""Settings that commands compute from their task: TRAIN_STEPS of TRAIN_EPOCHS or a time budget, LABELS, and prompts."""

import pytest

from t5x_like import cli
from t5x_like.cli import resolution
from t5x_like.errors import UserError


def resolve(*words):
    return resolution.resolve(cli.parse(words), None)


@pytest.fixture(scope="module")
def tasks():
    """Registers tasks `epochs_first` and `epochs_second` with 10 and 5 examples, labels, and their mixture."""
    import seqio
    import tensorflow as tf

    from t5x_like.vocabularies.labels import LabelVocabulary

    names = ("epochs_first", "epochs_second")
    for name, size in zip(names, (10, 5), strict=True):
        source = seqio.FunctionDataSource(
            lambda split, shuffle_files, seed=None, size=size: tf.data.Dataset.range(size),
            splits=("train",),
            num_input_examples={"train": size} if size == 10 else None,
        )
        features = {
            "inputs": seqio.Feature(seqio.ByteVocabulary(), add_eos=False),
            "targets": seqio.Feature(LabelVocabulary(("no", "yes")), add_eos=False),
        }
        seqio.TaskRegistry.add(name, source=source, preprocessors=[], output_features=features)
    seqio.MixtureRegistry.add("epochs_both", names, default_rate=1.0)
    yield
    for name in names:
        seqio.TaskRegistry.remove(name)
    seqio.MixtureRegistry.remove("epochs_both")


FINE_TUNING = ("--gin_file=models/bert/tiny.gin", "--gin_file=runs/finetune_classification.gin")


def trained(*words, task="epochs_first"):
    words = (*FINE_TUNING, f"--gin.MIXTURE_OR_TASK_NAME={task}", "--gin.INITIAL_CHECKPOINT_PATH=x", *words)
    return resolve("train", *words).macros


def test_epochs_set_the_steps(tasks):
    assert trained("--gin.BATCH_SIZE=4")["TRAIN_STEPS"] == 8  # 3 epochs of the recipe: 30 / 4
    assert trained("--gin.BATCH_SIZE=4", "--gin.TRAIN_EPOCHS=0.5")["TRAIN_STEPS"] == 2
    assert trained("--gin.BATCH_SIZE=5", "--gin.TRAIN_EPOCHS=2", task="epochs_both")["TRAIN_STEPS"] == 6
    assert trained("--gin.TRAIN_STEPS=77")["TRAIN_STEPS"] == 77
    rollouts = ("--gin_file=objectives/grpo.gin", "--gin.REWARDS={'a.reward': 1.0}", "--gin.UPDATES_PER_ROLLOUT=3")
    assert trained("--gin.BATCH_SIZE=4", *rollouts)["TRAIN_STEPS"] == 24  # each batch is read by three steps


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--gin.TRAIN_EPOCHS=1", "--gin.TRAIN_STEPS=5"), "TRAIN_EPOCHS=1: TRAIN_STEPS=5 is also given"),
        (("--gin.PACK=True",), "TRAIN_EPOCHS=3: the number of packed rows of epochs_first is not known"),
        (("--gin.TRAIN_EPOCHS=0",), "TRAIN_EPOCHS=0: not a positive number"),
        (("--gin.TRAIN_EPOCHS=many",), "TRAIN_EPOCHS='many': not a positive number"),
    ],
)
def test_invalid_epochs_raise(tasks, words, message):
    with pytest.raises(UserError, match=message):
        trained(*words)


def test_a_time_budget_sets_the_steps():
    words = ("train", "--gin_file=models/cramming/tiny.gin", "--gin_file=runs/cramming.gin")
    words += ("--gin.MIXTURE_OR_TASK_NAME=a_task", "--gin.MICROBATCHES=4", "--gin.BUDGET_HOURS=0.01")
    assert resolve(*words, "--gin.SECONDS_PER_MICROBATCH=1.0").macros["TRAIN_STEPS"] == 16
    assert resolve(*words, "--gin.SECONDS_PER_MICROBATCH=1.0", "--gin.TRAIN_STEPS=7").macros["TRAIN_STEPS"] == 7


@pytest.mark.notf
def test_epochs_of_a_cache_are_passes_over_its_rows(tmp_path, write_cache):
    write_cache(tmp_path / "train", lengths={"inputs": 4, "targets": 4}, shards=[(0, 6), (1, 9)])
    words = ["--gin_file=models/t5_1_1/tiny.gin", "--gin_file=runs/pretrain.gin", "--gin_file=data/cached.gin"]
    words += [f"--gin.CACHE_DIR={tmp_path}", "--gin.TRAIN_EPOCHS=2", "--gin.BATCH_SIZE=4"]
    assert resolve("train", *words).macros["TRAIN_STEPS"] == 3


def test_labels_are_those_of_the_task(tasks):
    assert trained()["LABELS"] == ("no", "yes")
    assert trained("--gin.LABELS=('negative', 'positive')")["LABELS"] == ("negative", "positive")


def test_labels_of_a_task_over_books_are_the_names_of_the_files(tmp_path):
    for name in ("doyle", "austen"):
        (tmp_path / f"{name}.txt").write_text("a text")
    words = (f"--gin.DATA_FILES={tmp_path}/*.txt", "--gin.TRAIN_STEPS=1")
    assert trained(*words, task="text_files_book")["LABELS"] == ("austen", "doyle")


@pytest.mark.parametrize(
    ("labels", "problem"),
    [("('a', 'b', 'c')", "3 labels, but epochs_first has 2"), ("('yes', 'no')", "not in the order of epochs_first")],
)
def test_other_labels_than_those_of_the_task_raise(tasks, labels, problem):
    with pytest.raises(UserError, match=problem):
        trained(f"--gin.LABELS={labels}")


PROMPT = "--gin_file=adapters/prompt.gin"


def test_prompts_start_from_labels_or_a_text(tasks):
    labels = trained(PROMPT, "--gin.PROMPT_LABELS=('ab', 'c')")
    assert labels["PROMPT_INITIAL_IDS"] == ((100, 101), (102,))  # bytes, after three special tokens
    assert trained(PROMPT, "--gin.PROMPT_TEXT='ab'")["PROMPT_INITIAL_IDS"] == ((100,), (101,))
    for words, message in (
        ((PROMPT, "--gin.PROMPT_LABELS='ab'"), "PROMPT_LABELS='ab': not text. Give PROMPT_LABELS=.'positive'"),
        ((PROMPT, "--gin.PROMPT_LABELS=('a',)", "--gin.PROMPT_TEXT='a'"), "PROMPT_TEXT='a' is also given. Give one"),
        (("--gin.PROMPT_TEXT='a'",), "PROMPT_TEXT='a': no prompt is trained. Give --gin_file=adapters/prompt.gin"),
    ):
        with pytest.raises(UserError, match=message):
            trained(*words)
