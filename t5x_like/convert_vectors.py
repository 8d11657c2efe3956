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
from t5x_like.interop import word_vectors
from t5x_like.interop.word_vectors import Vectors
from t5x_like.models.base import ModelConfig
from t5x_like.models.word_vectors import WordVectorsConfig
from t5x_like.objectives.glove import CONTEXTS, GloVe
from t5x_like.objectives.word2vec import INPUTS, SkipGram
from t5x_like.runtime import run_files
from t5x_like.training import weight_files
from t5x_like.training.runs import run_vocabulary

_VOCABULARY_FILE = "vocab.txt"


def is_input(path: str) -> bool:
    """Returns whether a path is a file of word vectors."""
    return weight_files.is_word_vectors(path)


def is_output(path: str) -> bool:
    """Returns whether a path to write has the name of a file of word vectors."""
    return word_vectors.is_name(path)


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
    found = word_vectors.read(path, getattr(model, "embed_dim", None))
    kept = [index for index, word in enumerate(found.words) if word not in word_counts.SPECIAL]
    vectors, words = found.vectors[kept], tuple(found.words[index] for index in kept)
    special = np.zeros((FIRST_WORD_ID, vectors.shape[1]), np.float32)
    if EOS in found.words:
        special[EOS_ID] = found.vectors[found.words.index(EOS)]
    table = np.concatenate([special, vectors])
    config = WordVectorsConfig(vocab_size=len(table), embed_dim=vectors.shape[1])
    vocabulary = word_counts.write(WordCounts(words, np.zeros(len(words), np.int64)))
    return config, {INPUTS: table}, describe(config, objective=(SkipGram, {})), vocabulary


def store_vocabulary(run: str, vocabulary: bytes) -> None:
    """Stores the words of a run and their counts."""
    path = paths.join(run, run_files.TOKENIZER, _VOCABULARY_FILE)
    paths.write_atomic(path, vocabulary)
    # By name, as tasks are: this package does not depend on the shipped vocabularies.
    made = importlib.import_module("data_tasks.vocabularies.word_counts").WordCountsVocabulary(path)
    kind = vocabulary_kind.of_vocabulary(made)
    run_vocabulary.store(run, vocabulary_digest.of_path(path), kind, "", {})


def write(config: ModelConfig, leaves: Mapping[str, Any], tokenizer: str | None, output_path: str) -> None:
    """Writes the vectors of a run as a file.

    Args:
      config: Configuration of the model.
      leaves: Its parameters by name.
      tokenizer: The file of its words, or its directory.
      output_path: The file to write, whose suffix is the format.

    Raises:
      UserError: The run has no static word vectors, or its words are not found.
    """
    if not isinstance(config, WordVectorsConfig):
        raise UserError(
            f"OUTPUT_PATH={output_path}: {type(config).__name__} has no static word vectors. Give a directory to "
            "export the model, or write vectors of texts with `t5x_like embed`."
        )
    words = word_counts.read(tokenizer).words
    vectors = GloVe().vectors(leaves) if CONTEXTS in leaves else leaves[INPUTS]
    table = np.asarray(vectors, np.float32)[FIRST_WORD_ID : FIRST_WORD_ID + len(words)]
    paths.write_output("OUTPUT_PATH", output_path, word_vectors.contents(output_path, Vectors(words, table)))
    logging.info("wrote %d vectors of %d features to %s", *table.shape, output_path)
