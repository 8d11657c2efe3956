"""Makes the vocabularies of this package instances of SeqIO's classes, without being derived from them.

A module that asks `isinstance(vocabulary, seqio.…)` imports this one.
"""

import seqio
import tensorflow as tf

from t5x_like.vocabularies import base

seqio.Vocabulary.register(base.Vocabulary)
seqio.PassThroughVocabulary.register(base.PassThroughVocabulary)
seqio.ByteVocabulary.register(base.ByteVocabulary)
seqio.SentencePieceVocabulary.register(base.SentencePieceVocabulary)

# AutoGraph would convert the methods at each start, although they have no control flow over tensors.
base.Vocabulary.encode_tf = tf.autograph.experimental.do_not_convert(base.Vocabulary.encode_tf)
base.Vocabulary.decode_tf = tf.autograph.experimental.do_not_convert(base.Vocabulary.decode_tf)
