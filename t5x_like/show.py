"""`t5x_like inspect`: what the model will see of a task, and what is wrong with it."""

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from t5x_like.data.features import ENCODER_DECODER, FeatureSpec

PERCENTILES = (0, 10, 50, 90, 99, 100)
DEFAULT_LENGTHS = {"inputs": 128, "targets": 32}
# What is worth a warning. Unknown tokens are nothing to a model but noise; half a row of padding is half the compute.
UNKNOWN_FRACTION = 0.001
PADDING_FRACTION = 0.5
_SPECIAL, _PADDING, _BOUNDARY = "bold magenta", "dim", "bold cyan"


@dataclasses.dataclass
class Inspection:
    """What was found.

    Attributes:
      problems: what is wrong, each with what to do; empty where nothing is.
      lengths: task feature -> tokens of each example that was looked at.
      trimmed: task feature -> how many of them are too long.
      unknown: task feature -> the fraction of unknown tokens.
      efficiency: task feature -> the fraction of a row that is no padding.
      examples_a_row: on average.
      skipped: reason -> how many documents are left out for it, of `documents` that were looked at.
      documents: how many that was; 0 where the task does not say what its documents are.
    """

    problems: list[str] = dataclasses.field(default_factory=list)
    lengths: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    trimmed: dict[str, int] = dataclasses.field(default_factory=dict)
    unknown: dict[str, float] = dataclasses.field(default_factory=dict)
    efficiency: dict[str, float] = dataclasses.field(default_factory=dict)
    examples_a_row: float = 0.0
    skipped: dict[str, int] = dataclasses.field(default_factory=dict)
    documents: int = 0


def inspect(
    mixture_or_task_name: str,
    *,
    task_feature_lengths: Mapping[str, int] | None = None,
    split: str = "train",
    num_examples: int = 2,
    sample: int = 1000,
    seed: int = 0,
    pack: bool = True,
    use_cached: bool = False,
    module: str | Sequence[str] | None = None,
    task_arguments: Mapping[str, Any] | None = None,
    spec: FeatureSpec = ENCODER_DECODER,
    console: Console | None = None,
) -> Inspection:
    """Prints what the model will see of a task or mixture.

    Args:
      mixture_or_task_name: its registered name.
      task_feature_lengths: tokens of each task feature; inputs 128 and targets 32 by default.
      split: of the data.
      num_examples: rows to print.
      sample: documents and examples to look at for counts and percentiles, from the start of the split.
      seed: of the corruption.
      pack: whether examples share rows.
      use_cached: read SeqIO's offline cache of the task.
      module: the user's module that registers the task; found in the working directory too.
      task_arguments: what the task lets its user set, such as a pattern of files.
      spec: what the objective reads.
      console: where to print; the terminal by default.

    Returns:
      The numbers that were printed.

    Raises:
      ModuleNotFoundError: TensorFlow and SeqIO are not installed; or `module` cannot be found.
      ValueError: the name is not registered, or its settings do not fit together.
    """
    source_class = _seqio_source()
    console = console or Console()
    source = source_class(
        mixture_or_task_name=mixture_or_task_name,
        task_feature_lengths=dict(task_feature_lengths or DEFAULT_LENGTHS),
        batch_size=1,
        split=split,
        shuffle=False,
        pack=pack,
        seed=seed,
        use_cached=use_cached,
        module=module,
        num_epochs=1,
        task_arguments=task_arguments,
    )
    found = Inspection()
    _print_task(source, console)
    _print_vocabularies(source, console)
    _print_documents(source, sample, found, console)
    _print_lengths(source, sample, found, console)
    _print_rows(source, spec, sample, num_examples, found, console)
    _print_problems(found, console)
    return found


def _seqio_source():
    try:
        from t5x_like.data.seqio_feed import SeqIOSource
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"reading a SeqIO task needs TensorFlow, TFDS and SeqIO, and there is no {error.name!r} here: "
            "pip install seqio tensorflow tensorflow-text tensorflow-datasets",
            name=error.name,
        ) from error
    return SeqIOSource


# ---- stations, in the order of the data ------------------------------------------------------------------------------


def _print_task(source, console: Console) -> None:
    console.rule(f"[bold]{source.mixture_or_task_name}")
    for line in source.describe():
        console.print(Text(line))
    if len(source.tasks) > 1:
        mixture = source.provider
        rates = {task.name: mixture.get_rate(task) for task in source.tasks}
        for name, rate in rates.items():
            console.print(Text(f"  {name}: {rate / sum(rates.values()):.1%} of the mixture"))


