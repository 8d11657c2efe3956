"""Whole words as the vocabulary of downstream tasks: unknown words are kept, and texts have no special tokens."""

from typing import TYPE_CHECKING

from data_tasks.vocabularies import late
from data_tasks.vocabularies.base import Vocabulary
from data_tasks.vocabularies.word_counts import WordCountsVocabulary

if TYPE_CHECKING:
    import tensorflow as tf


class WordTextsVocabulary(WordCountsVocabulary):
    """The words of a file with their counts, in texts whose words whitespace separates. Other words are `<unk>`."""

    def _encode(self, s: str) -> list[int]:
        return [self._ids.get(word.decode(), self.unk_id) for word in s.encode().split()]

    def _encode_tf(self, s: "tf.Tensor") -> "tf.Tensor":
        import tensorflow as tf

        words = tf.strings.split(s)
        if isinstance(words, tf.RaggedTensor):
            return words.with_flat_values(self.words_to_ids(words.flat_values))
        return self.words_to_ids(words)

    @property
    def template(self):
        """`a`, and `a </s> b` with the token type 1 for b; see `templates.Template`."""
        from data_tasks.downstream.templates import Template

        return Template(separator=(self.eos_id,), second_type=1)


def read_other(path: str) -> Vocabulary:
    """Returns the vocabulary of a path that is not a Hugging Face directory: a SentencePiece model, or words."""
    if path.endswith(late.SENTENCEPIECE_SUFFIX):
        return late.sentencepiece_model(path)
    return WordTextsVocabulary(path)
