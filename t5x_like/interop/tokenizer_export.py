"""The tokenizer of an exported model: the files that `AutoTokenizer` of transformers loads."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal

from absl import logging
from sentencepiece import sentencepiece_model_pb2

from t5x_like import paths
from t5x_like.interop import sentencepiece_tokenizers
from t5x_like.vocabularies import converters, tokenizer_classes, tokenizer_files, tokenizer_folder

Shape = Literal["encoder", "encoder_decoder", "decoder"]

# The classes whose mask includes the space before it.
_MASK_WITH_SPACE = ("RobertaTokenizer", "LongformerTokenizer", "BartTokenizer", "DebertaTokenizer", "BigBirdTokenizer")
# The key of tokenizer_config.json without which no text is truncated.
_MAX_LENGTH = "model_max_length"
# The number of sentinels that a task adds to the pieces of a SentencePiece model.
_SENTINELS = 100


def special_tokens(
    path: str | None, shape: Shape, default: Mapping[str, Any], bos_id: int | None
) -> dict[str, Any] | None:
    """Returns the special token ids for config.json by key, or None if none is known.

    Args:
      path: the tokenizer; see `tokenizer_folder.special_ids`. None: the run has none.
      shape: which parts the model has.
      default: the ids that the family has in transformers, by key.
      bos_id: the first input of the decoder in training, if it is known.
    """
    ids = {} if path is None else tokenizer_folder.special_ids(path)
    start = {"decoder_start": bos_id} if shape == "encoder_decoder" and bos_id is not None else {}
    if not ids and not start:
        return None
    if not ids:
        return {**default, **{f"{role}_token_id": number for role, number in start.items()}}
    found = {role: ids.get(role) for role in ("bos", "eos", "pad")}
    if shape == "decoder":
        found["bos"] = bos_id if bos_id is not None else found["bos"]
    elif shape == "encoder_decoder":
        found |= start | {"forced_eos": found["eos"] if "forced_eos_token_id" in default else None}
    else:
        found = {"pad": found["pad"]} if found["pad"] else {}
    keys = {f"{role}_token_id": number for role, number in found.items()}
    known = {key: number for key, number in keys.items() if number is not None or default.get(key) is not None}
    return {**default, **known} if known else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reader:
    """What the tokenizer of a model depends on.

    Attributes:
      shape: which parts the model has. It determines the special tokens that a SentencePiece tokenizer adds to a text.
      vocab_size: number of token ids of the model, which may leave no room for all sentinels.
      bos_id: the first input of a decoder in training, if it is known.
      sentencepiece: the file in which transformers stores the SentencePiece model of the family, if it has one.
      tokenizer_class: see `tensor_mapping.Family.tokenizer_class`.
      lowers_text: whether the tokenizer of a SentencePiece model without capital letters replaces quotation marks,
        strips accents and lower-cases text first.
      has_token_types: whether the model reads the segment of each token.
      max_length: maximum number of tokens of a text; None: no limit.
      reads_tasks: whether a head reads the texts of a task, whose special tokens depend on the vocabulary alone.
    """

    shape: Shape
    vocab_size: int
    bos_id: int | None = None
    sentencepiece: str | None = None
    tokenizer_class: str | None = None
    lowers_text: bool = False
    has_token_types: bool = False
    max_length: int | None = None
    reads_tasks: bool = False


def files(path: str, model: Reader) -> dict[str, bytes]:
    """Returns the files of the tokenizer, empty if `path` has none.

    Those of a Hugging Face directory are copies, but for the maximum length of a text, and for the class of the
    tokenizer, which config.json of that directory may imply and config.json of the export need not.

    Args:
      path: a Hugging Face directory, a SentencePiece model, or a file like `vocab.txt`.
      model: the model that reads the ids.
    """
    found = _files(path, model)
    if not found or model.max_length is None:
        return found
    settings = json.loads(found.get(tokenizer_classes.CONFIG, b"{}"))
    if settings.get(_MAX_LENGTH) == model.max_length:
        return found
    return found | {tokenizer_classes.CONFIG: _json(settings | {_MAX_LENGTH: model.max_length})}


def _files(path: str, model: Reader) -> dict[str, bytes]:
    if tokenizer_files.find(path) is None:
        return {}
    found = tokenizer_files.read(path, tokenizer_files.TOKENIZER)
    name = tokenizer_folder.TokenizerFiles(path).class_name if paths.listdir(path) else None
    if name is not None:
        return found | _class_config(
            path, found, tokenizer_classes.GENERIC_CLASS if name == tokenizer_classes.GENERIC else name, model
        )
    if tokenizer_files.is_single_file(found):
        ((name, contents),) = found.items()
        if name == tokenizer_classes.WORDPIECE:
            return found | {tokenizer_classes.CONFIG: _json(_wordpiece_config(contents))}
        return _sentencepiece(path, contents, model.sentencepiece or name, model)
    return found


def _class_config(path: str, found: Mapping[str, bytes], name: str, model: Reader) -> dict[str, bytes]:
    """Returns tokenizer_config.json with the class of the tokenizer and `_defaults`, {} if it has them."""
    config = json.loads(found.get(tokenizer_classes.CONFIG, b"{}"))
    # The generic class returns token types, which the other models of transformers refuse.
    without_types = name == tokenizer_classes.GENERIC_CLASS and not model.has_token_types
    inputs = {"model_input_names": _inputs(model)} if without_types else {}
    stated = inputs | _defaults(path, found, name) | config | {"tokenizer_class": config.get("tokenizer_class") or name}
    return {} if config == stated else {tokenizer_classes.CONFIG: _json(stated)}


def _inputs(model: Reader) -> list[str]:
    """Returns what a model reads of the tokenizer's outputs."""
    return ["input_ids", *(["token_type_ids"] if model.has_token_types else []), "attention_mask"]