def _print_vocabularies(source, console: Console) -> None:
    named: list[tuple[list[str], Any]] = []
    for name, vocabulary in source.vocabularies().items():
        same = next((names for names, other in named if other == vocabulary), None)
        if same is None:
            named.append(([name], vocabulary))
        else:
            same.append(name)
    for names, vocabulary in named:
        size, sentinels = vocabulary.vocab_size, vocabulary.extra_ids
        path = getattr(vocabulary, "sentencepiece_model_file", "")
        console.print(Text(f"\nvocabulary of {' and '.join(names)}: {type(vocabulary).__name__} {path}".rstrip()))
        console.print(
            Text(
                f"  {size:,} ids: padding {vocabulary.pad_id}, EOS {vocabulary.eos_id}, unknown {vocabulary.unk_id}, "
                + (f"{sentinels} sentinels from {size - 1} down to {size - sentinels}" if sentinels else "no sentinels")
            )
        )
        places = np.linspace(3, max(size - sentinels - 1, 3), 24).astype(int)
        console.print(Text("  pieces: ") + Text(" ").join(_piece(vocabulary, int(place)) for place in places))


def _print_documents(source, sample: int, found: Inspection, console: Console) -> None:
    """Counts the documents that the shipped preprocessor leaves out, where a task uses it."""
    from data_tasks import preprocessors

    counts: Counter[str] = Counter()
    for task in source.tasks:
        options = _options_of(task, preprocessors.documents)
        if options is None or source.use_cached or source.split not in task.splits:
            continue
        feature = options.get("text_feature", "text")
        limit = options.get("max_document_bytes", preprocessors.MAX_DOCUMENT_BYTES)
        ds = task.source.get_dataset(split=source.split, shuffle=False).take(sample)
        if feature not in ds.element_spec:
            continue  # the task itself will say so
        for reasons in ds.map(
            lambda example, f=feature, n=limit: preprocessors.usable(example[f], n)
        ).as_numpy_iterator():
            found.documents += 1
            counts.update(reason for reason, applies in reasons.items() if applies)
    found.skipped = dict(counts)
    if found.documents:
        skipped = ", ".join(f"{count:,} {reason}" for reason, count in counts.items()) or "none"
        console.print(Text(f"\ndocuments left out of the first {found.documents:,}: {skipped}"))
        if (share := counts.total() / found.documents) > PADDING_FRACTION:
            found.problems.append(
                f"{share:.0%} of the documents are left out ({skipped}): is this the right text feature?"
            )


