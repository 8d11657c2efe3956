"""Makes the vocabularies of this package instances of SeqIO's classes, without being derived from them.

A module that asks `isinstance(vocabulary, seqio.…)` imports this one.
"""

import seqio

from data_tasks.vocabularies import base

seqio.Vocabulary.register(base.Vocabulary)
seqio.PassThroughVocabulary.register(base.PassThroughVocabulary)
seqio.ByteVocabulary.register(base.ByteVocabulary)
seqio.SentencePieceVocabulary.register(base.SentencePieceVocabulary)
