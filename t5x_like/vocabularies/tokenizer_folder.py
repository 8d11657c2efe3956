"""A tokenizer in files, and what they say about its tokens: the id of each, special and added ones, and its digest."""

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sentencepiece

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.vocabularies import converters, tokenizer_classes, tokenizer_files, tokenizer_json
from t5x_like.vocabularies.tokenizer_classes import (
    ADDED_TOKENS,
    BPE_IDS,
    CLASSES,
    CONFIG,
    GENERIC,
    MODEL_CONFIG,
    SPECIAL_TOKENS_MAP,
    TOKENIZER,
    WORDPIECE,
    TokenizerClass,
)
from t5x_like.vocabularies.tokenizer_json import ROLES

_DIGEST_BYTES = 16
_SENTINEL = re.compile(r"<extra_id_\d+>|▁<extra_id_\d+>")
_BERT, _XLNET = (CLASSES[name].special_tokens for name in ("BertTokenizer", "XLNetTokenizer"))


def has_tokenizer(path: str) -> bool:
    """Returns whether a path is a directory whose files name the class of its tokenizer, as Hugging Face's do."""
    if not {CONFIG, TOKENIZER, MODEL_CONFIG} & set(paths.listdir(path)):
        return False
    files = TokenizerFiles(path)
    return bool(files.config or files.tokenizer or files.json(MODEL_CONFIG).get("model_type"))


