"""Tokenizers that a tokenizer.json defines alone."""

from typing import TYPE_CHECKING

from t5x_like.vocabularies.tokenizers import byte_bpe, word_piece
from t5x_like.vocabularies.tokenizers.base import GENERIC, TOKENIZER, TokenizerClass

if TYPE_CHECKING:
    from t5x_like.vocabularies.base import Vocabulary
    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


def build(files: "TokenizerFiles") -> "Vocabulary":
    """Returns the vocabulary of the algorithm that tokenizer.json names."""
    from t5x_like.vocabularies import sentencepiece_json

    model_type = files.tokenizer.get("model", {}).get("type")
    if sentencepiece_json.is_sentencepiece(files):
        return _sentencepiece(files)
    if model_type == "WordPiece":
        return word_piece.build(files)
    if model_type == "BPE":
        return byte_bpe.build(files)
    raise files.unsupported(TOKENIZER, "model.type", model_type, "WordPiece, BPE, and Unigram without ByteLevel")


def _sentencepiece(files: "TokenizerFiles") -> "Vocabulary":
    """Returns the vocabulary of a `tokenizer.json`, or of the SentencePiece model next to it with equal pieces."""
    from t5x_like.vocabularies import sentencepiece_files, sentencepiece_json, tokenizer_classes
    from t5x_like.vocabularies.hugging_face_sentencepiece import sentencepiece_pieces

    names, known = sentencepiece_json.pieces(files), files.added_tokens(files.special_tokens({}))
    vocab = files.tokenizer["model"]["vocab"]
    listed = (piece for piece, _ in vocab) if isinstance(vocab, list) else vocab
    sentinels = {token for token in (*listed, *known) if sentencepiece_json.SENTINEL.fullmatch(token)}
    models = [name for name in tokenizer_classes.SENTENCEPIECE if files.has(name)]
    if models:
        pieces = sentencepiece_pieces(files.path(models[0]), None)
        if [pieces.IdToPiece(number) for number in range(pieces.GetPieceSize())] != names:
            raise files.error(models[0], None, f"other pieces than {TOKENIZER}. Remove one of the two files")
    return sentencepiece_files.vocabulary(files, len(sentinels), name=(models or ["spiece.model"])[0])


TOKENIZERS = (TokenizerClass(name=GENERIC, special_tokens={}, build=build),)
