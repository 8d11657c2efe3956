"""`t5x_like inspect`: shows the rows that a model reads from a task, and reports problems."""

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from t5x_like import inspect_origins
from t5x_like.data import first_rows, prompts, specs
from t5x_like.data.cached import CachedSource
from t5x_like.data.features import FeatureSpec
from t5x_like.data.inspection import Inspection, against_padding
from t5x_like.data.span_lengths import span_lengths
from t5x_like.data.token_text import continuous_rows, length_name, piece, rows_as_text
from t5x_like.errors import UserError
from t5x_like.runtime import terminal
from t5x_like.vocabularies.sentinels import sentinel_ids

if TYPE_CHECKING:
    from t5x_like.data.seqio_feed import SeqIOSource

PERCENTILES = (0, 10, 50, 90, 99, 100)
# Default lengths: short rows, and their number of predictions. BERT masks at most 20 of 128 tokens.
DEFAULT_LENGTH = 128
DEFAULT_PREDICTIONS = 20
# A larger fraction of unknown tokens is a problem: they are noise.
UNKNOWN_FRACTION = 0.001


def inspect(
    source: "SeqIOSource",
    *,
    spec: FeatureSpec | str | None = None,
    pack: bool | None = None,
    separator: str | None = None,
    num_examples: int = 2,
    sample: int = 1000,
    find: str | None = None,
    cache_dir: str | None = None,
    row: int | None = None,
    step: int | None = None,
    console: Console | None = None,
) -> Inspection:
    """Prints the rows that a model reads from a task or mixture, with statistics and problems.

    Args:
      source: The task or mixture, which is read once and in order. Without lengths, it gets short ones that suit the
        task. Its batch size matters to continuous data, in which `┃` is printed where a document begins, and with
        `step`.
      spec: Features that the objective reads, or their name in `t5x_like.data.specs`, such as PREFIX_LM. By default
        the spec that reads most of the task's features.
      pack: Whether several examples share a row; by default if the spec is packable.
      separator: Text between the inputs and targets that a decoder reads in one row; None for EOS.
      num_examples: Number of rows to print; of continuous data, the number of rows of a batch and of batches.
      sample: Number of documents and examples for statistics, from the start of the split.
      find: Text, such as a part of a row. Only the documents of files that contain it are printed, with the file, the
        record, and its URL and date.
      cache_dir: Cache of the task, of which a row is printed instead, with the documents that it comes from.
      row: Number of the row from 0 in the cache, or with `step` in the batch of a run.
      step: Step of a run from 1, whose batch size and seed `source` has.
      console: Console to print to; by default the terminal.

    Returns:
      The statistics and problems that were printed.

    Raises:
      UserError: TensorFlow and SeqIO are not installed, the module of the task is not found, its name is not
        registered, or the settings do not suit the task.
    """
    console = console or terminal.console()
    judged = bool(source.task_feature_lengths)  # padding at default lengths is not a problem of the user's settings
    batch_size = source.batch_size
    source = dataclasses.replace(
        source, shuffle=False, num_epochs=1, pack=bool(pack), batch_size=batch_size if source.continuous else 1
    )
    if not isinstance(spec, FeatureSpec):
        spec = specs.get_spec(spec) if spec else source.suitable_spec()
    if any(feature.role == "shifted" and len(feature.sources) > 1 for feature in spec.features):
        spec = dataclasses.replace(spec, separator=separator)  # a decoder reads BOS, inputs and targets in one row
    prompts.check(source, spec)
    source = dataclasses.replace(
        source,
        task_feature_lengths=source.task_feature_lengths or default_lengths(spec, source.tasks),
        pack=spec.packable and not source.continuous if pack is None else pack,
    )
    found = Inspection()
    if row is not None or cache_dir is not None:
        if row is None or cache_dir is None:
            raise UserError(f"ROW={row}, CACHE_DIR={cache_dir}: give both, the cache and the number of its row.")
        settings = {"split": source.split, "seed": source.seed, "mixture_or_task_name": source.name}
        cache = CachedSource(cache_dir=cache_dir, batch_size=batch_size, **settings)
        names = _special_names(source, spec)
        return inspect_origins.print_row(cache, spec, row, step, _text_vocabularies(source), names, console)
    if find is not None:
        inspect_origins.print_origins(source, find, found, console)
        _print_problems(found, console)
        return found
    _print_task(source, console)
    _print_vocabularies(source, console)
    from t5x_like.data.seqio_feed import task_errors  # after the source, which explains that TensorFlow is missing

    with task_errors.explain_errors(source):
        _print_documents(source, sample, found, console)
        _check_source(source, sample, found)
        _print_lengths(source, spec, sample, found, console)
        _print_kept_text(source, spec, judged, found, console)
        _print_rows(source, spec, sample, num_examples, judged, found, console)
    _print_problems(found, console)
    return found