class TokenizerFiles:
    """The files of a tokenizer, each read once.

    Args:
      path: a Hugging Face model directory, a SentencePiece model, or a file like `vocab.txt`.

    Raises:
      UserError: the path does not exist.
    """

    def __init__(self, path: str | os.PathLike):
        self.directory = os.fspath(path)
        self._paths = {name: paths.join(self.directory, name) for name in paths.listdir(self.directory)}
        self.is_single = not self._paths and tokenizer_files.find(self.directory) is not None
        if self.is_single:
            self._paths = {tokenizer_files.single_name(self.directory): self.directory}
        if not self._paths:
            raise UserError(
                f"{self.directory!r}: directory not found or empty. Give the directory of a Hugging Face model"
            )

    def has(self, name: str) -> bool:
        """Returns whether the tokenizer has a file."""
        return name in self._paths and paths.is_file(self._paths[name])

    def path(self, name: str) -> str:
        """Returns the path of a file.

        Raises:
          UserError: the file does not exist.
        """
        if not self.has(name):
            raise self.error(name, None, "file not found. Download it with the model")
        return self._paths[name]

    def text(self, name: str) -> str:
        """Returns the contents of a file."""
        return paths.read_text(self.path(name))

    def json(self, name: str) -> dict[str, Any]:
        """Returns the contents of a JSON file, or {} if it does not exist.

        Raises:
          UserError: the file is not a JSON object, or has values of other types than a tokenizer's.
        """
        return tokenizer_json.read(self.path(name)) if self.has(name) else {}

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The contents of tokenizer_config.json."""
        return self.json(CONFIG)

    @functools.cached_property
    def tokenizer(self) -> dict[str, Any]:
        """The contents of tokenizer.json."""
        return self.json(TOKENIZER)

    def error(self, name: str, key: str | None, reason: str) -> UserError:
        """Returns the error for a key of a file, or for the file."""
        return tokenizer_json.error(self._paths.get(name, paths.join(self.directory, name)), key, reason)

    def unsupported(self, name: str, key: str, value: Any, supported: str) -> UserError:
        """Returns the error for a value that no vocabulary of this package can represent."""
        shown = json.dumps(value, ensure_ascii=False)
        shown = shown if len(shown) <= 120 else f"{shown[:120]}…"
        return self.error(name, key, f"{shown} is not supported, only {supported}. Use another model's tokenizer")

    @functools.cached_property
    def class_name(self) -> str | None:
        """The class in transformers, without the suffix "Fast"; None if no file implies one."""
        found = tokenizer_classes.find_class(self.config, self.json(MODEL_CONFIG), has_tokenizer=self.has(TOKENIZER))
        # GPT-2's vocabulary was published alone.
        is_gpt2 = self.has(BPE_IDS) and not {CONFIG, TOKENIZER, MODEL_CONFIG} & self._paths.keys()
        return "GPT2Tokenizer" if found is None and is_gpt2 else found

    @property
    def tokenizer_class(self) -> str:
        """`class_name`.

        Raises:
          UserError: no file implies it.
        """
        if self.class_name is not None:
            return self.class_name
        raise self.error(
            CONFIG,
            "tokenizer_class",
            f"not found, and {MODEL_CONFIG} has no model_type that implies it. Set the name of the class, such as "
            '"BertTokenizer"',
        )

    @functools.cached_property
    def known(self) -> TokenizerClass:
        """What is known of the class; of a class that is not known, tokenizer.json alone defines the tokenizer.

        Raises:
          UserError: The class is not known, and there is no tokenizer.json.
        """
        found = CLASSES.get(self.tokenizer_class)
        if found is None and not self.tokenizer:
            names = ", ".join(CLASSES)
            raise self.unsupported(CONFIG, "tokenizer_class", self.tokenizer_class, f"with a {TOKENIZER}, or {names}")
        return found or CLASSES[GENERIC]

    def setting(self, key: str, in_tokenizer: Any, default: Any) -> Any:
        """Returns a setting that tokenizer_config.json and tokenizer.json may both have.

        Args:
          key: the key in tokenizer_config.json.
          in_tokenizer: the value that tokenizer.json implies, None if it implies none.
          default: the value that the tokenizer class uses, whatever tokenizer.json has, if tokenizer_config.json has
            none. None if it then uses the value of tokenizer.json, as the generic class always does.

        Raises:
          UserError: the files contradict each other.
        """
        value = self.config.get(key)
        named = json.dumps(value)
        if value is None and self.tokenizer_class != GENERIC:
            value, named = default, f"not found, which means {json.dumps(default)}"
        if None not in (value, in_tokenizer) and value != in_tokenizer:
            raise self.error(
                CONFIG, key, f"{named}, but {TOKENIZER} has {json.dumps(in_tokenizer)}. Set the key to the right one"
            )
        return next((known for known in (value, in_tokenizer) if known is not None), default)

    def special_tokens(self, defaults: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns the special token of each role.

        As in transformers, special_tokens_map.json counts only if tokenizer_config.json has no `added_tokens_decoder`.

        Args:
          defaults: the tokens that the tokenizer has if the files name none; None for those of its class.
        """
        if defaults is None:
            defaults = self.known.special_tokens
        files = [self.config]
        if "added_tokens_decoder" not in self.config:
            files.append(self.json(SPECIAL_TOKENS_MAP))
        tokens: dict[str, str | None] = dict(defaults)
        for file in files:
            for role in ROLES:
                if f"{role}_token" in file:
                    token = file[f"{role}_token"]
                    tokens[role] = token["content"] if isinstance(token, dict) else token
        return {role: token for role, token in tokens.items() if token is not None}

    def listed_tokens(self, known: Mapping[str, str]) -> Iterator[tuple[str, str, str, int | None, dict[str, bool]]]:
        """Yields the tokens that the files add to the vocabulary, or mark as special in it.

        Each is the name of its file, the key, the token, its id, which lists of special tokens lack, and the flags of
        `tokenizers.AddedToken`.

        Args:
          known: role -> special token.
        """
        for number, entry in enumerate(self.tokenizer.get("added_tokens") or []):
            yield TOKENIZER, f"added_tokens[{number}]", entry["content"], entry["id"], _flags(entry)
        decoder = self.config.get("added_tokens_decoder", {})
        for index in sorted(decoder, key=int):
            yield CONFIG, f"added_tokens_decoder.{index}", decoder[index]["content"], int(index), _flags(decoder[index])
        listed = [
            (name, key, token)
            for name, file in ((CONFIG, self.config), (SPECIAL_TOKENS_MAP, self.json(SPECIAL_TOKENS_MAP)))
            for key in ("additional_special_tokens", "extra_special_tokens")
            if isinstance(file.get(key), list)
            for token in file[key]
        ]
        names = {token["content"] if isinstance(token, dict) else token for *_, token in listed}
        for token, index in sorted(self.json(ADDED_TOKENS).items(), key=lambda item: item[1]):
            yield ADDED_TOKENS, token, token, index, {"special": token in names or token in known.values()}
        for name, key, token in listed:
            content = token["content"] if isinstance(token, dict) else token
            yield name, key, content, None, _flags(token if isinstance(token, dict) else {}) | {"special": True}

    # ---- ids ---------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def ids(self) -> dict[str, int]:
        """The id of each token; empty if the files have no vocabulary."""
        if self.has(TOKENIZER):
            pieces = dict(tokenizer_json.pieces(self.tokenizer))
            return pieces | {token["content"]: token["id"] for token in self.tokenizer.get("added_tokens") or ()}
        if self.has(WORDPIECE):
            # splitlines() would split at pieces that are line separators of Unicode.
            lines = self.text(WORDPIECE).removesuffix("\n").split("\n")
            return numbered(line.rstrip("\r") for line in lines)
        model = next((name for name in self._paths if name.endswith(tokenizer_files.SENTENCEPIECE)), None)
        tokens = self.json(BPE_IDS) if model is None else sentencepiece_ids(self._contents(model), self.path(model))
        return tokens | self.json(ADDED_TOKENS)

    @functools.cached_property
    def digest(self) -> str | None:
        """A hash of the tokens by id; None if the files have no vocabulary."""
        return digest(self.ids) if self.ids else None

    @functools.cached_property
    def special_ids(self) -> dict[str, int]:
        """Role -> the id of the special token, of the roles that the tokenizer has."""
        if self.is_single and not self.has(WORDPIECE):
            (contents,) = map(self._contents, self._paths)
            return sentencepiece_special_ids(contents, self.directory)
        tokens = dict(_BERT) if self.is_single else self.special_tokens(self._class_tokens)
        ids = self._listed_ids
        return {role: ids[token] for role, token in tokens.items() if token in ids}

    def token(self, number: int) -> str | None:
        """Returns the token of an id, as it is in the files; None if they do not list it."""
        return next((token for token, index in self._listed_ids.items() if index == number), None)

    @property
    def _class_tokens(self) -> Mapping[str, str]:
        known = CLASSES.get(self.class_name)
        return {} if known is None else known.special_tokens

    @functools.cached_property
    def _listed_ids(self) -> dict[str, int]:
        listed = self.listed_tokens(self._class_tokens)
        return self.ids | {token: index for _, _, token, index, _ in listed if index is not None}

    def _contents(self, name: str) -> bytes:
        return paths.read_bytes(self.path(name))