def _print_lengths(source, sample: int, found: Inspection, console: Console) -> None:
    vocabularies = source.vocabularies()
    lengths: dict[str, list[int]] = {name: [] for name in source.task_feature_lengths}
    tokens, unknown = Counter(), Counter()
    with _problem(found, "the task cannot be read"):
        for example in source.task_dataset().take(sample).as_numpy_iterator():
            for name in lengths:
                if name in example:
                    real = np.trim_zeros(example[name], "b")
                    lengths[name].append(len(real))
                    tokens[name] += len(real)
                    unknown[name] += int(np.sum(real == vocabularies[name].unk_id)) if name in vocabularies else 0
    found.lengths = {name: np.array(counted) for name, counted in lengths.items() if counted}
    if not found.lengths:
        if not found.problems:
            found.problems.append(
                f"the split {source.split!r} has no example: are its documents too short, or left out?"
            )
        return

    columns = ("tokens", *(f"{p} %" for p in PERCENTILES), "limit", "too long", "unknown")
    table = Table(*columns, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for name, counted in found.lengths.items():
        limit = source.task_feature_lengths[name]
        found.trimmed[name] = int(np.sum(counted > limit))
        found.unknown[name] = unknown[name] / max(tokens[name], 1)
        percentiles = (f"{value:.0f}" for value in np.percentile(counted, PERCENTILES))
        table.add_row(name, *percentiles, str(limit), str(found.trimmed[name]), f"{found.unknown[name]:.2%}")
        if found.trimmed[name]:
            found.problems.append(
                f"{found.trimmed[name]:,} of {len(counted):,} examples have more than {limit} tokens in {name!r}; the "
                f"rest is cut off, EOS with it: raise {name} in TASK_FEATURE_LENGTHS (up to {counted.max()})"
            )
        if found.unknown[name] > UNKNOWN_FRACTION:
            found.problems.append(
                f"{found.unknown[name]:.1%} of the tokens of {name!r} are unknown to the vocabulary: use one "
                "that was made for this language"
            )
    count = len(next(iter(found.lengths.values())))
    console.print(Text(f"\nlengths of the first {count:,} examples, percentiles, before anything is trimmed"))
    console.print(table)


def _print_rows(source, spec, sample: int, num_examples: int, found: Inspection, console: Console) -> None:
    """Packs or pads as training does, counts what is no padding, and shows some rows."""
    batches: list[Mapping[str, np.ndarray]] = []
    with _problem(found, "the model cannot be fed with it"):
        iterator = source.host_iterator(spec)
        batches = list(itertools.islice(iterator, sample))
        if not iterator.can_be_saved:
            found.problems.append(
                "the position in this pipeline cannot be saved, so that resuming reads the data again from the start: "
                "use TensorFlow operations and stateless seeds in place of py_function, from_generator and tf.random"
            )
    if not batches:
        return
    tokens = {f.source: f.name for f in spec.features if f.role == "tokens"}
    segments = {f.source: f.name for f in spec.features if f.role == "segment_ids"}
    for name, feature in segments.items():
        ids = np.concatenate([batch[feature] for batch in batches])
        found.efficiency[name] = float(np.mean(ids > 0))
        found.examples_a_row = max(found.examples_a_row, float(np.mean(ids.max(axis=1))))
        if found.efficiency[name] < 1 - PADDING_FRACTION:
            advice = "shorten it in TASK_FEATURE_LENGTHS" if source.pack else "set pack=True, or shorten it"
            found.problems.append(f"{1 - found.efficiency[name]:.0%} of {name!r} is padding: {advice}")
    full = ", ".join(f"{name} {fraction:.1%}" for name, fraction in found.efficiency.items())
    console.print(
        Text(f"\n{len(batches):,} rows, {found.examples_a_row:.2f} examples each; tokens that are no padding: {full}")
    )
    vocabularies = source.vocabularies()
    for number, batch in enumerate(batches[:num_examples]):
        for name, feature in tokens.items():
            console.print(Text(f"\nrow {number}, {name} → {feature}", style="bold"))
            console.print(show_tokens(batch[feature][0], batch[segments[name]][0], vocabularies[name]))


def _print_problems(found: Inspection, console: Console) -> None:
    console.print()
    if not found.problems:
        console.print(Text("nothing wrong was found", style="green"))
    for problem in found.problems:
        console.print(Text("wrong: ", style="bold red") + Text(problem))


@contextlib.contextmanager
def _problem(found: Inspection, what: str) -> Iterator[None]:
    """Turns what goes wrong while reading into a problem, so that the rest is shown all the same."""
    try:
        yield
    except Exception as error:  # whatever a user's preprocessor may raise
        message = f"{what}: {type(error).__name__}: {error}"
        if message not in found.problems:
            found.problems.append(message)


# ---- tokens made visible ---------------------------------------------------------------------------------------------


def show_tokens(tokens: np.ndarray, segments: np.ndarray, vocabulary: Any) -> Text:
    """A row as text: sentinels and EOS in colour, `↵` for line ends, `┃` between examples, padding counted.

    Args:
      tokens: int32 `[length]`.
      segments: int32 `[length]`, 0 for padding.
      vocabulary: SeqIO's.
    """
    shown = Text()
    last = int(segments.max(initial=0))
    for segment in range(1, last + 1):
        if segment > 1:
            shown.append(" ┃ ", style=_BOUNDARY)
        shown.append_text(_show_run([int(token) for token in tokens[segments == segment]], vocabulary))
    if padding := int(np.sum(segments == 0)):
        shown.append(f" [padding × {padding}]", style=_PADDING)
    return shown


def _show_run(tokens: list[int], vocabulary: Any) -> Text:
    shown = Text()
    for name, run in itertools.groupby(tokens, key=lambda token: _special_name(token, vocabulary)):
        ids = list(run)
        if name is not None:
            for _ in ids:
                shown.append(f" {name} ", style=_SPECIAL)
        else:
            shown.append(vocabulary.decode(ids).replace("\n", "↵"))
    return shown


def _special_name(token: int, vocabulary: Any) -> str | None:
    """The name of a token that stands for no text."""
    first_sentinel = vocabulary.vocab_size - 1
    if first_sentinel - vocabulary.extra_ids < token <= first_sentinel:
        return f"<extra_id_{first_sentinel - token}>"
    names = {vocabulary.pad_id: "<pad>", vocabulary.eos_id: "</s>", vocabulary.unk_id: "<unk>"}
    return names.get(token)


def _piece(vocabulary: Any, token: int) -> Text:
    tokenizer = getattr(vocabulary, "tokenizer", None)
    if hasattr(tokenizer, "IdToPiece"):
        return Text(repr(tokenizer.IdToPiece(token))[1:-1], style="cyan")
    return Text(repr(vocabulary.decode([token]))[1:-1] or "·", style="cyan")


def _options_of(task: Any, function: Any) -> Mapping[str, Any] | None:
    """The keyword arguments with which a task uses a preprocessor; None where it does not use it."""
    for preprocessor in task.preprocessors:
        if getattr(preprocessor, "func", preprocessor) is function:
            return getattr(preprocessor, "keywords", {})
    return None
