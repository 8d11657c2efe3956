"""Digests of vocabularies, by which runs and models with the same token ids are recognized.

A digest is a hash of the tokens by id. It is the same for all files and classes that represent a vocabulary: vocab.txt,
tokenizer.json and a WordPiece vocabulary, or spiece.model and a SentencePiece vocabulary. Sentinels (`<extra_id_0>`) do
not count, because the files of T5 may omit them.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import sentencepiece

from t5x_like import paths
from t5x_like.data import tokenizer_files
from t5x_like.data.features import FeatureSpec

if TYPE_CHECKING:
    import seqio

_DIGEST_BYTES = 16
_SENTINEL = re.compile(r"<extra_id_\d+>|▁<extra_id_\d+>")


def of_path(path: str) -> str | None:
    """Returns the digest of a tokenizer in files.

    Args:
      path: a Hugging Face directory, or a SentencePiece model.

    Returns:
      The digest, or None if `path` does not have the files of a tokenizer.
    """
    found = tokenizer_files.find(path)
    if found is None:
        return None
    if paths.is_file(found):
        return _digest(_pieces(paths.read_bytes(found)))
    names = paths.listdir(found)
    if "tokenizer.json" in names:
        stored = json.loads(paths.read_text(paths.join(found, "tokenizer.json")))
        vocabulary = stored.get("model", {}).get("vocab")
        if vocabulary is None:
            return None
        # Unigram models have a list of (piece, score), the others a mapping from pieces to ids.
        tokens = vocabulary if isinstance(vocabulary, Mapping) else _numbered(piece for piece, _ in vocabulary)
        return _digest({**tokens, **{token["content"]: token["id"] for token in stored.get("added_tokens", ())}})
    if "vocab.txt" in names:
        return _digest(_numbered(paths.read_text(paths.join(found, "vocab.txt")).splitlines()))
    model = next((name for name in names if name.endswith(tokenizer_files.SENTENCEPIECE)), None)
    if model is not None:
        tokens = _pieces(paths.read_bytes(paths.join(found, model)))
    else:
        tokens = json.loads(paths.read_text(paths.join(found, "vocab.json")))
    if "added_tokens.json" in names:
        tokens |= json.loads(paths.read_text(paths.join(found, "added_tokens.json")))
    return _digest(tokens)


def of_vocabulary(vocabulary: "seqio.Vocabulary") -> str:
    """Returns the digest of a SeqIO vocabulary.

    Args:
      vocabulary: one with `sp_model` (SentencePiece) or `pieces` (text, or the bytes of each id). Another one is known
        by the text of its ids, and equals only vocabularies of its own kind.
    """
    if (model := getattr(vocabulary, "sp_model", None)) is not None:
        return _digest(_pieces(model))
    if (pieces := getattr(vocabulary, "pieces", None)) is not None:
        return _digest(_numbered(piece if isinstance(piece, str) else _letters(piece) for piece in pieces))
    return _digest(_numbered(repr(vocabulary.decode([number])) for number in range(vocabulary.vocab_size)))


def text_feature(spec: FeatureSpec) -> str | None:
    """Returns the first task feature that is a sequence of token ids, whose vocabulary is that of the text."""
    return next(filter(spec.is_token_ids, spec.task_features), None)


def of_task(path: str | None, vocabularies: "Mapping[str, seqio.Vocabulary]", spec: FeatureSpec) -> str | None:
    """Returns the digest of the vocabulary of the text of a task, or None if it has no text.

    Args:
      path: the files that the vocabulary was made from, if they are known.
      vocabularies: task feature -> vocabulary.
      spec: the features that the objective reads.
    """
    found = of_path(path) if path else None
    vocabulary = vocabularies.get(text_feature(spec))
    return found if found is not None or vocabulary is None else of_vocabulary(vocabulary)


def _pieces(model: bytes) -> dict[str, int]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return _numbered(processor.id_to_piece(number) for number in range(processor.get_piece_size()))


def _numbered(tokens: Iterable[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _letters(piece: bytes) -> str:
    """Returns the letters that represent bytes in the files of GPT-2: from U+0100 for bytes that are not printable."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return "".join(chr(byte if byte in printed else 256 + others.index(byte)) for byte in piece)


def _digest(tokens: Mapping[str, Any]) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for token, number in sorted(tokens.items(), key=lambda item: item[1]):
        if not _SENTINEL.fullmatch(token):
            digest.update(f"{number} {token!r}\n".encode())
    return digest.hexdigest()
