"""Compares skip-gram and its vectors with gensim's, and measures GloVe beside them, on CPU.

pip install --target=gensim gensim
PYTHONPATH=.:gensim python benchmarks/word_vectors.py 'prepared/*.txt'

The texts have words that whitespace separates, and a sentence per line. Both libraries train skip-gram vectors of 100
features with 5 negative samples, in a new process each, and take turns. Words are those of the vocabulary before
subsampling, counted once per pass over the text. The seconds of this project are those of the loop after the first
interval, without compilation; gensim's are those of `train`. CPU seconds are those of all threads of the process.

gensim does not train GloVe. GloVe's counting is the matrix of counts from ids of words, with windows of 15 on both
sides; its training is measured like skip-gram's, where a pass over the counts is a pass over the words of the text.

Each of gensim's workers computes the learning rate from its own progress over the whole text, so that the rate falls by
half of its share in an epoch with two workers. gensim reads the text in order, and this project shuffles it: compare
vectors with `--workers=1 --shuffle`. The correlation is Spearman's, of 20,000 cosines among the 3,000 most frequent
words.
"""

import argparse
import glob
import json
import multiprocessing
import pathlib
import random
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import NamedTuple, TypeVar

import numpy as np
from scipy import stats

TOKENS_PER_STEP = 10_000  # BATCH_SIZE of runs/word2vec.gin times 1,000, with ends of lines
COUNTS_PER_STEP = 64_000  # BATCH_SIZE of runs/glove.gin times 1,000
GLOVE_PASSES, GLOVE_WINDOW = 2, 15
LOG_PERIOD = 20
FREQUENT, PAIRS = 3_000, 20_000
Result = TypeVar("Result")
# A gin file by which `train` calls `record` when it logs.
CLOCK = textwrap.dedent("""
    from __gin__ import dynamic_registration
    from benchmarks import word_vectors as clock
    from t5x_like import train
    train.train.on_log = @clock.record
    clock.record.path = {path!r}
""")


class Rate(NamedTuple):
    """A speed.

    Attributes:
      per_second: Words per second.
      per_cpu_second: Words per second of CPU time.
    """

    per_second: float
    per_cpu_second: float


def record(step: int, row: Mapping[str, float], *, path: str) -> None:
    """Appends the clocks at a step to a file; `train` calls it when it logs.

    Args:
      step: The step.
      row: Its metrics.
      path: The file.
    """
    with open(path, "a") as file:
        file.write(json.dumps([step, time.monotonic(), time.process_time()]) + "\n")


def train_gensim(text: str, vectors: str, seed: int, epochs: int, workers: int) -> tuple[Rate, dict[str, int]]:
    """Trains gensim's skip-gram vectors on a text file and writes them.

    Returns:
      The speed, and word -> count.
    """
    from gensim.models import Word2Vec

    model = Word2Vec(
        sg=1, negative=5, window=5, sample=1e-3, min_count=5, vector_size=100, seed=seed, epochs=epochs, workers=workers
    )
    model.build_vocab(corpus_file=text)
    sizes = {"total_examples": model.corpus_count, "total_words": model.corpus_total_words, "epochs": epochs}
    start, cpu = time.monotonic(), time.process_time()
    model.train(corpus_file=text, **sizes)
    seconds, cpu = time.monotonic() - start, time.process_time() - cpu
    model.wv.save_word2vec_format(vectors)
    counts = {word: int(model.wv.get_vecattr(word, "count")) for word in model.wv.index_to_key}
    words = sum(counts.values()) * epochs
    return Rate(words / seconds, words / cpu), counts


def count_pairs(text: str, vocabulary: str) -> tuple[Rate, int, int]:
    """Counts the pairs of words of a text file for GloVe.

    Returns:
      The speed, the number of words, and the number of counts.
    """
    from t5x_like.data import cooccurrences
    from t5x_like.vocabularies import word_counts

    ids = {word: number for number, word in enumerate(word_counts.read(vocabulary).words, word_counts.FIRST_WORD_ID)}
    lines = pathlib.Path(text).read_text().split("\n")
    numbered = ([*(ids.get(word, word_counts.UNK_ID) for word in line.split()), word_counts.EOS_ID] for line in lines)
    stream = np.concatenate([np.array(line) for line in numbered])
    start, cpu = time.monotonic(), time.process_time()
    found = cooccurrences.count(stream, window=GLOVE_WINDOW)
    seconds, cpu = time.monotonic() - start, time.process_time() - cpu
    words = int(np.sum(stream >= word_counts.FIRST_WORD_ID))
    return Rate(words / seconds, words / cpu), words, len(found.counts)


