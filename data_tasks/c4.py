"""C4 from TensorFlow Datasets, with the public T5 vocabulary.

Nothing is downloaded: the dataset must have been prepared, and `task_arguments` say where it and the vocabulary are.
"""

import seqio

from data_tasks import vocabularies
from data_tasks.span_corruption import add_span_corruption_task
from t5x_like.data import task_arguments
from t5x_like.errors import UserError

TASK = "c4_v310_span_corruption"

_ARGUMENTS = task_arguments.declare(
    TASK,
    # The name, configuration and version that TFDS has prepared.
    tfds_name="c4/en:3.1.0",
    # TFDS's folder, local or in a bucket; by default TFDS's own (TFDS_DATA_DIR, or ~/tensorflow_datasets).
    data_dir=None,
    # The public vocabulary (cc_all.32000); it needs access to the bucket, or a copy of the file.
    vocabulary_path="gs://t5-data/vocabs/cc_all.32000/sentencepiece.model",
)


class LateTfdsSource(seqio.DataSource):
    """A TFDS dataset whose name and folder are asked for when it is read. It is never downloaded nor prepared."""

    def __init__(self, values: task_arguments.Arguments):
        self._values = values
        super().__init__(splits=("train", "validation"))

    def _tfds(self) -> seqio.TfdsDataSource:
        name, folder = self._values["tfds_name"], self._values["data_dir"]
        source = seqio.TfdsDataSource(name, tfds_data_dir=folder, splits=self.splits, read_only=True)
        if not source.tfds_dataset.info.splits:
            raise UserError(
                f"{name} has not been prepared by TFDS in {source.tfds_dataset.builder.data_dir}: give TFDS's "
                "folder in task_arguments {'data_dir': …}, or prepare the dataset with `tfds build`"
            )
        return source

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return False

    def list_shards(self, split):
        return self._tfds().list_shards(split)

    def num_input_examples(self, split):
        return self._tfds().num_input_examples(split)

    def get_dataset(self, split="train", shuffle=True, seed=None, shard_info=None, **_):
        return self._tfds().get_dataset(split, shuffle=shuffle, seed=seed, shard_info=shard_info)

    def describe(self) -> str:
        """One line about the dataset; reads its description, not its data."""
        counts = ", ".join(f"{self.num_input_examples(split):,} {split}" for split in self.splits)
        folder = self._values["data_dir"] or "its own folder"
        return f"{self._values['tfds_name']}: documents {counts}, from TFDS in {folder}"


add_span_corruption_task(
    TASK, LateTfdsSource(_ARGUMENTS), vocabularies.LateSentencePieceVocabulary(lambda: _ARGUMENTS["vocabulary_path"])
)
