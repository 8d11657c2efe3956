"""The largest values that a file may claim.

A reader compares what a file says of itself with these values, and with the size of the file, before it allocates
memory or computes. A file below 1 MB is then read, or refused, within seconds and within 1 GiB of memory.
"""

from t5x_like.errors import UserError

# Layers of a stack, groups of layers, or networks of a layer. The deepest published Transformer has 1,000 layers (Wang
# et al. 2022, arXiv:2203.00555).
LAYERS = 1024
# Layers of LSTMs and highways, and convolutions, which are made one by one. ELMo has 2, 2 and 7.
UNROLLED_LAYERS = 64
# Any other size of a model.
SIZE = 2**31 - 1
# Values of a table that is computed when a model is made, such as sinusoids of positions. DistilBERT has 393,216.
TABLE = 1 << 24
# Bytes of arrays per byte of the file that stores them compressed. Trained weights compress to nine tenths or so.
EXPANSION = 100
# Bytes of the headers of one record of a web archive. Browsers and servers limit headers to 64 KiB or less.
HEADER_BYTES = 1 << 20
# Bytes of a line of a text file of word vectors. 1,000 features have about 20,000.
VECTOR_BYTES = 1 << 20
# Digits of a number of bytes, of rows or of examples. `int` refuses more than 4,300, and 19 exceed int64.
DIGITS = 18
# Characters of a regular expression, and the seconds that a search with it may take.
PATTERN_CHARACTERS, PATTERN_SECONDS = 10_000, 0.5


def check_expansion(subject: str, claimed: int, stored: int) -> None:
    """Checks that arrays are not much larger than what is stored of them.

    Args:
      subject: The file, for the message.
      claimed: Bytes of the arrays.
      stored: Bytes of the file.

    Raises:
      UserError: They are larger than `EXPANSION` times the file.
    """
    if claimed > EXPANSION * stored:
        raise UserError(
            f"{subject}: {claimed:,} bytes of arrays in a file of {stored:,} bytes, more than {EXPANSION} times as "
            "many. Copy the file again."
        )


def is_count(text: str | bytes) -> bool:
    """Returns whether text is a non-negative integer with at most `DIGITS` ASCII digits, which `int` reads."""
    return len(text) <= DIGITS and text.isascii() and text.isdigit()
