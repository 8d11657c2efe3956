"""The part of `t5x_like convert` for files of word vectors; see `interop.word_vectors`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging

from t5x_like import paths
from t5x_like.checkpoints import weight_files
from t5x_like.config.description import describe, describe_dataclass, describe_model, describe_objective
from t5x_like.errors import UserError
from t5x_like.interop import fasttext_files, word_vectors
from t5x_like.interop.fasttext_files import FastTextModel
from t5x_like.interop.word_vectors import Vectors
from t5x_like.models.base import ModelConfig
from t5x_like.models.word_vectors import WordVectorsConfig
from t5x_like.objectives.base import Objective
from t5x_like.objectives.word_vectors.fasttext import SubwordBagOfWords, SubwordSkipGram
from t5x_like.objectives.word_vectors.fasttext_classification import OUTPUT as LABEL_VECTORS
from t5x_like.objectives.word_vectors.fasttext_classification import FastTextClassification, LabelTree, Softmax
from t5x_like.objectives.word_vectors.interface import TABLE, vectors_of
from t5x_like.objectives.word_vectors.word2vec import ContinuousBagOfWords, SkipGram
from t5x_like.runtime import run_files
from t5x_like.stored import run_vocabulary
from t5x_like.vocabularies import vocabulary_digest, vocabulary_kind, word_counts
from t5x_like.vocabularies.word_counts import EOS, EOS_ID, FIRST_WORD_ID, WordCounts
from t5x_like.vocabularies.word_vocabularies import WordCountsVocabulary, WordSequenceVocabulary

_VOCABULARY_FILE = "vocab.txt"
_OUTPUTS = "objective/output/embedding"
# Kind of a file of fastText -> objectives without and with n-grams.
_BY_KIND = {
    fasttext_files.SKIP_GRAM: (SkipGram, SubwordSkipGram),
    fasttext_files.CBOW: (ContinuousBagOfWords, SubwordBagOfWords),
}


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
    if not kept:
        raise UserError(f"{path}: no words besides {', '.join(found.words)}. Give a file with a word per line.")
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
    readable = [bool(name) and _is_unicode(name) for name in names]
    if unreadable := len(names) - sum(readable):
        logging.warning("%s: %d words are empty or not valid UTF-8 and are left out", path, unreadable)
    kept = np.array(
        [index for index, name in enumerate(names) if readable[index] and name not in word_counts.SPECIAL], int
    )
    words = WordCounts(tuple(names[index] for index in kept), counts[kept])
    dim, buckets = found.inputs.shape[1], found.subwords.buckets
    is_classifier = found.kind == fasttext_files.CLASSIFIER
    special = np.zeros((FIRST_WORD_ID, dim), np.float32)
    inputs, outputs = special.copy(), special.copy()
    if EOS in names:
        inputs[EOS_ID] = found.inputs[names.index(EOS)]
        if found.loss == fasttext_files.NEGATIVE_SAMPLING:
            outputs[EOS_ID] = found.outputs[names.index(EOS)]
    table = np.concatenate([inputs, found.inputs[kept], found.inputs[len(names) :]])
    config = WordVectorsConfig(vocab_size=FIRST_WORD_ID + len(words.words), embed_dim=dim, buckets=buckets)
    vocabulary = word_counts.to_bytes(words)
    if is_classifier:
        outputs, labels = found.outputs, found.labels
        # The tree of hierarchical softmax breaks ties of counts by the order of labels in the file, so that only the
        # labels of a softmax are sorted, as tasks often have them.
        if found.loss != fasttext_files.TREE:
            order = sorted(range(len(labels.words)), key=lambda index: labels.words[index])
            outputs, labels = outputs[order], WordCounts(tuple(labels.words[at] for at in order), labels.counts[order])
        described = _described_classifier(config, found._replace(labels=labels))
        return config, {TABLE: table, LABEL_VECTORS: outputs}, described, vocabulary
    leaves = {TABLE: table}
    if found.loss == fasttext_files.NEGATIVE_SAMPLING:
        leaves[_OUTPUTS] = np.concatenate([outputs, found.outputs[kept]])
    else:
        logging.warning(
            "%s was trained without negative samples. Its word vectors are read, but not its output vectors, which "
            "belong to tree nodes or a softmax; further training initializes new ones.",
            path,
        )
    plain, composed = _BY_KIND[found.kind]
    if not buckets:
        return config, leaves, describe(config, objective=(plain, {})), vocabulary
    settings = {"shortest": found.subwords.shortest, "longest": found.subwords.longest, "buckets": buckets}
    return config, leaves, describe(config, objective=(composed, settings)), vocabulary


def _is_unicode(word: str) -> bool:
    """Returns whether a word has no bytes that are not UTF-8, which are read as surrogates."""
    return not any("\udc80" <= letter <= "\udcff" for letter in word)


def _described_classifier(config: WordVectorsConfig, found: FastTextModel) -> str:
    """Returns the configuration of the run of a classifier."""
    labels, counts = found.labels
    output = Softmax() if found.loss == fasttext_files.SOFTMAX else LabelTree(tuple(counts.tolist()))
    settings = {
        "labels": "%LABELS",
        "vocabulary_path": "%VOCABULARY_PATH",
        "word_ngrams": str(found.word_ngrams),
        "shortest": str(found.subwords.shortest),
        "longest": str(found.subwords.longest),
        "buckets": str(found.subwords.buckets),
        "output": "%LABEL_OUTPUT",
    }
    objective = describe_objective(FastTextClassification, settings)
    head = f"from __gin__ import dynamic_registration\n\n{describe_model(config)}"
    macros = [f"LABELS = {labels!r}", "PACK = False", ""]
    return "\n".join([head, objective, describe_dataclass("LABEL_OUTPUT", output), *macros])


def _fasttext_file(
    objective: SubwordSkipGram | FastTextClassification, leaves: Mapping[str, Any], words: WordCounts
) -> bytes:
    """Returns the contents of fastText's binary file for a run.

    `</s>` is the first word, as fastText adds it at the end of lines.
    """
    table = np.asarray(leaves[TABLE], np.float32)
    own = [EOS_ID, *range(FIRST_WORD_ID, FIRST_WORD_ID + len(words.words))]
    inputs = np.concatenate([table[own], table[len(table) - objective.subwords.buckets :]])
    counts = WordCounts((EOS, *words.words), np.concatenate([words.counts.max(initial=1)[None], words.counts]))
    model = FastTextModel(counts, objective.subwords, inputs, np.zeros((0, 0), np.float32))
    if isinstance(objective, FastTextClassification):
        outputs, tree = np.asarray(leaves[LABEL_VECTORS], np.float32), objective.output
        order = list(range(len(objective.labels)))
        numbers, loss = np.ones(len(order), np.int64), fasttext_files.SOFTMAX
        if isinstance(tree, LabelTree):  # its rows belong to nodes
            order, loss = tree.order, fasttext_files.TREE
            numbers = np.array(tree.counts)[order]
        labels = WordCounts(tuple(objective.labels[label] for label in order), numbers)
        found = {"kind": fasttext_files.CLASSIFIER, "loss": loss, "word_ngrams": objective.word_ngrams}
        return fasttext_files.to_bytes(model._replace(outputs=outputs, labels=labels, **found))
    is_bag = isinstance(objective, SubwordBagOfWords)
    return fasttext_files.to_bytes(
        model._replace(
            outputs=np.asarray(leaves[_OUTPUTS], np.float32)[own],
            window=objective.window,
            negatives=objective.output.negatives,
            subsampling=objective.subsampling,
            kind=fasttext_files.CBOW if is_bag else fasttext_files.SKIP_GRAM,
        )
    )


def store_vocabulary(run: str, vocabulary: bytes, *, reads_texts: bool) -> None:
    """Stores the words of a run and their counts.

    Args:
      run: The run directory.
      vocabulary: The file of the words.
      reads_texts: Whether the model classifies texts, whose unknown words keep their places.
    """
    path = paths.join(run, run_files.TOKENIZER, _VOCABULARY_FILE)
    paths.write_atomic(path, vocabulary)
    made = (WordSequenceVocabulary if reads_texts else WordCountsVocabulary)(path)
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
    if isinstance(objective, SubwordSkipGram | FastTextClassification) and output_path.endswith(".bin"):
        if isinstance(objective, SubwordSkipGram) and _OUTPUTS not in leaves:
            raise UserError(
                f"OUTPUT_PATH={output_path}: fastText's binary files are written of runs with negative samples, but "
                f"the run has {type(objective.output).__name__}. Give a .vec file."
            )
        paths.write_output("OUTPUT_PATH", output_path, _fasttext_file(objective, leaves, counts))
        logging.info("wrote %d words and %d buckets to %s", len(words), objective.subwords.buckets, output_path)
        return
    vectors = vectors_of(objective, leaves, words)
    table = np.asarray(vectors, np.float32)[FIRST_WORD_ID : FIRST_WORD_ID + len(words)]
    paths.write_output("OUTPUT_PATH", output_path, word_vectors.to_bytes(output_path, Vectors(words, table)))
    logging.info("wrote %d vectors of %d features to %s", *table.shape, output_path)
