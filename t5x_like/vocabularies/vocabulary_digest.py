"""Digests of vocabularies, by which runs and models with the same token ids are recognized.

A digest is a hash of the tokens by id. It is the same for all files and classes that represent a vocabulary: vocab.txt,
tokenizer.json and a WordPiece vocabulary, or spiece.model and a SentencePiece vocabulary. Sentinels (`<extra_id_0>`) do
not count, because the files of T5 may omit them.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import sentencepiece

from t5x_like import paths
from t5x_like.vocabularies import tokenizer_files, tokenizer_json

if TYPE_CHECKING:
    import seqio

_DIGEST_BYTES = 16
# The model of DeBERTa v2 and v3. Earlier versions read it alone from a directory: their runs have a copy and a digest
# of this file, without the tokens that other files of the directory add.
DEBERTA_V2 = "spm.model"
_SENTINEL = re.compile(r"<extra_id_\d+>|▁<extra_id_\d+>")


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
    found = tokenizer_files.find(path)
    if found is None:
        return None
    if paths.is_file(found):
        return _digest(_lines(found) if found.endswith(tokenizer_files.WORDPIECE) else _pieces(paths.read_bytes(found)))
    names = paths.listdir(found)
    if "tokenizer.json" in names:
        stored = tokenizer_json.read(paths.join(found, "tokenizer.json"))
        if stored.get("model", {}).get("vocab") is None:
            return None
        added = {token["content"]: token["id"] for token in stored.get("added_tokens") or ()}
        return _digest({**dict(tokenizer_json.pieces(stored)), **added})
    if "vocab.txt" in names:
        return _digest(_lines(paths.join(found, "vocab.txt")))
    model = next((name for name in names if name.endswith(tokenizer_files.SENTENCEPIECE)), None)
    if model is not None:
        tokens = _pieces(paths.read_bytes(paths.join(found, model)))
    else:
        tokens = tokenizer_json.read(paths.join(found, "vocab.json"))
    if "added_tokens.json" in names:
        tokens |= tokenizer_json.read(paths.join(found, "added_tokens.json"))
    return _digest(tokens)


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
        return _digest(_pieces(model))
    if (pieces := getattr(vocabulary, "pieces", None)) is not None:
        return _digest(_numbered(pieces))
    return _digest(_numbered(repr(vocabulary.decode([number])) for number in range(vocabulary.vocab_size)))


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


def _pieces(model: bytes) -> dict[str, int]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return _numbered(processor.id_to_piece(number) for number in range(processor.get_piece_size()))


def _lines(path: str) -> dict[str, int]:
    # splitlines() would split at pieces that are line separators of Unicode.
    lines = paths.read_text(path).removesuffix("\n").split("\n")
    return _numbered(line.rstrip("\r") for line in lines)


def _numbered(tokens: Iterable[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _digest(tokens: Mapping[str, Any]) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for token, number in sorted(tokens.items(), key=lambda item: item[1]):
        if not _SENTINEL.fullmatch(token):
            digest.update(f"{number} {token!r}\n".encode())
    return digest.hexdigest()
