"""Words that are encoded by themselves have the ids that they have in a text."""

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from t5x_like.vocabularies import word_cache

PIECES = ["▁", "▁a", "▁b", "a", "b", "1", "2", "▁2", "river", "stone", "▁river", "▁stone", "qrst", "?"]


def unigram(*added, split=None, normalizer=None):
    made = Tokenizer(models.Unigram([(piece, -float(len(PIECES))) for piece in PIECES], len(PIECES) - 1))
    metaspace = pre_tokenizers.Metaspace()
    made.pre_tokenizer = pre_tokenizers.Sequence([split, metaspace]) if split else metaspace
    if normalizer is not None:
        made.normalizer = normalizer
    made.add_tokens([AddedToken(token, **flags) for token, flags in added])
    return made


@pytest.mark.parametrize(
    "tokenizer",
    [
        unigram(("river stone", {"normalized": False})),
        unigram(("qrst", {"normalized": True}), normalizer=normalizers.Lowercase()),
        unigram(("river", {"normalized": False, "lstrip": True})),
        unigram(split=pre_tokenizers.Split(Regex(r"\d\s\d"), "isolated")),
    ],
    ids=["token with a space", "normalized token", "token with the spaces around it", "split at spaces"],
)
def test_words_of_other_tokenizers_are_not_cached(tokenizer):
    assert word_cache.find_separator(tokenizer) is None


@pytest.mark.parametrize("token", ["(", "river"])
def test_texts_with_added_tokens_have_the_ids_of_the_library(token):
    tokenizer = unigram((token, {"normalized": False}))
    encode = word_cache.WordCache(tokenizer.encode_batch, word_cache.find_separator(tokenizer))
    texts = [
        f"a {token} b",
        f"a{token} b",
        f"a {token}b",
        f"{token} {token}",
        f"b  a\n{token}\tstone",
        "a b",
        " a ",
        "",
    ]
    expected = [tokenizer.encode(text).ids for text in texts]
    assert [encode([text])[0] for text in texts] == expected
    assert encode(texts) == expected
