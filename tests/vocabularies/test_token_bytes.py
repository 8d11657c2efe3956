"""The bytes of tokens, and the ends of the tokens of a text, of byte, byte-level and SentencePiece vocabularies."""

import numpy as np
import pytest
import tokenizer_directories
from byte_level import byte_letters as reference_letters

from t5x_like.errors import UserError
from t5x_like.vocabularies.alignment import align
from t5x_like.vocabularies.base import ByteVocabulary, SentencePieceVocabulary
from t5x_like.vocabularies.shipped import python_docs
from t5x_like.vocabularies.token_bytes import TokenBytes, byte_letters
from t5x_like.vocabularies.tokenizer_vocabulary import TokenizerVocabulary

TEXT = "Naïve  日本 cats\nsat. x😀"


def byte_level() -> TokenizerVocabulary:
    """Returns a byte-level BPE of the bytes, " c", "at" and "ï", with <eos> and the added token <tool>."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    letters = byte_letters()
    vocab = {letter: number for number, letter in enumerate(letters)} | {"Ġc": 256, "at": 257, "Ã¯": 258}
    made = tokenizers.Tokenizer(models.BPE(vocab, [("Ġ", "c"), ("a", "t"), ("Ã", "¯")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([tokenizers.AddedToken("<eos>", special=True)])
    made.add_tokens([tokenizers.AddedToken("<tool>", special=False)])
    return TokenizerVocabulary(made.to_str(), "made", {"eos": "<eos>"})


def covered(table: TokenBytes, text: str) -> list[bytes]:
    """Returns the bytes of the text that each token covers by its end."""
    bounds = [0, *table.encode(text).ends.tolist()]
    return [text.encode()[start:end] for start, end in zip(bounds, bounds[1:], strict=False)]


def test_letters_are_those_of_byte_level_bpe():
    assert byte_letters() == reference_letters()


@pytest.mark.parametrize("make", [ByteVocabulary, byte_level, python_docs])
def test_joined_tokens_are_the_text(make):
    table = TokenBytes(make())
    ids = [index for index in table.encode(TEXT).ids.tolist() if table.of[index] is not None]
    text, ends = table.join(ids)
    if make is not python_docs:  # whose unknown pieces have no bytes
        assert text == TEXT
        assert ends.tolist() == table.encode(TEXT).ends.tolist()
    assert ends[-1] == len(text.encode())


def test_tokens_of_byte_level_bpe_end_within_characters():
    table = TokenBytes(byte_level())
    assert covered(table, "ï日 cat") == ["ï".encode(), b"\xe6", b"\x97", b"\xa5", b" c", b"at"]
    assert table.of[259] is None, "EOS is no text"
    assert covered(table, "a<tool>") == [b"a", b"<tool>"]
    assert table.word_starts.nonzero()[0].tolist() == [9, 10, 11, 12, 13, 32, 256, 259]


def test_incomplete_characters_at_both_ends_are_left_out():
    table = TokenBytes(byte_level())
    ids = [0x97, 0xA5, *b"ab", 0xE6]
    text, ends = table.join(ids)
    assert (text, ends.tolist()) == ("ab", [-1, -1, 1, 2, -1])
    assert table.join([0x97])[0] == "" and table.join([])[0] == ""


def test_space_before_the_first_word_is_not_text():
    table = TokenBytes(python_docs())
    assert table.adds_space
    ids, ends = table.encode("the module")
    assert ends[-1] == len("the module") and table.join(ids.tolist())[0] == "the module"
    with_space = table.encode(" the module")
    assert with_space.ids.tolist() == ids.tolist() and with_space.ends.tolist() == (ends + 1).tolist()


def test_bytes_and_pieces_align():
    """The groups of bytes and of pieces are the pieces."""
    pieces, letters = TokenBytes(python_docs()), TokenBytes(ByteVocabulary())
    text = "def return the list"
    found = align(pieces.encode(text).ends, letters.encode(text).ends)
    assert found.number == len(np.unique(pieces.encode(text).ends[pieces.encode(text).ends > 0]))
    assert found.second.max() == found.number - 1


def test_normalized_text_has_the_ends_of_the_library(test_data):
    model = SentencePieceVocabulary(str(test_data / "vocab/t5_32k/cc_all.32000.sentencepiece.model"), extra_ids=100)
    table = TokenBytes(model)
    assert table.of[1] is None and table.of[32_099] is None
    # "ﬁ" is normalized to "fi", and two spaces to one.
    assert b"".join(covered(table, "a  ﬁne day")) == "a  ﬁne day".encode()
    assert covered(table, "a  ﬁne day")[-1] == b" day"


@pytest.mark.parity
def test_ends_of_gpt2_split_characters(test_data, tmp_path):
    pytest.importorskip("transformers", reason="writes the directories")
    from t5x_like.vocabularies.from_folder import from_folder

    tokenizer_directories.save_gpt2(test_data, tmp_path)
    table = TokenBytes(from_folder(str(tmp_path)))
    assert b"".join(covered(table, TEXT)) == TEXT.encode()
    assert covered(table, "日")[0] != "日".encode(), "split within a character"


def test_word_pieces_are_refused(test_data):
    from t5x_like.vocabularies import vocabulary_files

    vocabulary = vocabulary_files.word_pieces(str(test_data / "vocab/bert/bert_base_uncased_vocab.txt"), True)
    with pytest.raises(UserError, match="do not determine the bytes"):
        TokenBytes(vocabulary)
