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

from t5x_like.data import features
from t5x_like.data.features import FeatureSpec
from t5x_like.data.span_lengths import span_lengths
from t5x_like.data.token_text import joined_name, piece, rows_as_text
from t5x_like.errors import UserError

PERCENTILES = (0, 10, 50, 90, 99, 100)
# Lengths where none are given: small rows, and what their kind then needs. BERT masks 20 of 128 tokens at most.
DEFAULT_LENGTH = 128
DEFAULT_PREDICTIONS = 20
# What is worth a warning. Unknown tokens are nothing to a model but noise; half a row of padding is half the compute.
UNKNOWN_FRACTION = 0.001
PADDING_FRACTION = 0.5


@dataclasses.dataclass
class Inspection:
    """What was found.

    Attributes:
      problems: what is wrong, each with what to do; empty where nothing is.
      lengths: task feature -> tokens of each example that was looked at.
      trimmed: task feature -> how many of them are too long.
      unknown: task feature -> the fraction of unknown tokens.
      efficiency: task feature -> the fraction of a row that is no padding.
      examples_per_row: on average.
      skipped: reason -> how many documents are left out for it, of `documents` that were looked at.
      documents: how many that was; 0 where the task does not say what its documents are.
    """

    problems: list[str] = dataclasses.field(default_factory=list)
    lengths: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    trimmed: dict[str, int] = dataclasses.field(default_factory=dict)
    unknown: dict[str, float] = dataclasses.field(default_factory=dict)
    efficiency: dict[str, float] = dataclasses.field(default_factory=dict)
    examples_per_row: float = 0.0
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
    pack: bool | None = None,
    use_cached: bool = False,
    module: str | Sequence[str] | None = None,
    task_arguments: Mapping[str, Any] | None = None,
    spec: FeatureSpec | str | None = None,
    console: Console | None = None,
) -> Inspection:
    """Prints what the model will see of a task or mixture.

    Args:
      mixture_or_task_name: its registered name.
      task_feature_lengths: tokens of each task feature; by default short ones that suit the kind of task.
      split: of the data.
      num_examples: rows to print.
      sample: documents and examples to look at for counts and percentiles, from the start of the split.
      seed: of the corruption.
      pack: whether examples share rows; by default wherever they may.
      use_cached: read SeqIO's offline cache of the task.
      module: the user's module that registers the task; found in the working directory too.
      task_arguments: what the task lets its user set, such as a pattern of files.
      spec: what the objective reads, or its name in `t5x_like.data.features`, such as PREFIX_LM; by default told by the
        task's features.
      console: where to print; the terminal by default.

    Returns:
      The numbers that were printed.

    Raises:
      UserError: TensorFlow and SeqIO are not installed; or `module` cannot be found.
      UserError: the name is not registered, or its settings do not fit together.
    """
    source_class = _seqio_source()
    console = console or Console()
    source = source_class(
        mixture_or_task_name=mixture_or_task_name,
        task_feature_lengths=dict(task_feature_lengths or {}),
        batch_size=1,
        split=split,
        shuffle=False,
        pack=bool(pack),
        seed=seed,
        use_cached=use_cached,
        module=module,
        num_epochs=1,
        task_arguments=task_arguments,
    )
    if not isinstance(spec, FeatureSpec):
        spec = features.get_spec(spec) if spec else features.spec_for_task(source.vocabularies())
    source = dataclasses.replace(
        source,
        task_feature_lengths=source.task_feature_lengths or default_lengths(spec, source.tasks),
        pack=spec.packable if pack is None else pack,
    )
    found = Inspection()
    _print_task(source, console)
    _print_vocabularies(source, console)
    _print_documents(source, sample, found, console)
    _print_bytes(source, sample, found, console)
    _print_lengths(source, sample, found, console)
    judged = task_feature_lengths is not None  # padding of rows whose lengths nobody chose is nobody's mistake
    _print_rows(source, spec, sample, num_examples, judged, found, console)
    _print_problems(found, console)
    return found


