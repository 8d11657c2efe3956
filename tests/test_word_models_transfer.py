"""Models before the Transformer are pretrained and fine-tuned by the command line, with frozen weights or not."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from t5x_like.interop import word_vectors
from t5x_like.loading import open_model
from t5x_like.metrics import read_metrics
from t5x_like.parameters import named_leaves

pytestmark = pytest.mark.full

SENTENCES = (
    "the cat sat on the mat .",
    "a dog ran to the rug .",
    "the dog sat , and a cat ran .",
    "on the mat a cat sat .",
)
DIM = 8
# Of each run.
SETTINGS = {
    "TRAIN_STEPS": 2,
    "EVAL_PERIOD": 2,
    "EVAL_STEPS": 1,
    "SAVE_PERIOD": 2,
    "BATCH_SIZE": 4,
    "LEARNING_RATE": 0.01,
}


class Transfer(NamedTuple):
    """A fine-tuning.

    Attributes:
      files: Gin files after that of the model.
      task: The task.
      write: Writes its files to a directory.
      settings: Further settings.
      frozen: Whether the pretrained model is kept.
    """

    files: Sequence[str]
    task: str
    write: Callable
    settings: dict[str, Any] = {}  # noqa: RUF012 (not changed)
    frozen: bool = False


def single_sentences(directory):
    rows = "".join(f"{text}\t{number % 2}\n" for number, text in enumerate(SENTENCES * 2))
    for split in ("train", "dev"):
        (directory / f"{split}.tsv").write_text("sentence\tlabel\n" + rows)


def pairs(directory):
    texts = zip(SENTENCES, SENTENCES[1:] + SENTENCES[:1], strict=True)
    rows = "".join(f"{n % 2}\t{n}\t{n}\t{first}\t{second}\n" for n, (first, second) in enumerate(list(texts) * 2))
    for split in ("train", "dev"):
        (directory / f"{split}.tsv").write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + rows)


def tagged_words(directory):
    tags = {"cat": "B-person", "dog": "B-person", "rug": "B-location", "mat": "B-location"}
    rows = "\n\n".join("\n".join(f"{word}\t{tags.get(word, 'O')}" for word in text.split()) for text in SENTENCES * 2)
    for name in ("wnut17train.conll", "emerging.dev.conll"):
        (directory / name).write_text(rows + "\n")


def questions(directory):
    answers = {"text": ["the mat"], "answer_start": [15]}
    rows = [{"id": str(n), "question": "on a rug ?", "context": SENTENCES[0], "answers": answers} for n in range(8)]
    for split in ("train", "validation"):
        (directory / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


# Beginnings of the names of weights that fine-tunings do not read.
UNTRAINED = ("logits/",)
SST2, MRPC = "glue_sst2_classification", "glue_mrpc_separate"
BINARY = {"LABELS": ("no", "yes")}
LINEAR = {"WARMUP_STEPS": 1}
SMALL = {"text_vectors_head.TextVectors.size": 4, "text_vectors_head.TextVectors.classifier_size": 4}
SHORT = {"TASK_FEATURE_LENGTHS": {"inputs": 100}}
GRU_CELLS = {"CELLS": "@bidirectional.GRUCells()"}
ELMO = {"ElmoConfig.vocab_size": 64} | LINEAR
FROZEN_VECTORS = {"FROZEN": "^model/"}
# Name -> gin files of the model and of its pretraining, settings of the model and of pretraining, and the fine-tunings.
MODELS = {
    "word2vec": (
        ("models/word_vectors/base.gin", None),
        {"WordVectorsConfig.embed_dim": DIM},
        {},
        (
            Transfer(("runs/finetune_word_vectors.gin",), SST2, single_sentences, BINARY | LINEAR),
            Transfer(
                ("runs/tag_word_vectors.gin", "optimizers/frozen.gin"),
                "wnut17_tagging",
                tagged_words,
                GRU_CELLS | FROZEN_VECTORS | LINEAR,
                frozen=True,
            ),
        ),
    ),
    "lm_lstm": (
        ("models/lstm/tiny.gin", "runs/recurrent_lm.gin"),
        {},
        {"MIXTURE_OR_TASK_NAME": "text_files_causal_lm", "TASK_FEATURE_LENGTHS": {"targets": 6}, "WARMUP_STEPS": 1},
        (Transfer(("runs/finetune_lstm.gin",), SST2, single_sentences, BINARY),),
    ),
    "elmo": (
        ("models/elmo/tiny.gin", "runs/elmo_laptop.gin"),
        {},
        {"SAMPLED_WORDS": 8, "TASK_FEATURE_LENGTHS": {"targets": 6}},
        (
            Transfer(("runs/elmo_classification.gin",), SST2, single_sentences, BINARY | ELMO | SMALL, frozen=True),
            Transfer(("runs/elmo_tagging.gin",), "wnut17_tagging", tagged_words, ELMO | {"FROZEN": None}),
            Transfer(("runs/elmo_span_extraction.gin",), "squad_v1_spans", questions, ELMO | SHORT, frozen=True),
        ),
    ),
    "skip_thoughts": (
        ("models/skip_thoughts/tiny.gin", "runs/skip_thoughts.gin"),
        {},
        {},
        (Transfer(("runs/compare_sentences.gin",), MRPC, pairs, BINARY | LINEAR, frozen=True),),
    ),
}


def train(run_command, files, directory, settings):
    command = ["train", *(f"--gin_file={file}" for file in files), f"--gin.MODEL_DIR={directory}"]
    command += [f"--gin.{name}={value}" for name, value in settings.items()]
    code, output = run_command(command)
    assert code == 0, output
    rows = read_metrics(str(directory))
    assert any(row["split"] == "validation" for row in rows) and all(np.isfinite(row["loss"]) for row in rows)
    return named_leaves(open_model(str(directory)).read_model())


def write_texts(directory, run_command):
    """Writes texts and their vocabulary, and returns the words and the settings that name the files."""
    text, held_out, vocabulary = (directory / name for name in ("text.txt", "held_out.txt", "words"))
    for path in (text, held_out):
        path.write_text("\n".join(SENTENCES * 8) + "\n")
    command = ["vocabulary", f"--pattern={text}", "--kind=words", "--gin.MIN_COUNT=1", f"--output={vocabulary}"]
    code, output = run_command(command)
    assert code == 0, output
    words = [line.split(" ")[0] for line in (vocabulary / "vocab.txt").read_text().splitlines()]
    paths = {"DATA_FILES": text, "VALIDATION_FILES": held_out, "VOCABULARY_PATH": vocabulary}
    return words, {name: f"'{path}'" for name, path in paths.items()}


@pytest.mark.parametrize("name", MODELS)
def test_weights_begin_fine_tunings(name, tmp_path, run_command):
    (model, recipe), sizes, own, transfers = MODELS[name]
    words, data = write_texts(tmp_path, run_command)
    pretrained = tmp_path / "pretrained"
    config = {"word2vec": "WordVectorsConfig", "lm_lstm": "LSTMConfig", "elmo": "ElmoConfig"}.get(name, "GRUConfig")
    sizes = {f"{config}.vocab_size": 3 + len(words)} | sizes
    if recipe is None:  # a file of vectors
        vectors = np.random.default_rng(0).normal(size=(len(words), DIM)).astype(np.float32)
        (tmp_path / "v.vec").write_bytes(word_vectors.to_bytes("v.vec", word_vectors.Vectors(tuple(words), vectors)))
        code, output = run_command(["convert", f"--input={tmp_path}/v.vec", f"--output={pretrained}"])
        assert code == 0, output
        first = named_leaves(open_model(str(pretrained)).read_model())
        np.testing.assert_array_equal(first["token_embedder/embedding"][3:], vectors)
    else:
        first = train(run_command, (model, recipe), pretrained, SETTINGS | sizes | data | own)

    for number, transfer in enumerate(transfers):
        directory, run = tmp_path / f"data_{number}", tmp_path / f"run_{number}"
        directory.mkdir()
        transfer.write(directory)
        settings = {
            "INITIAL_CHECKPOINT_PATH": f"'{pretrained}'",
            "VOCABULARY_PATH": f"'{pretrained}/tokenizer/vocab.txt'" if recipe is None else data["VOCABULARY_PATH"],
            "MIXTURE_OR_TASK_NAME": transfer.task,
            "TASK_ARGUMENTS": {"data_dir": str(directory)},
            "TASK_FEATURE_LENGTHS": {"inputs": 24},
            "TRAIN_EPOCHS": None,
            "SEED": 1,  # for other initial weights than those of pretraining
        }
        settings = SETTINGS | sizes | settings | transfer.settings
        found = train(run_command, (model, *transfer.files), run, settings)
        changed = {leaf for leaf in found if not np.array_equal(found[leaf], first[leaf])}
        trained = {leaf for leaf in found if not leaf.startswith(UNTRAINED)}
        assert trained and changed == (set() if transfer.frozen else trained), transfer.task
        # Two steps at this rate change a weight by less than 0.05; weights of another seed differ more.
        assert all(np.abs(found[leaf] - first[leaf]).max() < 0.05 for leaf in found), transfer.task


def test_vectors_give_skip_thoughts_further_words(tmp_path, run_command):
    """Embeddings are linear in the given vectors, so that a word with the vector of another one has its embedding."""
    words, data = write_texts(tmp_path, run_command)
    run, settings = tmp_path / "run", SETTINGS | data | {"GRUConfig.vocab_size": 3 + len(words)}
    settings |= {"GRUConfig.embedding_dim": 4}
    model = train(run_command, ("models/skip_thoughts/tiny.gin", "runs/skip_thoughts.gin"), run, settings)
    embeddings = np.asarray(model["token_embedder/embedding"])[3:]
    vectors = embeddings @ np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    given = word_vectors.Vectors((*words, "tiger"), np.stack([*vectors, vectors[words.index("cat")]]))
    (tmp_path / "v.vec").write_bytes(word_vectors.to_bytes("v.vec", given))
    (tmp_path / "texts.txt").write_text("the cat sat\nthe tiger sat\nthe zebra sat\n")
    command = ["embed", f"--gin.MODEL_DIR={run}", f"--input={tmp_path}/texts.txt", f"--output={tmp_path}/t.npz"]
    code, output = run_command([*command, f"--gin.WORD_VECTORS={tmp_path}/v.vec"])
    assert code == 0, output
    cat, tiger, zebra = np.load(tmp_path / "t.npz")["vectors"]
    np.testing.assert_allclose(tiger, cat, atol=1e-5)
    assert np.abs(zebra - cat).max() > 1e-3
    code, output = run_command([*command, "--overwrite"])
    assert code == 0, output
    cat, tiger, zebra = np.load(tmp_path / "t.npz")["vectors"]
    np.testing.assert_array_equal(tiger, zebra)  # both are unknown
