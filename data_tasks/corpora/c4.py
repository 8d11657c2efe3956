"""C4 and Wikipedia from TensorFlow Datasets.

    TASK_ARGUMENTS = {"data_dir": "gs://bucket/tensorflow_datasets"}

| task | documents | objective and vocabulary |
|---|---|---|
| `c4_v310_span_corruption` | C4 3.1.0 | span corruption, with T5's public vocabulary unless another is set |
| `c4_v220_span_corruption`, `c4_v220_iid_denoising`, `c4_v220_full_lm` | C4 2.2.0 | as named |
| `c4_v020_unsupervised`, `c4_noclean_…`, `c4_realnewslike_…`, `c4_webtextlike_…` | C4 2.2.0, variants | `recipe` |
| `wikipedia_20190301.en_v003_unsupervised` | the English Wikipedia | `recipe` |

All but the first one have the names of the t5 package and no vocabulary of their own, so that they can be mixed with
text-to-text tasks. The package leaves the objective of its unsupervised tasks to a gin file; here it is the task
argument `recipe`, with the names of those files (see `data_tasks.pretraining.denoising`). Nothing is downloaded: the
datasets must be prepared already.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import seqio
import tensorflow as tf

from data_tasks.documents_task import add_task, text_features
from data_tasks.downstream.classification import VOCABULARY_PATH, late_vocabulary
from data_tasks.pretraining import denoising, language_model
from data_tasks.pretraining.span_corruption import add_span_corruption_task
from t5x_like.data import task_arguments
from t5x_like.errors import UserError
from t5x_like.vocabularies import shipped

TASK = "c4_v310_span_corruption"
RECIPE = "span_3_15_u_u"
"""The default recipe of unsupervised tasks: T5's span corruption."""

_ARGUMENTS = task_arguments.declare(
    TASK,
    # Name, configuration and version of the prepared TFDS dataset.
    tfds_name="c4/en:3.1.0",
    # TFDS data directory, local or in a bucket. Default: TFDS's own (TFDS_DATA_DIR, or ~/tensorflow_datasets).
    data_dir=None,
    # The public vocabulary (cc_all.32000). Reading it requires access to the bucket, or a copy of the file.
    vocabulary_path="gs://t5-data/vocabs/cc_all.32000/sentencepiece.model",
)


class LateTfdsSource(seqio.DataSource):
    """A TFDS dataset whose name and directory are looked up when it is read. It is never downloaded or prepared.

    Args:
      values: the task arguments `tfds_name` and `data_dir`.
      splits: the splits of the dataset.
    """

    def __init__(self, values: task_arguments.Arguments, splits: Sequence[str] = ("train", "validation")):
        self._values = values
        super().__init__(splits=tuple(splits))

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
        """Returns the shards of a split."""
        return self._tfds().list_shards(split)

    def num_input_examples(self, split):
        """Returns the number of documents of a split."""
        return self._tfds().num_input_examples(split)

    def get_dataset(self, split="train", shuffle=True, seed=None, shard_info=None, **_):
        """Returns the documents of a split; see `seqio.DataSource`."""
        return self._tfds().get_dataset(split, shuffle=shuffle, seed=seed, shard_info=shard_info)

    def describe(self) -> str:
        """Returns one line about the dataset from its metadata, without reading its data."""
        counts = ", ".join(f"{self.num_input_examples(split):,} {split}" for split in self.splits)
        directory = self._values["data_dir"] or "its default directory"
        return f"{self._values['tfds_name']}: documents {counts}, from TFDS in {directory}"


add_span_corruption_task(
    TASK, LateTfdsSource(_ARGUMENTS), shipped.LateSentencePieceVocabulary(lambda: _ARGUMENTS["vocabulary_path"])
)


# ---- tasks of the t5 package -----------------------------------------------------------------------------------------


def _declare(name: str, tfds_name: str, **others: str) -> task_arguments.Arguments:
    return task_arguments.declare(
        name,
        # Name, configuration and version of the prepared TFDS dataset.
        tfds_name=tfds_name,
        # TFDS data directory, local or in a bucket. Default: TFDS's own (TFDS_DATA_DIR, or ~/tensorflow_datasets).
        data_dir=None,
        # A Hugging Face directory or a SentencePiece model. Required.
        **{VOCABULARY_PATH: None},
        **others,
    )


def corrupt(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    arguments: Mapping[str, str],
) -> tf.data.Dataset:
    """Applies the recipe that the task argument `recipe` names; see `denoising.preprocessor_of`.

    Raises:
      UserError: the recipe is unknown, or makes no `inputs`.
    """
    if arguments["recipe"] == "lm":
        raise UserError(
            "TASK_ARGUMENTS: recipe='lm' makes no inputs, which this task has. Give another recipe, or register a task "
            "with data_tasks.pretraining.language_model.add_causal_lm_task."
        )
    return denoising.preprocessor_of(arguments["recipe"])(ds, sequence_length, output_features)


def _add_unsupervised(name: str, tfds_name: str, splits: Sequence[str] = ("train", "validation")) -> None:
    # The recipe that makes inputs and targets of a document, such as span_3_15_u_u or prefix_lm.
    arguments = _declare(name, tfds_name, recipe=RECIPE)
    features = text_features(late_vocabulary(arguments), "inputs", "targets")
    add_task(name, LateTfdsSource(arguments, splits), [functools.partial(corrupt, arguments=arguments)], features)


def _add_with(add: Callable[..., seqio.Task], name: str, *recipe: str) -> None:
    arguments = _declare(name, "c4/en:2.2.0")
    add(name, LateTfdsSource(arguments), late_vocabulary(arguments), *recipe)


_add_with(add_span_corruption_task, "c4_v220_span_corruption")
_add_with(denoising.add_denoising_task, "c4_v220_iid_denoising", "iid_15_u_u")
_add_with(language_model.add_causal_lm_task, "c4_v220_full_lm")
for _variant in ("", ".noclean", ".realnewslike", ".webtextlike"):
    _add_unsupervised(f"c4{_variant.replace('.', '_')}_v020_unsupervised", f"c4/en{_variant}:2.2.0")
_add_unsupervised("wikipedia_20190301.en_v003_unsupervised", "wikipedia/20190301.en:1.0.0", ("train",))
