"""What an exported tokenizer adds to the texts that a model continues or answers, as in its training.

A decoder reads BOS before each text, and has the chat template of its training. The inputs of an encoder-decoder with
the tokenizer of a decoder end in EOS, or begin with BOS instead.
"""

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from typing import Any

from absl import logging

from t5x_like.checkpoints import checkpoint_choice
from t5x_like.config.stored import StoredSettings
from t5x_like.data.prompts import PromptFormat
from t5x_like.interop import tokenizer_json_files
from t5x_like.objectives.base import Objective
from t5x_like.stored import run_vocabulary
from t5x_like.vocabularies import from_folder, tokenizer_classes, tokenizer_files, tokenizer_folder
from t5x_like.vocabularies.tokenizer_classes import CHAT_TEMPLATE, CONFIG, TOKENIZER
from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles

_KEPT_CONFIG = (
    *("model_max_length", "clean_up_tokenization_spaces", "pad_token", "model_input_names"),
    "chat_template",  # of the model that training started from
)
_INPUTS = ["input_ids", "attention_mask"]  # the default of the generic class has token types, which GPT-2 would add
_TEMPLATE = """\
{%- if messages | length > 2 or messages[0]['role'] != 'user' %}
{{- raise_exception('The model was trained on one prompt and its response: give one message of the user') }}
{%- endif %}
{{- bos }}
{%- if spaced and not messages[0]['content'].startswith(' ') %}{{ ' ' }}{%- endif %}
{{- messages[0]['content'] + separator }}
{%- if messages | length == 2 %}{{ messages[1]['content'] + eos }}{%- endif %}"""


def of_run(checkpoint_path: str, objective: Objective) -> PromptFormat | None:
    """Returns the prompts of a run; None if its objective has none, and for weights without training.

    Args:
      checkpoint_path: A run directory, or one of its checkpoints.
      objective: Its objective.
    """
    found, model_dir = objective.prompt_format, checkpoint_choice.run_of(checkpoint_path)
    if found is None or StoredSettings.read(model_dir).value("data") is None:
        return None
    if not found.has_pairs or found.separator or (ends := run_vocabulary.inputs_eos(model_dir, None)) is None:
        return found
    return dataclasses.replace(found, separator=None if ends else "")  # the task may end its inputs by itself


def with_prompts(files: Mapping[str, bytes], tokenizer: str | None, prompts: PromptFormat | None) -> dict[str, bytes]:
    """Returns the files of an exported tokenizer that encodes prompts as the run reads them.

    A tokenizer that does not add the BOS of the run gets a tokenizer.json that does, and one that adds another token
    gets one that does not. A batch of prompts is padded at the left, because each text continues at its end. Long
    prompts keep their end, as in `infer`.

    Args:
      files: The exported files.
      tokenizer: Where the tokenizer of the run is, for the texts of ids.
      prompts: The prompts of the run; None changes nothing.
    """
    if prompts is None or tokenizer is None or CONFIG not in files:
        return dict(files)
    config = json.loads(files[CONFIG])
    bos = None if prompts.bos_id is None else tokenizer_folder.token(tokenizer, prompts.bos_id)
    found = dict(files)
    changes = bos is not None or _adds_bos(files, config)
    contents = _tokenizer(files, config) if changes else None
    if changes and contents is None:
        differs = "adds a token before texts that the run does not read. Encode with add_special_tokens=False"
        if bos is not None:
            differs = f"does not add {bos!r}, with which the run reads texts. Put it before each text"
        logging.warning("the exported tokenizer %s", differs)
    if contents is not None:
        config = _generic(config, tokenizer) | ({} if bos is None else {"bos_token": bos})
        before = None if bos is None else (bos, prompts.bos_id)
        found[TOKENIZER] = _json(tokenizer_json_files.surround(contents, before=before))
    config |= {"padding_side": "left", "truncation_side": "left"}
    if prompts.has_pairs:
        config["chat_template"] = chat_template(prompts, bos, config.get("eos_token"), found.get(TOKENIZER))
        if CHAT_TEMPLATE in found:  # of the model that training started from
            found[CHAT_TEMPLATE] = config["chat_template"].encode()
    return found | {CONFIG: _json(config)}


