"""BigBird's examples: a random span of each document, with masked words (`run_pretraining.py` of the released code)."""

import dataclasses

import numpy as np
import seqio
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2

from data_tasks.pretraining.masked_lm import ORDER_DRAW, BertMasking, Draw, RobertaMasking, Rows, number_words
from data_tasks.pretraining.row_maker import RowMaker, makes_rows
from t5x_like.vocabularies.special_tokens import SpecialTokens, sentencepiece_pieces, word_starts

# The released code never draws a span that ends in the last tokens of a long document.
_UNREACHED_TOKENS = 2
_Piece = sentencepiece_model_pb2.ModelProto.SentencePiece


def bigbird_word_starts(vocabulary: seqio.Vocabulary) -> np.ndarray:
    """Returns which ids begin a word: the pieces that begin with `▁`, or those of `word_starts` without such pieces.

    Args:
      vocabulary: a vocabulary with a SentencePiece model, or with the attribute `word_starts`.

    Returns:
      bool `[vocab_size]`.

    Raises:
      UserError: the word boundaries of the vocabulary are unknown.
    """
    starts, pieces = np.array(word_starts(vocabulary), bool), sentencepiece_pieces(vocabulary)
    if pieces is None:
        return starts
    begins = [piece.startswith("▁") for piece in pieces]
    return np.pad(begins, (0, len(starts) - len(begins)))


@makes_rows(num_seeds=1, documents_per_batch=64)
def random_spans(maker: RowMaker, batch: dict, seed: tf.Tensor) -> dict[str, tf.Tensor]:
    """Takes one span of each document, another one in each epoch.

    The start is drawn uniformly; then tokens before the first word are removed, which leaves the end where it is. A
    document that fits is taken whole.

    Args:
      maker: Makes the rows.
      batch: Documents as token ids, ragged `targets`.
      seed: Stateless seed, `[2]`.

    Returns:
      `inputs`, int32 `[rows, length]`, 0 after the end.

    Raises:
      UserError: the vocabulary lacks words.
    """
    begins = tf.constant(bigbird_word_starts(maker.output_features["inputs"].vocabulary))
    documents = batch["targets"]
    counts = tf.cast(documents.row_lengths(), tf.int32)
    choices = tf.maximum(1, counts - maker.length - _UNREACHED_TOKENS)
    drawn = tf.random.stateless_uniform(tf.shape(counts), seed, dtype=tf.float64)
    start = tf.cast(drawn * tf.cast(choices, tf.float64), tf.int32)
    offsets = tf.range(maker.text_length)[tf.newaxis]
    is_text = start[:, tf.newaxis] + offsets < counts[:, tf.newaxis]
    first = tf.cast(documents.row_starts(), tf.int32) + start
    index = tf.where(is_text, first[:, tf.newaxis] + offsets, 0)
    tokens = tf.gather(tf.pad(documents.flat_values, [[0, 1]]), index)
    # A span without the beginning of a word is kept whole.
    is_begin = is_text & tf.gather(begins, tokens)
    skipped = tf.cast(tf.argmax(is_begin, axis=1), tf.int32)
    kept = is_text & (offsets >= skipped[:, tf.newaxis])
    return {"inputs": maker.enclose(tf.ragged.boolean_mask(tokens, kept))}


@dataclasses.dataclass(frozen=True)
class WordMasking(BertMasking):
    """Draws 15 % of the words, at least one and at most as many as `targets` has positions, and predicts all pieces.

    The drawn word whose pieces do not fit into `targets`, and all words drawn after it, are left out. Each piece has a
    draw of its own for [MASK], a random token or itself, and random tokens are pieces of text.
    """

    def choose(self, rows: Rows, draw: Draw, max_predictions: int, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Chooses the tokens to predict; see `Masking.choose`."""
        begins = tf.gather(tf.constant(bigbird_word_starts(vocabulary)), rows.tokens)
        # Without the beginning of a word, each piece is a word.
        begins |= ~tf.reduce_any(begins & rows.text, axis=1, keepdims=True)
        words = number_words(rows, begins, draw(ORDER_DRAW))
        number = tf.cast(tf.reduce_max(words.word, axis=1), tf.float64)
        wanted = tf.maximum(tf.cast(tf.round(number * self.rate), tf.int32), 1 if self.rate else 0)
        wanted = tf.minimum(wanted, max_predictions)
        pieces = tf.cumsum(tf.gather(words.sizes, words.by_score, batch_dims=1), axis=1)
        ranks = tf.range(tf.shape(pieces)[1])[tf.newaxis]
        is_kept = (ranks < wanted[:, tf.newaxis]) & (pieces <= max_predictions) & (words.by_score > 0)
        examples = tf.broadcast_to(tf.range(tf.shape(pieces)[0])[:, tf.newaxis], tf.shape(pieces))
        places = tf.stack([examples, words.by_score], axis=-1)
        is_chosen = tf.scatter_nd(places, tf.cast(is_kept, tf.int32), tf.shape(words.sizes))
        return (tf.gather(is_chosen, words.word, batch_dims=1) > 0) & (words.word > 0)

    def random_tokens(self, vocabulary: seqio.Vocabulary, special: SpecialTokens) -> np.ndarray:
        """Returns the ids of text, from 101 on in the released vocabulary, `[ids]`."""
        if getattr(vocabulary, "has_space_symbol", False):
            return np.setdiff1d(np.arange(vocabulary.vocab_size), list(vocabulary.special_names))
        model = getattr(vocabulary, "tokenizer", None)
        if not hasattr(model, "serialized_model_proto"):
            return RobertaMasking().random_tokens(vocabulary, special)
        pieces = sentencepiece_model_pb2.ModelProto.FromString(model.serialized_model_proto()).pieces
        ids = [index for index, piece in enumerate(pieces) if piece.type in (_Piece.NORMAL, _Piece.BYTE)]
        return np.array(ids)
