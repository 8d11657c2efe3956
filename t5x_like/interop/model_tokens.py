"""What transformers knows about the tokens of a model: special ids, settings of `generate`, its SentencePiece file."""

from typing import Any

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.interop import generation, json_files
from t5x_like.interop.generation import CONFIG
from t5x_like.interop.registry import families, find_family
from t5x_like.models.base import ModelConfig
from t5x_like.vocabularies import tokenizer_files
from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.template import template_of


def special_tokens(config: ModelConfig) -> dict[str, Any]:
    """Returns the special token ids of a model by Hugging Face key, such as `bos_token_id`.

    Ids of config.json come before ids of generation_config.json. Keys that neither has get the default of the family.

    Args:
      config: configuration of the model.
    """
    family = find_family(config)
    found = {} if family is None else dict(family.default_tokens)
    if (tokens := config.special_tokens) is not None:
        found |= dict(tokens.generation or ()) | dict(tokens.config)
    return found


def generation_settings(path: str) -> tuple[str, dict[str, Any]]:
    """Reads the settings of `generate` in a Hugging Face directory; see `generation.read`.

    Without a generation_config.json, the forced ids that config.json lacks come from the family, as in transformers.
    """
    file, found = generation.read(path)
    if file.endswith(f"/{CONFIG}"):
        model_type = json_files.read(file).get("model_type")
        for family in families():
            if model_type in family.model_types:
                found = {key: value for key, value in family.default_tokens.items() if key in generation.KEYS} | found
    return file, found


def inputs_bos(path: str) -> int | None:
    """Returns the id that a tokenizer puts before a text if it puts nothing after it, as those of Gemma and T5Gemma.

    Args:
      path: A directory, whose tokenizer may be missing.
    """
    if (found := tokenizer_files.find(path)) is None or paths.is_file(found):
        return None
    try:
        template = template_of(from_folder(found))
    except UserError:  # texts need the tokenizer, and then say what is wrong
        return None
    return template.prefix[0] if len(template.prefix) == 1 and not template.suffix else None


def eos_id(config: ModelConfig) -> int | None:
    """Returns the first id of the tokens that end a generated text, or None if none is known.

    Args:
      config: Configuration of the model. Its generation_config.json takes precedence.
    """
    generation = {} if config.special_tokens is None else dict(config.special_tokens.generation or ())
    found = (special_tokens(config) | generation).get("eos_token_id")
    return found[0] if isinstance(found, tuple) else found


def sentencepiece_format(config: ModelConfig) -> tuple[str | None, str | None, bool]:
    """Returns how transformers stores SentencePiece models: `sentencepiece`, `tokenizer_class`, `lowers_text`."""
    family = find_family(config)
    if family is None:
        return None, None, False
    return family.sentencepiece, family.tokenizer_class, family.lowers_text
