"""C4 from TensorFlow Datasets, with the public T5 vocabulary.

This task downloads nothing: the dataset must be prepared already. `task_arguments` give its location and that of the
vocabulary.
"""

import seqio

from data_tasks import vocabularies
from data_tasks.span_corruption import add_span_corruption_task
from t5x_like.data import task_arguments
from t5x_like.errors import UserError

TASK = "c4_v310_span_corruption"

_ARGUMENTS = task_arguments.declare(
    TASK,
    # Name, configuration and version of the prepared TFDS dataset.
    tfds_name="c4/en:3.1.0",
    # TFDS data directory, local or in a bucket. Default: that of TFDS (TFDS_DATA_DIR, or ~/tensorflow_datasets).
    data_dir=None,
    # The public vocabulary (cc_all.32000). Reading it requires access to the bucket, or a copy of the file.
    vocabulary_path="gs://t5-data/vocabs/cc_all.32000/sentencepiece.model",
)


class LateTfdsSource(seqio.DataSource):
    """A TFDS dataset whose name and directory are looked up when it is read. It is never downloaded or prepared.

    Args:
      values: the task arguments `tfds_name` and `data_dir`.
    """

    def __init__(self, values: task_arguments.Arguments):
        self._values = values
        super().__init__(splits=("train", "validation"))

    def _tfds(self) -> seqio.TfdsDataSource:
        name, directory = self._values["tfds_name"], self._values["data_dir"]
        source = seqio.TfdsDataSource(name, tfds_data_dir=directory, splits=self.splits, read_only=True)
        if not source.tfds_dataset.info.splits:
            raise UserError(
                f"{name} is not prepared in the TFDS directory {source.tfds_dataset.builder.data_dir}. Give the right "
                "directory in task_arguments {'data_dir': …}, or prepare the dataset with `tfds build`."
            )
        return source

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """False: the dataset is sharded by its files."""
        return False

    def list_shards(self, split):
        """Return the shards of a split."""
        return self._tfds().list_shards(split)

    def num_input_examples(self, split):
        """Return the number of documents of a split."""
        return self._tfds().num_input_examples(split)

    def get_dataset(self, split="train", shuffle=True, seed=None, shard_info=None, **_):
        """Return the documents of a split; see `seqio.DataSource`."""
        return self._tfds().get_dataset(split, shuffle=shuffle, seed=seed, shard_info=shard_info)

    def describe(self) -> str:
        """Return one line about the dataset from its metadata, without reading its data."""
        counts = ", ".join(f"{self.num_input_examples(split):,} {split}" for split in self.splits)
        directory = self._values["data_dir"] or "its default directory"
        return f"{self._values['tfds_name']}: documents {counts}, from TFDS in {directory}"


add_span_corruption_task(
    TASK, LateTfdsSource(_ARGUMENTS), vocabularies.LateSentencePieceVocabulary(lambda: _ARGUMENTS["vocabulary_path"])
)
