"""Vocabularies of whole words, and of the characters of words."""

import numpy as np
import tensorflow as tf

from t5x_like.vocabularies import word_characters, words

TEXTS = ["the cat, the dog\n\n(a)", "naïve — the café", "x_1=f(2)\u00a0</s>", "", "  "]
VOCABULARY = words.WordVocabulary(lambda: words.most_frequent((text.encode() for text in TEXTS), 6))
CHARACTERS = words.CharacterVocabulary()


def test_most_frequent_words_come_first():
    assert VOCABULARY.pieces == ("<pad>", "</s>", "<unk>", "the", "(", ")", ",", "/", "2")


def test_tensorflow_and_python_split_and_encode_alike():
    for text in TEXTS:
        assert [word.decode() for word in words.split_tf(tf.constant(text)).numpy()] == words.split(text)
        assert VOCABULARY.encode_tf(tf.constant(text)).numpy().tolist() == VOCABULARY.encode(text)
    assert words.split(TEXTS[2]) == ["x_1", "=", "f", "(", "2", ")", "\u00a0", "<", "/", "s", ">"]
    assert VOCABULARY.encode("the zebra") == [3, 2] and VOCABULARY.decode([3, 2, 1]) == "the <unk> </s>"
    assert VOCABULARY.decode_tf(tf.constant([3, 2])).numpy() == b"the <unk>"


def test_characters_are_those_of_elmo():
    """bilm-tf has 256 … 260 for the special characters, and adds 1 for padding 0."""
    found = CHARACTERS.words_to_ids(tf.constant(["ab", "</S>", "é", "abcdefgh"]), 7).numpy()
    np.testing.assert_array_equal(
        found,
        [
            [259, 98, 99, 260, 261, 261, 261],
            [259, 258, 260, 261, 261, 261, 261],
            [259, 0xC3 + 1, 0xA9 + 1, 260, 261, 261, 261],
            [259, 98, 99, 100, 101, 102, 260],
        ],
    )
    assert [CHARACTERS.decode(row.tolist()) for row in found] == ["ab", "</S>", "é", "abcde"]
    given = ["<S>", "</S>", "<s>", "</s>", "S"]  # the first two are those of the released code, in any text
    found = CHARACTERS.words_to_ids(tf.constant(given), 7).numpy()
    np.testing.assert_array_equal(found, word_characters.of_words(given, 7))
    assert found[:, 1].tolist() == [257, 258, 1 + ord("<"), 1 + ord("<"), 1 + ord("S")]
    assert CHARACTERS.encode("ab") == [259, 98, 99, 260] and CHARACTERS.vocab_size == 262
