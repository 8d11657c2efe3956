"""The part of `t5x_like convert` for files of word vectors; see `interop.word_vectors`."""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging

from t5x_like import paths
from t5x_like.config.description import describe
from t5x_like.data import vocabulary_digest, vocabulary_kind, word_counts
from t5x_like.data.word_counts import EOS, EOS_ID, FIRST_WORD_ID, WordCounts
from t5x_like.errors import UserError
from t5x_like.interop import fasttext_files, word_vectors
from t5x_like.interop.fasttext_files import FastTextModel
from t5x_like.interop.word_vectors import Vectors
from t5x_like.models.base import ModelConfig
from t5x_like.models.word_vectors import WordVectorsConfig
from t5x_like.objectives.base import Objective
from t5x_like.objectives.fasttext import SubwordSkipGram
from t5x_like.objectives.row_updates import TABLE, RowObjective
from t5x_like.objectives.word2vec import SkipGram
from t5x_like.runtime import run_files
from t5x_like.training import weight_files
from t5x_like.training.runs import run_vocabulary

_VOCABULARY_FILE = "vocab.txt"
_OUTPUTS = "objective/output/embedding"


def is_input(path: str) -> bool:
    """Returns whether a path is a file of word vectors."""
    return weight_files.is_word_vectors(path)


def is_output(path: str) -> bool:
    """Returns whether a path to write has the name of a file of word vectors."""
    return word_vectors.has_suffix(path)


def read(path: str, model: ModelConfig | None) -> tuple[WordVectorsConfig, dict[str, Any], str, bytes]:
    """Reads a file of word vectors as the parameters of a model.

    Args:
      path: The file.
      model: A configuration whose `embed_dim` the vectors must have; None for any.

    Returns:
      The configuration of the model, its parameters by name, the configuration of its run, and its vocabulary file.

    Raises:
      UserError: The file is invalid.
    """
    with paths.explain_path_errors("CHECKPOINT_PATH", path):
        contents = paths.read_bytes(path)
    if fasttext_files.is_fasttext(contents):
        return _read_fasttext(path, contents)
    found = word_vectors.read(path, getattr(model, "embed_dim", None))
    kept = [index for index, word in enumerate(found.words) if word not in word_counts.SPECIAL]
    vectors, words = found.vectors[kept], tuple(found.words[index] for index in kept)
    special = np.zeros((FIRST_WORD_ID, vectors.shape[1]), np.float32)
    if EOS in found.words:
        special[EOS_ID] = found.vectors[found.words.index(EOS)]
    table = np.concatenate([special, vectors])
    config = WordVectorsConfig(vocab_size=len(table), embed_dim=vectors.shape[1])
    vocabulary = word_counts.to_bytes(WordCounts(words, np.zeros(len(words), np.int64)))
    return config, {TABLE: table}, describe(config, objective=(SkipGram, {})), vocabulary


def _read_fasttext(path: str, contents: bytes) -> tuple[WordVectorsConfig, dict[str, Any], str, bytes]:
    """Returns what `read` returns, of a model of fastText with its n-grams."""
    found = fasttext_files.read(path, contents)
    names, counts = found.words
    kept = np.array([index for index, name in enumerate(names) if name not in word_counts.SPECIAL], int)
    words = WordCounts(tuple(names[index] for index in kept), counts[kept])
    dim, buckets = found.inputs.shape[1], found.subwords.buckets
    special = np.zeros((FIRST_WORD_ID, dim), np.float32)
    inputs, outputs = special.copy(), special.copy()
    if EOS in names:
        inputs[EOS_ID], outputs[EOS_ID] = (each[names.index(EOS)] for each in (found.inputs, found.outputs))
    leaves = {
        TABLE: np.concatenate([inputs, found.inputs[kept], found.inputs[len(names) :]]),
        _OUTPUTS: np.concatenate([outputs, found.outputs[kept]]),
    }
    config = WordVectorsConfig(vocab_size=FIRST_WORD_ID + len(words.words), embed_dim=dim, buckets=buckets)
    if not buckets:
        return config, leaves, describe(config, objective=(SkipGram, {})), word_counts.to_bytes(words)
    settings = {"shortest": found.subwords.shortest, "longest": found.subwords.longest, "buckets": buckets}
    return config, leaves, describe(config, objective=(SubwordSkipGram, settings)), word_counts.to_bytes(words)


def _fasttext_file(objective: SubwordSkipGram, leaves: Mapping[str, Any], words: WordCounts) -> bytes:
    """Returns the contents of fastText's binary file for a run.

    `</s>` is the first word, as fastText adds it at the end of lines.
    """
    table, outputs = (np.asarray(leaves[name], np.float32) for name in (TABLE, _OUTPUTS))
    stop = FIRST_WORD_ID + len(words.words)
    own = [EOS_ID, *range(FIRST_WORD_ID, stop)]
    buckets = table[len(table) - objective.subwords.buckets :]
    model = FastTextModel(
        WordCounts((EOS, *words.words), np.concatenate([words.counts.max(initial=1)[None], words.counts])),
        objective.subwords,
        np.concatenate([table[own], buckets]),
        outputs[own],
        objective.window,
        getattr(objective.output, "negatives", 5),
        objective.subsampling,
    )
    return fasttext_files.to_bytes(model)


def store_vocabulary(run: str, vocabulary: bytes) -> None:
    """Stores the words of a run and their counts."""
    path = paths.join(run, run_files.TOKENIZER, _VOCABULARY_FILE)
    paths.write_atomic(path, vocabulary)
    # By name, as tasks are: this package does not depend on the shipped vocabularies.
    made = importlib.import_module("data_tasks.vocabularies.word_counts").WordCountsVocabulary(path)
    kind = vocabulary_kind.of_vocabulary(made)
    run_vocabulary.store(run, vocabulary_digest.of_path(path), kind, "", {})


def write(
    config: ModelConfig, objective: Objective, leaves: Mapping[str, Any], tokenizer: str | None, output_path: str
) -> None:
    """Writes the vectors of a run as a file.

    Args:
      config: Configuration of the model.
      objective: What it was trained on.
      leaves: Its parameters by name.
      tokenizer: The file of its words, or its directory.
      output_path: The file to write, whose suffix is the format.

    Raises:
      UserError: The run has no static word vectors, its words are not found, or a binary file of fastText is given
        for a run without negative samples.
    """
    if not isinstance(config, WordVectorsConfig):
        raise UserError(
            f"OUTPUT_PATH={output_path}: {type(config).__name__} has no static word vectors. Give a directory to "
            "export the model, or write vectors of texts with `t5x_like embed`."
        )
    counts = word_counts.read(tokenizer)
    words = counts.words
    if isinstance(objective, SubwordSkipGram) and output_path.endswith(".bin"):
        if _OUTPUTS not in leaves:
            raise UserError(
                f"OUTPUT_PATH={output_path}: fastText's binary files are written of runs with negative samples, but "
                f"the run has {type(objective.output).__name__}. Give a .vec file."
            )
        paths.write_output("OUTPUT_PATH", output_path, _fasttext_file(objective, leaves, counts))
        logging.info("wrote %d words and %d buckets to %s", len(words), objective.subwords.buckets, output_path)
        return
    vectors = objective.vectors(leaves, words) if isinstance(objective, RowObjective) else leaves[TABLE]
    table = np.asarray(vectors, np.float32)[FIRST_WORD_ID : FIRST_WORD_ID + len(words)]
    paths.write_output("OUTPUT_PATH", output_path, word_vectors.to_bytes(output_path, Vectors(words, table)))
    logging.info("wrote %d vectors of %d features to %s", *table.shape, output_path)