def _seqio_source():
    try:
        from t5x_like.data.seqio_feed import SeqIOSource
    except ModuleNotFoundError as error:
        raise UserError(
            f"reading a SeqIO task needs TensorFlow, TFDS and SeqIO, and there is no {error.name!r} here: "
            "pip install seqio tensorflow tensorflow-text tensorflow-datasets"
        ) from error
    return SeqIOSource


def default_lengths(spec: FeatureSpec, tasks: Sequence[Any]) -> dict[str, int]:
    """Lengths to look at tasks with, where nobody has said which.

    Args:
      spec: what is read of them.
      tasks: SeqIO's; span corruption says itself how many tokens of targets there are.
    """
    from data_tasks import preprocessors

    needed = [name for name in spec.task_features if spec.lead(name) == name and name not in spec.fixed_lengths]
    lengths = dict.fromkeys(needed, DEFAULT_LENGTH)
    if any(feature.role == "row_positions" for feature in spec.features):
        return lengths | {"targets": DEFAULT_PREDICTIONS}
    corrupted = [_options_of(task, preprocessors.span_corruption) for task in tasks]
    if "inputs" in lengths and None not in corrupted:
        rates = [
            {name: value for name, value in options.items() if name in ("noise_density", "mean_noise_span_length")}
            for options in corrupted
        ]
        return lengths | {"targets": max(span_lengths(DEFAULT_LENGTH, **rate).targets for rate in rates)}
    return lengths


# ---- stations, in the order of the data ------------------------------------------------------------------------------


def _print_task(source, console: Console) -> None:
    console.rule(f"[bold]{source.mixture_or_task_name}")
    for line in source.describe():
        console.print(Text(line))
    if len(source.tasks) > 1:
        from t5x_like.data.seqio_feed import task_errors

        rates = task_errors.rates(source)
        for name, rate in rates.items():
            console.print(Text(f"  {name}: {rate / sum(rates.values()):.1%} of the mixture"))


def _print_vocabularies(source, console: Console) -> None:
    named: list[tuple[list[str], Any]] = []
    for name, vocabulary in _text_vocabularies(source).items():
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
        console.print(
            Text("  pieces: ") + Text(" ").join(Text(piece(int(place), vocabulary), style="cyan") for place in places)
        )


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
            lambda example, f=feature, n=limit: preprocessors.document_problems(example[f], n)
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


def _print_bytes(source, sample: int, found: Inspection, console: Console) -> None:
    from t5x_like.data.seqio_feed.source_bytes import count_bytes

    with _problem(found, "the source cannot be read"):
        counts = count_bytes(source, sample)
        if counts.undecodable:
            found.problems.append(
                f"{counts.undecodable:,} bytes of the first {counts.examples:,} examples of the source are not UTF-8: "
                "they become replacement characters or unknown tokens, or their documents are skipped. Convert the "
                "files, for example with `iconv -f latin1 -t utf8`"
            )
        if counts.carriage_returns:
            found.problems.append(
                f"{counts.carriage_returns:,} carriage returns (␍) in the first {counts.examples:,} examples of the "
                "source, probably Windows line endings: the model would learn them. Remove them from the files"
            )


def _print_lengths(source, sample: int, found: Inspection, console: Console) -> None:
    vocabularies = _text_vocabularies(source)
    lengths: dict[str, list[int]] = {name: [] for name in source.task_feature_lengths}
    tokens, unknown, padding_ids = Counter(), Counter(), source.padding_ids()
    with _problem(found, "the task cannot be read"):
        for example in source.examples(sample):
            for name in lengths:
                if name in example:
                    real = _without_padding(example[name], padding_ids.get(name, 0))
                    lengths[name].append(len(real))
                    tokens[name] += len(real)
                    unknown[name] += int(np.sum(real == vocabularies[name].unk_id)) if name in vocabularies else 0
    found.lengths = {name: np.array(counted) for name, counted in lengths.items() if counted}
    if not found.lengths:
        if not found.problems:
            found.problems.append(f"the split {source.split!r} has no examples: are they too short, or skipped?")
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


