"""Where batches come from: a registered SeqIO task or mixture with lengths, batch size and seed."""

import dataclasses
import difflib
import hashlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from t5x_like.data.features import FeatureSpec
from t5x_like.data.token_ids import check_ids
from t5x_like.errors import UserError

if TYPE_CHECKING:
    import seqio
    import tensorflow as tf

    from t5x_like.data.seqio_feed.iterator import SeqIOIterator

SHIPPED_TASKS = "data_tasks"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeqIOSource:
    """A task or mixture from SeqIO's registry.

    Nothing is read, and neither SeqIO nor TensorFlow imported, before a method is called.

    Attributes:
      mixture_or_task_name: its registered name.
      task_feature_lengths: task feature -> tokens; longer examples are trimmed (`t5x_like inspect` counts them).
      batch_size: rows of a batch over all processes.
      split: of the data.
      shuffle: whether training batches come shuffled; evaluation's never do.
      pack: whether several examples share a row.
      seed: of order and corruption.
      use_cached: read SeqIO's offline cache of the task.
      module: the user's module, or several, to import first; found in the working directory too.
      num_epochs: how often the data is read; None for ever.
      task_arguments: what a task lets its user set, such as a pattern of files or the path of a vocabulary.
    """

    mixture_or_task_name: str
    task_feature_lengths: Mapping[str, int]
    batch_size: int
    split: str = "train"
    shuffle: bool = True
    pack: bool = True
    seed: int = 0
    use_cached: bool = False
    module: str | Sequence[str] | None = None
    num_epochs: int | None = None
    task_arguments: Mapping[str, Any] | None = None

    def __post_init__(self):
        if self.batch_size < 1:
            raise UserError(f"BATCH_SIZE={self.batch_size} must be at least 1")

    @property
    def name(self) -> str:
        """The name of the task or mixture."""
        return self.mixture_or_task_name

    @property
    def provider(self) -> "seqio.Task | seqio.Mixture":
        """The task or mixture itself.

        Raises:
          UserError: no such name; the message lists the nearest ones. Or one without this split.
          UserError: `module` cannot be found; or TensorFlow or SeqIO is not installed.
        """
        import_modules(self.module)
        provider = find_provider(self.mixture_or_task_name)
        if self.task_arguments:
            from t5x_like.data import task_arguments

            task_arguments.update([task.name for task in self._tasks(provider)], self.task_arguments)
        return provider

    @property
    def tasks(self) -> "Sequence[seqio.Task]":
        """The task, or those of the mixture."""
        return self._tasks(self.provider)

    @staticmethod
    def _tasks(provider) -> "Sequence[seqio.Task]":
        import seqio

        return seqio.get_subtasks(provider)

    def vocabularies(self) -> "dict[str, seqio.Vocabulary]":
        """Task feature -> vocabulary."""
        return {name: feature.vocabulary for name, feature in self.provider.output_features.items()}

    def padding_ids(self) -> "dict[str, int | None]":
        """Task feature -> the id that is padding at the end of an example; None where its vocabulary has none."""
        return {name: vocabulary.pad_id for name, vocabulary in self.vocabularies().items()}

    def id_limits(self, spec: FeatureSpec) -> dict[str, int]:
        """Model feature -> how many token ids its vocabulary has; see `FeatureSpec.id_limits`."""
        return spec.id_limits({name: vocabulary.vocab_size for name, vocabulary in self.vocabularies().items()})

    def has_metrics(self) -> bool:
        """Whether any task has metrics of its own, computed from predictions or scores."""
        return any(task.metric_objs for task in self.tasks)

    def describe(self) -> list[str]:
        """What is read, a line each: the task, and the corpora that say something about themselves."""
        lengths = ", ".join(f"{name} {length}" for name, length in self.task_feature_lengths.items())
        ids = max(vocabulary.vocab_size for vocabulary in self.vocabularies().values())
        rows = "packed" if self.pack else "one example a row"
        return [
            f"data: {self.mixture_or_task_name}, split {self.split}, lengths {lengths}, batches of {self.batch_size} "
            f"rows, {rows}, seed {self.seed}, {ids:,} token ids",
            *(task.source.describe() for task in self.tasks if hasattr(task.source, "describe")),
        ]

    def batch_shapes(self, spec: FeatureSpec) -> dict[str, tuple[int, int]]:
        """Model feature -> (batch, length) over all processes."""
        lengths = spec.model_lengths(self.task_feature_lengths)
        return {name: (self.batch_size, length) for name, length in lengths.items()}

    def check_vocabulary(self, embeddings: int) -> None:
        """Refuses a vocabulary with more ids than a model has embeddings.

        Raises:
          UserError: with both numbers.
        """
        for name, vocabulary in self.vocabularies().items():
            if vocabulary.vocab_size > embeddings:
                raise UserError(
                    f"the vocabulary of {name!r} in {self.mixture_or_task_name} has {vocabulary.vocab_size} ids "
                    f"(sentinels included), the model {embeddings} embeddings: give the model "
                    f"vocab_size={vocabulary.vocab_size} or more"
                )

    def check(self, spec: FeatureSpec) -> None:
        """Refuses a task that cannot be read as `spec` asks; no example is read.

        Raises:
          UserError: the task or split is not registered, a feature or a length is missing, or `pack` does not suit.
        """
        provider = self.provider
        self._check_split(provider)
        self._check_features(provider, spec)

    def host_iterator(self, spec: FeatureSpec, *, process_index: int = 0, process_count: int = 1) -> "SeqIOIterator":
        """Training batches of this process.

        Args:
          spec: what the objective reads.
          process_index: which process this is.
          process_count: how many read the data together; each reads its own shard of it.

        Raises:
          UserError: lengths, vocabulary, batch size and task do not fit together.
        """
        rows = self._rows(process_count)
        provider = self.provider
        import seqio
        import tensorflow as tf

        from t5x_like.data.seqio_feed import task_errors
        from t5x_like.data.seqio_feed.iterator import SeqIOIterator

        def make_dataset():
            shard = seqio.ShardInfo(process_index, process_count) if process_count > 1 else None
            ds = self._dataset(provider, spec, shuffle=self.shuffle, num_epochs=self.num_epochs, shard_info=shard)
            return _options(ds.batch(rows, drop_remainder=True).prefetch(tf.data.AUTOTUNE))

        identity = {
            "task": self.mixture_or_task_name,
            "split": self.split,
            "lengths": spec.task_lengths(self.task_feature_lengths),
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "pack": self.pack,
            "seed": self.seed,
            "use_cached": self.use_cached,
            "num_epochs": self.num_epochs,
            "process_count": process_count,
            "process_index": process_index,
        }
        versions = {"tensorflow": tf.__version__, "seqio": seqio.__version__, "corpus": self._corpus()}
        return SeqIOIterator(
            make_dataset,
            explain_errors=lambda: task_errors.explain_errors(self),
            lengths=spec.model_lengths(self.task_feature_lengths),
            dtypes=spec.dtypes,
            id_limits=self.id_limits(spec),
            identity=identity,
            versions=versions,
        )

    def eval_batches(
        self, spec: FeatureSpec, num_batches: int | None = None, *, process_index: int = 0, process_count: int = 1
    ) -> Iterator[dict[str, np.ndarray]]:
        """The split once through, in order, the same batches each time.

        The last batch is filled up with rows of zeros, whose weights are zero. Every process reads all of the data and
        takes its rows of each batch, so all see the same number of batches. A mixture ends when its first task does.

        Args:
          spec: what the objective reads.
          num_batches: how many at most; None for all.
          process_index: which process this is.
          process_count: how many there are.
        """
        rows = self._rows(process_count)
        mine = slice(process_index * rows, (process_index + 1) * rows)
        ds = self._dataset(self.provider, spec, shuffle=False, num_epochs=1, shard_info=None)
        ds = _options(ds.batch(self.batch_size).take(-1 if num_batches is None else num_batches).prefetch(2))
        limits = self.id_limits(spec)
        for batch in _explain_errors(ds.as_numpy_iterator(), self):
            check_ids(batch, limits, data=self.mixture_or_task_name, holder="its vocabulary")
            missing = self.batch_size - len(next(iter(batch.values())))
            yield {name: np.pad(array, [(0, missing), (0, 0)])[mine] for name, array in batch.items()}

    def task_dataset(
        self, *, shuffle: bool = False, num_epochs: int | None = 1, shard_info: "seqio.ShardInfo | None" = None
    ) -> "tf.data.Dataset":
        """The examples as the task gives them: token ids, neither trimmed, packed nor padded."""
        return self._task_dataset(self.provider, shuffle=shuffle, num_epochs=num_epochs, shard_info=shard_info)

    def examples(self, number: int) -> "Iterator[dict[str, np.ndarray]]":
        """The first examples as the task gives them, as many as there are of `number`."""
        yield from _explain_errors(self.task_dataset().take(number).as_numpy_iterator(), self)

    def _task_dataset(self, provider, *, shuffle, num_epochs, shard_info) -> "tf.data.Dataset":
        self._check_split(provider)
        if self.use_cached:
            for task in self._tasks(provider):
                if not task.supports_caching or task.cache_dir is None:
                    raise UserError(
                        f"USE_CACHED_TASKS=True, but there is no cache of {task.name!r}: set it to False, or write "
                        "one with seqio's cache_tasks_main and name its folder with seqio.add_global_cache_dirs"
                    )
        from t5x_like.data.seqio_feed import task_errors

        return task_errors.build(
            self,
            lambda: provider.get_dataset(
                sequence_length=dict(self.task_feature_lengths),
                split=self.split,
                use_cached=self.use_cached,
                shuffle=shuffle,
                seed=self.seed,
                shard_info=shard_info,
                num_epochs=num_epochs,
                trim_output_features=False,  # the converter does it, many examples at once
                try_in_mem_cache=False,  # it would be part of every checkpoint
            ),
        )

    def _dataset(self, provider, spec: FeatureSpec, **reading) -> "tf.data.Dataset":
        from t5x_like.data.seqio_feed.converter import SpecConverter

        lengths = self._check_features(provider, spec)
        converter = SpecConverter(spec, pack=self.pack, padding_ids=self.padding_ids())
        return converter.convert(self._task_dataset(provider, **reading), lengths)

    def _check_features(self, provider, spec: FeatureSpec) -> dict[str, int]:
        """The length of each task feature that `spec` reads."""
        lengths = spec.task_lengths(self.task_feature_lengths)
        if missing := [name for name in lengths if name not in provider.output_features]:
            raise UserError(
                f"{self.mixture_or_task_name} has the features {', '.join(map(repr, provider.output_features))}; this "
                f"objective also reads {', '.join(map(repr, missing))}"
            )
        return lengths

    def _check_split(self, provider) -> None:
        with_split = [task for task in self._tasks(provider) if self.split in task.splits]
        if not with_split:
            splits = sorted({split for task in self._tasks(provider) for split in task.splits})
            raise UserError(f"{self.mixture_or_task_name} has no split {self.split!r}; it has {', '.join(splits)}")

    def _rows(self, process_count: int) -> int:
        if self.batch_size % process_count:
            raise UserError(f"BATCH_SIZE={self.batch_size} must be a multiple of the {process_count} processes")
        return self.batch_size // process_count

    def _corpus(self) -> str:
        """A hash of what the corpora say about themselves, their own hashes included."""
        lines = [task.source.describe() for task in self.tasks if hasattr(task.source, "describe")]
        return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


