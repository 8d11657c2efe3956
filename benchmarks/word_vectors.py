"""Compares skip-gram and its vectors with gensim's, on CPU.

pip install --target=gensim gensim
PYTHONPATH=.:gensim python benchmarks/word_vectors.py 'prepared/*.txt'

The texts have words that whitespace separates, and a sentence per line. Both libraries train vectors of 100 features
with 5 negative samples, in a new process each, and take turns. The words per second of this project are those of the
loop without its first interval, which includes compilation; gensim's are those of `train`. Both count the words before
subsampling. Each of gensim's workers computes the learning rate from its own progress over the whole text, so that the
rate falls by half of its share in an epoch with two workers: compare vectors with `--workers=1`. The
correlation is Spearman's, of 20,000 cosines among the 3,000 most frequent words.
"""

import argparse
import glob
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import textwrap

import numpy as np
from scipy import stats

WORDS_PER_STEP = 10_000
FREQUENT, PAIRS = 3_000, 20_000
GENSIM = textwrap.dedent("""
    import json, sys, time
    from gensim.models import Word2Vec
    text, vectors, seed, epochs, workers = sys.argv[1:]
    settings = dict(sg=1, negative=5, window=5, sample=1e-3, min_count=5, vector_size=100)
    model = Word2Vec(**settings, workers=int(workers), seed=int(seed), epochs=int(epochs))
    model.build_vocab(corpus_file=text)
    start = time.monotonic()
    model.train(corpus_file=text, total_examples=model.corpus_count, total_words=model.corpus_total_words,
                epochs=int(epochs))
    seconds = time.monotonic() - start
    model.wv.save_word2vec_format(vectors)
    counts = {word: int(model.wv.get_vecattr(word, "count")) for word in model.wv.index_to_key}
    print(json.dumps({"rate": model.corpus_total_words * int(epochs) / seconds, "counts": counts}))
""")


def run(*command: object) -> str:
    """Runs a command and returns its output."""
    return subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True).stdout


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


def ours(files: str, folder: pathlib.Path, words: int, vocabulary: int, epochs: int, seed: int) -> float:
    """Trains in `folder`, writes vectors.vec there, and returns the words per second."""
    settings = {
        "DATA_FILES": repr(files),
        "VALIDATION_FILES": repr(sorted(glob.glob(files))[0]),  # so that no document is held out
        "VOCABULARY_PATH": repr(f"{folder.parent}/words/vocab.txt"),
        "WordVectorsConfig.vocab_size": vocabulary,
        "TRAIN_STEPS": max(round(epochs * words / WORDS_PER_STEP), 2),
        "EVAL_PERIOD": None,
        "LOG_PERIOD": 20,
        "SEED": seed,
        "MODEL_DIR": repr(f"{folder}/run"),
    }
    given = [f"--gin.{name}={value}" for name, value in settings.items()]
    recipe = ("--gin_file=models/word_vectors/base.gin", "--gin_file=runs/word2vec.gin")
    run(sys.executable, "-m", "t5x_like", "train", *recipe, *given)
    run(sys.executable, "-m", "t5x_like", "convert", f"--input={folder}/run", f"--output={folder}/vectors.vec")
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    rows = [line for line in lines if line["split"] == "train" and "seconds_per_step" in line]
    return WORDS_PER_STEP / statistics.median(row["seconds_per_step"] for row in rows[1:] or rows)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", help="pattern of text files")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the text")
    parser.add_argument("--workers", type=int, default=2, help="threads of gensim")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each library, with different seeds")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        texts = [pathlib.Path(name).read_text() for name in sorted(glob.glob(given.files))]
        (root / "text.txt").write_text("\n".join(texts))
        vocabulary = ("vocabulary", f"--pattern={given.files}", "--kind=words", f"--output={root}/words")
        run(sys.executable, "-m", "t5x_like", *vocabulary)
        lines = (line.split(" ") for line in (root / "words/vocab.txt").read_text().splitlines())
        counts = {word: int(count) for word, count in lines}
        rates: dict[str, list[float]] = {"this project": [], "gensim": []}
        found: dict[str, np.ndarray] = {}
        frequent = sorted(counts, key=lambda word: -counts[word])[:FREQUENT]
        for seed in range(given.rounds):
            own = root / f"own_{seed}"
            own.mkdir()
            total = sum(counts.values())
            rates["this project"].append(ours(given.files, own, total, len(counts) + 3, given.epochs, seed))
            found[f"this project, seed {seed}"] = cosines(read(own / "vectors.vec"), frequent)
            path = root / f"gensim_{seed}.vec"
            printed = run(sys.executable, "-c", GENSIM, root / "text.txt", path, seed, given.epochs, given.workers)
            theirs = json.loads(printed.splitlines()[-1])
            rates["gensim"].append(theirs["rate"])
            found[f"gensim, seed {seed}"] = cosines(read(path), frequent)
            print(f"round {seed}: equal counts {theirs['counts'] == counts}, {rates}", flush=True)
    print("\n| | words per second |\n|---|---|")
    for name, values in rates.items():
        print(f"| {name} | {', '.join(f'{value:,.0f}' for value in values)} |")
    print(f"\n| rank correlation | {' | '.join(found)} |\n|{'---|' * (len(found) + 1)}")
    for name, values in found.items():
        row = (f"{stats.spearmanr(values, other).statistic:.3f}" for other in found.values())
        print(f"| {name} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
