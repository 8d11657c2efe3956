"""BART's pretraining data (Lewis et al. 2020): noised text as `inputs`, the original text as `targets`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import seqio
import tensorflow as tf

import t5x_like.data.seqio_feed.seqio_interface  # noqa: F401 (the vocabularies are SeqIO's)
from data_tasks import preprocessors
from data_tasks.documents_task import add_task, text_features
from data_tasks.feature_checks import require_eos, require_lengths, require_shared_vocabulary
from data_tasks.pretraining import bart_noise
from data_tasks.pretraining.noise_masks import uniform_below
from t5x_like.errors import UserError
from t5x_like.vocabularies.sentinels import sentinel_ids

# Prefix of the SentencePiece pieces that begin a word.
WORD_BOUNDARY = "\N{LOWER ONE EIGHTH BLOCK}"
_WHITESPACE = " \t\n\r"


@dataclasses.dataclass(frozen=True)
class BartNoise:
    """The noise functions of BART, applied in the order of the attributes. The defaults follow BART's training.

    Attributes:
      permute_sentences: fraction of the sentences of a chunk that are permuted.
      infill: fraction of the words that are covered by infilled spans; each span becomes one mask token.
      mask: fraction of the tokens that are masked one by one.
      delete: fraction of the tokens that are deleted.
      rotate: fraction of the chunks that are rotated to begin at a random token.
      mean_span_length: mean length of an infilled span in words (Poisson distributed).
    """

    permute_sentences: float = 1.0
    infill: float = 0.3
    mask: float = 0.0
    delete: float = 0.0
    rotate: float = 0.0
    mean_span_length: float = 3.0

    def __post_init__(self):
        for name in ("permute_sentences", "infill", "mask", "delete", "rotate"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"BartNoise.{name}={getattr(self, name)} is not a fraction. Give a number from 0 to 1.")
        if self.mean_span_length <= 0:
            raise UserError(
                f"BartNoise.mean_span_length={self.mean_span_length} is not positive. Give a number above 0."
            )

    def apply(self, tokens: tf.Tensor, counts: tf.Tensor, special: "NoiseTokens", seed: tf.Tensor) -> bart_noise.Noised:
        """Applies the noise to rows of text without special tokens.

        Args:
          tokens: int32 `[rows, width]`, 0 after the end of each row.
          counts: number of tokens per row, `[rows]`.
          special: the ids that the noise functions need.
          seed: stateless seed, `[2]`.

        Returns:
          Tokens `[rows, new_width]` and the number of tokens per row; text infilling may add tokens.
        """
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 7))
        if self.permute_sentences:
            sentences, sentence_counts = sentence_indices(tokens, counts, special.full_stop)
            order = bart_noise.draw_order(sentence_counts, tf.shape(tokens)[1], self.permute_sentences, seeds[0])
            tokens = bart_noise.permute_sentences(tokens, counts, sentences, order)
        if self.infill:
            starts = special.word_starts(tokens) & tf.sequence_mask(counts, tf.shape(tokens)[1])
            spans, without_word = bart_noise.draw_spans(starts, self.infill, self.mean_span_length, seeds[1])
            tokens, counts = bart_noise.infill(tokens, counts, starts, spans, special.mask)
            inserted = bart_noise.draw_insertions(counts, without_word, seeds[2])
            tokens, counts = bart_noise.insert(tokens, counts, inserted, special.mask)
        if self.mask:
            chosen = bart_noise.choose(tf.sequence_mask(counts, tf.shape(tokens)[1]), self.mask, seeds[3])
            tokens = bart_noise.mask_tokens(tokens, chosen, special.mask)
        if self.delete:
            chosen = bart_noise.choose(tf.sequence_mask(counts, tf.shape(tokens)[1]), self.delete, seeds[4])
            tokens, counts = bart_noise.delete_tokens(tokens, counts, chosen)
        if self.rotate:
            rotated = tf.random.stateless_uniform(tf.shape(counts), seeds[5]) < self.rotate
            first = uniform_below(tf.maximum(counts, 1), seeds[6])
            tokens = bart_noise.rotate(tokens, counts, tf.where(rotated, first, 0))
        return tokens, counts


@dataclasses.dataclass(frozen=True)
class NoiseTokens:
    """The token ids that the noise functions need from a vocabulary.

    Attributes:
      mask: the mask id.
      full_stop: the id that ends a sentence.
      begin_words: maps tokens `[rows, width]` to bool `[rows, width]`, True for tokens that begin a word, judged by the
        token itself or by the token before it.
    """

    mask: int
    full_stop: int
    begin_words: Callable[[tf.Tensor], tf.Tensor]

    @classmethod
    def from_vocabulary(cls, vocabulary: seqio.Vocabulary, mask_id: int | None = None) -> "NoiseTokens":
        """Reads the ids from a vocabulary.

        Args:
          vocabulary: a vocabulary with the attribute `word_starts` (bool `[vocab_size]`), a SentencePiece vocabulary,
            or any other one; in the last case words begin after whitespace.
          mask_id: the mask id. Default: the first sentinel of the vocabulary, or `mask_id` of one without sentinels.

        Returns:
          The ids.

        Raises:
          UserError: the vocabulary has neither sentinel nor mask, and `mask_id` is not given.
        """
        if mask_id is None and not vocabulary.extra_ids:
            mask_id = getattr(vocabulary, "mask_id", None)
        if mask_id is None and not vocabulary.extra_ids:
            raise UserError(
                f"{type(vocabulary).__name__} has no sentinel that BART's noise can use as its mask. Give mask_id, or "
                "create the vocabulary with extra_ids=1 or more."
            )
        mask = sentinel_ids(vocabulary)[0] if mask_id is None else mask_id
        return cls(mask, full_stop=vocabulary.encode("a.")[-1], begin_words=_begin_words(vocabulary))

    def word_starts(self, tokens: tf.Tensor) -> tf.Tensor:
        """Returns which tokens of `[rows, width]` begin a word, bool. The first token of a row always does."""
        return self.begin_words(tokens) | (tf.range(tf.shape(tokens)[1]) == 0)


def _begin_words(vocabulary: seqio.Vocabulary) -> Callable[[tf.Tensor], tf.Tensor]:
    if hasattr(vocabulary, "word_starts"):
        table = tf.constant(vocabulary.word_starts)
    elif isinstance(vocabulary, seqio.SentencePieceVocabulary):
        model = vocabulary.tokenizer
        pieces = [model.IdToPiece(index) for index in range(vocabulary.vocab_size - vocabulary.extra_ids)]
        table = tf.constant([piece.startswith(WORD_BOUNDARY) for piece in pieces])
    else:
        spaces = tf.constant([vocabulary.encode(space)[-1] for space in _WHITESPACE])

        def after_space(tokens):
            space = tf.reduce_any(tokens[..., tf.newaxis] == spaces, axis=-1)
            return ~space & tf.pad(space, [[0, 0], [1, 0]])[:, :-1]

        return after_space
    count = tf.size(table)
    return lambda tokens: (tokens < count) & tf.gather(table, tf.minimum(tokens, count - 1))


def sentence_indices(tokens: tf.Tensor, counts: tf.Tensor, full_stop: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Number the sentences of each row. A sentence ends at a full stop that does not follow another full stop.

    Args:
      tokens: `[rows, width]`.
      counts: number of tokens per row, `[rows]`.
      full_stop: the id that ends a sentence.

    Returns:
      The sentence index of each token, from 0, `[rows, width]`, and the number of sentences per row, `[rows]`.
    """
    stops = tokens == full_stop
    after_stop = tf.pad(stops, [[0, 0], [1, 0]])[:, :-1]
    indices = tf.cumsum(tf.cast(stops & ~after_stop, tf.int32), axis=1, exclusive=True)
    real = tf.sequence_mask(counts, tf.shape(tokens)[1])
    return indices, tf.reduce_max(tf.where(real, indices + 1, 0), axis=1)


