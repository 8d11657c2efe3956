"""The tokenizer files of a Hugging Face model directory, and what they say about special and added tokens."""

import functools
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.vocabularies import tokenizer_classes, tokenizer_json
from t5x_like.vocabularies.tokenizer_classes import (
    ADDED_TOKENS,
    CONFIG,
    GENERIC,
    MODEL_CONFIG,
    SPECIAL_TOKENS_MAP,
    TOKENIZER,
    TokenizerClass,
)
from t5x_like.vocabularies.tokenizer_json import ROLES


def has_tokenizer(path: str) -> bool:
    """Returns whether a path is a directory whose files name the class of its tokenizer, as Hugging Face's do."""
    if not {CONFIG, TOKENIZER, MODEL_CONFIG} & set(paths.listdir(path)):
        return False
    files = TokenizerFiles(path)
    return bool(files.config or files.tokenizer or files.json(MODEL_CONFIG).get("model_type"))


class TokenizerFiles:
    """The tokenizer files of a directory, each read once.

    Args:
      directory: a Hugging Face model directory.

    Raises:
      UserError: the directory does not exist.
    """

    def __init__(self, directory: str | os.PathLike):
        self.directory = os.fspath(directory)
        if not paths.listdir(self.directory):
            raise UserError(
                f"{self.directory!r}: directory not found or empty. Give the directory of a Hugging Face model"
            )

    def has(self, name: str) -> bool:
        """Returns whether the directory has a file."""
        return paths.is_file(paths.join(self.directory, name))

    def path(self, name: str) -> str:
        """Returns the path of a file.

        Raises:
          UserError: the file does not exist.
        """
        if not self.has(name):
            raise self.error(name, None, "file not found. Download it with the model")
        return paths.join(self.directory, name)

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
        return tokenizer_json.error(paths.join(self.directory, name), key, reason)

    def unsupported(self, name: str, key: str, value: Any, supported: str) -> UserError:
        """Returns the error for a value that no vocabulary of this package can represent."""
        shown = json.dumps(value, ensure_ascii=False)
        shown = shown if len(shown) <= 120 else f"{shown[:120]}…"
        return self.error(name, key, f"{shown} is not supported, only {supported}. Use another model's tokenizer")

    @functools.cached_property
    def tokenizer_class(self) -> str:
        """The class in transformers, without the suffix "Fast".

        Raises:
          UserError: no file names it.
        """
        found = tokenizer_classes.find_class(self.config, self.json(MODEL_CONFIG), has_tokenizer=bool(self.tokenizer))
        if found is not None:
            return found
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
        found = tokenizer_classes.CLASSES.get(self.tokenizer_class)
        if found is None and not self.tokenizer:
            names = ", ".join(tokenizer_classes.CLASSES)
            raise self.unsupported(CONFIG, "tokenizer_class", self.tokenizer_class, f"with a {TOKENIZER}, or {names}")
        return found or tokenizer_classes.CLASSES[GENERIC]

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


def _flags(entry: Mapping[str, Any]) -> dict[str, bool]:
    names = ("special", "single_word", "lstrip", "rstrip", "normalized")
    return {"special": False} | {name: bool(entry[name]) for name in names if name in entry}
