"""Tests of SentencePiece models: where they are found, and their sentinels."""

import shutil
import types

import pytest
import tensorflow as tf

from t5x_like.errors import UserError
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL, LateSentencePieceVocabulary, python_docs
from t5x_like.vocabularies.special_tokens import special_tokens


def test_sentencepiece_model_is_found_in_a_directory(tmp_path):
    shutil.copy(PYTHON_DOCS_MODEL, tmp_path / "spiece.model")
    (tmp_path / "config.json").write_text("{}")
    assert LateSentencePieceVocabulary(lambda: str(tmp_path)).encode("def") == python_docs().encode("def")


@pytest.mark.parametrize("text", ["near<extra_id_0>it", "(<extra_id_0>)", "東京<extra_id_0>", "\n<extra_id_0>"])
def test_sentinels_need_no_space_before_them(text):
    vocabulary = python_docs()
    expected = vocabulary.encode(text.replace("<", " <", 1))
    assert 1023 in expected
    assert vocabulary.encode(text) == vocabulary.encode_tf(tf.constant(text)).numpy().tolist() == expected


def test_successive_sentinels_are_ids_and_others_are_characters():
    vocabulary = python_docs()
    for text, sentinels in (("<extra_id_0><extra_id_1><extra_id_99>", [1023, 1022, 924]), ("a<extra_id_100>", [])):
        ids = vocabulary.encode(text)
        assert ids == vocabulary.encode_tf(tf.constant([text])).to_list()[0]
        assert [index for index in ids if index >= 924] == sentinels


def test_model_file_with_some_special_pieces_alone_raises():
    class Model:
        pieces = ("<unk>", "[CLS]", "[SEP]")

        def PieceToId(self, piece):
            return self.pieces.index(piece) if piece in self.pieces else 0

        def IdToPiece(self, index):
            return self.pieces[index]

    vocabulary = types.SimpleNamespace(tokenizer=Model(), extra_ids=100, sentencepiece_model_file="spm.model")
    with pytest.raises(UserError, match=r"spm.model has no piece \[MASK\]. Give the Hugging Face directory"):
        special_tokens(vocabulary)
