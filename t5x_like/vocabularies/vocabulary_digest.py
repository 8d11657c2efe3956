"""Digests of vocabularies, by which runs and models with the same token ids are recognized.

A digest is a hash of the tokens by id. It is the same for all files and classes that represent a vocabulary: vocab.txt,
tokenizer.json and a WordPiece vocabulary, or spiece.model and a SentencePiece vocabulary. Sentinels (`<extra_id_0>`) do
not count, because the files of T5 may omit them.
"""

import dataclasses
from typing import TYPE_CHECKING

from t5x_like import paths
from t5x_like.vocabularies import tokenizer_files, tokenizer_folder

if TYPE_CHECKING:
    import seqio

# The model of DeBERTa v2 and v3. Earlier versions read it alone from a directory: their runs have a copy and a digest
# of this file, without the tokens that other files of the directory add.
DEBERTA_V2 = "spm.model"


@dataclasses.dataclass(frozen=True)
class TextVocabulary:
    """The vocabulary of the text of a data source.

    Attributes:
      digest: its digest, or None if it is unknown.
      location: the directory or file that it is read from, or None if it is not read from tokenizer files.
    """

    digest: str | None = None
    location: str | None = None

    def may_have(self, digest: str | None) -> bool:
        """Returns whether the vocabulary has a digest, which a run or a cache has stored, or one of both is unknown."""
        if None in (digest, self.digest) or digest == self.digest:
            return True
        return self.location is not None and digest == of_path(paths.join(self.location, DEBERTA_V2))


def of_path(path: str) -> str | None:
    """Returns the digest of a tokenizer in files.

    Args:
      path: a Hugging Face directory, a SentencePiece model, or a file like `vocab.txt`.

    Returns:
      The digest, or None if `path` does not have the files of a tokenizer.
    """
    files = tokenizer_folder.open_files(path)
    return None if files is None else files.digest


def of_location(path: str | None) -> TextVocabulary:
    """Returns the vocabulary in files, with unknown fields for None."""
    return TextVocabulary(of_path(path) if path else None, path)


def of_vocabulary(vocabulary: "seqio.Vocabulary") -> str:
    """Returns the digest of a SeqIO vocabulary.

    Args:
      vocabulary: one with `sp_model` (SentencePiece) or `pieces` (the token of each id). Another one is known
        by the text of its ids, and equals only vocabularies of its own kind.
    """
    if (path := location(vocabulary)) is not None and (digest := of_path(path)) is not None:
        return digest
    if (model := getattr(vocabulary, "sp_model", None)) is not None:
        return tokenizer_folder.digest(tokenizer_folder.sentencepiece_ids(model, str(vocabulary)))
    if (pieces := getattr(vocabulary, "pieces", None)) is not None:
        return tokenizer_folder.digest(tokenizer_folder.numbered(pieces))
    texts = (repr(vocabulary.decode([number])) for number in range(vocabulary.vocab_size))
    return tokenizer_folder.digest(tokenizer_folder.numbered(texts))


def location(vocabulary: "seqio.Vocabulary") -> str | None:
    """Returns the directory or file from which a vocabulary is read, or None if tokenizer files do not define it.

    Args:
      vocabulary: one with `path`, `sentencepiece_model_file` or `vocab_file`.
    """
    path = getattr(vocabulary, "path", None)
    if path is None:
        file = getattr(vocabulary, "sentencepiece_model_file", None) or getattr(vocabulary, "vocab_file", None)
        folder, _, name = str(file or "").rpartition("/")
        path = folder if folder and name in tokenizer_files.TOKENIZER else file
    return None if path is None else tokenizer_files.find(str(path))