def with_inputs(
    files: Mapping[str, bytes], tokenizer: str | None, ends: bool | None, bos_id: int | None = None
) -> dict[str, bytes]:
    """Returns the files of an exported tokenizer that encodes the inputs of an encoder-decoder as the run reads them.

    The tokenizer of a decoder, such as that of T5Gemma, adds BOS to them and no EOS, unlike text-to-text tasks. Others
    do not change, unless the inputs of the run begin with BOS.

    Args:
      files: The exported files.
      tokenizer: Where the tokenizer of the run is.
      ends: Whether the inputs of its task end in EOS; None if it is not known.
      bos_id: The token before its inputs, in place of EOS; None for no token.
    """
    config = json.loads(files.get(CONFIG, b"{}"))
    if tokenizer is None or (bos_id is None and (ends is None or not _adds_bos(files, config))):
        return dict(files)
    contents, place, number = _tokenizer(files, config), "before", bos_id
    if bos_id is None:
        place, number = "after", tokenizer_folder.special_ids(tokenizer).get("eos") if ends else None
    if contents is None or (ends and number is None):
        if bos_id is not None:
            logging.warning("the exported tokenizer does not begin inputs with BOS alone, as the run reads them")
        return dict(files)
    adds_before = tokenizer_json_files.adds_tokens_before(contents)
    adds_after = tokenizer_json_files.adds_tokens_after(contents)
    if adds_after if bos_id is None else adds_before and not adds_after:
        return dict(files)
    added = {} if number is None else {place: (tokenizer_folder.token(tokenizer, number), number)}
    shown = "no token to" if number is None else f"{'EOS' if bos_id is None else 'BOS'} alone {place}"
    logging.info("the exported tokenizer adds %s inputs, as in training: tokenizer.json is changed", shown)
    surrounded = tokenizer_json_files.surround(contents, **added)
    return {**files, TOKENIZER: _json(surrounded), CONFIG: _json(_generic(config, tokenizer))}


def _generic(config: Mapping[str, Any], tokenizer: str) -> dict[str, Any]:
    """Returns tokenizer_config.json of a tokenizer.json that no class changes, with the tokens of `tokenizer`."""
    ids = tokenizer_folder.special_ids(tokenizer)
    special = {f"{role}_token": tokenizer_folder.token(tokenizer, number) for role, number in ids.items()}
    kept = {key: config[key] for key in _KEPT_CONFIG if key in config}
    return {"tokenizer_class": tokenizer_classes.GENERIC_CLASS, "model_input_names": _INPUTS, **kept, **special}


def chat_template(prompts: PromptFormat, bos: str | None, eos: Any, tokenizer: bytes | None) -> str:
    """Returns the template with which `apply_chat_template` gives the ids of training.

    Args:
      prompts: The prompts of the run.
      bos: The text of BOS.
      eos: The token that ends texts, as in tokenizer_config.json.
      tokenizer: The exported tokenizer.json.
    """
    eos = eos.get("content") if isinstance(eos, dict) else eos or ""
    pre_tokenizer = (json.loads(tokenizer).get("pre_tokenizer") if tokenizer else None) or {}
    # Such a tokenizer adds a space before the first word of a text, and BOS is before it.
    spaced = bos is not None and pre_tokenizer.get("prepend_scheme") == "first"
    separator = eos if prompts.separator is None else prompts.separator
    values = {"bos": bos or "", "eos": eos, "separator": separator, "spaced": spaced}
    # Literals of Jinja are those of JSON.
    literals = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    return "".join(f"{{%- set {name} = {literal} %}}\n" for name, literal in literals.items()) + _TEMPLATE


def _adds_bos(files: Mapping[str, bytes], config: Mapping[str, Any]) -> bool:
    """Returns whether a tokenizer adds tokens before a text."""
    if TOKENIZER in files:
        return tokenizer_json_files.adds_tokens_before(json.loads(files[TOKENIZER]))
    name = str(config.get("tokenizer_class")).removesuffix("Fast")
    return name in ("LlamaTokenizer", "GemmaTokenizer") and config.get("add_bos_token", True)


def _tokenizer(files: Mapping[str, bytes], config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the tokenizer.json of exported files, made of the vocabulary if there is none; None if it cannot be."""
    if TOKENIZER in files:
        return json.loads(files[TOKENIZER])
    known = tokenizer_classes.CLASSES.get(str(config.get("tokenizer_class")).removesuffix("Fast"))
    if known is None or known.convert is None or not set(known.files) <= set(files):
        return None
    with tempfile.TemporaryDirectory() as directory:
        tokenizer_files.write(files, directory)
        return json.loads(from_folder.tokenizer(TokenizerFiles(directory)).to_str())


def _json(contents: Mapping[str, Any]) -> bytes:
    return (json.dumps(contents, indent=2, ensure_ascii=False) + "\n").encode()
