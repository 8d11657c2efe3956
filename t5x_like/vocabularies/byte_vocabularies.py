"""Vocabularies of bytes with the sentinels of ByT5's weights, or of transformers."""

from t5x_like.vocabularies.base import ByteVocabulary


class ReleasedByteVocabulary(ByteVocabulary):
    """The bytes of the released weights of ByT5, which were trained with the last bytes as sentinels.

    <extra_id_0> is 258, the byte 0xFF, and the next ones descend from it. The ids after the bytes are not used.
    """

    @property
    def sentinel_ids(self) -> range:
        """The ids of <extra_id_0>, <extra_id_1>, …."""
        last = self._base_vocab_size - 1
        return range(last, last - self.extra_ids, -1)


class TransformersByteVocabulary(ByteVocabulary):
    """Bytes with the sentinels of transformers' ByT5Tokenizer: <extra_id_0> is 259, the first id after the bytes."""

    @property
    def sentinel_ids(self) -> range:
        """The ids of <extra_id_0>, <extra_id_1>, …."""
        return range(self._base_vocab_size, self.vocab_size)


BYTE_VOCABULARIES = {
    "t5": ByteVocabulary,
    "released": ReleasedByteVocabulary,
    "transformers": TransformersByteVocabulary,
}
"""Convention of the sentinels -> the vocabulary of bytes that has them."""