def _defaults(path: str, found: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """Returns what a tokenizer does here, and its class in transformers 4 or 5 only if the files say so."""
    if tokenizer_classes.TOKENIZER in found:
        return {}
    if name in ("LlamaTokenizer", "GemmaTokenizer"):
        return {"add_bos_token": True}
    stated: dict[str, Any] = {}
    if name in ("AlbertTokenizer", "XLNetTokenizer", "BigBirdTokenizer"):
        stated["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    number = tokenizer_folder.special_ids(path).get("mask")
    # Files of other names do not count beside added_tokens_decoder.
    others = {tokenizer_classes.SPECIAL_TOKENS_MAP, tokenizer_classes.ADDED_TOKENS} & set(found)
    if name not in _MASK_WITH_SPACE or number is None or others:
        return stated
    mask = {"content": tokenizer_folder.token(path, number), "lstrip": True, "special": True}
    mask |= dict.fromkeys(("normalized", "rstrip", "single_word"), False)
    return stated | {"added_tokens_decoder": {str(number): mask}}


def _wordpiece_config(contents: bytes) -> dict[str, Any]:
    """Returns tokenizer_config.json of a `vocab.txt`: a vocabulary of lower-cased text has no capital letters."""
    pieces = [piece for piece in contents.decode("utf-8").split("\n") if not piece.startswith("[")]
    return {"tokenizer_class": "BertTokenizer", "do_lower_case": all(piece == piece.lower() for piece in pieces)}


def _sentencepiece(path: str, contents: bytes, name: str, model: Reader) -> dict[str, bytes]:
    inputs = _inputs(model)
    own_ids = tokenizer_folder.sentencepiece_special_ids(contents, path)
    if model.tokenizer_class is not None and {"cls", "sep", "mask"} <= own_ids.keys():
        config = {"tokenizer_class": model.tokenizer_class, "do_lower_case": False, "model_input_names": inputs}
        return {name: contents, tokenizer_classes.CONFIG: _json(_defaults(path, {}, model.tokenizer_class) | config)}
    parsed = converters.parse_sentencepiece(contents, path)
    if not sentencepiece_tokenizers.is_supported(parsed):
        logging.warning("%s: fast tokenizers cannot represent this model, exported without tokenizer.json", name)
        return {name: contents}
    size = len(parsed.pieces)
    count = min(_SENTINELS, model.vocab_size - size)
    sentinels = {f"<extra_id_{count - 1 - number}>": size + number for number in range(count)}
    pieces = [*(piece.piece for piece in parsed.pieces), *sentinels]
    ids = _special_ids(own_ids, len(pieces), model)
    roles = {f"{role}_token": pieces[number] for role, number in ids.items()}
    config = {
        "tokenizer_class": tokenizer_classes.GENERIC_CLASS,
        "clean_up_tokenization_spaces": False,
        "model_input_names": inputs,
    }
    config |= roles
    if model.shape == "encoder_decoder":
        config["additional_special_tokens"] = sorted(sentinels, key=sentinels.get, reverse=True)
    roles_of = _template(own_ids, model)
    template: dict[str, Any] = {
        key: [(pieces[ids[role]], ids[role])] if role in ids else [] for key, role in roles_of.items()
    }
    has_tokens = any(template.values())
    template["second_type"] = int(roles_of["before"] == "cls")
    lowers_text = model.lowers_text and all(piece == piece.lower() for piece in _texts(parsed))
    made = sentencepiece_tokenizers.tokenizer(
        parsed, sentinels, template if has_tokens else None, lowers_text=lowers_text
    )
    tokenizer = made.to_str(pretty=True).encode()
    return {name: contents, tokenizer_classes.TOKENIZER: tokenizer, tokenizer_classes.CONFIG: _json(config)}


def _template(ids: Mapping[str, int], model: Reader) -> dict[str, str | None]:
    """Returns the roles of the tokens before, between and after texts, as in training.

    Args:
      ids: the ids that the SentencePiece model has, by role.
      model: the model that reads the texts.
    """
    bert = {"before": "cls", "between": "sep", "after": "sep"}
    llama = {"before": "bos", "between": "bos", "after": None}
    t5 = {"before": None, "between": "eos", "after": "eos"}
    if not model.reads_tasks:
        return {"encoder": bert, "encoder_decoder": t5, "decoder": llama}[model.shape]
    if {"cls", "sep"} <= ids.keys():
        return bert
    return llama if "bos" in ids and ids["bos"] != ids.get("eos") else t5


def _texts(parsed: sentencepiece_model_pb2.ModelProto) -> list[str]:
    """Returns the pieces of a model that are text."""
    return [piece.piece for piece in parsed.pieces if piece.type == type(piece).NORMAL]


def _special_ids(own_ids: Mapping[str, int], size: int, model: Reader) -> dict[str, int]:
    """Returns the id of each role in training.

    Args:
      own_ids: the ids that the SentencePiece model has, by role.
      size: number of pieces and sentinels.
      model: the model that reads the texts.
    """
    ids = dict(own_ids)
    if model.shape == "decoder" and model.bos_id is not None:
        ids["bos"] = model.bos_id
    if model.shape == "encoder" and "mask" not in ids:
        ids |= {"mask": size - 1, "cls": size - 2, "sep": size - 3}  # the last sentinels, as in training
    return ids


def _json(contents: Mapping[str, Any]) -> bytes:
    return (json.dumps(contents, indent=2, ensure_ascii=False) + "\n").encode()
