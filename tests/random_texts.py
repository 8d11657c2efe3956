"""Random texts of many scripts, with what tokenizers change: whitespace, marks, controls, emoji and special tokens."""

import random
import unicodedata

_WORDS = (
    *("the", "River", "don't", "they'LL", "I'M", "naïve", "Ångström", "ΟΔΟΣ", "İstanbul", "straße", "ſtraſſe", "12345"),
    *("3.14", "1,234", "Ⅷ", "½", "١٢٣", "北京", "東京都", "ひらがな", "한국어", "Привет", "שלום", "नमस्ते", "ภาษา", "ﷺ"),
    *(
        "𠮷野家",
        "𝒜𝒷𝒸",
        "👩‍🚀",
        "🙂🏽",
        "🇩🇪",
        "❤️",
        "http://a.b/c?d=e",
        "``quoted''",
        "“curly”",
        "x" * 30,
        "</a>",
        "a_b-c",
    ),
    *("e\u0301", "a\u0323\u0308", "\u1100\u1161\u11a8", "ﬁne", "①", "ｆｕｌｌ", "ﾊﾝｶｸ", "\u0130", "ß", "ǅ"),
)
_SPACES = (" ", " ", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u3000", "\u2028", "\u2029", "\x85", "")
_MARKS = ("\u200b", "\u200d", "\ufeff", "\u00ad", "\ufe0f", "\x00", "\x01", "\x1c", "\x1f", "\x7f", "\ufffd", "\u202e")
SPECIAL = ("[MASK]", "[CLS]", "<s>", "</s>", "<unk>", "<mask>", "<pad>", "<|endoftext|>", "<bos>", "<sep>", "[UNK]")


def random_texts(number: int, *, seed: int = 0, special: bool = True) -> list[str]:
    """Returns random texts.

    Args:
      number: number of texts.
      seed: of the random numbers.
      special: whether texts contain the names of special tokens.
    """
    draw = random.Random(seed)
    return [_text(draw, special) for _ in range(number)]


def _text(draw: random.Random, special: bool) -> str:
    parts = []
    for _ in range(draw.randint(0, 12)):
        kind = draw.random()
        if kind < 0.6:
            parts.append(draw.choice(_WORDS))
        elif kind < 0.7:
            parts.append("".join(chr(draw.randint(33, 126)) for _ in range(draw.randint(1, 6))))
        elif kind < 0.85:
            parts.append("".join(_character(draw) for _ in range(draw.randint(1, 3))))
        elif kind < 0.95:
            parts.append(draw.choice(_MARKS))
        elif special:
            parts.append(draw.choice(SPECIAL))
        parts.append(draw.choice(_SPACES))
    return "".join(parts)


def _character(draw: random.Random) -> str:
    """Returns a character of any plane that Unicode assigns, and that is not a surrogate."""
    while True:
        character = chr(
            draw.choice((draw.randint(0x80, 0x2FFF), draw.randint(0x3000, 0xFFFD), draw.randint(0x10000, 0x3134F)))
        )
        if unicodedata.category(character) not in ("Cs", "Cn"):
            return character
