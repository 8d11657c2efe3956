"""BART's pretraining data (Lewis et al. 2020): text with several noises as `inputs`, the text itself as `targets`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import seqio
import tensorflow as tf

from data_tasks import bart_noise, language_model, preprocessors
from data_tasks.noise_masks import uniform_below
from t5x_like.errors import UserError

WORD_BOUNDARY = "\N{LOWER ONE EIGHTH BLOCK}"
"""What the pieces of SentencePiece begin with that begin a word."""
_WHITESPACE = " \t\n\r"


@dataclasses.dataclass(frozen=True)
class BartNoise:
    """Which noises, in the order in which they are applied; the defaults are those that BART was trained with.

    Attributes:
      permute_sentences: fraction of the sentences of a chunk that change places.
      infill: fraction of the words that spans hide, each span as one mask.
      mask: fraction of the tokens that are masked one by one.
      delete: fraction of the tokens that are deleted.
      rotate: fraction of the chunks that are rotated, to begin with any of their tokens.
      mean_span_length: words of an infilled span, on average (Poisson).
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
                raise UserError(f"BartNoise: {name}={getattr(self, name)} must be a fraction, 0 to 1")
        if self.mean_span_length <= 0:
            raise UserError(f"BartNoise: mean_span_length={self.mean_span_length} must be above 0 words")

    def apply(self, tokens: tf.Tensor, counts: tf.Tensor, special: "NoiseTokens", seed: tf.Tensor) -> bart_noise.Noised:
        """Noise on rows of text without special tokens.

        Args:
          tokens: int32 `[rows, width]`, 0 after the end of each row.
          counts: tokens of each row, `[rows]`.
          special: what the ids mean.
          seed: stateless, `[2]`.

        Returns:
          Tokens `[rows, any]` and how many each row has; text infilling may add a few.
        """
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 7))
        if self.permute_sentences:
            sentences, numbers = sentence_indices(tokens, counts, special.full_stop)
            order = bart_noise.draw_order(numbers, tf.shape(tokens)[1], self.permute_sentences, seeds[0])
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
    """What the noises have to know of a vocabulary.

    Attributes:
      mask: the id of a mask.
      full_stop: the id that ends a sentence.
      begin_words: tokens `[rows, width]` -> which begin a word by what they are, or what is before them; bool.
    """

    mask: int
    full_stop: int
    begin_words: Callable[[tf.Tensor], tf.Tensor]

    @classmethod
    def from_vocabulary(cls, vocabulary: seqio.Vocabulary, mask_id: int | None = None) -> "NoiseTokens":
        """Those of a vocabulary.

        Args:
          vocabulary: one that says itself which ids begin words (`word_starts`, bool `[vocab_size]`), SentencePiece,
            or any other one, in which words begin after white space.
          mask_id: by default the last id of the vocabulary, its first sentinel.

        Raises:
          UserError: there is neither a sentinel nor a `mask_id`.
        """
        if mask_id is None and not vocabulary.extra_ids:
            raise UserError(
                f"BART's noise needs an id for its mask: give mask_id, or a {type(vocabulary).__name__} with "
                "extra_ids=1 or more"
            )
        mask = vocabulary.vocab_size - 1 if mask_id is None else mask_id
        return cls(mask, full_stop=vocabulary.encode("a.")[-1], begin_words=_begin_words(vocabulary))

    def word_starts(self, tokens: tf.Tensor) -> tf.Tensor:
        """Which tokens of `[rows, width]` begin a word, bool; the first one of a row always does."""
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
    """Which sentence each token belongs to, from 0, `[rows, width]`, and how many each row has, `[rows]`.

    A sentence ends with a full stop that does not follow another one.
    """
    stops = tokens == full_stop
    after_stop = tf.pad(stops, [[0, 0], [1, 0]])[:, :-1]
    numbers = tf.cumsum(tf.cast(stops & ~after_stop, tf.int32), axis=1, exclusive=True)
    real = tf.sequence_mask(counts, tf.shape(tokens)[1])
    return numbers, tf.reduce_max(tf.where(real, numbers + 1, 0), axis=1)


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
    """Cuts documents into chunks, each by itself, and puts noise on them.

    Args:
      ds: documents as token ids, `targets` `[length]`.
      sequence_length: tokens of `inputs` and `targets`; a chunk fills the shorter one.
      output_features: `inputs` and `targets`, of one vocabulary.
      noise: which noises.
      mask_id: by default the first sentinel of the vocabulary.
      bos_id: what both begin with, if anything.
      documents_per_batch: how many documents are worked on at once.

    Returns:
      Examples with `inputs`, which has the noise, and `targets`, the text: int32, each ending in EOS.
      Where infilling made a full `inputs` longer than the text, its end is cut off.

    Raises:
      UserError: the lengths are too short, the vocabularies differ, or there is no id for the mask.
    """
    if sequence_length is None or not {"inputs", "targets"} <= set(sequence_length):
        raise UserError(f"BART's noise needs TASK_FEATURE_LENGTHS of 'inputs' and 'targets', not {sequence_length}")
    vocabulary = output_features["targets"].vocabulary
    if output_features["inputs"].vocabulary != vocabulary:
        raise UserError("BART's noise needs one vocabulary for 'inputs' and 'targets'")
    front = () if bos_id is None else (bos_id,)
    lengths = {name: sequence_length[name] for name in ("inputs", "targets")}
    length = min(lengths.values()) - len(front) - 1
    if length < 1:
        raise UserError(f"TASK_FEATURE_LENGTHS={lengths}: BART's noise needs room for a token, BOS and EOS")
    language_model.require_eos(vocabulary)
    special = NoiseTokens.from_vocabulary(vocabulary, mask_id)

    @seqio.map_over_dataset(num_seeds=1)
    def corrupt(batch, seed):
        tokens, counts = preprocessors.chunk_each_document(batch["targets"], length, shortest=1)
        sides = {"inputs": noise.apply(tokens, counts, special, seed), "targets": (tokens, counts)}

        def whole(name):
            text = tf.RaggedTensor.from_tensor(sides[name][0], lengths=sides[name][1])
            text = tf.concat([tf.tile([front], [text.nrows(), 1]), text], axis=1) if front else text
            return preprocessors.truncate_with_eos(text, lengths[name], vocabulary)

        return {name: whole(name) for name in sides}

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
    """A task that restores chunks of documents from BART's noises.

    Args:
      name: to register it under.
      source: of documents.
      vocabulary: with an EOS.
      noise: which noises; by default those that BART was trained with.
      mask_id: by default the first sentinel of the vocabulary.
      bos_id: what inputs and targets begin with, if anything.
      text_feature: the feature of the source that holds the text.
    """
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            functools.partial(preprocessors.documents, text_feature=text_feature),
            preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            functools.partial(bart, noise=noise, mask_id=mask_id, bos_id=bos_id),
        ],
        output_features={feature: seqio.Feature(vocabulary) for feature in ("inputs", "targets")},
    )