def default_lengths(spec: FeatureSpec, tasks: Sequence[Any]) -> dict[str, int]:
    """Returns default lengths for inspecting tasks.

    Args:
      spec: Features that the objective reads.
      tasks: SeqIO tasks. The length of the targets of span corruption follows from its parameters.
    """
    from data_tasks import preprocessors

    lengths = dict.fromkeys(spec.length_keys, DEFAULT_LENGTH)
    if any(feature.role == "row_positions" for feature in spec.features):
        return lengths | {"targets": DEFAULT_PREDICTIONS}
    corrupted = [preprocessors.options_of(task, preprocessors.span_corruption) for task in tasks]
    if "inputs" in lengths and None not in corrupted:
        rates = [
            {name: value for name, value in options.items() if name in ("noise_density", "mean_noise_span_length")}
            for options in corrupted
        ]
        return lengths | {"targets": max(span_lengths(DEFAULT_LENGTH, **rate).targets for rate in rates)}
    return lengths


# ---- sections of the output, in the order of the data ----------------------------------------------------------------


def _print_task(source: "SeqIOSource", console: Console) -> None:
    console.rule(f"[bold]{source.mixture_or_task_name}")
    for line in source.describe():
        console.print(Text(line))


def _print_vocabularies(source: "SeqIOSource", console: Console) -> None:
    groups: list[tuple[list[str], Any]] = []
    for name, vocabulary in _text_vocabularies(source).items():
        same = next((names for names, other in groups if other == vocabulary), None)
        if same is None:
            groups.append(([name], vocabulary))
        else:
            same.append(name)
    for names, vocabulary in groups:
        size, sentinels = vocabulary.vocab_size, sentinel_ids(vocabulary)
        direction = "down to" if sentinels.step < 0 else "up to"
        path = getattr(vocabulary, "sentencepiece_model_file", "")
        console.print(Text(f"\nvocabulary of {' and '.join(names)}: {type(vocabulary).__name__} {path}".rstrip()))
        console.print(
            Text(
                f"  {size:,} ids: padding {vocabulary.pad_id}, EOS {vocabulary.eos_id}, unknown {vocabulary.unk_id}, "
                + (
                    f"{len(sentinels)} sentinels from {sentinels[0]} {direction} {sentinels[-1]}"
                    if sentinels
                    else "no sentinels"
                )
            )
        )
        ids = np.linspace(3, max(size - vocabulary.extra_ids - 1, 3), 24).astype(int)
        console.print(
            Text("  pieces: ") + Text(" ").join(Text(piece(int(token), vocabulary), style="cyan") for token in ids)
        )


def _print_documents(source: "SeqIOSource", sample: int, found: Inspection, console: Console) -> None:
    """Counts the documents that the shipped `documents` preprocessor skips, if a task uses it."""
    from data_tasks import preprocessors

    counts: Counter[str] = Counter()
    for task in source.tasks if not source.use_cached else ():
        documents, skipped = preprocessors.count_skipped(task, source.split, sample)
        found.documents, counts = found.documents + documents, counts + skipped
    found.skipped = dict(counts)
    if found.documents:
        skipped = ", ".join(f"{count:,} {reason}" for reason, count in counts.items()) or "none"
        console.print(Text(f"\nskipped documents among the first {found.documents:,}: {skipped}"))
        if (share := counts.total() / found.documents) > first_rows.PADDING_FRACTION:
            found.problems.append(
                f"{share:.0%} of the documents are skipped ({skipped}). Check that the text feature is the right one."
            )


