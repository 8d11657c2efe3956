"""Measures tokenization in a live pipeline: tokens per second of texts that TensorFlow reads.

    python benchmarks/tokenization.py 'books/*.txt' bert-base-uncased gpt2 …

Each tokenizer is a Hugging Face directory. Texts are documents of 4,000 characters. The first pass meets words for the
first time, the second one has seen them all. With --cores=1, the process keeps to one core.
"""

import argparse
import glob
import os
import pathlib
import time

import tensorflow as tf

from t5x_like.vocabularies.from_folder import from_folder

CHARACTERS = 4_000


def documents(pattern: str) -> list[str]:
    """Returns the documents of the files that match a pattern."""
    texts = (pathlib.Path(path).read_text(encoding="utf-8", errors="replace") for path in sorted(glob.glob(pattern)))
    return [text[start : start + CHARACTERS] for text in texts for start in range(0, len(text), CHARACTERS)]


def measure(dataset: tf.data.Dataset) -> tuple[int, float, float]:
    """Returns the number of tokens of a pass, its seconds, and its seconds of CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    count = sum(len(ids) for ids in dataset.as_numpy_iterator())
    return count, time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    """Prints a line per tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", help="pattern of text files")
    parser.add_argument("tokenizers", nargs="+", help="Hugging Face directories")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="number of cores (default: all)")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    texts = tf.data.Dataset.from_tensor_slices(documents(options.files))
    print(f"{'tokenizer':24} {'tokens':>10}  1,000 tokens/s: first pass, again; per second of CPU: first pass, again")
    for directory in options.tokenizers:
        vocabulary = from_folder(directory)
        encoded = texts.map(vocabulary.encode_tf, num_parallel_calls=options.cores)
        measure(encoded.take(1))  # builds the graph
        passes = [measure(encoded) for _ in range(2)]
        rates = [each[0] / each[column] / 1000 for column in (1, 2) for each in passes]
        shown = " ".join(f"{rate:10,.0f}" for rate in rates)
        print(f"{pathlib.Path(directory).name:24} {passes[0][0]:10,} {shown}", flush=True)


if __name__ == "__main__":
    main()
