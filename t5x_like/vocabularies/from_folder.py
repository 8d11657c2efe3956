"""Vocabularies from the tokenizer files of a Hugging Face model directory.

A vocabulary encodes text as the tokenizer that `AutoTokenizer` of transformers returns does, with two differences. It
adds no special tokens, since SeqIO's preprocessors do. Special tokens in a text, such as `[MASK]`, are encoded as
characters, as by `AutoTokenizer` with `split_special_tokens=True`.
"""

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from t5x_like.vocabularies import converters, tokenizer_vocabulary
from t5x_like.vocabularies.base import Vocabulary
from t5x_like.vocabularies.sentinels import SENTINEL, count_sentinels
from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles
from t5x_like.vocabularies.tokenizer_vocabulary import TokenizerVocabulary
from t5x_like.vocabularies.tokenizers.base import ADDED_TOKENS, TOKENIZER

if TYPE_CHECKING:
    import tokenizers


def from_folder(path: str | os.PathLike) -> Vocabulary:
    """Returns the vocabulary of a Hugging Face model directory.

    Any tokenizer.json is read. Without one, the vocabulary of each class in `vocabularies.tokenizers` is converted.

    Args:
      path: the directory, with at least the vocabulary (`tokenizer.json`; `vocab.txt`; `vocab.json` and `merges.txt`;
        `spiece.model`, `tokenizer.model` or `spm.model`), and `tokenizer_config.json` or `config.json`.

    Returns:
      The vocabulary. Its attributes `bos_id`, `eos_id`, `pad_id`, `unk_id` and, where the tokenizer has such tokens,
      `cls_id`, `sep_id` and `mask_id` are the special ids of the tokenizer, or None.

    Raises:
      UserError: a file is missing or invalid. The message names file and key.
    """
    files = TokenizerFiles(path)
    return (files.known.build or build)(files)


def build(files: TokenizerFiles, roles: Mapping[str, str] | None = None) -> TokenizerVocabulary:
    """Returns the vocabulary of a directory by means of the library `tokenizers`.

    Args:
      files: The files of the directory.
      roles: Role -> special token, in place of those that the files name.

    Raises:
      UserError: see `from_folder`.
    """
    made, tokens = tokenizer(files), files.special_tokens()
    if files.tokenizer:  # which may lack tokens that the class names
        named = files.special_tokens({})
        tokens = {role: token for role, token in tokens.items() if role in named or made.token_to_id(token) is not None}
    tokens |= {role: token for role, token in (roles or {}).items() if made.token_to_id(token) is not None}
    if tokens.get("unk") == tokens.get("eos"):
        tokens.pop("unk", None)  # bytes encode any text, and ids outside the vocabulary are not the end of a text
    inputs = files.config.get("model_input_names")
    return TokenizerVocabulary(
        converters.split_inside(made),
        files.directory,
        tokens,
        sentinels=count_sentinels([token for token, _ in sorted(made.get_vocab().items(), key=lambda item: item[1])]),
        has_token_types=files.known.has_token_types and (inputs is None or "token_type_ids" in inputs),
    )


def tokenizer(files: TokenizerFiles) -> "tokenizers.Tokenizer":
    """Returns the tokenizer of a directory: its tokenizer.json, or its vocabulary converted, with all added tokens.

    Raises:
      UserError: see `from_folder`.
    """
    known = files.known
    if known.check is not None:
        known.check(files)
    if files.tokenizer or known.convert is None:
        contents, is_changed = _with_sentinels_as_text(files.tokenizer)
        path = files.path(TOKENIZER)
        made = tokenizer_vocabulary.load(json.dumps(contents) if is_changed else files.text(TOKENIZER), path)
    else:
        made = known.convert(files)
    tokens = files.special_tokens()
    _add_tokens(made, files, tokens)
    added = {token.content for token in made.get_added_tokens_decoder().values()}
    made.add_special_tokens([x for x in tokens.values() if x not in added and made.token_to_id(x) is not None])
    return made


def _with_sentinels_as_text(contents: Mapping) -> tuple[Mapping, bool]:
    """Returns a tokenizer.json whose sentinels are not special, so that they are found in texts."""
    added = contents.get("added_tokens") or []
    if not any(token.get("special") and SENTINEL.fullmatch(token["content"]) for token in added):
        return contents, False
    found = [{**token, "special": False} if SENTINEL.fullmatch(token["content"]) else token for token in added]
    return {**contents, "added_tokens": found}, True


def _add_tokens(made: "tokenizers.Tokenizer", files: TokenizerFiles, tokens: Mapping[str, str]) -> None:
    """Adds the tokens that other files than tokenizer.json list."""
    from tokenizers import AddedToken

    known = {token.content for token in made.get_added_tokens_decoder().values()}
    for name, key, token, index, flags in files.listed_tokens(tokens):
        # Names and ids alone do not tell whether a token takes the spaces around it.
        has_flags = name != ADDED_TOKENS and index is not None
        if name != TOKENIZER and (has_flags or token not in known):
            known.add(token)
            special = flags.pop("special") and not SENTINEL.fullmatch(token)
            made.add_tokens([AddedToken(token, special=special, **flags)])
        if index is not None and (found := made.token_to_id(token)) != index:
            raise files.error(name, key, f"the id of {token!r} is {index} here and {found} in the vocabulary")
