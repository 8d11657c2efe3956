"""Two small byte-level vocabularies of the letters a, b, c, t and space, which split the same texts differently."""

import functools

from t5x_like.vocabularies.token_bytes import TokenBytes
from t5x_like.vocabularies.tokenizer_vocabulary import TokenizerVocabulary

_LETTERS = ("a", "b", "c", "t", "Ġ", "Ã", "©")


def vocabulary(*merges: tuple[str, str], bos: bool = False) -> TokenizerVocabulary:
    """Returns a byte-level BPE: <eos> 0, perhaps <bos> 1, the letters, and the results of merges."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    special = {"eos": "<eos>"} | ({"bos": "<bos>"} if bos else {})
    pieces = [*special.values(), *_LETTERS, *map("".join, merges)]
    made = tokenizers.Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, list(merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(special.values()))
    return TokenizerVocabulary(made.to_str(), "made", special)


@functools.cache
def student() -> TokenBytes:
    """Returns 11 tokens, with `at`, ` c` and `é`; EOS is 0."""
    return TokenBytes(vocabulary(("a", "t"), ("Ġ", "c"), ("Ã", "©")))


@functools.cache
def teacher() -> TokenBytes:
    """Returns 13 tokens, with `ca`, `cat`, ` b` and `tt`; EOS is 0, BOS 1."""
    return TokenBytes(vocabulary(("c", "a"), ("ca", "t"), ("Ġ", "b"), ("t", "t"), bos=True))