@tf.autograph.experimental.do_not_convert
def bart(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    noise: BartNoise = BartNoise(),
    mask_id: int | None = None,
    bos_id: int | None = None,
    documents_per_batch: int = 128,
) -> tf.data.Dataset:
    """Splits each document into chunks and applies BART's noise to them.

    Args:
      ds: documents as token ids, `targets` `[length]`.
      sequence_length: lengths of `inputs` and `targets` in tokens. A chunk fills the shorter one.
      output_features: `inputs` and `targets`, with the same vocabulary.
      noise: the noise functions.
      mask_id: the mask id. Default: the first sentinel of the vocabulary, or the mask of one without sentinels.
      bos_id: an id to prepend to inputs and targets. Default: the `text_prefix` of the vocabulary, <s> in BART, if any.
      documents_per_batch: number of documents processed together.

    Returns:
      Examples with the noised `inputs` and the original `targets`: int32, each ending in EOS. `inputs` is truncated
      where infilling makes it longer than its length.

    Raises:
      UserError: the lengths are too short, the vocabularies differ, or the vocabulary has no mask id.
    """
    lengths = require_lengths("BART's noise", sequence_length, "inputs", "targets")
    vocabulary = require_shared_vocabulary("BART's noise", output_features)
    prefix = getattr(vocabulary, "text_prefix", ()) if bos_id is None else (bos_id,)
    length = min(lengths.values()) - len(prefix) - 1
    if length < 1:
        raise UserError(f"TASK_FEATURE_LENGTHS={lengths}: too short for a token, BOS and EOS, which BART's noise needs")
    require_eos(vocabulary)
    special = NoiseTokens.from_vocabulary(vocabulary, mask_id)

    @seqio.map_over_dataset(num_seeds=1)
    def corrupt(batch, seed):
        tokens, counts = preprocessors.chunk_each_document(batch["targets"], length, shortest=1)
        features = {"inputs": noise.apply(tokens, counts, special, seed), "targets": (tokens, counts)}

        def finish(name):
            text = tf.RaggedTensor.from_tensor(features[name][0], lengths=features[name][1])
            text = tf.concat([tf.tile([prefix], [text.nrows(), 1]), text], axis=1) if prefix else text
            return preprocessors.truncate_with_eos(text, lengths[name], vocabulary)

        return {name: finish(name) for name in features}

    return corrupt(ds.ragged_batch(documents_per_batch)).unbatch()


def add_bart_task(
    name: str,
    source: seqio.DataSource,
    vocabulary: seqio.Vocabulary,
    noise: BartNoise = BartNoise(),
    *,
    mask_id: int | None = None,
    bos_id: int | None = None,
    text_feature: str = "text",
) -> seqio.Task:
    """Registers a task that reconstructs text chunks from BART's noise.

    Args:
      name: the task name.
      source: a source of documents.
      vocabulary: a vocabulary with an EOS.
      noise: the noise functions. Default: those that BART was trained with.
      mask_id: the mask id. Default: the first sentinel of the vocabulary, or the mask of one without sentinels.
      bos_id: an id to prepend to inputs and targets. Default: the `text_prefix` of the vocabulary, <s> in BART, if any.
      text_feature: the feature of the source that holds the text.

    Returns:
      The registered task.
    """
    preprocessor = functools.partial(bart, noise=noise, mask_id=mask_id, bos_id=bos_id)
    features = text_features(vocabulary, "inputs", "targets")
    return add_task(name, source, [preprocessor], features, text_feature=text_feature)