def in_new_process(function: Callable[..., Result], *arguments: object) -> Result:
    """Calls a function in a new process."""
    with futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def command(name: str, *arguments: str) -> None:
    """Runs a command of this project."""
    subprocess.run([sys.executable, "-m", "t5x_like", name, *arguments], check=True, stdout=subprocess.DEVNULL)


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns word -> vector of a text file."""
    lines = (line.rstrip("\n").split(" ") for line in path.read_text().splitlines()[1:])
    return {word: np.array(values, np.float32) for word, *values in lines}


def cosines(vectors: dict[str, np.ndarray], words: list[str]) -> np.ndarray:
    """Returns the cosines of random pairs of words, the same for all vectors."""
    table = np.stack([vectors[word] / np.linalg.norm(vectors[word]) for word in words])
    left, right = np.random.default_rng(0).integers(len(words), size=(2, PAIRS))
    kept = left != right
    return np.sum(table[left[kept]] * table[right[kept]], axis=1)


def train(recipe: str, folder: pathlib.Path, settings: Mapping[str, object], words: float) -> Rate:
    """Trains a recipe in a folder, and returns its speed.

    Args:
      recipe: Such as word2vec, of `runs/word2vec.gin`.
      folder: A new folder.
      settings: Macros of the run.
      words: Number of words of a step.
    """
    folder.mkdir()
    clock = folder / "clock.jsonl"
    (folder / "clock.gin").write_text(CLOCK.format(path=str(clock)))
    files = ("models/word_vectors/base.gin", f"runs/{recipe}.gin", f"{folder}/clock.gin")
    given = {**settings, "EVAL_PERIOD": None, "LOG_PERIOD": LOG_PERIOD, "MODEL_DIR": repr(f"{folder}/run")}
    arguments = [f"--gin_file={file}" for file in files] + [f"--gin.{name}={value}" for name, value in given.items()]
    command("train", *arguments)
    command("convert", f"--input={folder}/run", f"--output={folder}/vectors.vec")
    # Step 1 is logged, too, and includes compilation.
    _, first, *_, last = (json.loads(line) for line in clock.read_text().splitlines())
    done = words * (last[0] - first[0])
    return Rate(done / (last[1] - first[1]), done / (last[2] - first[2]))


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", help="pattern of text files")
    parser.add_argument("--epochs", type=int, default=5, help="passes of skip-gram over the text")
    parser.add_argument("--workers", type=int, default=2, help="threads of gensim")
    parser.add_argument("--shuffle", action="store_true", help="give gensim the lines of the text in a random order")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each library, with different seeds")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        texts = [pathlib.Path(name).read_text() for name in sorted(glob.glob(given.files))]
        text, vocabulary = f"{root}/text.txt", f"{root}/words/vocab.txt"
        lines = "\n".join(texts).split("\n")
        if given.shuffle:
            random.Random(0).shuffle(lines)
        pathlib.Path(text).write_text("\n".join(lines))
        command("vocabulary", f"--pattern={given.files}", "--kind=words", f"--output={root}/words")
        lines = (line.split(" ") for line in pathlib.Path(vocabulary).read_text().splitlines())
        counts = {word: int(count) for word, count in lines}
        total, frequent = sum(counts.values()), sorted(counts, key=lambda word: -counts[word])[:FREQUENT]
        steps_of_pass = (total + sum(text.count("\n") for text in texts)) / TOKENS_PER_STEP
        (root / "held_out.txt").write_text(texts[0][:1000])
        settings = {
            "DATA_FILES": repr(given.files),
            "VALIDATION_FILES": repr(f"{root}/held_out.txt"),  # so that all of the text is trained on
            "VOCABULARY_PATH": repr(vocabulary),
            "WordVectorsConfig.vocab_size": len(counts) + 3,
        }
        rates: dict[str, list[Rate]] = {}
        found: dict[str, np.ndarray] = {}
        for seed in range(given.rounds):
            steps = max(round(given.epochs * steps_of_pass), 3 * LOG_PERIOD)
            of_run = settings | {"SEED": seed, "TRAIN_STEPS": steps}
            rate = train("word2vec", root / f"own_{seed}", of_run, total / steps_of_pass)
            rates.setdefault("skip-gram, this project", []).append(rate)
            found[f"this project, seed {seed}"] = cosines(read(root / f"own_{seed}/vectors.vec"), frequent)

            path = root / f"gensim_{seed}.vec"
            rate, theirs = in_new_process(train_gensim, text, str(path), seed, given.epochs, given.workers)
            rates.setdefault(f"skip-gram, gensim, workers={given.workers}", []).append(rate)
            found[f"gensim, seed {seed}"] = cosines(read(path), frequent)

            rate, words, entries = in_new_process(count_pairs, text, vocabulary)
            rates.setdefault("GloVe, counting", []).append(rate)
            passes = entries / COUNTS_PER_STEP
            of_run["TRAIN_STEPS"] = max(round(GLOVE_PASSES * passes), 3 * LOG_PERIOD)
            rate = train("glove", root / f"glove_{seed}", of_run, words / passes)
            rates.setdefault("GloVe, a pass over the counts", []).append(rate)
            print(f"round {seed}: equal counts {theirs == counts}, {entries} entries", flush=True)
    print("\n| | words per second | words per CPU second |\n|---|---|---|")
    for name, values in rates.items():
        columns = (", ".join(f"{getattr(rate, field):,.0f}" for rate in values) for field in Rate._fields)
        print(f"| {name} | {' | '.join(columns)} |")
    print(f"\n| rank correlation | {' | '.join(found)} |\n|{'---|' * (len(found) + 1)}")
    for name, values in found.items():
        row = (f"{stats.spearmanr(values, other).statistic:.3f}" for other in found.values())
        print(f"| {name} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