def _check_source(source: "SeqIOSource", sample: int, found: Inspection) -> None:
    from t5x_like.data.seqio_feed.equal_splits import equal_splits
    from t5x_like.data.seqio_feed.source_bytes import count_bytes

    with _record_errors(found, "the source cannot be read"):
        found.problems += count_bytes(source, sample).problems()
        for task, other, number in equal_splits(source, sample):
            found.problems.append(
                f"the splits {source.split!r} and {other!r} of {task} are the same data ({number:,} examples were "
                "compared). Give each its own."
            )
    for task in source.tasks:
        for reason, number in getattr(task.source, "skipped", {}).items():
            found.problems.append(f"{task.name} skipped {number:,} {reason} of the files; the log names some of them.")


def _print_lengths(source: "SeqIOSource", spec: FeatureSpec, sample: int, found: Inspection, console: Console) -> None:
    from t5x_like.data.seqio_feed import truncated_examples
    from t5x_like.data.seqio_feed.class_counts import ClassCounts, label_names

    vocabularies = _text_vocabularies(source)
    limits = {name: spec.length_key(name) for name in spec.task_features if spec.is_token_ids(name)}
    limits |= {name: name for name in source.task_feature_lengths}
    lengths: dict[str, list[int]] = {name: [] for name in limits}
    tokens, unknown, padding_ids = Counter(), Counter(), source.padding_ids()
    added = truncated_examples.added_tokens(source, spec)
    classes = ClassCounts(label_names(source))
    with _record_errors(found, "the task cannot be read"):
        for example in source.examples(sample, separator=spec.separator, trimmed=False):
            classes.add(example)
            for name in lengths:
                if name in example:
                    real = truncated_examples.without_padding(example[name], padding_ids.get(name, 0))
                    lengths[name].append(len(real) + added.get(name, 0))
                    tokens[name] += len(real)
                    unknown[name] += int(np.sum(real == vocabularies[name].unk_id)) if name in vocabularies else 0
    found.lengths = {name: np.array(counted) for name, counted in lengths.items() if counted}
    if not found.lengths:
        if not found.problems:
            found.problems.append(
                f"the split {source.split!r} has no examples. Check whether its documents are too short or skipped."
            )
        return

    columns = ("tokens", *(f"{p} %" for p in PERCENTILES), "limit", "too long", "unknown")
    table = Table(*columns, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for name, counted in found.lengths.items():
        key = limits[name]
        limit = source.task_feature_lengths[key]
        found.trimmed[name] = 0 if source.continuous else int(np.sum(counted > limit))
        found.unknown[name] = unknown[name] / max(tokens[name], 1)
        percentiles = (f"{value:.0f}" for value in np.percentile(counted, PERCENTILES))
        table.add_row(name, *percentiles, str(limit), str(found.trimmed[name]), f"{found.unknown[name]:.2%}")
        if found.trimmed[name]:
            found.problems.append(truncated_examples.describe(counted, name, limit, key))
        if found.unknown[name] > UNKNOWN_FRACTION:
            found.problems.append(
                f"{found.unknown[name]:.1%} of the tokens of {name!r} are unknown to the vocabulary. Use "
                "a vocabulary that was trained on this language."
            )
    count = len(next(iter(found.lengths.values())))
    console.print(Text(f"\nlengths of the first {count:,} examples, percentiles before trimming"))
    console.print(table)
    found.classes = classes.counts
    _print_classes(count, found, console)


def _print_kept_text(source: "SeqIOSource", spec: FeatureSpec, judged: bool, found: Inspection, console: Console):
    """Prints how much of the text of the first documents reaches a row, and reports too little of it if `judged`."""
    from t5x_like.data.seqio_feed import lost_text

    with _record_errors(found, "the text that reaches a row cannot be measured"):
        for kept in lost_text.measure(source, spec):
            found.kept[kept.task] = kept.fraction
            found.problems += kept.problems() if judged else []
            console.print(Text(f"\n{kept.describe()}"))


def _print_classes(examples: int, found: Inspection, console: Console) -> None:
    """Prints how often each label occurs."""
    for name, counts in found.classes.items():
        total = counts.total()
        table = Table("index", "label", "count", "share", box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
        for index, (label, count) in enumerate(counts.items()):
            table.add_row(str(index), Text(label), f"{count:,}", f"{count / max(total, 1):.1%}")
        console.print(Text(f"\nlabels of {name} in the first {examples:,} examples"))
        console.print(table)
        if [common := label for label, count in counts.items() if count == total > 1]:
            found.problems.append(
                f"all {total:,} labels of {name!r} in the first {examples:,} examples are {common!r}. Check the label "
                "column, and shuffle the examples of a file that is sorted by label."
            )


def _print_rows(
    source: "SeqIOSource",
    spec: FeatureSpec,
    sample: int,
    num_examples: int,
    judged: bool,
    found: Inspection,
    console: Console,
) -> None:
    """Packs or pads rows as training does, counts padding, reports too much of it if `judged`, and prints some rows."""
    batches: list[Mapping[str, np.ndarray]] = []
    with _record_errors(found, "rows cannot be made"):
        iterator = source.host_iterator(spec)
        batches = list(itertools.islice(iterator, max(sample // source.batch_size, 1)))
        if not iterator.can_be_saved:
            found.problems.append(
                "the position in this pipeline cannot be saved, so a resumed run reads the data again from the start. "
                "Use TensorFlow operations and stateless seeds instead of py_function, from_generator and tf.random."
            )
    if not batches:
        return
    for feature in first_rows.label_features(spec):
        if found.classes.keys().isdisjoint(feature.sources):  # otherwise, the examples have been counted
            labels = np.concatenate([np.ravel(batch[feature.name]) for batch in batches])
            found.problems += first_rows.constant_labels(feature.name, labels, f"{len(labels):,} rows")
    real = {length_name(spec, f): f.name for f in spec.features if f.role in ("weights", "segment_ids")}
    for name, feature in real.items():
        ids = np.concatenate([batch[feature] for batch in batches])
        found.efficiency[name] = float(np.mean(ids > 0))
        found.examples_per_row = max(found.examples_per_row, float(np.mean(ids.reshape(len(ids), -1).max(axis=1))))
    for name, fraction in found.efficiency.items():
        if judged and fraction < 1 - first_rows.PADDING_FRACTION:
            advice = against_padding(name, source, spec, found)
            found.problems.append(f"{1 - fraction:.0%} of {name!r} is padding. {advice[0].upper()}{advice[1:]}.")
    full = ", ".join(f"{name} {fraction:.1%}" for name, fraction in found.efficiency.items())
    rows = f"{len(batches) * source.batch_size:,} rows"
    if source.continuous:
        rows += f" of {len(batches):,} batches, each row continues the batch before"
    else:
        rows += f", {found.examples_per_row:.2f} examples per row"
    console.print(Text(f"\n{rows}, not padding: {full}"))
    vocabularies, names = _text_vocabularies(source), _special_names(source, spec)
    shown_rows = ((f"row {index}", batch, None) for index, batch in enumerate(batches[:num_examples]))
    if source.continuous:
        eos_id = source.vocabularies()[spec.lead(spec.task_features[0])].eos_id
        shown_rows = continuous_rows(spec, batches[:num_examples], num_examples, eos_id)
    for where, batch, starts in shown_rows:
        for title, shown in rows_as_text(spec, batch, vocabularies, names, starts):
            console.print(Text(f"\n{where}, {title}", style="bold"))
            console.print(shown)


def _print_problems(found: Inspection, console: Console) -> None:
    console.print()
    if not found.problems:
        console.print(Text("no problems found", style="green"))
    for problem in found.problems:
        console.print(Text("problem: ", style="bold red") + Text(problem))


@contextlib.contextmanager
def _record_errors(found: Inspection, summary: str) -> Iterator[None]:
    """Records an error of reading as a problem, so that the other sections are still printed."""
    try:
        yield
    except Exception as error:  # a user's preprocessor may raise anything
        message = str(error) if isinstance(error, UserError) else f"{summary}: {type(error).__name__}: {error}"
        if message not in found.problems:
            found.problems.append(message)


# ---- properties of tasks ---------------------------------------------------------------------------------------------


def _text_vocabularies(source: "SeqIOSource") -> dict[str, Any]:
    """Returns task feature -> vocabulary for features that are text, not numbers."""
    import seqio

    vocabularies = source.vocabularies()
    return {n: found for n, found in vocabularies.items() if not isinstance(found, seqio.PassThroughVocabulary)}


def _special_names(source: "SeqIOSource", spec: FeatureSpec) -> dict[int, str]:
    """Returns the ids of a masked LM's special tokens -> their names."""
    from t5x_like.vocabularies import special_tokens

    if all(feature.role != "row_positions" for feature in spec.features):
        return {}
    return special_tokens.names(source.tasks, source.vocabularies()["inputs"])
