"""`t5x_like embed`: writes vectors of texts or of their tokens, or prints the nearest neighbors of a word."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from absl import logging

from t5x_like import parameters
from t5x_like.data.records import Record
from t5x_like.errors import UserError
from t5x_like.inference import neighbors, records, text_vectors, vector_files, vocabulary_expansion
from t5x_like.inference.layer_mix import LayerMix, Layers
from t5x_like.inference.open_words import OpenWords
from t5x_like.inference.runner import Runner
from t5x_like.inference.text_frames import frame_of, longest_row, vocabulary_of
from t5x_like.inference.text_vectors import Frame, Pooling, TextRows, TokenizedText, VectorComputation
from t5x_like.interop import word_vectors
from t5x_like.layers.captures import OUTPUT
from t5x_like.models.word_vectors import WordVectorsConfig
from t5x_like.objectives.word_vectors.interface import ComposesWords, MakesVectors, vectors_of
from t5x_like.stored.loaded import Loaded
from t5x_like.vocabularies.word_characters import MAX_CHARACTERS


def embed(
    loaded: Loaded,
    *,
    input_path: str | None = None,
    output_path: str | None = None,
    overwrite: bool = False,
    level: Literal["sentence", "token"] = "sentence",
    pooling: Pooling = "mean",
    layers: Layers = OUTPUT,
    normalize: bool = False,
    text_column: str | None = None,
    max_length: int | None = None,
    word_vectors_path: str | None = None,
    neighbors_of: str | None = None,
    count: int = 10,
    batch_size: int = 32,
) -> str | None:
    """Writes the vectors of the records of a file, or prints the nearest neighbors of a word.

    A text is read with the special tokens that the tokenizer of the model places around it. The vectors are hidden
    states of the encoder, or of the decoder of a model without an encoder. A model that reads characters needs no
    tokenizer: whitespace separates the words of a text. Words without a static vector are left out; fastText composes
    a vector of their n-grams.

    The neighbors of a word of static word vectors are the words with the largest cosines. For other models, each
    occurrence of the word in the texts of `input_path` is compared with all other words there. The vector of a word is
    the mean of the vectors of its tokens.

    Args:
      loaded: The model, and its vocabulary; see `open_model`.
      input_path: A `.txt`, `.jsonl`, `.csv` or `.tsv` file, local or in a bucket.
      output_path: The file to write: `.npz`, `.hdf5`, `.jsonl` or `.txt`; see `vector_files.write`.
      overwrite: Whether to replace an existing output file.
      level: `sentence` for a vector per text, `token` for a vector per token.
      pooling: How the vectors of tokens become the vector of a text: `mean`, `cls` or `last`; see `text_vectors.pool`.
      layers: Which hidden states; see `LayerMix.of`.
      normalize: Whether vectors are scaled to length 1.
      text_column: Column or field with the text; by default `inputs` or `text`, or the only one. Lists of token ids
        are read as they are.
      max_length: Longer texts are truncated to so many tokens; by default the longest row of the model, or 512.
      word_vectors_path: Word vectors, from which words that the vocabulary lacks get embeddings by a linear map; see
        `vocabulary_expansion.expand`. The model's tokens must be words.
      neighbors_of: A word whose nearest neighbors are printed, instead of writing a file.
      count: Number of neighbors.
      batch_size: Texts per batch.

    Returns:
      `output_path`; None if neighbors are printed.

    Raises:
      UserError: A setting or a record is invalid, or the word is unknown.
    """
    # ---- Settings ---------------------------------------------------------------------------------------------------
    _check(level, pooling, max_length, count)
    if neighbors_of is not None and output_path:
        raise UserError(f"OUTPUT_PATH={output_path}: NEIGHBOURS={neighbors_of} prints neighbors. Remove one of them.")
    config = loaded.resolved
    mix = LayerMix.of(config, layers)
    text_vectors.check_model(config)
    if neighbors_of is not None and input_path is None:
        for line in _static_neighbors(loaded, neighbors_of, count):
            print(line)
        return None
    if not input_path:
        raise UserError("--input: missing. Give a file, or a word as --neighbours.")
    if neighbors_of is None:
        if not output_path:
            raise UserError("--output: missing. Give a file that ends in .npz, .hdf5, .jsonl or .txt.")
        vector_files.check(output_path, overwrite=overwrite)

    # ---- Texts: all of them are tokenized before vectors are computed -----------------------------------------------
    inputs = records.read(input_path)
    column = _column(input_path, inputs, text_column)
    values = [_value(input_path, record, column) for record in inputs]
    words = OpenWords(getattr(loaded.objective, "max_characters", MAX_CHARACTERS))
    words = words if text_vectors.reads_characters(config) else None
    vocabulary = words or vocabulary_of(loaded, values)
    frame, vocab_size, table = frame_of(vocabulary), config.vocab_size, None
    if word_vectors_path is not None:
        given = word_vectors.read(word_vectors_path, setting="WORD_VECTORS")
        table = _expanded_table(loaded, vocabulary, given)
        vocabulary = vocabulary.with_words(vocabulary_expansion.further_words(given.words, vocabulary.pieces))
        vocab_size = len(table)
    elif isinstance(loaded.objective, ComposesWords) and vocabulary is not None:
        vocabulary, table = _with_composed_words(loaded, vocabulary, values)
        vocab_size = len(table)
    if pooling == "cls" and level == "sentence" and vocabulary is not None and frame.cls is None:
        raise UserError(f"POOLING=cls: {type(vocabulary).__name__} does not have [CLS]. Give mean or last.")
    max_length = max_length or longest_row(loaded)
    if vocabulary is not None and max_length <= len(frame.prefix) + len(frame.suffix):
        raise UserError(f"MAX_LENGTH={max_length}: no room for a text beside the special tokens. Give more.")
    rows, truncated = [], 0
    for record, value in zip(inputs, values, strict=True):
        where = f"{input_path}:{record.line}"
        if words is not None:
            vocab_size = _count_words(where, value, words)
        row, is_truncated = text_vectors.tokenize(where, value, vocabulary, frame, max_length, vocab_size)
        rows.append(row)
        truncated += is_truncated
    text_vectors.report_truncated(truncated, max_length)

    # ---- Vectors ----------------------------------------------------------------------------------------------------
    is_token_level = level == "token" or neighbors_of is not None
    cls = 0 if frame.cls is None else frame.cls
    computation = VectorComputation(config, mix, None if is_token_level else pooling, cls, normalize)
    runner = Runner(computation, _model(loaded, table), loaded.partitioner, batch_size)
    examples = TextRows(config, rows, frame, max_length, words)
    results = runner.run(examples, 0, len(rows), lambda *_: None)
    by_record = text_vectors.vectors_by_record(results, per_token=is_token_level)
    vectors = [by_record[index] for index in range(len(rows))]
    if neighbors_of is not None:
        for line in _contextual_neighbors(neighbors_of, values, rows, vectors, vocabulary, frame, count):
            print(line)
        return None
    tokens = [row.tokens for row in rows] if is_token_level else None
    vector_files.write(output_path, vectors, [record.values for record in inputs], tokens)
    logging.info("wrote the vectors of %d texts to %s", len(vectors), output_path)
    return output_path


def _check(level: str, pooling: str, max_length: int | None, count: int) -> None:
    if level not in ("sentence", "token"):
        raise UserError(f"LEVEL={level!r}: unknown. Give 'sentence' or 'token'.")
    if pooling not in text_vectors.POOLINGS:
        raise UserError(f"POOLING={pooling!r}: unknown. Give one of {', '.join(text_vectors.POOLINGS)}.")
    for name, value in (("MAX_LENGTH", max_length), ("COUNT", count)):
        if value is not None and value < 1:
            raise UserError(f"{name}={value} is not positive. Give a positive integer.")


def _column(path: str, found: Sequence[Record], name: str | None) -> Any:
    """Returns the name of the column with the text."""
    names = list(found[0].values)
    if name is not None:
        if name not in names:
            raise UserError(f"TEXT_COLUMN={name}: {path} has {', '.join(map(str, names))}. Give one of them.")
        return name
    known = [each for each in (records.TEXT_FIELD, "text") if each in names]
    if known or len(names) == 1:
        return (known or names)[0]
    raise UserError(
        f"{path}: none of the columns {', '.join(map(str, names))} is inputs or text. Give the column as TEXT_COLUMN."
    )


def _value(path: str, record: Record, column: Any) -> Any:
    if column not in record.values:
        raise UserError(f"{path}:{record.line}: missing {column!r}. Add the field.")
    return record.values[column]


def _count_words(where: str, value: Any, words: OpenWords) -> int:
    """Returns the number of different words up to a text, which must be one: ids of words say nothing here."""
    if not isinstance(value, str):
        raise UserError(
            f"{where}: {value!r:.80} is not text, of whose words the model reads the characters. Give text."
        )
    words.encode(value)
    return len(words.pieces)


def _expanded_table(loaded: Loaded, vocabulary: Any, given: word_vectors.Vectors) -> np.ndarray:
    """Returns the embeddings of the words of the vocabulary, and of the further words of a file."""
    if getattr(vocabulary, "is_words", False):
        raise UserError("WORD_VECTORS: the model is itself a table of word vectors. Remove it.")
    if not hasattr(vocabulary, "with_words"):
        raise UserError(
            f"WORD_VECTORS: the tokens of {type(vocabulary).__name__} are not words, so that no word can be added. "
            "Remove it."
        )
    table = np.asarray(loaded.read_model().token_embedder.table)
    return vocabulary_expansion.expand(table, vocabulary.pieces, given.words, given.vectors)


def _with_composed_words(loaded: Loaded, vocabulary: Any, values: Sequence[Any]) -> tuple[Any, np.ndarray]:
    """Returns a vocabulary with the other words of texts that have n-grams of fastText, and the vectors of all ids."""
    rows, composed, pieces = loaded.params["model"].token_embedder.table, {}, set(vocabulary.pieces)
    for word in dict.fromkeys(word for value in values if isinstance(value, str) for word in value.encode().split()):
        word = word.decode()
        if word not in pieces and (vector := loaded.objective.compose(word, rows)) is not None:
            composed[word] = vector
    words = vocabulary.pieces[vocabulary.num_special :]
    known = np.asarray(vectors_of(loaded.objective, parameters.named_leaves(loaded.params), words))
    table = np.concatenate([known, np.stack(list(composed.values()))]) if composed else known
    return vocabulary.with_words(list(composed)), table


def _model(loaded: Loaded, table: np.ndarray | None = None) -> Any:
    """Returns the model. Static vectors may be the sum or the mean of several rows, as those of GloVe and fastText.

    Args:
      loaded: The model.
      table: Embeddings of the tokens in place of its own.
    """
    if table is not None:
        name = "token_embedder/embedding"
        model = (
            loaded.params["model"]
            if loaded.objective is not None and loaded.objective.updates_rows
            else loaded.read_model()
        )
        return parameters.map_named(lambda each, leaf: table if each == name else leaf, model)
    if not isinstance(loaded.objective, MakesVectors):  # tables of the objective are not read
        return loaded.read_model()
    params, vocabulary = loaded.params, loaded.tokenizer or loaded.data.vocabularies()["targets"]
    words = vocabulary.pieces[vocabulary.num_special :]
    vectors = loaded.objective.vectors(parameters.named_leaves(params), words)
    return parameters.map_named(lambda name, leaf: vectors, params["model"])


def _static_neighbors(loaded: Loaded, word: str, count: int) -> list[str]:
    """Returns lines with the nearest words of a word of static vectors, and their cosines."""
    if not isinstance(loaded.config, WordVectorsConfig):
        raise UserError(
            f"NEIGHBOURS={word}: {type(loaded.config).__name__} has no static word vectors. Give sentences with the "
            "word as --input."
        )
    vocabulary = loaded.tokenizer or loaded.data.vocabularies()["targets"]
    vocabulary = getattr(vocabulary, "vocabulary", vocabulary)
    first, words = vocabulary.num_special, vocabulary.pieces
    table = np.asarray(_model(loaded).token_embedder.table)[: len(words)]
    index = vocabulary.find(word)
    query = None if index is None else table[index]
    if index is None and isinstance(loaded.objective, ComposesWords):
        query = loaded.objective.compose(word, loaded.params["model"].token_embedder.table)
    if query is None:
        raise UserError(
            f"NEIGHBOURS={word}: not among the {len(words) - first:,} words. Give a word of the vocabulary."
        )
    found = neighbors.nearest(table[first:], query, count, None if index is None else index - first)
    return [f"{cosine:6.3f}  {words[first + other]}" for other, cosine in found]


def _contextual_neighbors(
    word: str,
    values: Sequence[Any],
    rows: Sequence[TokenizedText],
    vectors: Sequence[np.ndarray],
    vocabulary: Any,
    frame: Frame,
    count: int,
) -> list[str]:
    """Returns lines with the nearest words of each occurrence of a word."""
    if vocabulary is None or not all(isinstance(value, str) for value in values):
        raise UserError(f"NEIGHBOURS={word}: words are found in text, not in token ids. Give sentences as text.")
    found = neighbors.occurrences(values, [row.ids for row in rows], vocabulary, len(frame.prefix))
    means = [vectors[each.sentence][each.first : each.last].mean(axis=0) for each in found]
    return neighbors.describe_contextual(word, values, found, np.array(means), count)
