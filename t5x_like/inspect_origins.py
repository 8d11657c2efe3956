"""`t5x_like inspect --row` and `--find`: the documents that a row of a cache, or a text, comes from."""

import itertools
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from t5x_like.data.cached import CachedSource, origins_file
from t5x_like.data.cached.iterator import RowOrder
from t5x_like.data.cached.source import RowReader
from t5x_like.data.features import FeatureSpec
from t5x_like.data.inspection import Inspection
from t5x_like.data.token_text import rows_as_text
from t5x_like.errors import UserError

if TYPE_CHECKING:
    from t5x_like.data.seqio_feed import SeqIOSource

# Documents that `print_origins` prints.
MOST_ORIGINS = 10


def print_row(
    cache: CachedSource,
    spec: FeatureSpec,
    row: int,
    step: int | None,
    vocabularies: dict[str, Any],
    names: dict[int, str],
    console: Console,
) -> Inspection:
    """Prints the text of a row of a cache and where its documents come from.

    Args:
      cache: The cache, with the batch size and the seed of the run if a step is given.
      spec: Features of the row to print.
      row: Number of the stored row from 0; with a step, the number of the row in the batch of this step.
      step: Training step from 1; None for none.
      vocabularies: Task feature -> vocabulary.
      names: Id -> name of special tokens that the vocabularies do not name.
      console: Console to print to.

    Returns:
      The documents as `origins`.

    Raises:
      UserError: the cache does not have this row, or not the documents of its rows.
    """
    if step is not None:
        if step < 1 or not 0 <= row < cache.batch_size:
            raise UserError(
                f"STEP={step}, ROW={row}: steps start at 1, and batches have the rows 0 to {cache.batch_size - 1}. "
                "Give the STEP, BATCH_SIZE and SEED of the run."
            )
        order = RowOrder(cache.manifest.rows_of_passes, shuffle=cache.shuffle, seed=cache.seed)
        row = order[(step - 1) * cache.batch_size + row]
    found, documents = Inspection(), origins_file.read(cache, row)
    console.print(Text(f"row {row} of the cache {cache.directory}", style="bold"))
    for title, text in rows_as_text(spec, RowReader(cache, spec)([row]), vocabularies, names):
        console.print(Text(f"\n{title}", style="bold"))
        console.print(text)
    for number, example in enumerate(documents, 1):
        console.print(Text(f"\ndocuments of example {number}", style="bold"))
        for document in example:
            fields = dict(document)
            place = str(fields.pop("place"))
            found.origins.append((place, {name: str(value) for name, value in fields.items()}))
            shown = "  ".join([place, *(f"{name}: {value}" for name, value in fields.items())])
            console.print(Text(shown), soft_wrap=True)
    return found


def print_origins(source: "SeqIOSource", text: str, found: Inspection, console: Console) -> None:
    """Prints where the documents with a text come from.

    Args:
      source: The task.
      text: The text, such as a part of a row.
      found: Gets the documents as `origins`, or a problem if there is none.
      console: Console to print to.

    Raises:
      UserError: The task does not read files of documents.
    """
    for task in source.tasks:
        if not hasattr(task.source, "origins"):
            raise UserError(f"FIND: {task.name} does not read files of documents. Give a task text_files_….")
        for place, fields in itertools.islice(task.source.origins(source.split, text), MOST_ORIGINS):
            found.origins.append((place, dict(fields)))
    for place, fields in found.origins:
        console.print(Text("  ".join([place, *(f"{name}: {value}" for name, value in fields.items())])), soft_wrap=True)
    if not found.origins:
        found.problems.append(f"no document of the split {source.split!r} contains {text!r}. Copy a part of a row.")
