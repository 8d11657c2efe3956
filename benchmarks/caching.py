"""Compares the writer of a cache with live SeqIO pipelines: tokens per second of CPU time.

    pip install --no-deps t5 babel
    python benchmarks/caching.py 'books/*.txt' t5.model

The task is T5's span corruption over text files, packed, with 512 inputs and 114 targets. The live pipelines are those
of T5X: `seqio.get_dataset` with SeqIO's own feature converter, which packs example by example. One reads the task of
this project, the other the same documents with the preprocessors of the package `t5`, if it is installed. They run in
turn, and rates are per second of CPU time, summed over all threads, so that other load on the machine has little
effect.
"""

import argparse
import functools
import statistics
import tempfile
import time

import seqio

from t5x_like.data.cached import writer
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence

TASK = "text_files_span_corruption"
T5_TASK = "text_files_t5_package"
LENGTHS = {"inputs": 512, "targets": 114}
BATCH_SIZE = 128


def written(source: SeqIOSource, examples: int) -> float:
    """Writes a shard and returns its tokens per second of CPU time, without those before its first rows."""
    progress: list[tuple[float, int]] = []  # CPU seconds, and tokens since the entry before
    with tempfile.TemporaryDirectory() as directory:
        plan = writer.Plan(
            directory, source, SequenceToSequence().features, examples=examples, shards=1, single_thread=True
        )
        plan.begin()
        writer.write_shard(plan, (0, 0), lambda rows, tokens: progress.append((time.process_time(), tokens)))
    return sum(tokens for _, tokens in progress[1:]) / (progress[-1][0] - progress[0][0])


def add_t5_task(task: seqio.Task) -> bool:
    """Registers span corruption by the package `t5` over the documents of a task; returns False if it is missing."""
    try:
        from t5.data import preprocessors  # noqa: PLC0415
    except ImportError:
        return False
    seqio.TaskRegistry.add(
        T5_TASK,
        source=task.source,
        preprocessors=[
            functools.partial(seqio.preprocessors.rekey, key_map={"inputs": None, "targets": "text"}),
            seqio.preprocessors.tokenize,
            preprocessors.span_corruption,
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features=task.output_features,
    )
    return True


def read_live(task: str, examples: int) -> float:
    """Reads a task with SeqIO and returns the tokens per second of CPU time, without the first batch."""
    ds = seqio.get_dataset(
        task,
        task_feature_lengths=LENGTHS,
        dataset_split="train",
        shuffle=True,
        num_epochs=None,
        feature_converter=seqio.EncDecFeatureConverter(pack=True),
        seed=0,
    )
    batches = ds.batch(BATCH_SIZE).prefetch(2).as_numpy_iterator()
    next(batches)
    started, tokens = time.process_time(), 0
    for _ in range(-(-examples // BATCH_SIZE)):
        batch = next(batches)
        tokens += sum(int((batch[name] > 0).sum()) for name in ("encoder_input_tokens", "decoder_target_tokens"))
    return tokens / (time.process_time() - started)


def main() -> None:
    """Measures all in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", help="pattern of .txt or .jsonl files")
    parser.add_argument("vocabulary", help="SentencePiece model")
    parser.add_argument("--examples", type=int, default=20_000, help="examples per measurement (default: 20,000)")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each (default: 3)")
    arguments = parser.parse_args()
    source = SeqIOSource(
        mixture_or_task_name=TASK,
        task_feature_lengths=LENGTHS,
        batch_size=BATCH_SIZE,
        task_arguments={"pattern": arguments.files, "vocabulary_path": arguments.vocabulary},
    )
    measurements = {
        "cache": functools.partial(written, source, arguments.examples),
        "live": functools.partial(read_live, source.provider.name, arguments.examples),
    }
    if add_t5_task(source.provider):
        measurements["live, t5"] = functools.partial(read_live, T5_TASK, arguments.examples)
    else:
        print("the package t5 is not installed, so its preprocessors are not measured")
    rates: dict[str, list[float]] = {name: [] for name in measurements}
    for _ in range(arguments.repeats):
        for name, measure in measurements.items():
            rates[name].append(measure())
    cache = statistics.median(rates["cache"])
    for name, found in rates.items():
        median = statistics.median(found)
        print(
            f"{name:9} {median:12,.0f} tokens per CPU second ({min(found):,.0f} to {max(found):,.0f}), "
            f"cache / {name}: {cache / median:.2f}"
        )


if __name__ == "__main__":
    main()