def _without_padding(values: np.ndarray, padding_id: int | None) -> np.ndarray:
    real = np.flatnonzero(values != padding_id) if padding_id is not None else np.arange(len(values))
    return values[: real[-1] + 1 if len(real) else 0]


def _print_rows(
    source, spec, sample: int, num_examples: int, judged: bool, found: Inspection, console: Console
) -> None:
    """Packs or pads as training does, counts what is no padding (and judges it), and shows some rows."""
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
    real = {joined_name(f): f.name for f in spec.features if f.role in ("weights", "segment_ids")}
    for name, feature in real.items():
        ids = np.concatenate([batch[feature] for batch in batches])
        found.efficiency[name] = float(np.mean(ids > 0))
        found.examples_per_row = max(found.examples_per_row, float(np.mean(ids.max(axis=1))))
    for name, fraction in found.efficiency.items():
        if judged and fraction < 1 - PADDING_FRACTION:
            advice = _against_padding(name, source, spec, found)
            found.problems.append(f"{1 - fraction:.0%} of {name!r} is padding: {advice}")
    full = ", ".join(f"{name} {fraction:.1%}" for name, fraction in found.efficiency.items())
    console.print(
        Text(f"\n{len(batches):,} rows, {found.examples_per_row:.2f} examples each; tokens that are no padding: {full}")
    )
    for number, batch in enumerate(batches[:num_examples]):
        for title, shown in rows_as_text(spec, batch, _text_vocabularies(source), _special_names(source, spec)):
            console.print(Text(f"\nrow {number}, {title}", style="bold"))
            console.print(shown)


def _against_padding(name: str, source, spec: FeatureSpec, found: Inspection) -> str:
    """Suggests lengths that reduce padding without truncating any of the examples."""
    advice = []
    if source.pack:
        # Examples share a row until one does not fit into one of its features: that one leaves the others empty.
        fullest = max(found.efficiency, key=found.efficiency.get)
        wanted = fullest if found.efficiency[fullest] > found.efficiency[name] else name
        where = "" if wanted == name else f", where rows are full first ({found.efficiency[wanted]:.0%}),"
        advice.append(f"raise {wanted!r}{where} in TASK_FEATURE_LENGTHS, so that more examples share a row")
    elif spec.packable:
        advice.append("set pack=True")
    longest = int(found.lengths[name].max()) if name in found.lengths else None
    if longest is not None and longest < source.task_feature_lengths[name]:
        advice.append(f"lower {name!r} to {longest}, its longest example here")
    return ", or ".join(advice) or f"lower {name!r} in TASK_FEATURE_LENGTHS, which cuts its longest examples"


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
        message = str(error) if isinstance(error, UserError) else f"{what}: {type(error).__name__}: {error}"
        if message not in found.problems:
            found.problems.append(message)


# ---- what tasks say about themselves ---------------------------------------------------------------------------------


def _text_vocabularies(source) -> dict[str, Any]:
    """Task feature -> vocabulary, of those that are text and no numbers."""
    import seqio

    vocabularies = source.vocabularies()
    return {n: found for n, found in vocabularies.items() if not isinstance(found, seqio.PassThroughVocabulary)}


def _special_names(source, spec: FeatureSpec) -> dict[int, str]:
    """The ids of a masked LM's special tokens, with their names."""
    from data_tasks import special_tokens

    if all(feature.role != "row_positions" for feature in spec.features):
        return {}
    given = [
        value
        for task in source.tasks
        for preprocessor in task.preprocessors
        for value in getattr(preprocessor, "keywords", {}).values()
        if isinstance(value, special_tokens.SpecialTokens)
    ]
    special = given[0] if given else special_tokens.special_tokens(source.vocabularies()["inputs"])
    return {special.cls: "[CLS]", special.sep: "[SEP]", special.mask: "[MASK]"}


def _options_of(task: Any, function: Any) -> Mapping[str, Any] | None:
    """The keyword arguments with which a task uses a preprocessor; None where it does not use it."""
    for preprocessor in task.preprocessors:
        if getattr(preprocessor, "func", preprocessor) is function:
            return getattr(preprocessor, "keywords", {})
    return None