def import_modules(module: str | Sequence[str] | None) -> None:
    """Registers the shipped tasks and the user's, whose modules are looked for in the working directory too.

    Raises:
      UserError: a module does not exist; or TensorFlow, TFDS or SeqIO is not installed.
    """
    _load_tensorflow()
    modules = [module] if isinstance(module, str) else list(module or ())
    if (folder := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.append(folder)
    for name in (SHIPPED_TASKS, *modules):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
                raise  # the module is there and imports something that is not
            raise UserError(
                f"MIXTURE_OR_TASK_MODULE={name!r} cannot be imported: there is no module {error.name!r} in {folder} "
                "nor on the Python path. Give a dotted name such as my_tasks or my_package.tasks"
            ) from error


def _load_tensorflow() -> None:
    try:
        import seqio  # noqa: F401

        from t5x_like.data.seqio_feed import devices  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(
            f"reading a SeqIO task needs TensorFlow, TFDS and SeqIO, and there is no {error.name!r} here: pip install "
            "seqio tensorflow tensorflow-text tensorflow-datasets. Training from a cache needs none of them: see "
            "data/cached.gin"
        ) from error


def find_provider(name: str) -> "seqio.Task | seqio.Mixture":
    """The task or mixture of that name.

    Raises:
      UserError: there is none; the message lists the nearest names.
    """
    import seqio

    names = [*seqio.MixtureRegistry.names(), *seqio.TaskRegistry.names()]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=5, cutoff=0.4) or sorted(names)[:20]
        raise UserError(
            f"MIXTURE_OR_TASK_NAME={name!r} is not registered; the nearest names are {', '.join(near)}. If it is "
            "yours, name the module that registers it in MIXTURE_OR_TASK_MODULE"
        )
    return seqio.get_mixture_or_task(name)


def _explain_errors(batches: Iterator[dict[str, np.ndarray]], source: SeqIOSource) -> Iterator[dict[str, np.ndarray]]:
    from t5x_like.data.seqio_feed import task_errors

    with task_errors.explain_errors(source):
        yield from batches


def _options(ds: "tf.data.Dataset") -> "tf.data.Dataset":
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = True
    return ds.with_options(options)
