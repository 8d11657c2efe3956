"""The characters of words, as ELMo numbers them, for Python; `t5x_like.vocabularies.words` has them for tasks."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

MAX_CHARACTERS = 50
"""Characters per word of the published models."""
# `<S>`, `</S>`, the beginning and the end of a word, and what fills a word up. 0 pads rows of words.
BEGIN_OF_TEXT, END_OF_TEXT, BEGIN_OF_WORD, END_OF_WORD, FILL = 257, 258, 259, 260, 261
NUM_CHARACTERS = FILL + 1
"""Number of ids of characters, with padding."""
BOS, EOS = "<S>", "</S>"
"""The words before and after a sentence. As in the released code, they have one special character in any text."""
SPECIAL = {BOS: BEGIN_OF_TEXT, EOS: END_OF_TEXT}


def of_words(words: Sequence[str], max_characters: int = MAX_CHARACTERS) -> Int32[np.ndarray, "words characters"]:
    """Returns the characters of words: 1 + each byte of UTF-8, between the beginning and the end of a word.

    `BOS` and `EOS` have their special character instead.

    Args:
      words: the words. Longer ones than `max_characters` - 2 bytes are cut.
      max_characters: characters per word, with those that begin and end it.
    """
    found = np.full((len(words), max_characters), FILL, np.int32)
    found[:, 0] = BEGIN_OF_WORD
    for row, word in enumerate(words):
        if word in SPECIAL:
            found[row] = boundary(SPECIAL[word], max_characters)
            continue
        letters = word.encode()[: max_characters - 2]
        found[row, 1 : len(letters) + 1] = 1 + np.frombuffer(letters, np.uint8).astype(np.int32)
        found[row, len(letters) + 1] = END_OF_WORD
    return found


def boundary(special: int, max_characters: int = MAX_CHARACTERS) -> Int32[np.ndarray, " characters"]:
    """Returns the characters of a word that is one special character, such as `BEGIN_OF_TEXT`."""
    return np.array([BEGIN_OF_WORD, special, END_OF_WORD, *[FILL] * (max_characters - 3)], np.int32)