def open_files(path: str) -> TokenizerFiles | None:
    """Returns the tokenizer of a path; see `tokenizer_files.find`. None if it has none."""
    found = tokenizer_files.find(path)
    return None if found is None else TokenizerFiles(found)


def special_ids(path: str | None) -> dict[str, int]:
    """Returns role -> the id of the special token; empty if there is no tokenizer.

    Args:
      path: see `TokenizerFiles`.

    Raises:
      UserError: a file is not a valid JSON object.
    """
    files = None if path is None else open_files(path)
    return {} if files is None else files.special_ids


def token(path: str, number: int) -> str | None:
    """Returns the token of an id; None if there is no tokenizer, or if it does not list the id."""
    files = open_files(path)
    return None if files is None else files.token(number)


def digest(tokens: Mapping[str, int]) -> str:
    """Returns the digest of tokens with their ids, without sentinels."""
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for token, number in sorted(tokens.items(), key=lambda item: item[1]):
        if not _SENTINEL.fullmatch(token):
            found.update(f"{number} {token!r}\n".encode())
    return found.hexdigest()


def numbered(tokens: Iterable[str]) -> dict[str, int]:
    """Returns tokens with their positions."""
    return {token: number for number, token in enumerate(tokens)}


def sentencepiece_ids(contents: bytes, path: str) -> dict[str, int]:
    """Returns the pieces of a SentencePiece model with their ids; see `converters.parse_sentencepiece`."""
    return numbered(piece.piece for piece in converters.parse_sentencepiece(contents, path).pieces)


def sentencepiece_special_ids(contents: bytes, path: str) -> dict[str, int]:
    """Returns role -> the id of the special token of a SentencePiece model; see `converters.parse_sentencepiece`."""
    converters.parse_sentencepiece(contents, path)
    model = sentencepiece.SentencePieceProcessor(model_proto=contents)
    ids = {role: getattr(model, f"{role}_id")() for role in ("bos", "eos", "unk", "pad")}
    for tokens, roles in ((_BERT, ("cls", "sep", "mask")), (_XLNET, ("cls", "sep", "mask", "pad"))):
        pieces = {tokens[role]: model.piece_to_id(tokens[role]) for role in roles}
        if all(model.id_to_piece(number) == token for token, number in pieces.items()):
            ids |= {role: pieces[tokens[role]] for role in roles}
    return {role: number for role, number in ids.items() if number >= 0}


def _flags(entry: Mapping[str, Any]) -> dict[str, bool]:
    names = ("special", "single_word", "lstrip", "rstrip", "normalized")
    return {"special": False} | {name: bool(entry[name]) for name in names if name in entry}
