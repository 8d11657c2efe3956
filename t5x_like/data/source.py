"""The interface between data and the commands: a source of training and evaluation batches."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from t5x_like.data.features import FeatureSpec
from t5x_like.data.feed import HostBatch, HostIterator
from t5x_like.vocabularies.vocabulary_digest import TextVocabulary
from t5x_like.vocabularies.vocabulary_kind import VocabularyKind

if TYPE_CHECKING:
    import seqio


@runtime_checkable
class DataSource(Protocol):
    """Source of training and evaluation batches: `SeqIOSource` or `CachedSource`.

    A source is constructed from a configuration without reading data; only its methods read.

    A source whose row i of a batch continues row i of the batch before has an attribute `continuous` that is True, so
    that networks may carry state; see `is_continuous`. A source that reads stored rows, for which no preprocessor runs,
    has an attribute `stores_rows` that is True.
    """

    @property
    def name(self) -> str:
        """Short name of the data in messages, such as the name of its task."""

    def describe(self) -> list[str]:
        """Returns lines for the log that describe the data."""

    def provenance(self) -> list[dict[str, Any]]:
        """Describes which data the source reads, without reading it.

        Returns:
          An entry of JSON values per task: `task` and `split`, or the `name` of data that is not a task's; and what is
          known of

          - `examples`: the number of examples before preprocessing;
          - `cache`, `fingerprint`, `rows`, `passes`: of a cache that `t5x_like cache` has written;
          - `cache`: the directory of SeqIO's offline cache;
          - `source`: how the source describes itself, with a hash of its contents if it has read them; `digest` and
            `digest_of`, what it is computed from, if it knows them per split;
          - `files` (their number), `first_file`, `bytes`, `digest`, `digest_of`: of files that the task reads itself.
        """
        return [{"name": self.name}]

    def check(self, spec: FeatureSpec) -> None:
        """Checks that the data can be read as `spec` requires. At most one example of each task is read.

        Raises:
          UserError: task, split, lengths or packing do not suit the spec, or the split of a task is empty.
        """

    def check_vocabulary(self, embeddings: int) -> None:
        """Checks that a model has an embedding for each token id.

        Raises:
          UserError: a vocabulary has more ids than `embeddings`.
        """

    def text_vocabulary(self, spec: FeatureSpec) -> TextVocabulary:
        """Returns the digest and the location of the vocabulary of the text; None where they are not known.

        Args:
          spec: Features that the objective reads.
        """

    def vocabularies(self) -> "Mapping[str, seqio.Vocabulary]":
        """Returns task feature -> vocabulary; needs SeqIO and TensorFlow."""

    def vocabulary_kind(self, spec: FeatureSpec) -> VocabularyKind | None:
        """Returns the kind of the vocabulary of the text; None if its features have several.

        With the files of the vocabulary, `infer` makes the vocabulary again from them, without the task.

        Args:
          spec: Features that the objective reads.
        """

    def add_eos(self) -> Mapping[str, bool]:
        """Returns task feature -> whether its text ends in EOS; empty if this is not known."""

    def text_problems(self, spec: FeatureSpec) -> list[str]:
        """Returns warnings if much of a user's text is lost; empty where this is not measured.

        Args:
          spec: Features that the objective reads.
        """

    def has_metrics(self) -> bool:
        """Returns whether a task has its own metrics, computed from predictions or scores."""

    def batch_shapes(self, spec: FeatureSpec) -> dict[str, tuple[int, ...]]:
        """Returns model feature -> shape over all processes, (batch, length) or (batch, choices, length).

        The dtypes are `spec.dtypes`.
        """

    def per_task(self) -> "Sequence[DataSource]":
        """Returns a source for each task of a mixture that has the split; `[self]` for a single task.

        Evaluation reads these, because a mixture has no pass over its data. Each source is named after its
        task.

        Raises:
          UserError: no task has the split.
        """

    def host_iterator(self, spec: FeatureSpec, *, process_index: int = 0, process_count: int = 1) -> HostIterator:
        """Returns the training batches of one process.

        Args:
          spec: Features that the objective reads.
          process_index: Index of this process.
          process_count: Number of processes that share the data.

        Raises:
          UserError: the data cannot be read as the spec and the number of processes require.
        """

    def eval_batches(
        self, spec: FeatureSpec, num_batches: int | None = None, *, process_index: int = 0, process_count: int = 1
    ) -> Iterator[HostBatch]:
        """Yields the batches of one pass over the data in stored order, the same each time.

        The last batch is padded with rows of zeros, which have no weight.

        Args:
          spec: Features that the objective reads.
          num_batches: Maximum number of batches; None for all.
          process_index: Index of this process.
          process_count: Number of processes; all see the same number of batches.
        """


@runtime_checkable
class TaskSource(DataSource, Protocol):
    """Data source that reads a SeqIO task or mixture, whose data `t5x_like cache` can write: `SeqIOSource`.

    Attributes:
      split: Split of the data.
    """

    split: str

    @property
    def tasks(self) -> "Sequence[seqio.Task]":
        """The task, or the tasks of the mixture; needs SeqIO and TensorFlow."""

    def per_task(self) -> "Sequence[TaskSource]":
        """Returns a source for each task of a mixture that has the split; `[self]` for a single task."""

    def mixing_fractions(self) -> dict[str, float]:
        """Returns task name -> fraction of the examples of a mixture; empty for a single task."""


def is_continuous(source: DataSource) -> bool:
    """Returns whether row i of a batch continues row i of the batch before."""
    return getattr(source, "continuous", False)


def stores_rows(source: DataSource) -> bool:
    """Returns whether a source reads stored rows, so that its first batch takes no preprocessing."""
    return getattr(source, "stores_rows", False)


def is_packed(source: DataSource) -> bool:
    """Returns whether several examples may share a row; of a cache, which may leave it open, as it was written."""
    pack = getattr(source, "pack", False)
    return any(each.manifest.layout.pack for each in source.per_task()) if pack is None else pack
