"""The recipes of word vectors train on text files by the command line, resume, and their vectors are read."""

import json
import shutil

import numpy as np
import pytest

from t5x_like.interop import word_vectors
from t5x_like.loading import open_model
from t5x_like.metrics import read_metrics

pytestmark = pytest.mark.full

SENTENCES = ("the cat sat on the mat", "the dog sat on the rug", "a cat and a dog ran to the rug")
REPEATED = 50
COUNTS = {"the": 5, "a": 2, "cat": 2, "dog": 2, "on": 2, "rug": 2, "sat": 2, "and": 1, "mat": 1, "ran": 1, "to": 1}
STEPS, SAVE_PERIOD, DIM = 20, 5, 8
# Recipe -> the file of its model, and its own settings. Updates of 256 examples, which have few words, would diverge.
RECIPES = {
    "word2vec": ("base", {"SUBSAMPLING": 0.0, "EXAMPLES_PER_UPDATE": 32}),
    "glove": ("base", {"EXAMPLES_PER_UPDATE": 8}),
    "fasttext": ("fasttext", {"SUBSAMPLING": 0.0, "BUCKETS": 50, "EXAMPLES_PER_UPDATE": 8}),
}


@pytest.mark.parametrize("recipe", ["fasttext", "glove", pytest.param("word2vec", marks=pytest.mark.slow)])
def test_run_learns_and_resumes_with_the_same_losses(recipe, tmp_path, run_command):
    text, held_out, vocabulary, run = (tmp_path / name for name in ("text.txt", "held_out.txt", "words", "run"))
    text.write_text("\n".join((*SENTENCES * REPEATED, "rare words")) + "\n")
    held_out.write_text("the cat and the dog\n")
    code, output = run_command(["vocabulary", f"--pattern={text}", "--kind=words", f"--output={vocabulary}"])
    assert code == 0, output
    lines = (vocabulary / "vocab.txt").read_text().splitlines()
    assert {word: int(count) for word, count in (line.split(" ") for line in lines)} == {
        word: count * REPEATED for word, count in COUNTS.items()
    }
    size = 3 + len(COUNTS)
    assert f"vocab_size = {size}" in output

    model, own = RECIPES[recipe]
    settings = {"DATA_FILES": repr(str(text)), "VALIDATION_FILES": repr(str(held_out))}
    settings |= {"VOCABULARY_PATH": repr(f"{vocabulary}/vocab.txt"), "WordVectorsConfig.vocab_size": size}
    settings |= {
        "WordVectorsConfig.embed_dim": DIM,
        "TRAIN_STEPS": STEPS,
        "SAVE_PERIOD": SAVE_PERIOD,
        "LOG_PERIOD": 1,
        "KEEP_CHECKPOINTS": 4,
    }
    settings |= {"BATCH_SIZE": 4, "TASK_FEATURE_LENGTHS": {"targets": 20}, "MODEL_DIR": repr(str(run))} | own
    command = ["train", f"--gin_file=models/word_vectors/{model}.gin", f"--gin_file=runs/{recipe}.gin"]
    command += [f"--gin.{name}={value}" for name, value in settings.items()]

    def losses():
        code, output = run_command(command)
        assert code == 0, output
        return {row["step"]: row["loss"] for row in read_metrics(str(run)) if row["split"] == "train"}

    whole = losses()
    assert list(whole) == [*range(1, STEPS + 1)] and whole[STEPS] < 0.75 * whole[1]
    for step in range(2 * SAVE_PERIOD, STEPS + 1, SAVE_PERIOD):  # as after a kill
        shutil.rmtree(run / "checkpoints" / str(step))
    assert losses() == whole
    starts = [json.loads(line)["step"] for line in (run / "starts.jsonl").read_text().splitlines()]
    assert starts == [0, SAVE_PERIOD] and (run / "checkpoints" / str(STEPS)).is_dir()

    code, output = run_command(["convert", f"--input={run}", f"--output={tmp_path}/vectors.vec"])
    assert code == 0, output
    found = word_vectors.read(f"{tmp_path}/vectors.vec")
    assert found.words == tuple(line.split(" ")[0] for line in lines) and found.vectors.shape == (len(COUNTS), DIM)
    assert np.isfinite(found.vectors).all() and len(np.unique(found.vectors, axis=0)) == len(COUNTS)

    # fastText has vectors of other words, too.
    (tmp_path / "texts.txt").write_text("the cats\n")
    texts = [f"--input={tmp_path}/texts.txt", f"--output={tmp_path}/tokens.npz", "--gin.LEVEL=token"]
    code, output = run_command(["embed", f"--gin.MODEL_DIR={run}", *texts])
    assert code == 0, output
    embedded, words = np.load(tmp_path / "tokens.npz"), ["the", "cats"] if recipe == "fasttext" else ["the"]
    assert embedded["tokens"].tolist() == words
    np.testing.assert_allclose(embedded["vectors"][0], found.vectors[found.words.index("the")], rtol=1e-5)
    if recipe == "fasttext":
        loaded = open_model(str(run))
        composed = loaded.objective.compose("cats", loaded.params["model"].token_embedder.table)
        np.testing.assert_allclose(embedded["vectors"][1], composed, rtol=1e-5)
    code, output = run_command(
        ["embed", f"--gin.MODEL_DIR={run}", *texts, "--overwrite", f"--gin.WORD_VECTORS={tmp_path}/vectors.vec"]
    )
    assert code == 2 and "WORD_VECTORS: the model is itself a table of word vectors" in output
