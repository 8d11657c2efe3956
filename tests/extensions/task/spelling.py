"""A task: spells the words of a file, one per line."""

import seqio
import tensorflow as tf


@seqio.map_over_dataset
def spell(word):
    letters = tf.strings.unicode_split(word, "UTF-8")
    return {"inputs": word, "targets": tf.strings.reduce_join(letters, separator=" ")}


seqio.TaskRegistry.add(
    "spelling",
    source=seqio.TextLineDataSource({"train": "words.txt", "validation": "words.txt"}),
    preprocessors=[spell, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
    output_features={name: seqio.Feature(seqio.ByteVocabulary()) for name in ("inputs", "targets")},
)
