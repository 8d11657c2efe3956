"""Tokenizers of converted runs and models."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from absl import logging

from t5x_like import paths
from t5x_like.checkpoints import checkpoint_choice, weight_files
from t5x_like.config import description
from t5x_like.errors import UserError
from t5x_like.interop import generation, model_tokens, tensorflow_checkpoints, tokenizer_export
from t5x_like.models import special_tokens
from t5x_like.models.base import ModelConfig
from t5x_like.runtime import run_files
from t5x_like.stored import run_tokenizer
from t5x_like.vocabularies import tokenizer_classes, tokenizer_files, tokenizer_folder, vocabulary_digest
from t5x_like.vocabularies.chat_template import ChatTemplate
from t5x_like.vocabularies.vocabulary_digest import TextVocabulary

_START, _NEW_TOKENS, _PADDING = "decoder_start_token_id", "max_new_tokens", "pad_token_id"


def read_source(source: str, model: ModelConfig) -> dict[str, bytes]:
    """Returns the files of the tokenizer of weights of another library by name, and those that describe its model."""
    if weight_files.is_huggingface(source):
        has_tokenizer = tokenizer_files.find(source) is not None
        return tokenizer_files.read(
            source, tokenizer_files.MODEL | (tokenizer_files.TOKENIZER if has_tokenizer else frozenset())
        )
    if run_files.find_run(source) is not None:
        directory = directory_of_run(source)
        return {name: paths.read_bytes(paths.join(directory, name)) for name in paths.listdir(directory)}
    if weight_files.is_published(source) or weight_files.find_t5x(source) is not None:
        return {}
    if (prefix := weight_files.find_tensorflow(source)) is not None:
        return tensorflow_checkpoints.tokenizer(prefix, model)
    return {}


def find_for_export(checkpoint_path: str, vocabulary_path: str | None) -> str | None:
    """Returns where the tokenizer of a run is, or None, with a warning, if the run has none.

    Raises:
      UserError: `vocabulary_path` is another vocabulary than that of the run.
    """
    path = vocabulary_path or directory_of_run(checkpoint_path)
    if tokenizer_files.find(path) is None:
        logging.warning(
            "%s: no tokenizer files of the run found, exported without a tokenizer. Give --gin.VOCABULARY_PATH=… to "
            "export one",
            path,
        )
        return None
    if vocabulary_path is None and paths.is_local(path):
        for file in (path, *(paths.join(path, name) for name in paths.listdir(path))):
            if paths.leaves(file, checkpoint_choice.run_of(checkpoint_path)):
                raise UserError(
                    f"{file}: a link that leaves the run directory, so its target is not exported. Replace it by a "
                    "copy, or give --gin.VOCABULARY_PATH=…"
                )
    given = TextVocabulary(vocabulary_digest.of_path(path), path)
    run_tokenizer.check_checkpoint(checkpoint_path, given, "omit VOCABULARY_PATH")
    return path


def with_special_tokens(
    model: ModelConfig, tokenizer: str | None, bos_id: int | None, *, continues: bool = False
) -> ModelConfig:
    """Returns a model with the special token ids of the run.

    Imported ids are kept, but for the first input of the decoder, which may have changed.

    Args:
      model: Configuration of the model.
      tokenizer: Its tokenizer, if it has one.
      bos_id: The first input of the decoder in training.
      continues: Whether a decoder continues texts, so that `bos_id` is known: None stands for no BOS.
    """
    default, shape = model_tokens.special_tokens(model), description.architecture_kind(model)
    if model.special_tokens is None:
        ids = tokenizer_export.special_tokens(tokenizer, shape, default, bos_id)
        found = None if ids is None else special_tokens.SpecialTokens(ids)
        model = dataclasses.replace(model, special_tokens=found)
    key = "bos_token_id" if continues else _START if shape == "encoder_decoder" and bos_id is not None else None
    known = model_tokens.special_tokens(model)
    if key is None or known.get(key) == bos_id:
        return model
    stored = model.special_tokens or special_tokens.SpecialTokens()
    files = (None if ids is None else {**dict(ids), key: bos_id} for ids in (stored.config, stored.generation))
    return dataclasses.replace(model, special_tokens=special_tokens.SpecialTokens(*files))


def max_length(model: ModelConfig, lengths: Any, bos_id: int | None = None, *, continues: bool = False) -> int | None:
    """Returns the maximum number of tokens of a text: as many as in training, and no more than positions.

    Args:
      model: Configuration of the model.
      lengths: Maximum length of each task feature in training; None if it is not known.
      bos_id: See `with_special_tokens`. BOS comes before the inputs.
      continues: See `with_special_tokens`.
    """
    known = lengths if isinstance(lengths, Mapping) else {}
    of_text = known.get("inputs", known.get("targets") if continues else None)
    if of_text is not None and continues and "inputs" in known:
        of_text += bos_id is not None
    return min((n for n in (of_text, getattr(model, "max_length", None)) if n is not None), default=None)


def padding_id(tokenizer: str | None, model: ModelConfig, last_id: int | None = None) -> int | None:
    """Returns the id that pads rows in transformers: the tokenizer's padding, or else the end of a text.

    Args:
      tokenizer: The tokenizer of the run, if it has one.
      model: Configuration of the model.
      last_id: The last token of each text, if it is known. It is not padding, because a head on the last token would
        skip it: transformers finds the last token that is not padding. BOS or the unknown token then is.
    """
    ids = tokenizer_folder.special_ids(tokenizer) if tokenizer is not None else {}
    candidates = [ids.get("pad"), ids.get("eos"), model_tokens.eos_id(model)]
    if last_id is not None:
        candidates += [ids.get("bos"), ids.get("unk")]
    possible = (index for index in candidates if index is not None and index != last_id)
    return next((index for index in possible if 0 <= index < model.vocab_size), None)


def last_id(tokenizer: str | None, model: ModelConfig) -> int | None:
    """Returns the last token of a conversation that the chat template of a tokenizer renders.

    Args:
      tokenizer: The tokenizer of the run, if it has one.
      model: Configuration of the model, whose EOS is returned if the template cannot be rendered.
    """
    if tokenizer is None:
        return None
    try:
        template = ChatTemplate(tokenizer)
        return template.encode(template.render([{"role": role, "content": "."} for role in ("user", "assistant")]))[-1]
    except UserError:
        return model_tokens.eos_id(model)


def without_padding(model: ModelConfig, number: int | None) -> ModelConfig:
    """Returns a model without a padding id among its special tokens, if it is this one."""
    tokens = model.special_tokens
    if tokens is None or number is None or dict(tokens.config).get(_PADDING) != number:
        return model
    kept = {key: value for key, value in tokens.config if key != _PADDING}
    return dataclasses.replace(model, special_tokens=dataclasses.replace(tokens, config=kept))


def generation_settings(checkpoint_path: str, lengths: Any) -> dict[str, Any]:
    """Returns the settings of generation of a run: those of the directory that it started from, and its own length.

    Args:
      checkpoint_path: The run.
      lengths: Maximum length of each task feature, if the run generates `targets` from `inputs`; otherwise None.
    """
    _, found = generation.read(directory_of_run(checkpoint_path))
    found = {key: value for key, value in found.items() if not key.endswith(special_tokens.SUFFIX)}
    if not isinstance(lengths, Mapping) or not {"inputs", "targets"} <= lengths.keys():
        return found
    return {key: value for key, value in found.items() if key != "max_length"} | {_NEW_TOKENS: lengths["targets"]}


def exported_files(
    tokenizer: str | None,
    model: ModelConfig,
    bos_id: int | None,
    length: int | None,
    *,
    reads_tasks: bool = False,
    last_id: int | None = None,
) -> dict[str, bytes]:
    """Returns the files of the tokenizer of an exported run.

    A tokenizer without a padding token pads with the end of a text, as the models that read batches expect.

    Args:
      tokenizer: The tokenizer of the run, if it has one.
      model: Configuration of the model.
      bos_id: See `with_special_tokens`.
      length: The number of tokens to which it truncates a text.
      reads_tasks: See `tokenizer_export.Reader`.
      last_id: See `padding_id`.
    """
    if tokenizer is None:
        return {}
    sentencepiece, tokenizer_class, lowers_text = model_tokens.sentencepiece_format(model)
    reader = tokenizer_export.Reader(
        shape=description.architecture_kind(model),
        vocab_size=model.vocab_size,
        bos_id=bos_id,
        max_length=length,
        reads_tasks=reads_tasks,
        sentencepiece=sentencepiece,
        tokenizer_class=tokenizer_class,
        lowers_text=lowers_text,
        has_token_types="token_types" in model.reads,
    )
    files = tokenizer_export.files(tokenizer, reader)
    known, number = tokenizer_folder.special_ids(tokenizer).get("pad"), padding_id(tokenizer, model, last_id)
    if tokenizer_classes.CONFIG not in files or number is None or known not in (None, last_id):
        return files
    config = json.loads(files[tokenizer_classes.CONFIG]) | {"pad_token": tokenizer_folder.token(tokenizer, number)}
    return files | {tokenizer_classes.CONFIG: (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()}


def directory_of_run(checkpoint_path: str) -> str:
    """Returns the path of the copy of the tokenizer of a run, which may not exist."""
    return paths.join(checkpoint_choice.run_of(checkpoint_path), run_files.TOKENIZER)
