"""Data source that reads a registered SeqIO task or mixture."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from t5x_like.data import continuous, endless, mixing, provenance, specs, task_arguments, text_vocabulary, trimming
from t5x_like.data.attached import refuse_attached
from t5x_like.data.batches import pad_rows, rows_of_process
from t5x_like.data.features import FeatureSpec
from t5x_like.data.prompts import separated
from t5x_like.data.seqio_feed import descriptions
from t5x_like.data.seqio_feed.registry import find_provider, import_modules
from t5x_like.data.seqio_feed.task_access import NEXT_FIT, Packing, check_packing
from t5x_like.data.token_ids import check_ids
from t5x_like.errors import UserError
from t5x_like.vocabularies import vocabulary_digest, vocabulary_kind
from t5x_like.vocabularies.late import LateVocabulary

if TYPE_CHECKING:
    import seqio
    import tensorflow as tf

    from t5x_like.data.seqio_feed.iterator import SeqIOIterator

# Length of the example that `suitable_spec` reads if no lengths are given.
_EXAMPLE_LENGTH = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeqIOSource:
    """A task or mixture from SeqIO's registry; see `DataSource`.

    Constructing a source reads no data and imports neither SeqIO nor TensorFlow.

    Attributes:
      mixture_or_task_name: Registered name.
      task_feature_lengths: Task feature -> maximum length in tokens. Longer examples are trimmed; `t5x_like inspect`
        counts them.
      batch_size: Number of rows of a batch over all processes.
      split: Split of the data.
      shuffle: Whether training batches are shuffled; evaluation batches never are.
      pack: Whether several examples share a row.
      packing: Which examples do; see `seqio_feed.packing`.
      seed: Seed of the order and of the corruption.
      use_cached: Whether to read SeqIO's offline cache of the task.
      module: One or several user modules to import first; the working directory is searched too.
      num_epochs: Number of passes over the data; None for unlimited passes.
      task_arguments: Arguments that the task declares, such as a pattern of files, for all tasks of a mixture; or task
        name -> arguments of this task. See `t5x_like.data.task_arguments`.
      rates: Rates of the tasks of a mixture: task name -> rate, or `mixing.Rates`; None for the rates with which the
        mixture is registered. With rates that name tasks, the mixture need not be registered.
      vocabulary_path: Hugging Face directory or SentencePiece model, the argument `vocabulary_path` of tasks that
        declare it. `task_arguments` takes precedence. Without a task, it is the vocabulary of text in `infer`.
      data_files: Files that the task reads, the argument `pattern` of tasks that declare it, such as text_files_*.
        `task_arguments` takes precedence over this and the next three; None for the defaults of the task.
      validation_files: Files of the split `validation`; by default a fraction of the documents is held out.
      text_column: Column, or field of a record, that holds the text.
      on_bad_record: What to do with a record whose text cannot be read: `error`, or `skip` to skip and count it.
      continuous: Whether row i of a batch continues row i of the batch before. The examples of the task are then whole
        documents; see `seqio_feed.continuous`.
    """

    mixture_or_task_name: str
    task_feature_lengths: Mapping[str, int]
    batch_size: int
    split: str = "train"
    shuffle: bool = True
    pack: bool = True
    packing: Packing = NEXT_FIT
    seed: int = 0
    use_cached: bool = False
    module: str | Sequence[str] | None = None
    num_epochs: int | None = None
    task_arguments: Mapping[str, Any] | None = None
    rates: mixing.MixingRates = None
    vocabulary_path: str | None = None
    data_files: str | None = None
    validation_files: str | None = None
    text_column: str | None = None
    on_bad_record: str | None = None
    continuous: bool = False

    def __post_init__(self):
        mixing.task_names(self.rates)  # raises if a rate is invalid
        mixing.refuse_stages(self.rates, f"{self.mixture_or_task_name}, which is read live,")
        if self.batch_size < 1:
            raise UserError(f"BATCH_SIZE={self.batch_size} is not a positive integer. Give the rows of a batch.")
        check_packing(self.packing)
        if self.continuous:
            continuous.check_settings(self.name, shuffle=self.shuffle, pack=self.pack)

    @property
    def name(self) -> str:
        """The name of the task or mixture."""
        return self.mixture_or_task_name

    @property
    def provider(self) -> "seqio.Task | seqio.Mixture":
        """The task or mixture, with its arguments set.

        Raises:
          UserError: the name or `module` is not found, an argument is invalid, or TensorFlow or SeqIO is missing.
        """
        import_modules(self.module)
        provider = self._find_provider()
        if self.task_arguments or self.vocabulary_path or self.file_arguments or self.continuous:
            from t5x_like.data.seqio_feed import arguments

            arguments.set_all(
                self._tasks(provider),
                self.task_arguments or {},
                files=self.file_arguments,
                row_lengths=self.task_feature_lengths if self.continuous else {},
                vocabulary_path=self.vocabulary_path,
            )
        else:
            task_arguments.restore([task.name for task in self._tasks(provider)])
        return provider

    @property
    def file_arguments(self) -> dict[str, str]:
        """The task arguments that `data_files` and the attributes after it set."""
        values = {argument: getattr(self, attribute) for argument, attribute in task_arguments.OF_FILES.items()}
        return {argument: value for argument, value in values.items() if value is not None}

    def _find_provider(self) -> "seqio.Task | seqio.Mixture":
        if self.rates is None:
            return find_provider(self.mixture_or_task_name)
        from t5x_like.data.seqio_feed import mixtures

        return mixtures.make(self.mixture_or_task_name, self.rates, self.split)

    @property
    def tasks(self) -> "Sequence[seqio.Task]":
        """The task, or the tasks of the mixture."""
        return self._tasks(self.provider)

    @staticmethod
    def _tasks(provider) -> "Sequence[seqio.Task]":
        import seqio

        return seqio.get_subtasks(provider)

    def per_task(self) -> "list[SeqIOSource]":
        """Returns a source for each task of a mixture that has the split; see `DataSource`."""
        provider = self.provider
        tasks = self._tasks_with_split(provider)
        if tasks == [provider]:
            return [self]
        return [
            dataclasses.replace(
                self,
                mixture_or_task_name=task.name,
                task_arguments=task_arguments.for_task(task.name, self.task_arguments or {}),
                rates=None,
                **{
                    attribute: None
                    for argument, attribute in task_arguments.OF_FILES.items()
                    if argument not in task_arguments.names(task.name)
                },
            )
            for task in tasks
        ]

    def mixing_fractions(self) -> dict[str, float]:
        """Returns task name -> fraction of the examples of a mixture; empty for a single task.

        Raises:
          UserError: a rate cannot be computed.
        """
        provider = self.provider
        if len(tasks := self._tasks_with_split(provider)) == 1:
            return {}
        from t5x_like.data.seqio_feed import task_errors

        return mixing.fractions(task_errors.rates(provider, tasks), self.name)

    def vocabularies(self) -> "dict[str, seqio.Vocabulary]":
        """Returns task feature -> vocabulary. Without a task, `targets` has the vocabulary at `vocabulary_path`."""
        if not self.mixture_or_task_name and self.vocabulary_path:
            return {"targets": LateVocabulary(lambda: self.vocabulary_path)}
        return {name: feature.vocabulary for name, feature in self.provider.output_features.items()}

    def text_vocabulary(self, spec: FeatureSpec) -> vocabulary_digest.TextVocabulary:
        """Returns digest and location of the vocabulary of the text; without a task, at `vocabulary_path`."""
        if not self.mixture_or_task_name:
            return vocabulary_digest.of_location(self.vocabulary_path)
        return text_vocabulary.of_text(self.vocabularies(), spec)

    def vocabulary_kind(self, spec: FeatureSpec) -> vocabulary_kind.VocabularyKind | None:
        """Returns the kind of the vocabulary of the text; see `DataSource`."""
        return text_vocabulary.kind_of_text(self.vocabularies(), spec)

    def add_eos(self) -> dict[str, bool]:
        """Returns task feature -> whether its text ends in EOS, as the feature of each task of a mixture declares."""
        features = [task.output_features for task in self.tasks]
        return {name: all(each[name].add_eos for each in features) for name in features[0]}

    def padding_ids(self) -> "dict[str, int | None]":
        """Returns task feature -> id that is padding at the end of an example, or None if the vocabulary has none."""
        return {name: vocabulary.pad_id for name, vocabulary in self.vocabularies().items()}

    def id_limits(self, spec: FeatureSpec) -> dict[str, int]:
        """Returns model feature -> number of token ids of its vocabulary; see `FeatureSpec.id_limits`."""
        return spec.id_limits({name: vocabulary.vocab_size for name, vocabulary in self.vocabularies().items()})

    @property
    def preprocessing_lengths(self) -> dict[str, int] | None:
        """The lengths that preprocessors get; None for whole documents, as in continuous data."""
        return None if self.continuous else dict(self.task_feature_lengths)

    def count_examples(self) -> int:
        """Returns the number of examples of the split before preprocessors, over all tasks.

        The examples of a task whose source does not know their number are counted in one pass.

        Raises:
          UserError: the split is missing or empty.
        """
        from t5x_like.data.seqio_feed import mixtures

        return sum(mixtures.count_examples(task, self.split) for task in self._tasks_with_split(self.provider))

    def has_metrics(self) -> bool:
        """Returns whether a task has its own metrics, computed from predictions or scores."""
        return any(task.metric_objs for task in self.tasks)

    def describe(self) -> list[str]:
        """Returns a line for the task, and one for each corpus that describes itself."""
        return descriptions.lines(self)

    def provenance(self) -> list[dict[str, Any]]:
        """Returns what is known of the data of each task that has the split; see `DataSource`."""
        return [provenance.of_task(task, self) for task in self.tasks if self.split in task.splits]

    def batch_shapes(self, spec: FeatureSpec) -> dict[str, tuple[int, ...]]:
        """Returns model feature -> shape of the global batch, `(batch, *choices, length, *inner)`."""
        refuse_attached(spec.attached, self.name)
        return {name: (self.batch_size, *shape) for name, shape in spec.row_shapes(self.task_feature_lengths).items()}

    def check_vocabulary(self, embeddings: int) -> None:
        """Checks that a model has an embedding for each token id.

        Raises:
          UserError: a vocabulary has more ids than `embeddings`.
        """
        # The values of an item, such as its characters, have embeddings of their own.
        features = self.provider.output_features if self.mixture_or_task_name else {}
        ranks = {name: feature.rank for name, feature in features.items()}
        for name, vocabulary in self.vocabularies().items():
            if ranks.get(name, 1) == 1 and vocabulary.vocab_size > embeddings:
                raise UserError(
                    f"{self.name or self.vocabulary_path}: the vocabulary of {name!r} has {vocabulary.vocab_size} ids "
                    f"(including sentinels), but the model has only {embeddings} embeddings. Set "
                    f"vocab_size={vocabulary.vocab_size} or more for the model."
                )

    def check(self, spec: FeatureSpec) -> None:
        """Checks that each task can be read as `spec` requires, and reads its first example.

        Raises:
          UserError: the task is not registered, the split, a feature or a length is missing, or the split is empty.
        """
        self._tasks_with_split(self.provider)
        self._check_features(self.provider, spec)
        from t5x_like.data.seqio_feed import empty_data

        for source in self.per_task():
            empty_data.check_not_empty(source, spec)

    def text_problems(self, spec: FeatureSpec) -> list[str]:
        """Returns warnings if much of a user's first documents or examples is lost; reads them."""
        from t5x_like.data.seqio_feed import text_problems

        return text_problems.find(self, spec)

    def host_iterator(self, spec: FeatureSpec, *, process_index: int = 0, process_count: int = 1) -> "SeqIOIterator":
        """Returns the training batches of one process.

        Args:
          spec: Features that the objective reads.
          process_index: Index of this process.
          process_count: Number of processes; each reads its own shard of the data, or its rows of continuous data.

        Raises:
          UserError: the task cannot be read with these lengths, this batch size or this number of processes.
        """
        rows = rows_of_process(self.batch_size, process_index, process_count)
        self._tasks_with_split(self.provider)  # before the imports: its errors say what to install
        import seqio
        import tensorflow as tf

        from t5x_like.data.seqio_feed import example_rows, identity, task_errors
        from t5x_like.data.seqio_feed.iterator import SeqIOIterator

        def make_dataset():
            # Each process reads all documents of continuous data, whose lengths determine the rows of the others.
            alone = process_count == 1 or self.continuous
            shard = None if alone else seqio.ShardInfo(process_index, process_count)
            ds = self._dataset(
                self.provider, spec, rows=rows, shuffle=self.shuffle, num_epochs=self.num_epochs, shard_info=shard
            )
            return example_rows.deterministic(ds.batch(len(rows), drop_remainder=True).prefetch(tf.data.AUTOTUNE))

        return SeqIOIterator(
            make_dataset,
            explain_errors=lambda: task_errors.explain_errors(self),
            row_shapes=spec.row_shapes(self.task_feature_lengths),
            dtypes=spec.dtypes,
            id_limits=self.id_limits(spec),
            identity=identity.of_pipeline(self, spec, process_index=process_index, process_count=process_count),
            versions=identity.versions(self),
        )

    def eval_batches(
        self, spec: FeatureSpec, num_batches: int | None = None, *, process_index: int = 0, process_count: int = 1
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the batches of one pass over the split in order, the same each time.

        The last batch is padded with rows of zeros, whose weights are zero, and the rows of continuous data after the
        end of their streams. Each process reads all of the data and takes its rows of each batch, so all processes see
        the same number of batches. A mixture ends when its first task ends.

        Args:
          spec: Features that the objective reads.
          num_batches: Maximum number of batches; None for all.
          process_index: Index of this process.
          process_count: Number of processes.
        """
        from t5x_like.data.seqio_feed import example_rows, task_errors

        mine = rows_of_process(self.batch_size, process_index, process_count)
        ds = self._dataset(self.provider, spec, to_the_end=True, shuffle=False, num_epochs=1, shard_info=None)
        ds = example_rows.deterministic(
            ds.batch(self.batch_size).take(-1 if num_batches is None else num_batches).prefetch(2)
        )
        limits = self.id_limits(spec)
        for batch in task_errors.explain_each(ds.as_numpy_iterator(), self):
            check_ids(batch, limits, data=self.mixture_or_task_name, holder="its vocabulary")
            missing = self.batch_size - len(next(iter(batch.values())))
            yield {name: pad_rows(array, missing)[mine.start : mine.stop] for name, array in batch.items()}

    def task_dataset(self, *, shuffle: bool = False, num_epochs: int | None = 1, **reading: Any) -> "tf.data.Dataset":
        """Returns the examples, not packed; `shard_info`, `separator` and `trimmed` (see `trimming`) may be given."""
        return self._task_dataset(self.provider, shuffle=shuffle, num_epochs=num_epochs, **reading)

    def examples(self, number: int, **reading: Any) -> "Iterator[dict[str, np.ndarray]]":
        """Yields the first examples of the task, at most `number`; see `task_dataset`."""
        from t5x_like.data.seqio_feed import task_errors

        yield from task_errors.explain_each(self.task_dataset(**reading).take(number).as_numpy_iterator(), self)

    def suitable_spec(self) -> FeatureSpec:
        """Returns the spec that reads most of the task's features; see `specs.spec_for_task`."""
        names = self.vocabularies()
        lengths = self.task_feature_lengths or dict.fromkeys(names, _EXAMPLE_LENGTH)
        source = dataclasses.replace(self, task_feature_lengths=lengths)
        return specs.spec_for_task(names, lambda: next(source.examples(1), None))

    def _task_dataset(self, provider, *, shuffle, num_epochs, shard_info=None, separator=None, trimmed=True):
        tasks = self._tasks_with_split(provider)
        from t5x_like.data.seqio_feed import mixtures, task_errors

        if self.use_cached:
            mixtures.check_offline_caches(tasks)
        if tasks != [provider]:
            mixtures.check_vocabularies(provider)
            self.mixing_fractions()  # raises if a rate is invalid

        def make() -> "tf.data.Dataset":
            with endless.sources(num_epochs is None), separated(separator), trimming.enabled(trimmed):
                return provider.get_dataset(
                    sequence_length=self.preprocessing_lengths,
                    split=self.split,
                    use_cached=self.use_cached,
                    shuffle=shuffle,
                    seed=self.seed,
                    shard_info=shard_info,
                    num_epochs=num_epochs,
                    trim_output_features=False,  # the converter trims many examples at once
                    try_in_mem_cache=False,  # every checkpoint would contain the cache
                )

        return task_errors.build(self, make)

    def _dataset(
        self, provider, spec: FeatureSpec, *, rows: range | None = None, to_the_end: bool = False, **reading
    ) -> "tf.data.Dataset":
        from t5x_like.data.seqio_feed import example_rows

        self._check_features(provider, spec)
        examples = self._task_dataset(provider, separator=spec.separator, **reading)
        return example_rows.make(self, examples, spec, batch_size=self.batch_size, rows=rows, to_the_end=to_the_end)

    def _check_features(self, provider, spec: FeatureSpec) -> None:
        """Checks that the task has the features that `spec` reads, and that they have lengths."""
        lengths = spec.task_lengths(self.task_feature_lengths)
        if missing := [name for name in lengths if name not in provider.output_features]:
            raise UserError(
                f"{self.name} has no feature {', '.join(map(repr, missing))}, which the objective reads; it has "
                f"{', '.join(map(repr, provider.output_features))}. Give a task or an objective that fits."
            )
        if self.continuous:
            continuous.check_spec(self.name, spec)

    def _tasks_with_split(self, provider) -> "list[seqio.Task]":
        from t5x_like.data.seqio_feed import mixtures

        return mixtures.tasks_with_split(provider, self.split)
